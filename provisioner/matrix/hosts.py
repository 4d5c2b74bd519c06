"""Facts about hosts (hosts.yaml) and where a host's driver and toolkit come from.

Reading them is the only I/O here; the choices are pure functions of matrix, facts and cell.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from provisioner import __version__
from provisioner.matrix import versions
from provisioner.matrix.cache import cache_directory, read_entry, write_entry
from provisioner.matrix.model import Fact, FileName, MinorVersion, Name, PackageName, Text

if TYPE_CHECKING:
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import OperatingSystem

_FILE = Path(__file__).resolve().parent / "hosts.yaml"
MACHINE_FOLDERS = {"x86_64": "x86_64", "aarch64": "sbsa"}
"""Machine -> its folder in NVIDIA's package repositories."""


class Unmanaged(Fact, frozen=True, kw_only=True):
    """A system that the playbooks leave alone."""

    os: Name
    reason: Text
    remedy: Text


class DriverSource(Fact, frozen=True, kw_only=True):
    """Where the driver of some systems comes from, with the names of its packages."""

    os: tuple[Name, ...]
    kind: Literal["archive", "repository", "module"]
    branches: tuple[int, ...]
    signed: bool
    packages: tuple[str, ...] = ()
    packages_open: tuple[PackageName, ...] = ()
    packages_proprietary: tuple[PackageName, ...] = ()
    pin: str | None = None
    stream_open: str | None = None
    stream_proprietary: str | None = None


class DistributionToolkit(Fact, frozen=True, kw_only=True):
    os: Name
    series: MinorVersion
    packages: tuple[PackageName, ...]
    component: Name
    home: str


class Compilers(Fact, frozen=True, kw_only=True):
    os: Name
    gcc: tuple[int, ...]


class ToolPython(Fact, frozen=True, kw_only=True):
    """A Python in a system's archive that `provision` runs on, where the default one is too old."""

    os: Name
    program: FileName
    packages: tuple[PackageName, ...]


class Room(Fact, frozen=True, kw_only=True):
    """`bytes` that a step needs free on the file system of `folder`."""

    step: Literal["driver", "toolkit", "environment"]
    folder: str
    bytes: int


class RepositoryKey(Fact, frozen=True, kw_only=True):
    """The key of some of NVIDIA's package repositories: its file there, its whole fingerprint."""

    repositories: tuple[Name, ...]
    file: FileName
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-F]{40}$")] | None


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of hosts.yaml."""

    families: dict[Name, Literal["ubuntu", "debian", "el"]]
    unmanaged: tuple[Unmanaged, ...]
    drivers: tuple[DriverSource, ...]
    toolkits: tuple[DistributionToolkit, ...]
    compilers: tuple[Compilers, ...]
    pythons: tuple[ToolPython, ...]
    room: tuple[Room, ...]
    keys: tuple[RepositoryKey, ...]


@lru_cache(maxsize=1)
def host_facts() -> HostFacts:
    """The shipped facts; a parsed copy is kept by content, so that a warm start reads no YAML."""
    content = _FILE.read_bytes()
    digest = hashlib.sha256(f"hosts {__version__}\n".encode() + Path(__file__).read_bytes())
    digest.update(content)
    directory, key = cache_directory(), "hosts-" + digest.hexdigest()[:40]
    kept = read_entry(directory, key) if directory else None
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=HostFacts)
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    facts = msgspec.convert(yaml.load(content, Loader=loader), HostFacts)  # noqa: S506 - safe ones
    if directory:
        write_entry(directory, key, msgspec.msgpack.encode(facts))
    return facts


class ToolkitChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Where a system gets one toolkit series from, or why from nowhere.

    `gcc` is the newest compiler of the system that the toolkit takes (null: its default one).
    """

    kind: Literal["repository", "distribution", "runfile", "refused"]
    packages: tuple[str, ...] = ()
    repository: str | None = None
    component: str | None = None
    home: str | None = None
    file: str | None = None
    sha256: str | None = None
    gcc: int | None = None
    reason: str | None = None


