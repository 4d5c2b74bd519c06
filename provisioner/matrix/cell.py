"""What goes into `resolve` and what comes out: Request, Cell, Refusal.

These are the words that the rest of the tool speaks; they hold no decision.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

# At run time too: msgspec reads the annotations when it decodes a cell.
from provisioner.matrix.model import Arch, Flavour, PythonFrom  # noqa: TC001

RESOLVE_SCHEMA = "provision.resolve/1"


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class UserPackages(_Struct, frozen=True, kw_only=True):
    """A project's own packages, from its provision.yaml."""

    pip: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pip or self.conda or self.apt)


class Request(_Struct, frozen=True, kw_only=True):
    """What a user asks for. Every field may be left open.

    `torch` is a version (2.0.1), a labelled one (2.0.1+cu118), `latest` or a range (>=2.1,<2.5);
    `cuda` a series (11.8), a variant tag (cu118) or `cpu`; `gpu` holds GPU names or compute
    capabilities, the strictest decides; `index` is `torch` for the build of the torch index where
    the package index has the same variant; `without` drops torchvision or torchaudio.
    """

    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    os: str | None = None
    arch: str | None = None
    gpu: tuple[str, ...] = ()
    driver: str | None = None
    flavour: str | None = None
    compile: bool = True
    python_from: str | None = None
    index: Literal["package", "torch"] | None = None
    ptxas: str | None = None
    without: tuple[Literal["torchaudio", "torchvision"], ...] = ()
    name: str | None = None
    packages: UserPackages = UserPackages()


class DriverNeeds(_Struct, frozen=True, kw_only=True):
    """Drivers for one cell; all null for the cpu variant.

    `run_floor`: oldest that runs the ready machine code. `compile_floor`: oldest that also loads
    what triton's ptxas makes (null where nothing is compiled: torch 1.x); for the GPUs of the
    request, else for GPUs before Blackwell. `compile_floor_by_arch`: the same per capability of the
    variant. `native`: the branch made for the CUDA series. `gpu_floor`: oldest that knows the GPUs
    of the request. `install`: the branch to install on a host that has none.
    """

    run_floor: str | None = None
    compile_floor: str | None = None
    compile_floor_by_arch: dict[str, str] = {}
    native: str | None = None
    gpu_floor: str | None = None
    install: int | None = None


class PassedOver(_Struct, frozen=True, kw_only=True):
    value: str
    because: str


class Decision(_Struct, frozen=True, kw_only=True):
    """How one part of the answer came to be. `source` names where the deciding fact was read."""

    part: str
    value: str
    because: str
    source: tuple[str, ...] = ()
    verified: bool = True
    passed_over: tuple[PassedOver, ...] = ()


class Ptxas(_Struct, frozen=True, kw_only=True):
    """An assembler other than triton's own (`-ptxas118` cells)."""

    id: str
    package: str
    path: str
    verified: bool


class Cell(_Struct, frozen=True, kw_only=True):
    """One fully resolved point: release x variant x Python x OS.

    `local_version` is what `torch.__version__` says. `index_url` is the index of the torch family
    (null: the client's default). `requirements` are the exact pins of the torch family as pip
    takes them, `companions` what the matrix adds beside them, `constraints` its bounds. `compile`
    is false for a cell that is declared eager-only. `as_of` is the date up to which companions are
    taken. `forward_compat` names the cuda-compat package that a data-center host with an older
    driver needs.
    """

    name: str
    torch: str
    local_version: str
    variant: str
    cuda: str | None
    python: str
    os: str
    arch: Arch
    torchvision: str | None
    torchaudio: str | None
    triton: str | None
    index_url: str | None
    device: Literal["cuda", "cpu"]
    flavour: Flavour
    python_from: PythonFrom
    compile: bool
    driver: DriverNeeds
    arch_list: tuple[str, ...]
    ptx: tuple[str, ...]
    glibc: str
    base_image: str
    requirements: tuple[str, ...]
    companions: tuple[str, ...]
    constraints: tuple[str, ...]
    as_of: str
    forward_compat: str | None = None
    ptxas: Ptxas | None = None
    gpu: tuple[str, ...] = ()
    packages: UserPackages = UserPackages()
    verified: bool = True


class Resolution(_Struct, frozen=True, kw_only=True):
    """A cell with the reasons for it.

    `unverified` names the parts of the cell that rest on what no first-hand source confirms: torch,
    variant, arch_list, torchvision, torchaudio, gpu, gpu_floor, forward_compat.
    """

    cell: Cell
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    unverified: tuple[str, ...] = ()
    request: Request


class Nearest(_Struct, frozen=True, kw_only=True):
    """A cell that works, close to what was asked; `options` is the command line for it."""

    name: str
    options: tuple[str, ...]
    differs: str


class Refusal(_Struct, frozen=True, kw_only=True):
    """Why a request has no cell.

    `code` is stable; `have` and `need` are the clashing facts by axis; `also` holds further reasons
    that would remain after the first is mended.
    """

    code: str
    message: str
    also: tuple[str, ...] = ()
    have: dict[str, Any]
    need: dict[str, Any]
    source: tuple[str, ...]
    nearest: tuple[Nearest, ...] = ()
    verified: bool = True
