"""The facts as the checks ask for them, with what the matrix knows of each."""

from __future__ import annotations

import re
import shlex
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.facts import Compilers, CudaCall, Environment, Facts, Imported, NvmlCall
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.hosts import HostFacts
    from provisioner.matrix.index import GpuFact, MatrixIndex
    from provisioner.matrix.model import OperatingSystem, Release, Variant


class SeenGpu(NamedTuple):
    """A GPU by name; `capability` is None where nobody tells, `fact` where the matrix has none."""

    name: str
    capability: str | None
    fact: GpuFact | None


class Seen:
    """Everything that a check may look at. `cell` is what the environment is to be, if told."""

    def __init__(self, facts: Facts, index: MatrixIndex, cell: Cell | None = None) -> None:
        self.facts = facts
        self.index = index
        self.cell = cell

    # --- the environment ---

    @property
    def env(self) -> Environment | None:
        return self.facts.environment

    @cached_property
    def variables(self) -> dict[str, str]:
        return self.env.variables if self.env else {}

    @cached_property
    def imported(self) -> Imported | None:
        """What an import of torch told; None when there was none, or it failed."""
        apart = self.env.imported if self.env else None
        return apart.value if apart else None

    @cached_property
    def torch_label(self) -> str | None:
        """torch's own version with its label, 2.0.1+cu117, of the environment, else of the cell."""
        if self.imported is not None:
            return self.imported.version
        if self.env is not None and self.env.torch is not None:
            return self.env.torch.version
        return self.cell.local_version if self.cell is not None else None

    @cached_property
    def torch(self) -> str | None:
        """torch's version without label."""
        return self.torch_label.partition("+")[0] if self.torch_label else None

    @cached_property
    def cuda(self) -> str | None:
        """The CUDA series that torch was built with; None for a CPU build, or without torch."""
        if self.imported is not None:
            return self.imported.cuda
        if self.env is not None and self.env.torch is not None:
            return self.env.torch.cuda
        return self.cell.cuda if self.cell is not None else None

    @cached_property
    def release(self) -> Release | None:
        return self.index.releases.get(self.torch or "")

    @cached_property
    def variant(self) -> Variant | None:
        """The variant of the matrix that this torch is; None for a build that it does not know."""
        if self.torch is None or self.torch_label is None:
            return None
        tag = self.torch_label.partition("+")[2]
        if not re.fullmatch(r"cpu|cu\d{2,4}", tag):
            tag = "cu" + self.cuda.replace(".", "") if self.cuda else "cpu"
        return self.index.variants.get((self.torch, tag))

    @cached_property
    def build(self) -> str:
        """How people name this torch: torch 2.0.1+cu117."""
        return f"torch {self.torch_label or 'of unknown version'}"

    @cached_property
    def arch_list(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """(machine code, PTX) by capability: as torch says, else as the matrix does."""
        if self.imported is not None and self.imported.arch_list is not None:
            told = self.imported.arch_list
            return _targets(told, "sm_"), _targets(told, "compute_")
        if self.variant is not None and self.variant.arch_list:
            return self.variant.arch_list, self.variant.ptx
        return None

    @cached_property
    def compilers(self) -> Compilers | None:
        return self.env.compilers if self.env else None

    @cached_property
    def python(self) -> str | None:
        """The interpreter's series, 3.10."""
        return ".".join(self.env.python.version.split(".")[:2]) if self.env else None

    @cached_property
    def executable(self) -> str:
        """The judged interpreter, quoted for a shell."""
        return shlex.quote(self.env.python.executable) if self.env else "python3"

    def version_of(self, name: str) -> str | None:
        """The version of a distribution that an import would take: the first on sys.path."""
        rows = self.env.distributions if self.env else ()
        return next((row.version for row in rows if row.name == name), None)

    def pip(self, *words: str) -> str:
        """A pip command for the judged interpreter."""
        return f"{self.executable} -m pip {shlex.join(words)}"

    # --- GPU and driver ---

    @cached_property
    def cuda_call(self) -> CudaCall | None:
        apart = self.env.driver if self.env else None
        return apart.value if apart else None

    @cached_property
    def nvml(self) -> NvmlCall | None:
        apart = self.env.nvml if self.env else None
        return apart.value if apart else None

    @cached_property
    def driver(self) -> str | None:
        """The version of the loaded driver; None when there is none, or nobody tells."""
        if self.facts.driver.loaded:
            return self.facts.driver.loaded
        if self.nvml is not None and self.nvml.driver:
            return self.nvml.driver
        return next((g.driver_version for g in self.facts.gpus or () if g.driver_version), None)

    @cached_property
    def gpus(self) -> tuple[SeenGpu, ...]:
        """The GPUs, by whoever tells most of them: NVML, CUDA, nvidia-smi, the PCI bus."""
        for call in (self.nvml, self.cuda_call):
            if call is not None and call.devices:
                return tuple(self._gpu(d.name or "", d.capability) for d in call.devices)
        if self.facts.gpus:
            return tuple(self._gpu(g.name or "", g.compute_cap) for g in self.facts.gpus)
        pci = [d for d in self.facts.pci or () if d.kind == "gpu"]
        return tuple(self._gpu(d.model or "", None) for d in pci)

    def _gpu(self, name: str, capability: str | None) -> SeenGpu:
        fact = self.index.gpu(name) if name else None
        if fact is not None and capability not in (None, fact.capability.capability):
            fact = None  # a name that another chip carries, too
        if fact is None and capability is not None:
            fact = self.index.gpu(capability)
        known = capability or (fact.capability.capability if fact else None)
        return SeenGpu(name or "a GPU without a name", known, fact)

    @cached_property
    def has_gpu(self) -> bool | None:
        """Whether there is an NVIDIA GPU; None when neither bus nor driver tells."""
        if self.gpus:
            return True
        nodes = self.env.devices if self.env is not None else None
        # /dev/dxg stands for whatever GPU Windows has, and WSL shows none on the bus.
        if any(node.path != "/dev/dxg" for node in nodes or ()):
            return True
        return None if self.facts.pci is None or self.facts.wsl else False

    @cached_property
    def inside(self) -> bool:
        """Whether this is a container, where the host's own state cannot be seen."""
        return bool(self.facts.container)

    @cached_property
    def hosts(self) -> HostFacts:
        """The shipped facts about systems, which only remedies ask for."""
        from provisioner.matrix.hosts import host_facts

        return host_facts()

    @cached_property
    def system(self) -> OperatingSystem | None:
        from provisioner.host.gate import system_of

        return system_of(self.facts, self.index, self.hosts)

    def newer_driver(self, floor: str) -> tuple[str, ...]:
        """Commands that bring a driver of at least `floor` which knows the GPUs; () if unknown."""
        if self.system is None or self.facts.wsl:
            return ()
        from provisioner.matrix.hosts import driver_choice

        for number in self.index.matrix.defaults.driver_branches:
            fact = next((b for b in self.index.branches if b.branch == number), None)
            if fact is None or fact.latest is None or not versions.at_least(fact.latest, floor):
                continue
            if any(not _knows(number, fact.latest, gpu) for gpu in self.gpus):
                continue
            choice = driver_choice(
                self.hosts,
                self.system,
                number,
                self.facts.arch or "x86_64",
                open_modules=self._open(fact.open_modules),
            )
            if choice.kind != "refused":
                return self._install(choice.kind, choice.pin, choice.stream, choice.packages)
        return ()

    def _open(self, kind: str) -> bool:
        demanded = any(g.fact and g.fact.capability.modules == "open" for g in self.gpus)
        return kind == "only" or (demanded and kind != "none")

    @staticmethod
    def _install(
        kind: str, pin: str | None, stream: str | None, packages: tuple[str, ...]
    ) -> tuple[str, ...]:
        if kind == "module":
            return (
                f"sudo dnf module enable nvidia-driver:{stream}",
                f"sudo dnf install {' '.join(packages)}",
            )
        pinned = (f"sudo apt-get install {pin}",) if pin else ()
        return (*pinned, f"sudo apt-get install {' '.join(packages)}")


def _knows(branch: int, latest: str, gpu: SeenGpu) -> bool:
    if gpu.fact is None:
        return True
    last = gpu.fact.capability.driver_branch_last
    first = gpu.fact.driver_from
    return (last is None or branch <= last) and (first is None or versions.at_least(latest, first))


def _targets(flags: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """sm_90a -> 9.0, in the order of the list."""
    found = [re.fullmatch(rf"{prefix}(\d+)(\d)[af]?", flag) for flag in flags]
    return tuple(dict.fromkeys(f"{m[1]}.{m[2]}" for m in found if m))