def toolkit_choice(
    index: MatrixIndex, facts: HostFacts, system: OperatingSystem, series: str, arch: str
) -> ToolkitChoice:
    """The source of a toolkit on a system: NVIDIA's repository, the archive, a run file, none."""
    toolkit = index.toolkits[series]
    unmanaged = next((u for u in facts.unmanaged if u.os == system.id), None)
    if unmanaged is not None:
        return ToolkitChoice(kind="refused", reason=unmanaged.reason)
    limits = toolkit.host_compiler
    breaks = limits.glibc_breaks_from if limits else None
    if breaks is not None and versions.at_least(system.glibc, breaks):
        return ToolkitChoice(
            kind="refused",
            reason=f"nvcc {series} cannot read the headers of glibc {breaks} and newer; "
            f"{system.id} has {system.glibc}. Compile in an image instead.",
        )
    gcc = None
    if limits is not None and system.gcc > limits.gcc_max:
        listed = next((c.gcc for c in facts.compilers if c.os == system.id), ())
        gcc = max((version for version in listed if version <= limits.gcc_max), default=None)
        if gcc is None:
            return ToolkitChoice(
                kind="refused",
                reason=f"nvcc {series} takes gcc {limits.gcc_max} at most; {system.id} has "
                f"{system.gcc}, and no older one is known in its archive.",
            )
    home = f"/usr/local/cuda-{series}"
    if system.nvidia_repository in toolkit.repositories:
        return ToolkitChoice(
            kind="repository",
            packages=(f"cuda-toolkit-{series.replace('.', '-')}",),
            repository=f"{system.nvidia_repository}/{MACHINE_FOLDERS[arch]}",
            home=home,
            gcc=gcc,
        )
    own = next((t for t in facts.toolkits if (t.os, t.series) == (system.id, series)), None)
    if own is not None and arch == "x86_64":
        return ToolkitChoice(
            kind="distribution",
            packages=own.packages,
            component=own.component,
            home=own.home,
            gcc=gcc,
        )
    release = toolkit.releases[-1] if toolkit.releases else None
    run = None
    if release is not None:
        run = release.runfile_x86_64 if arch == "x86_64" else release.runfile_aarch64
    if release is None or run is None:
        return ToolkitChoice(
            kind="refused",
            reason=f"No repository of {system.id} carries CUDA {series}, and no run file with a "
            "known SHA-256 is there.",
        )
    return ToolkitChoice(
        kind="runfile",
        file=f"{release.version}/local_installers/{run.file}",
        sha256=run.sha256,
        home=home,
        gcc=gcc,
    )


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a driver branch on a system, or why there are none."""

    kind: Literal["archive", "repository", "module", "refused"]
    packages: tuple[str, ...] = ()
    pin: str | None = None
    stream: str | None = None
    repository: str | None = None
    signed: bool = False
    reason: str | None = None


def driver_choice(
    facts: HostFacts, system: OperatingSystem, branch: int, arch: str, *, open_modules: bool
) -> DriverChoice:
    """The source of a driver branch on a system."""
    unmanaged = next((u for u in facts.unmanaged if u.os == system.id), None)
    if unmanaged is not None:
        return DriverChoice(kind="refused", reason=unmanaged.reason)
    source = next((d for d in facts.drivers if system.id in d.os), None)
    if source is None or branch not in source.branches:
        listed = ", ".join(map(str, source.branches)) if source else "none"
        return DriverChoice(
            kind="refused",
            reason=f"No source of driver branch {branch} is known for {system.id} "
            f"(known branches: {listed}).",
        )

    def named(text: str | None) -> str | None:
        mark = "-open" if open_modules else ""
        return None if text is None else text.format(branch=branch, open=mark)

    kind_packages = source.packages_open if open_modules else source.packages_proprietary
    folder = f"{system.nvidia_repository}/{MACHINE_FOLDERS[arch]}"
    return DriverChoice(
        kind=source.kind,
        packages=tuple(str(named(p)) for p in source.packages) or kind_packages,
        pin=named(source.pin),
        stream=named(source.stream_open if open_modules else source.stream_proprietary),
        repository=None if source.kind == "archive" else folder,
        signed=source.signed,
    )
