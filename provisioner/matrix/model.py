"""The typed model of matrix.yaml: what the tool knows, each fact with its source.

Every string that may reach a Dockerfile, a shell, YAML or a playbook has a narrow type with a
pattern; free text (`Text`) is shown to people and never rendered into a file that runs.
Versions are strings throughout, so that 2.10 is not 2.1.

Annotations are evaluated here, on purpose: msgspec would evaluate each of their strings again at
every start.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Version = Annotated[
    str, Meta(pattern=r"^[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)?$", max_length=32)
]
"""A PEP 440 version without a local label: 2.0.1, 515.65.01."""

MinorVersion = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+$", max_length=12)]
"""Two numbers: a Python series, a CUDA series, a glibc version, a compute capability."""

Specifier = Annotated[
    str,
    Meta(
        pattern=r"^(==|~=|!=|<=|>=|<|>)[0-9][0-9A-Za-z.*]*(,(==|~=|!=|<=|>=|<|>)[0-9][0-9A-Za-z.*]*)*$",
        max_length=200,
    ),
]
"""A PEP 440 version specifier without blanks: ==2.0.0, >=2.0,<2.7."""

Requirement = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?"
        r"((==|~=|!=|<=|>=|<|>)[0-9][0-9A-Za-z.*]*(,(==|~=|!=|<=|>=|<|>)[0-9][0-9A-Za-z.*]*)*)?"
        r"( ?; ?[A-Za-z0-9_ .<>=!\"'()-]+)?$",
        max_length=300,
    ),
]
"""A PEP 508 requirement by name and version only: no URL, no path, no option."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)]
GpuName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=100)]
PackageName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9+._-]*$", max_length=100)]
PlainName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
SourceId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Tag = Annotated[str, Meta(pattern=r"^(cpu|cu[0-9]{2,4})$")]
Date = Annotated[str, Meta(pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}$")]
Month = Annotated[str, Meta(pattern=r"^20[0-9]{2}-[0-9]{2}(-[0-9]{2})?$")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%+-]+)*/?$", max_length=500
    ),
]
"""An http(s) address without user, password, query or fragment: those would be secrets or traps."""

