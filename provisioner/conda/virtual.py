"""What the solver is told about the target: `__glibc`, `__cuda`, ... of the cell, never of here."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - part of public signatures
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.model import OperatingSystem

SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}
"""What conda calls the machines of the matrix."""

_OVERRIDE = "CONDA_OVERRIDE_"


@dataclass(frozen=True, order=True)
class VirtualPackage:
    """A fact about a machine in the form of a package."""

    name: str
    version: str
    build: str = "0"

    def __str__(self) -> str:
        return f"{self.name}={self.version}" + (f"={self.build}" if self.build != "0" else "")


def of_cell(cell: Cell, system: OperatingSystem) -> tuple[VirtualPackage, ...]:
    """Returns the virtual packages of a cell on its operating system.

    `__cuda` is the CUDA series of the variant, absent on a cpu cell; `__linux` the kernel that the
    system came with. A container may run on an older one; conda-forge has no bound on it.
    """
    cuda = () if cell.cuda is None else (VirtualPackage("__cuda", cell.cuda),)
    return (
        VirtualPackage("__archspec", "1", cell.arch),
        *cuda,
        VirtualPackage("__glibc", system.glibc),
        VirtualPackage("__linux", system.kernel),
        VirtualPackage("__unix", "0"),
    )


def to_yaml(packages: tuple[VirtualPackage, ...], subdir: str, heading: str) -> bytes:
    """Returns virtual-packages.yml for conda-lock's --virtual-package-spec."""
    lines = [f"# {heading}", "subdirs:", f"  {subdir}:", "    packages:"]
    for package in sorted(packages):
        build = f" {package.build}" if package.build != "0" else ""
        lines.append(f'      {package.name}: "{package.version}{build}"')
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def is_virtual_channel(address: str) -> bool:
    """Returns whether an address is the folder that conda-lock makes up for virtual packages.

    Its records have no archive and no hash; they must not reach a solver as packages.
    """
    found = _virtual_records(address, ("noarch", *SUBDIRS.values()))
    return found is not None


def from_channel(address: str, subdir: str) -> tuple[VirtualPackage, ...]:
    """Returns the virtual packages that conda-lock's made-up channel holds for a platform."""
    records = _virtual_records(address, (subdir, "noarch")) or []
    return tuple(
        VirtualPackage(record["name"], record["version"], record.get("build") or "0")
        for record in records
    )


def from_overrides(environ: Mapping[str, str]) -> tuple[VirtualPackage, ...]:
    """Returns the virtual packages that CONDA_OVERRIDE_* variables state."""
    found = []
    for variable, value in sorted(environ.items()):
        if not variable.startswith(_OVERRIDE) or not value.strip():
            continue
        name = f"__{variable.removeprefix(_OVERRIDE).lower()}"
        if name == "__archspec":
            found.append(VirtualPackage(name, "1", value.strip()))
        else:
            found.append(VirtualPackage(name, value.strip()))
    return tuple(found)


def _virtual_records(address: str, subdirs: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """The records of the channel, or None when it is an ordinary one."""
    if not address.startswith("file://"):
        return None
    root = Path(unquote(urlsplit(address).path))
    records: list[dict[str, Any]] = []
    for subdir in subdirs:
        try:
            repodata = json.loads((root / subdir / "repodata.json").read_bytes())
        except (OSError, ValueError):
            continue
        if "packages.conda" in repodata or "base_url" in repodata.get("info", {}):
            return None
        for record in repodata.get("packages", {}).values():
            if record.get("package_type") != "virtual_system":
                return None
            records.append(record)
    return records or None
