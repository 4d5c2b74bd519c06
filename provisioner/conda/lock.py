"""The conda half of a lock: conda-lock.yml, the explicit list and the virtual packages of a cell.

The same inputs give the same bytes on every machine; a lock whose inputs did not change is kept
as it is, at the cost of reading it.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - type of a field
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping  # noqa: TC003 - type of a field
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.conda import condalock, explicit, shim, virtual, worker
from provisioner.conda.channel import CANONICAL, MAP_VARIABLE, MIRROR_VARIABLE, parse_map
from provisioner.errors import FindingError, UsageError

if TYPE_CHECKING:
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.model import OperatingSystem, Origins

VIRTUAL = "virtual-packages.yml"
RULES = 1
"""Raised when a change of this package can change the content of a lock; part of the digest."""

_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*)\s*(?P<bound>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class CondaLockOptions:
    """What a lock is made from, and how.

    `environment` is the rendered environment.yml, `system` the operating system of the cell,
    `previous` the files of an earlier lock by name. `upgrade` are names of environment.yml that
    may move while all else stays. `exclude_newer` leaves out what was built after that day.
    `conda_exe` is another solver. `channel_map` reads a channel elsewhere without naming it.
    """

    environment: bytes
    system: OperatingSystem
    previous: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    upgrade: tuple[str, ...] = ()
    exclude_newer: dt.date | None = None
    conda_exe: Path | None = None
    channel_map: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


def file_names(cell: Cell) -> tuple[str, str, str]:
    """Returns the names of a cell's conda locks: the record, the explicit list, the target."""
    return (explicit.RECORD, f"conda-{virtual.SUBDIRS[cell.arch]}.lock", VIRTUAL)


def lock_conda(cell: Cell, origins: Origins, options: CondaLockOptions) -> dict[str, bytes]:
    """Returns path below the output root -> content for the conda half of a cell's lock.

    An earlier lock (`options.previous`) from the same inputs is returned as it is. Raises
    FindingError (`conda.unsatisfiable`, `conda.unknown-package`, `conda.owns-torch`), OutsideError
    (`conda.channel-*`, `conda.offline`, `conda.lock-failed`) or UsageError.
    """
    inputs = Inputs.of(cell, options)
    names = file_names(cell)
    folder = f"lockfiles/{cell.name}"
    current = not why_stale(cell, options)
    if current and not options.upgrade:
        return {f"{folder}/{name}": options.previous[name] for name in names}
    if options.upgrade:
        _check_upgrade(inputs, options)
    with tempfile.TemporaryDirectory(prefix="provision-lock-") as place:
        room = Path(place)
        (room / "environment.yml").write_bytes(inputs.environment())
        (room / VIRTUAL).write_bytes(inputs.virtual_yaml(cell))
        if options.upgrade and current:
            (room / explicit.RECORD).write_bytes(options.previous[explicit.RECORD])
        condalock.run(
            condalock.Run(
                folder=room,
                platform=inputs.platform,
                update=options.upgrade if current else (),
                conda_exe=options.conda_exe,
                environ=solver_environment(inputs, origins, options),
            )
        )
        record = (room / explicit.RECORD).read_bytes()
        listed = (room / names[1]).read_bytes()
    lock = explicit.parse_conda_lock(record, inputs.platform)
    _check_content(lock, cell)
    made_by = f"Made by: provision lock {cell.name}"
    listed = explicit.explicit_with_hashes(listed, lock, inputs.digest(), made_by)
    contents = (record, listed, inputs.virtual_yaml(cell))
    return {f"{folder}/{n}": data for n, data in zip(names, contents, strict=True)}


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


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All that decides the content of a conda lock; nothing of the machine or the mirror."""

    platform: str
    channels: tuple[str, ...]
    specs: tuple[str, ...]
    virtual: tuple[virtual.VirtualPackage, ...]
    exclude_newer: str | None

    @classmethod
    def of(cls, cell: Cell, options: CondaLockOptions) -> Inputs:
        """Returns the inputs of a cell; raises FindingError for an unreadable environment.yml."""
        channels, specs = read_environment(options.environment)
        return cls(
            platform=virtual.SUBDIRS[cell.arch],
            channels=channels,
            specs=merged(specs),
            virtual=virtual.of_cell(cell, options.system),
            exclude_newer=options.exclude_newer.isoformat() if options.exclude_newer else None,
        )

    def digest(self) -> str:
        """Returns the hex SHA-256 that a lock carries."""
        whole: dict[str, Any] = {
            "rules": RULES,
            "platform": self.platform,
            "channels": self.channels,
            "specs": self.specs,
            "virtual": sorted(map(str, self.virtual)),
            "exclude_newer": self.exclude_newer,
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def environment(self) -> bytes:
        """Returns the environment.yml that conda-lock gets, one line for each name.

        Of two lines for one name it takes the last and forgets the other.
        """
        lines = ["channels:", *(f"  - {json.dumps(name)}" for name in self.channels)]
        lines += ["dependencies:", *(f"  - {json.dumps(spec)}" for spec in self.specs)]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    def virtual_yaml(self, cell: Cell) -> bytes:
        """Returns virtual-packages.yml."""
        heading = f"Made by: provision lock {cell.name}. The target as the solver sees it."
        return virtual.to_yaml(self.virtual, self.platform, heading)


def read_environment(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns channels and specs of an environment.yml; raises FindingError.

    A pip section is refused: pip has a lock of its own.
    """
    import yaml

    try:
        document = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe loaders
        channels = [str(name) for name in document["channels"] if name != "nodefaults"]
        specs = document["dependencies"]
    except (yaml.YAMLError, KeyError, TypeError):
        channels, specs = [], None
    if not channels or not isinstance(specs, list) or not all(isinstance(s, str) for s in specs):
        raise FindingError(
            "conda.environment-bad",
            "environment.yml needs channels and dependencies, each a list of plain text.",
            next_step="Render the cell again (`provision render`).",
        )
    return tuple(channels), tuple(specs)


