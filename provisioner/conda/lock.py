"""The conda half of a lock: conda-lock.yml, the explicit list and the virtual packages of a cell.

The same inputs give the same bytes on every machine; a lock whose inputs did not change is kept
as it is, at the cost of reading it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt  # noqa: TC003 - type of a field
import json
import os
import tempfile
from collections.abc import Mapping, Sequence  # noqa: TC003 - type of a field
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.conda import condalock, explicit, shim, virtual, worker
from provisioner.conda.channel import CANONICAL, MAP_VARIABLE, MIRROR_VARIABLE, parse_map
from provisioner.conda.inputs import Inputs
from provisioner.errors import FindingError, UsageError

if TYPE_CHECKING:
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.model import OperatingSystem, Origins

VIRTUAL = "virtual-packages.yml"


@dataclass(frozen=True, kw_only=True)
class CondaLockOptions:
    """What a lock is made from, and how.

    `environment` is the rendered environment.yml, `system` the operating system of the cell,
    `previous` the files of an earlier lock by name. `exclude_newer` leaves out what was built after
    that day. `upgrades` are names of environment.yml that are taken as of a day of their own, all
    else staying as it is; `applied` are those that `previous` was made with. `conda_exe` is
    another solver. `channel_map` reads a channel elsewhere without naming it.
    """

    environment: bytes
    system: OperatingSystem
    previous: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    upgrades: Mapping[str, dt.date] = field(default_factory=dict)
    applied: Mapping[str, dt.date] = field(default_factory=dict)
    exclude_newer: dt.date | None = None
    conda_exe: Path | None = None
    channel_map: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


def file_names(cell: Cell) -> tuple[str, str, str]:
    """Returns the names of a cell's conda locks: the record, the explicit list, the target."""
    return (explicit.RECORD, f"conda-{virtual.SUBDIRS[cell.arch]}.lock", VIRTUAL)


@dataclass(frozen=True, kw_only=True)
class CondaLocked:
    """Path below the output root -> content, and name -> license as the channel has it.

    `licenses` is None where an earlier lock was kept or another solver was used.
    """

    files: dict[str, bytes]
    licenses: dict[str, str | None] | None = None


def lock_conda(cell: Cell, origins: Origins, options: CondaLockOptions) -> CondaLocked:
    """Returns the conda half of a cell's lock.

    An earlier lock (`options.previous`) from the same inputs is returned as it is. Raises
    FindingError (`conda.unsatisfiable`, `conda.unknown-package`, `conda.owns-torch`), OutsideError
    (`conda.channel-*`, `conda.offline`, `conda.lock-failed`) or UsageError.
    """
    inputs = Inputs.of(cell, options)
    names = file_names(cell)
    folder = f"lockfiles/{cell.name}"
    if not why_stale(cell, options):
        kept = {f"{folder}/{name}": options.previous[name] for name in names}
        return CondaLocked(files=kept)
    _check_upgrades(inputs, options)
    record = options.previous[explicit.RECORD] if extends(cell, options) else None
    applied = {} if record is None else options.applied
    steps = [] if record is not None else [Step(until=options.exclude_newer)]
    steps += _moves(options.upgrades, applied)
    with tempfile.TemporaryDirectory(prefix="provision-lock-") as place:
        room = Path(place)
        (room / "environment.yml").write_bytes(inputs.environment())
        (room / VIRTUAL).write_bytes(inputs.virtual_yaml(cell))
        if record is not None:
            (room / explicit.RECORD).write_bytes(record)
        for step in steps:
            condalock.run(
                condalock.Run(
                    folder=room,
                    platform=inputs.platform,
                    update=step.moving,
                    conda_exe=options.conda_exe,
                    environ=solver_environment(inputs, origins, options, step),
                )
            )
        record = (room / explicit.RECORD).read_bytes()
        listed = (room / names[1]).read_bytes()
        licenses = _licenses(room / condalock.LICENSES)
    lock = explicit.parse_conda_lock(record, inputs.platform)
    _check_content(lock, cell)
    made_by = f"Made by: provision lock {cell.name}"
    listed = explicit.explicit_with_hashes(listed, lock, inputs.digest(), made_by)
    contents = (record, listed, inputs.virtual_yaml(cell))
    files = {f"{folder}/{n}": data for n, data in zip(names, contents, strict=True)}
    return CondaLocked(files=files, licenses=licenses)


