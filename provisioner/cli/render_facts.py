"""The matrix of the settings as the renderers take it, today and for cells that were recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.cli.settings import Source, with_mirrors
from provisioner.render.context import PROJECT, Facts, OwnMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from provisioner.cli.settings import Settings
    from provisioner.render.spec import Recorded


def facts_of(settings: Settings) -> Facts:
    """The matrix of the settings with everything that these files are made from."""
    opened = settings.open()
    file = settings.chosen.get("file")
    return Facts(
        matrix=opened.matrix,
        sha256=opened.sha256,
        mirrors=settings.mirrors,
        own=_own(settings, opened.digests),
        project=_name(file.value) if file else PROJECT,
    )


def facts_again(settings: Settings) -> Callable[[Recorded], Facts]:
    """A function from a recorded cell to the matrix of the settings with the cell's own mirrors.

    Only --mirror replaces one of them: a variable of the environment must not make a check of the
    same files fail on one machine and pass on another.
    """
    from provisioner.matrix.load import load_matrix

    loaded = load_matrix(settings.matrix, settings.overlays)
    own = _own(settings, loaded.digests)
    given = {
        name: url
        for name, url in settings.mirrors.items()
        if settings.chosen[f"mirror.{name}"].source == Source.COMMAND_LINE
    }

    def facts(spec: Recorded) -> Facts:
        mirrors = {**spec.mirrors, **given}
        return Facts(
            matrix=with_mirrors(loaded.matrix, mirrors),
            sha256=loaded.sha256,
            mirrors=mirrors,
            own=own,
            project=spec.project,
        )

    return facts


def _own(settings: Settings, digests: Sequence[str]) -> tuple[OwnMatrix, ...]:
    """The user's own matrix and overlays. `digests` begin with that of the matrix."""
    files = [
        OwnMatrix(option="--overlay", name=_name(path), sha256=digest)
        for path, digest in zip(settings.overlays, digests[1:], strict=True)
    ]
    if settings.matrix is not None:
        name = _name(settings.matrix)
        files.insert(0, OwnMatrix(option="--matrix", name=name, sha256=digests[0]))
    return tuple(files)


def _name(path: Path | str) -> str:
    """The name without folders, which differ by machine; bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(Path(path).name).decode("utf-8", "replace")
