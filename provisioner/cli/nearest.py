"""The nearest cells of a refusal as whole commands: what stays as it was asked comes along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.cli.settings import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.cli.settings import Settings
    from provisioner.matrix.cell import Nearest, Refusal

_FILES = ("file", "matrix", "overlay")
_AXES = (
    "torch",
    "cuda",
    "python",
    "os",
    "arch",
    "driver",
    "flavour",
    "python_from",
    "index",
    "ptxas",
)


def as_asked(refusal: Refusal, settings: Settings) -> Refusal:
    """The refusal with the files of the request in the options of each nearest cell.

    An axis that a nearest cell gives up is left out on the command line; where a file or a
    variable sets it, only the user can take it out, and is told.
    """
    files = tuple(_files(settings))
    nearest = tuple(_completed(near, files, settings) for near in refusal.nearest)
    return msgspec.structs.replace(refusal, nearest=nearest)


def _files(settings: Settings) -> Iterator[str]:
    for name in _FILES:
        found = settings.chosen.get(name)
        if found is not None and found.source is Source.COMMAND_LINE:
            values = found.value if isinstance(found.value, (list, tuple)) else (found.value,)
            for value in values:
                yield from (f"--{name}", str(value))


def _completed(near: Nearest, files: tuple[str, ...], settings: Settings) -> Nearest:
    stays = [
        found.where
        for name in (*_AXES, "gpu", "without")
        if (found := settings.chosen.get(name)) is not None
        and found.source in {Source.FILE, Source.ENVIRONMENT}
        and "--" + name.replace("_", "-") not in near.options
    ]
    differs = near.differs
    if stays:
        differs += f"; take out what {' and '.join(stays)} says"
    return msgspec.structs.replace(near, options=(*files, *near.options), differs=differs)
