"""The facts that the checks look at: those of a host, and of an environment on it, typed.

null is "unknown" throughout; see the two readers, provisioner/host/facts.py and environment.py.
Fields that a newer reader adds are passed over, those that an older one lacks are unknown.

Annotations are evaluated here, on purpose: msgspec would evaluate each of their strings again.
"""

from typing import Any, Literal

import msgspec

from provisioner.errors import UsageError
from provisioner.host.model import DriverFacts, GpuRow, HostReport


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Driver(DriverFacts, frozen=True, kw_only=True):
    """`libraries`: versions of the libcuda files of the system."""

    libraries: tuple[str, ...] | None = None
    built_for: tuple[str, ...] | None = None


class Gpu(GpuRow, frozen=True, kw_only=True):
    driver_version: str | None = None


class CdiSpec(_Struct, frozen=True, kw_only=True):
    path: str
    versions: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Tool(_Struct, frozen=True, kw_only=True):
    present: bool
    version: str | None = None


class Containers(_Struct, frozen=True, kw_only=True):
    docker: Tool | None = None
    podman: Tool | None = None
    nvidia_ctk: Tool | None = None
    docker_runtimes: tuple[str, ...] | None = None
    cdi: tuple[CdiSpec, ...] | None = None


class FabricManager(_Struct, frozen=True, kw_only=True):
    present: bool
    version: str | None = None
    active: bool | None = None


class Python(_Struct, frozen=True, kw_only=True):
    version: str
    executable: str
    prefix: str
    base_prefix: str = ""
    path: tuple[str, ...] = ()
    user_site: str | None = None
    user_site_enabled: bool = False
    include: str | None = None
    traced: bool = False


class Place(_Struct, frozen=True, kw_only=True):
    path: str
    version: str | None = None


class Torch(_Struct, frozen=True, kw_only=True):
    """The torch that an import would find, read off its files."""

    file: str
    version: str | None = None
    cuda: str | None = None
    places: tuple[Place, ...] = ()


class Imported(_Struct, frozen=True, kw_only=True):
    """What an import of torch brought to light; `loaded` is what the loader mapped for it."""

    version: str
    cuda: str | None = None
    arch_list: tuple[str, ...] | None = None
    numpy_error: str | None = None
    cuda_available: bool = False
    loaded: tuple[str, ...] = ()


class CudaDevice(_Struct, frozen=True, kw_only=True):
    name: str | None = None
    capability: str | None = None
    persistence: bool | None = None


class CudaCall(_Struct, frozen=True, kw_only=True):
    """What libcuda answered: the status of cuInit, the CUDA version that the driver speaks."""

    found: bool
    init: int | None = None
    file: str | None = None
    version: str | None = None
    devices: tuple[CudaDevice, ...] = ()


class NvmlCall(_Struct, frozen=True, kw_only=True):
    found: bool
    init: int | None = None
    driver: str | None = None
    devices: tuple[CudaDevice, ...] = ()


class ImportedApart(_Struct, frozen=True, kw_only=True):
    value: Imported | None = None
    died: str | None = None


class CudaApart(_Struct, frozen=True, kw_only=True):
    value: CudaCall | None = None
    died: str | None = None


class NvmlApart(_Struct, frozen=True, kw_only=True):
    value: NvmlCall | None = None
    died: str | None = None


class Distribution(_Struct, frozen=True, kw_only=True):
    name: str
    version: str
    path: str
    installer: str | None = None


class CondaPackage(_Struct, frozen=True, kw_only=True):
    name: str
    version: str
    build: str


class Cpu(_Struct, frozen=True, kw_only=True):
    model: str | None = None
    flags: tuple[str, ...] | None = None


class Mount(_Struct, frozen=True, kw_only=True):
    point: str
    type: str
    options: tuple[str, ...] = ()


