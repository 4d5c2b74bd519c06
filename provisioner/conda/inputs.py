"""What decides a conda lock: channels, specs, target and days, and the digest over them. Pure."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - type of a field
import hashlib
import json
import re
from collections.abc import Mapping  # noqa: TC003 - type of a field
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provisioner.conda import virtual
from provisioner.errors import FindingError

if TYPE_CHECKING:
    from provisioner.conda.lock import CondaLockOptions
    from provisioner.matrix.cell import Cell

RULES = 1
"""Raised when a change of this package can change the content of a lock; part of the digest."""

_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*)\s*(?P<bound>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All that decides the content of a conda lock; nothing of the machine or the mirror."""

    platform: str
    channels: tuple[str, ...]
    specs: tuple[str, ...]
    virtual: tuple[virtual.VirtualPackage, ...]
    exclude_newer: str | None
    upgrades: Mapping[str, dt.date] = field(default_factory=dict)

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
            upgrades=options.upgrades,
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
        if self.upgrades:
            days = {name: day.isoformat() for name, day in self.upgrades.items()}
            whole["upgrades"] = dict(sorted(days.items()))
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def names(self) -> tuple[str, ...]:
        """Returns the packages that environment.yml names, sorted."""
        return tuple(_SPEC.fullmatch(spec)["name"] for spec in self.specs)  # type: ignore[index]

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
