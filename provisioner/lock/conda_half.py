"""The conda half beside the pip half of one cell: made first, and bounding the other.

Every distribution that conda owns is an exact version for pip's resolver and never in its lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.conda import explicit, virtual
from provisioner.conda.lock import CondaLockOptions, file_names, lock_conda, why_stale
from provisioner.errors import FindingError
from provisioner.lock.writer import folder_of
from provisioner.matrix.cell import Cell
from provisioner.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from provisioner.matrix.model import Matrix, Origins

_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class CondaHalf:
    """Path below the output root -> content, what it owns, and whether it was kept as it was."""

    files: dict[str, bytes]
    provided: dict[str, str]
    kept: bool


def conda_half(
    root: Path, cell: Mapping[str, Any], matrix: Matrix, origins: Origins, *, refresh: bool = False
) -> CondaHalf:
    """Returns the conda half of a rendered cell, solved again only when its inputs changed.

    Raises what `lock_conda` raises, and FindingError where the cell is not rendered.
    """
    typed, options = _asked(root, cell, matrix)
    kept = not refresh and not why_stale(typed, options)
    if not kept:
        options = CondaLockOptions(environment=options.environment, system=options.system)
    files = lock_conda(typed, origins, options)
    record = files[f"{folder_of(typed.name)}/{explicit.RECORD}"]
    lock = explicit.parse_conda_lock(record, virtual.SUBDIRS[typed.arch])
    pairs = (line.split("==", 1) for line in explicit.pip_constraints_from_conda(lock))
    return CondaHalf(files=files, provided=dict(pairs), kept=kept)


def conda_stale(root: Path, cell: Mapping[str, Any], matrix: Matrix) -> list[str]:
    """Returns why the conda half on disk does not answer its cell; asks nobody."""
    return why_stale(*_asked(root, cell, matrix))


def _asked(root: Path, cell: Mapping[str, Any], matrix: Matrix) -> tuple[Cell, CondaLockOptions]:
    typed = msgspec.convert(dict(cell), Cell)
    folder = root / folder_of(typed.name)
    try:
        environment = read_regular(folder / "environment.yml", _LIMIT)
    except OSError as error:
        raise FindingError(
            "lock.not-rendered",
            f"{typed.name} is not rendered: {folder_of(typed.name)}/environment.yml cannot be read "
            f"({error.strerror or error}).",
            next_step="Render the cell first (`provision render` with its options).",
        ) from None
    system = next(s for s in matrix.operating_systems if s.id == typed.os)
    previous = {
        name: read_regular(folder / name, _LIMIT)
        for name in file_names(typed)
        if (folder / name).is_file()
    }
    return typed, CondaLockOptions(environment=environment, system=system, previous=previous)