def _licenses(path: Path) -> dict[str, str | None] | None:
    if not path.is_file():
        return None
    found: dict[str, str | None] = json.loads(path.read_bytes())
    return found


@dataclass(frozen=True, kw_only=True)
class Step:
    """One solve: of everything, or of the names that are `moving` while all else stays."""

    until: dt.date | None
    moving: tuple[str, ...] = ()


def extends(cell: Cell, options: CondaLockOptions) -> bool:
    """Returns whether the earlier lock is right but for upgrades that are new or later now."""
    before = dataclasses.replace(options, upgrades=options.applied)
    return options.applied.keys() <= options.upgrades.keys() and not why_stale(cell, before)


def _moves(upgrades: Mapping[str, dt.date], applied: Mapping[str, dt.date]) -> list[Step]:
    """One step for each day, in their order, for what is not as it should be yet."""
    days: dict[dt.date, list[str]] = {}
    for name, day in upgrades.items():
        if applied.get(name) != day:
            days.setdefault(day, []).append(name)
    return [Step(until=day, moving=tuple(sorted(days[day]))) for day in sorted(days)]


def why_stale(cell: Cell, options: CondaLockOptions) -> list[str]:
    """Returns why the earlier lock does not answer these inputs; empty when it does.

    Reads nothing but its arguments, so it is what `--check` costs.
    """
    inputs = Inputs.of(cell, options)
    names = file_names(cell)
    missing = [name for name in names if name not in options.previous]
    if missing:
        return [f"{name} is missing" for name in missing]
    record, listed, target = (options.previous[name] for name in names)
    if explicit.inputs_digest(listed) != inputs.digest():
        return ["environment.yml, the target or the options changed since it was locked"]
    try:
        lock = explicit.parse_conda_lock(record, inputs.platform)
        differing = explicit.differences(listed, lock)
    except (FindingError, worker.Problem) as error:
        return [error.message]
    reasons = [f"{names[1]} and {names[0]} differ in {name}" for name in differing]
    if target != inputs.virtual_yaml(cell):
        reasons.append(f"{VIRTUAL} was changed by hand")
    return reasons


def _check_upgrades(inputs: Inputs, options: CondaLockOptions) -> None:
    unknown = sorted(options.upgrades.keys() - set(inputs.names()))
    if unknown:
        raise upgrade_unknown(unknown, inputs.names())


def upgrade_unknown(names: Sequence[str], known: Sequence[str]) -> UsageError:
    """Returns the error for packages that come in through others: conda-lock moves none alone."""
    return UsageError(
        "conda.upgrade-unknown",
        f"{', '.join(names)} cannot be upgraded alone: environment.yml does not name it.",
        facts={"named": sorted(known)},
        next_step="Name it in packages.conda and render again, upgrade one of these "
        f"({', '.join(sorted(known))}), or solve everything again with --refresh.",
    )


def solver_environment(
    inputs: Inputs, origins: Origins, options: CondaLockOptions, step: Step
) -> dict[str, str]:
    """Returns what the solver is told through the environment; conda-lock passes it on."""
    environ = dict(options.environ)
    mirror = (origins.conda.url or "").rstrip("/")
    if mirror and mirror != CANONICAL:
        environ[MIRROR_VARIABLE] = mirror
    moved = {**parse_map(environ.get(MAP_VARIABLE, "")), **options.channel_map}
    environ[MAP_VARIABLE] = " ".join(f"{name}={place}" for name, place in sorted(moved.items()))
    # An upgrade passes the spec of one package alone; the bounds of the others still hold.
    environ[shim.CONSTRAINTS_VARIABLE] = "\n".join(inputs.specs) if step.moving else ""
    environ[shim.NEWER_VARIABLE] = step.until.isoformat() if step.until else ""
    if options.offline:
        environ[shim.OFFLINE_VARIABLE] = "1"
    return environ


def _check_content(lock: explicit.CondaLock, cell: Cell) -> None:
    explicit.refuse_torch(lock)
    python = lock.version_of("python")
    if python is None or not f"{python}.".startswith(f"{cell.python}."):
        raise FindingError(
            "conda.wrong-python",
            f"The lock has Python {python or 'nothing'}, the cell needs {cell.python}.",
            next_step="Loosen what holds Python back in packages.conda.",
        )