class Folder(_Struct, frozen=True, kw_only=True):
    """A folder, or the nearest one above it that exists (`judged`); `free` in bytes."""

    path: str
    judged: str
    exists: bool
    writable: bool
    noexec: bool = False
    free: int | None = None
    owner: int | None = None
    mode: int | None = None
    error: str | None = None
    mount: Mount | None = None


class Space(_Struct, frozen=True, kw_only=True):
    present: bool
    total: int
    free: int


class User(_Struct, frozen=True, kw_only=True):
    uid: int
    name: str | None = None
    error: str | None = None


class Compiler(_Struct, frozen=True, kw_only=True):
    """`problem`: missing, fails, output or load; null when nothing is wrong."""

    tried: tuple[str, ...] = ()
    name: str | None = None
    version: str | None = None
    problem: str | None = None
    said: str | None = None


class Headers(_Struct, frozen=True, kw_only=True):
    include: str | None = None
    expected: str | None = None
    problem: str | None = None


class Compilers(_Struct, frozen=True, kw_only=True):
    """`trial`: whether something was compiled, or only looked for."""

    trial: bool
    c: Compiler
    cxx: Compiler
    headers: Headers


class Program(_Struct, frozen=True, kw_only=True):
    path: str | None = None
    version: str | None = None
    error: str | None = None


class Nvcc(_Struct, frozen=True, kw_only=True):
    """nvcc on PATH, in CUDA_HOME, and in /usr/local/cuda."""

    path: Program = Program()
    home: Program = Program()
    usual: Program = Program()


class Ptxas(Program, frozen=True, kw_only=True):
    """triton's own assembler; `named` is the one of TRITON_PTXAS_PATH."""

    named: Program | None = None


class Glibcxx(_Struct, frozen=True, kw_only=True):
    path: str
    newest: str | None = None


class Libstdcxx(_Struct, frozen=True, kw_only=True):
    mapped: Glibcxx | None = None
    system: Glibcxx | None = None


class DeviceNode(_Struct, frozen=True, kw_only=True):
    path: str
    usable: bool


class Environment(_Struct, frozen=True, kw_only=True):
    """What environment.py told of one interpreter."""

    schema: Literal["provision.environment-facts/1"]
    python: Python
    torch: Torch | None = None
    imported: ImportedApart | None = None
    distributions: tuple[Distribution, ...] = ()
    conda: tuple[CondaPackage, ...] | None = None
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    user: User | None = None
    cpu: Cpu | None = None
    traced_by: int | None = None
    cache: Folder | None = None
    tmp: Folder | None = None
    shm: Space | None = None
    compilers: Compilers | None = None
    nvcc: Nvcc | None = None
    ptxas: Ptxas | None = None
    ldconfig: dict[str, tuple[str, ...]] | None = None
    libstdcxx: Libstdcxx | None = None
    devices: tuple[DeviceNode, ...] | None = None
    driver: CudaApart | None = None
    nvml: NvmlApart | None = None


class Facts(HostReport, frozen=True, kw_only=True):
    """A host, and the environment on it where one was looked at."""

    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] | None = None
    other_gpu_modules: tuple[str, ...] | None = None
    fabric_manager: FabricManager | None = None
    persistenced: bool | None = None
    container: bool | None = None
    wsl: bool | None = None
    containers: Containers = Containers()
    gcc: dict[str, str | None] = msgspec.field(default_factory=dict)
    nouveau_loaded: bool | None = None
    environment: Environment | None = None


def read_facts(raw: bytes, name: str) -> Facts:
    """The facts in a file; raises UsageError when it holds none."""
    try:
        return msgspec.json.decode(raw, type=Facts)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(
            "doctor.bad-facts",
            f"{name} holds no facts of a host: {error}.",
            next_step="Make them with: provision doctor --record FILE",
        ) from None


def facts_from(plain: dict[str, Any]) -> Facts:
    """The facts as the readers of this version tell them."""
    return msgspec.convert(plain, Facts)
