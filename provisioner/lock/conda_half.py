"""The conda half beside the pip half of one cell: made first, and bounding the other.

Every distribution that conda owns is an exact version for pip's resolver and never in its lock.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.cells import not_rendered
from provisioner.conda import explicit, virtual
from provisioner.conda.inputs import Inputs
from provisioner.conda.lock import (
    CondaLockOptions,
    extends,
    file_names,
    lock_conda,
    upgrade_unknown,
    why_stale,
)
from provisioner.errors import FindingError
from provisioner.lock.changes import conda_changes
from provisioner.lock.inputs import normal_name
from provisioner.lock.licenses import of_packages, of_repodata
from provisioner.lock.writer import folder_of
from provisioner.matrix.cell import Cell
from provisioner.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from provisioner.conda.explicit import CondaLock
    from provisioner.lock.choices import Asked
    from provisioner.lock.licenses import Licensed
    from provisioner.lock.model import Choices
    from provisioner.matrix.model import Matrix, Origins

_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class CondaHalf:
    """Path below the output root -> content, what it owns, and whether it was kept as it was.

    `upgraded` are the names (as pip compares them) of upgrades that conda answers for. `changes`
    and `notes` are for people. `licenses` is what its packages declare; None: as before.
    """

    files: dict[str, bytes]
    provided: dict[str, str]
    kept: bool
    upgraded: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    licenses: dict[str, Licensed] | None = None


def conda_half(
    root: Path,
    cell: Mapping[str, Any],
    matrix: Matrix,
    origins: Origins,
    asked: Asked,
    *,
    refresh: bool = False,
) -> CondaHalf:
    """Returns the conda half of a rendered cell, solved again only when its inputs changed.

    A day that the user named (`choices.as_of`) bounds it as well; the day that the cell brings
    along bounds pip's half alone. Raises what `lock_conda` raises, FindingError where the cell is
    not rendered, UsageError for an upgrade of what conda cannot move alone.
    """
    typed, options = _options(root, cell, matrix, asked)
    old = _parsed(typed, options.previous)
    kept = not refresh and not why_stale(typed, options)
    if refresh or not (kept or extends(typed, options)):
        options = dataclasses.replace(options, previous={}, applied={})
    locked = lock_conda(typed, origins, options)
    record = locked.files[f"{folder_of(typed.name)}/{explicit.RECORD}"]
    lock = explicit.parse_conda_lock(record, virtual.SUBDIRS[typed.arch])
    pairs = (line.split("==", 1) for line in explicit.pip_constraints_from_conda(lock))
    inside = {normal_name(package.name) for package in lock.packages}
    upgraded = {normal_name(name) for name in options.upgrades}
    choices = asked.choices
    if unknown := sorted((inside - upgraded) & set(choices.upgrades if choices else ())):
        raise upgrade_unknown(unknown, Inputs.of(typed, options).names())
    return CondaHalf(
        files=locked.files,
        provided=dict(pairs),
        kept=kept,
        upgraded=tuple(sorted(upgraded)),
        changes=tuple(conda_changes(old, lock)) if old is not None else (),
        notes=tuple(_unmoved(old, lock, options)),
        licenses=None if kept else _licenses(lock, locked.licenses or {}),
    )


def _licenses(lock: CondaLock, declared: Mapping[str, str | None]) -> dict[str, Licensed]:
    return of_packages(
        {p.name: (p.version, of_repodata(declared.get(p.name))) for p in lock.packages}
    )


def _parsed(cell: Cell, files: Mapping[str, bytes]) -> CondaLock | None:
    """The packages of the lock on disk; None where it is missing or damaged."""
    if explicit.RECORD not in files:
        return None
    try:
        return explicit.parse_conda_lock(files[explicit.RECORD], virtual.SUBDIRS[cell.arch])
    except FindingError:
        return None


def _unmoved(old: CondaLock | None, new: CondaLock, options: CondaLockOptions) -> Iterator[str]:
    """An upgrade that was asked for now and changed nothing: the others hold it back."""
    for name, day in sorted(options.upgrades.items()):
        have = new.version_of(name)
        asked_now = options.previous and options.applied.get(name) != day
        if old is not None and asked_now and old.version_of(name) == have:
            yield (
                f"{name} stays at {have}: as of {day.isoformat()} the channel has no other that "
                "goes with the rest of the lock as it is. --refresh lets everything move."
            )


def conda_stale(root: Path, cell: Mapping[str, Any], matrix: Matrix, asked: Asked) -> list[str]:
    """Returns why the conda half on disk does not answer its cell; asks nobody."""
    return why_stale(*_options(root, cell, matrix, asked))


def _options(
    root: Path, cell: Mapping[str, Any], matrix: Matrix, asked: Asked
) -> tuple[Cell, CondaLockOptions]:
    typed = msgspec.convert(dict(cell), Cell)
    folder = root / folder_of(typed.name)
    try:
        environment = read_regular(folder / "environment.yml", _LIMIT)
    except FileNotFoundError:
        raise not_rendered(root, typed.name) from None
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
    options = CondaLockOptions(
        environment=environment,
        system=system,
        previous=previous,
        exclude_newer=_day(asked.choices),
    )
    names = Inputs.of(typed, options).names()
    # A lock that was made as of another day is no start for an upgrade.
    same = asked.before is not None and _day(asked.before) == options.exclude_newer
    return typed, dataclasses.replace(
        options,
        upgrades=_upgrades(names, asked.choices),
        applied=_upgrades(names, asked.before) if same else {},
    )


def _day(choices: Choices | None) -> dt.date | None:
    named = choices.as_of if choices is not None else None
    return None if named in (None, "none") else dt.date.fromisoformat(named)


def _upgrades(names: tuple[str, ...], choices: Choices | None) -> dict[str, dt.date]:
    """The upgrades of what environment.yml names, under the names of conda."""
    days = choices.upgrades if choices is not None else {}
    compared = {normal_name(name): name for name in names}
    return {
        compared[name]: dt.date.fromisoformat(day) for name, day in days.items() if name in compared
    }