ImageRef = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5}(?=/))?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$",
        max_length=400,
    ),
]
Text = Annotated[str, Meta(max_length=4000)]
Verified = Literal[True, False]
Arch = Literal["x86_64", "aarch64"]
Flavour = Literal["slim", "devel"]
PythonFrom = Literal["conda", "base"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable; an unknown key is an error."""


class Fact(_Struct, frozen=True, kw_only=True):
    """A statement with where it was read. `verified: false` is never presented as certain."""

    source: tuple[Text, ...]
    verified: bool = True
    note: Text | None = None


# --- releases ---------------------------------------------------------------------------------


class Companion(Fact, frozen=True, kw_only=True):
    """torchvision or torchaudio beside one torch release.

    `requires` is what the companion itself demands of torch: exact, a range, or none.
    `python` lists the series with a wheel, or is `any` for a py3-none wheel.
    """

    version: Version
    requires: Specifier | None
    python: tuple[MinorVersion, ...] | Literal["any"]


class TritonPin(_Struct, frozen=True, kw_only=True):
    """What torch asks of triton, and the newest triton that satisfies it."""

    requires: Specifier
    version: Version
    aarch64: bool


class PythonSupport(_Struct, frozen=True, kw_only=True):
    """Series with a torch wheel, per machine. Not Requires-Python (2.5 admits 3.8 in vain)."""

    x86_64: tuple[MinorVersion, ...]
    aarch64: tuple[MinorVersion, ...]


class CompileSupport(_Struct, frozen=True, kw_only=True):
    """Whether torch.compile exists, and the newest Python that it does not refuse."""

    supported: bool
    python_max: MinorVersion | None


class PypiBuild(_Struct, frozen=True, kw_only=True):
    """The build that the package index gives without a local label.

    Its metadata says 2.0.1, its `torch.__version__` says 2.0.1+cu117 (on aarch64 only where
    `aarch64_labelled`).
    """

    variant: Tag
    aarch64_variant: Tag
    aarch64_arch_list: tuple[MinorVersion, ...] = ()
    aarch64_labelled: bool = True
    nvidia: tuple[Requirement, ...] = ()


class Variant(Fact, frozen=True, kw_only=True):
    """One published build of a release.

    `toolkit` is the CUDA series (null for cpu), `built_with` the exact toolkit of the build image,
    `arch_list` the capabilities with machine code, `ptx` those also shipped as PTX.
    `published` is `yes` only where files were seen.
    """

    tag: Tag
    toolkit: MinorVersion | None
    built_with: Version | None = None
    cudnn: Version | None = None
    arch_list: tuple[MinorVersion, ...] = ()
    ptx: tuple[MinorVersion, ...] = ()
    published: Literal["yes", "expected", "unknown"] = "yes"
    arch_list_verified: bool = True


class Release(Fact, frozen=True, kw_only=True):
    """One torch release with its pins, Python ranges and variants."""

    torch: Version
    released: Date
    python: PythonSupport
    compile: CompileSupport
    torchvision: Companion
    torchaudio: Companion
    triton: TritonPin | None
    glibc: MinorVersion
    index_platform: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
    requires: tuple[Requirement, ...]
    pypi: PypiBuild
    variants: tuple[Variant, ...]
    other_builds: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9.+-]+$", max_length=64)], ...] = ()


class Triton(Fact, frozen=True, kw_only=True):
    """The CUDA assembler inside a triton wheel; it decides the compile floor of the driver."""

    version: Version
    ptxas: Version
    ptxas_blackwell: Version | None = None


class PtxasOverride(Fact, frozen=True, kw_only=True):
    """Another ptxas that lets an older driver load what triton makes.

    `assembled`: triton -> the compute capabilities for which it was seen to take every kernel that
    triton's own ptxas takes, as steadily (`evidence/<id>/`; no GPU). Elsewhere it is offered as
    unverified.
    """

    id: Annotated[str, Meta(pattern=r"^ptxas[0-9]+$", max_length=16)]
    package: Requirement
    path: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._/-]+$", max_length=200)]
    ptxas: Version
    triton: Specifier
    capability_max: MinorVersion
    capability_min: MinorVersion
    assembled: dict[Version, tuple[MinorVersion, ...]] = {}


# --- CUDA and drivers -------------------------------------------------------------------------


class CudaMajor(Fact, frozen=True, kw_only=True):
    """The oldest driver that runs machine code of any toolkit of one CUDA major."""

    major: int
    run_floor: Version


class RunFile(_Struct, frozen=True, kw_only=True):
    file: FileName
    sha256: Sha256


class ToolkitRelease(Fact, frozen=True, kw_only=True):
    """One toolkit release; `driver` is the build inside its run file."""

    version: Version
    driver: Version | None
    runfile_x86_64: RunFile | None = None
    runfile_aarch64: RunFile | None = None


class HostCompiler(Fact, frozen=True, kw_only=True):
    """Newest compilers that nvcc accepts, and the glibc whose headers it cannot read any more."""

    gcc_max: int
    clang_max: int | None
    glibc_breaks_from: MinorVersion | None
    glibc_verified: bool = True


class Toolkit(Fact, frozen=True, kw_only=True):
    """One CUDA toolkit series."""

    series: MinorVersion
    native_branch: int
    ptx_isa: MinorVersion
    ptx_isa_verified: bool = True
    capability_first: MinorVersion | None = None
    capabilities: tuple[MinorVersion, ...] = ()
    host_compiler: HostCompiler | None = None
    repositories: tuple[Name, ...] = ()
    releases: tuple[ToolkitRelease, ...] = ()
    forward_compat_from: tuple[int, ...] = ()
    forward_compat_verified: bool = True


class DriverBranch(Fact, frozen=True, kw_only=True):
    """One driver branch. `cuda` is the CUDA series that it speaks natively."""

    branch: int
    kind: Literal["lts", "production", "new-feature"]
    first: Version | None
    latest: Version | None
    end_of_life: Month | None
    cuda: MinorVersion
    families: tuple[Name, ...]
    open_modules: Literal["none", "optional", "default", "only"]


class Capability(Fact, frozen=True, kw_only=True):
    """One compute capability: which drivers know it, which toolkits compile for it."""

    capability: MinorVersion
    family: Name
    driver_from: Version | None = None
    driver_branch_last: int | None = None
    toolkit_first: MinorVersion | None = None
    toolkit_last: MinorVersion | None = None
    modules: Literal["proprietary", "either", "open"]
    embedded: bool = False


class Gpu(Fact, frozen=True, kw_only=True):
    """A GPU by its marketing name. `driver_from` where one needs a newer driver than its kin;
    `host_arch` where it is sold with one machine type only (on one board with its CPU). Without
    `source` the name was read where its capability was.
    """

    source: tuple[Text, ...] = ()
    name: GpuName
    capability: MinorVersion
    kind: Literal["data-center", "workstation", "geforce", "titan", "embedded"]
    aliases: tuple[GpuName, ...] = ()
    driver_from: Version | None = None
    host_arch: Arch | None = None


# --- operating systems and images -------------------------------------------------------------


class OsPackages(_Struct, frozen=True, kw_only=True):
    """Package names by purpose, in the words of this system's package manager."""

    compiler: tuple[PackageName, ...]
    python: tuple[PackageName, ...]
    python_headers: tuple[PackageName, ...]
    certificates: tuple[PackageName, ...]


class OperatingSystem(Fact, frozen=True, kw_only=True):
    id: Name
    family: Literal["ubuntu", "debian", "el"]
    version: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=12)]
    codename: Name | None
    python: MinorVersion
    gcc: int
    glibc: MinorVersion
    kernel: MinorVersion
    package_manager: Literal["apt", "dnf"]
    packages: OsPackages
    image: ImageRef
    end_of_life: Date
    end_of_extended: Date | None
    nvidia_repository: Name | None
    cuda_image_suffix: Name | None
    toolchain_verified: bool = True


