"""What the fact reader prints, as the gate reads it, and the findings of the gate.

null in the facts is "unknown"; see facts.py. Fields that a newer reader adds are passed over.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from provisioner.errors import UsageError

GATE_SCHEMA = "provision.host-gate/1"
Severity = Literal["refuse", "warn", "note"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    pass


class OsFacts(_Struct, frozen=True, kw_only=True):
    id: str | None = None
    version: str | None = None
    name: str | None = None


class PciDevice(_Struct, frozen=True, kw_only=True):
    address: str
    kind: Literal["gpu", "nvswitch"]
    model: str | None = None


class Package(_Struct, frozen=True, kw_only=True):
    name: str
    version: str


class DriverFacts(_Struct, frozen=True, kw_only=True):
    """`loaded` is a version, false when no module is loaded, null when that is unknown."""

    loaded: str | Literal[False] | None = None
    modules: Literal["open", "proprietary"] | None = None
    packages: tuple[Package, ...] | None = None
    other_sources: tuple[str, ...] = ()


class GpuRow(_Struct, frozen=True, kw_only=True):
    name: str | None = None
    compute_cap: str | None = None


class Upgrades(_Struct, frozen=True, kw_only=True):
    installed: bool
    enabled: bool | None = None
    spared: tuple[str, ...] | None = None


class Space(_Struct, frozen=True, kw_only=True):
    total: int
    free: int


class LibraryPath(_Struct, frozen=True, kw_only=True):
    etc_environment: str | Literal[False] | None = None


class Tool(_Struct, frozen=True, kw_only=True):
    present: bool
    version: str | None = None


class HostReport(_Struct, frozen=True, kw_only=True):
    """The facts of one host, as far as the gate looks at them."""

    schema: Literal["provision.host-facts/1"]
    os: OsFacts | None = None
    kernel: str | None = None
    arch: str | None = None
    glibc: str | None = None
    pci: tuple[PciDevice, ...] | None = None
    driver: DriverFacts = DriverFacts()
    gpus: tuple[GpuRow, ...] | None = None
    gpu_processes: tuple[dict[str, Any], ...] | None = None
    cuda_toolkits: tuple[str, ...] | None = None
    nvcc: Tool | None = None
    secure_boot: bool | None = None
    held: tuple[str, ...] | None = None
    unattended_upgrades: Upgrades | None = None
    library_path: LibraryPath = LibraryPath()
    disk: dict[str, Space | None] = {}
    unreadable: tuple[str, ...] = ()


class Finding(_Struct, frozen=True, kw_only=True):
    """One thing that speaks against the cell on this host, or that one should know.

    `refuse` stops before anything is touched, `warn` does not, `note` is information.
    """

    id: str
    severity: Severity
    have: str
    need: str
    reason: str
    remedy: str
    source: tuple[str, ...] = ()


class Wish(_Struct, frozen=True, kw_only=True):
    """What the playbooks are told to do. `branch`: the driver branch to install (null: the cell's).

    `lab`: a host without a GPU is wanted. `keep_driver`: the driver is somebody else's.
    `change_branch`: the host may leave the branch that is installed. `ended_branch`: a branch past
    its end of life is meant. `settled`: the environment is there as wanted, and takes no more room.
    """

    branch: int | None = None
    lab: bool = False
    keep_driver: bool = False
    toolkit: bool = True
    change_branch: bool = False
    ended_branch: bool = False
    settled: bool = False


def read_report(raw: bytes, path: str) -> HostReport:
    """The facts of a host from the reader's JSON; raises UsageError when it is none."""
    try:
        return msgspec.json.decode(raw, type=HostReport)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(
            "host.bad-facts",
            f"{path} holds no facts of a host: {error}.",
            next_step="Make them with: provision host facts --json > FILE",
        ) from None