def merged(specs: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the specs sorted, one for each name: its bounds joined, all of them to hold."""
    bounds: dict[str, list[str]] = {}
    for spec in specs:
        match = _SPEC.fullmatch(spec.strip())
        if match is None:
            raise FindingError("conda.environment-bad", f"{spec!r} is no conda package spec.")
        found = bounds.setdefault(match["name"].lower(), [])
        bound = match["bound"].strip()
        if bound and bound not in found:
            found.append(bound)
    return tuple(_joined(name, parts) for name, parts in sorted(bounds.items()))


def _joined(name: str, parts: list[str]) -> str:
    if len(parts) < 2:
        bound = "".join(parts)
        return f"{name} {bound}" if bound[:1].isalnum() or bound[:1] == "*" else name + bound
    if any("=" in part.lstrip("<>=!~") or " " in part for part in parts):
        raise FindingError(
            "conda.environment-bad",
            f"{name} is named more than once, with a build: {', '.join(parts)}.",
            next_step="Name it once.",
        )
    return f"{name} " + ",".join(_conda_bound(part) for part in parts)


def _conda_bound(bound: str) -> str:
    """One bound so that it means the same inside a list: `=1.2` alone means 1.2.*."""
    if bound.startswith("=") and not bound.startswith("=="):
        version = bound.lstrip("=")
        return version if version.endswith("*") else f"{version}.*"
    return bound


def _check_upgrade(inputs: Inputs, options: CondaLockOptions) -> None:
    named = {_SPEC.fullmatch(spec)["name"] for spec in inputs.specs}  # type: ignore[index]
    unknown = sorted(set(options.upgrade) - named)
    if unknown:
        raise UsageError(
            "conda.upgrade-unknown",
            f"{', '.join(unknown)} cannot be upgraded alone: environment.yml does not name it.",
            facts={"named": sorted(named)},
            next_step="Upgrade one of these, or remove the lock to solve everything again.",
        )


def solver_environment(
    inputs: Inputs, origins: Origins, options: CondaLockOptions
) -> dict[str, str]:
    """Returns what the solver is told through the environment; conda-lock passes it on."""
    environ = dict(options.environ)
    mirror = (origins.conda.url or "").rstrip("/")
    if mirror and mirror != CANONICAL:
        environ[MIRROR_VARIABLE] = mirror
    moved = {**parse_map(environ.get(MAP_VARIABLE, "")), **options.channel_map}
    environ[MAP_VARIABLE] = " ".join(f"{name}={place}" for name, place in sorted(moved.items()))
    # An upgrade passes the spec of one package alone; the bounds of the others still hold.
    environ[shim.CONSTRAINTS_VARIABLE] = "\n".join(inputs.specs) if options.upgrade else ""
    environ[shim.NEWER_VARIABLE] = inputs.exclude_newer or ""
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