class CudaImage(Fact, frozen=True, kw_only=True):
    """A published nvidia/cuda image set; `deletable` once NVIDIA's policy allows its removal."""

    version: Version
    os: tuple[Name, ...]
    state: Literal["published", "deletable", "deleted"]


class DeletedImages(Fact, frozen=True, kw_only=True):
    versions: tuple[Version, ...]


class ContainerGate(Fact, frozen=True, kw_only=True):
    """What NVIDIA's own images of a toolkit series demand before a container may start.

    `cuda` native, or one of `branches` on a GPU brand of `brands`.
    """

    toolkit: MinorVersion
    branches: tuple[int, ...]
    geforce: bool


# --- known-bad combinations -------------------------------------------------------------------


class KnownBad(Fact, frozen=True, kw_only=True):
    """A combination that is known to fail.

    `effect`: `constrain` and `add` put `requirements` into every matching cell, `refuse` refuses
    the cell, `warn` tells the user, `note` is knowledge for diagnosis only.
    """

    id: Name
    effect: Literal["constrain", "add", "refuse", "warn", "note"]
    torch: Specifier | None = None
    variants: tuple[Tag, ...] = ()
    python: tuple[MinorVersion, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    combination: Text
    symptom: Text
    why: Text | None = None
    fix: Text


class UnsupportedPlatform(_Struct, frozen=True, kw_only=True):
    """Something that is recognised and refused, with the reason."""

    id: Name
    matches: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9.+-]+$", max_length=64)], ...]
    reason: Text


# --- top ---------------------------------------------------------------------------------------


class Origin(_Struct, frozen=True, kw_only=True):
    """Where bytes come from. `url: null` leaves it to the client's own default."""

    url: Url | None
    note: Text | None = None


class Origins(_Struct, frozen=True, kw_only=True):
    """Every origin; each can be replaced by a mirror (option, environment or provision.yaml)."""

    package_index: Origin
    torch_index: Origin
    conda: Origin
    image_registry: Origin
    apt: Origin
    apt_security: Origin
    dnf: Origin
    cuda_repository: Origin
    cuda_runfile: Origin


class Fallback(_Struct, frozen=True, kw_only=True):
    torch: Version
    variant: Tag


class Defaults(_Struct, frozen=True, kw_only=True):
    """What a request that says nothing gets, and the preference orders behind it."""

    torch: Version
    cuda: MinorVersion
    python: tuple[MinorVersion, ...]
    os: tuple[Name, ...]
    arch: Arch
    flavour: Flavour
    python_from: PythonFrom
    fallback: Fallback
    driver_branches: tuple[int, ...]
    pip_packages: tuple[PlainName, ...]
    conda_packages: tuple[PlainName, ...]
    conda_channels: tuple[Name, ...]
    companion_days: Annotated[int, Meta(ge=0, le=3650)]
    builder_image: ImageRef


class CompileRules(Fact, frozen=True, kw_only=True):
    """`capability_min`: the oldest GPU that triton compiles for.

    `blackwell_from`: the capability from which a second ptxas, where triton has one, is used.
    """

    capability_min: MinorVersion
    blackwell_from: MinorVersion


class SourceRef(_Struct, frozen=True, kw_only=True):
    where: Text
    read: Date


class MatrixMeta(_Struct, frozen=True, kw_only=True):
    title: Text
    as_of: Date
    warn_after_days: int


class Matrix(_Struct, frozen=True, kw_only=True):
    """The whole of matrix.yaml."""

    schema: Literal[1]
    meta: MatrixMeta
    defaults: Defaults
    origins: Origins
    compile_rules: CompileRules
    releases: tuple[Release, ...]
    tritons: tuple[Triton, ...]
    ptxas_overrides: tuple[PtxasOverride, ...]
    cuda_majors: tuple[CudaMajor, ...]
    toolkits: tuple[Toolkit, ...]
    driver_branches: tuple[DriverBranch, ...]
    capabilities: tuple[Capability, ...]
    gpus: tuple[Gpu, ...]
    operating_systems: tuple[OperatingSystem, ...]
    cuda_images: tuple[CudaImage, ...]
    cuda_images_deleted: DeletedImages
    container_gates: tuple[ContainerGate, ...]
    known_bad: tuple[KnownBad, ...]
    unsupported: tuple[UnsupportedPlatform, ...]
    sources: dict[SourceId, SourceRef]
