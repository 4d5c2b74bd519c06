"""Look-ups over a loaded matrix, made once and used by every decision."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.matrix.model import (
        Capability,
        CudaMajor,
        DriverBranch,
        Gpu,
        KnownBad,
        Matrix,
        OperatingSystem,
        Release,
        Toolkit,
        Triton,
        Variant,
    )


class GpuFact(msgspec.Struct, frozen=True):
    """One GPU of a request: a name or a bare compute capability.

    `driver_exact` is false where `driver_from` is only the first driver for any GPU of the
    capability, and this one may need a newer.
    """

    label: str
    capability: Capability
    data_center: bool
    driver_from: str | None
    embedded: bool
    host_arch: str | None = None
    source: tuple[str, ...] = ()
    verified: bool = True
    driver_exact: bool = True
    note: str | None = None


class MatrixIndex:
    """Dictionaries over one matrix. Holds no decision."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.releases: dict[str, Release] = {r.torch: r for r in matrix.releases}
        self.newest_first: tuple[Release, ...] = tuple(
            sorted(matrix.releases, key=lambda r: versions.key(r.torch), reverse=True)
        )
        self.variants: dict[tuple[str, str], Variant] = {
            (r.torch, v.tag): v for r in matrix.releases for v in r.variants
        }
        self.toolkits: dict[str, Toolkit] = {t.series: t for t in matrix.toolkits}
        self.tritons: dict[str, Triton] = {t.version: t for t in matrix.tritons}
        self.majors: dict[int, CudaMajor] = {m.major: m for m in matrix.cuda_majors}
        self.branches: tuple[DriverBranch, ...] = tuple(
            sorted(matrix.driver_branches, key=lambda b: b.branch)
        )
        self.systems: dict[str, OperatingSystem] = {o.id: o for o in matrix.operating_systems}
        self.capabilities: dict[str, Capability] = {c.capability: c for c in matrix.capabilities}
        self.gpus: dict[str, Gpu] = {}
        for gpu in matrix.gpus:
            for name in (gpu.name, *gpu.aliases):
                self.gpus[gpu_key(name)] = gpu
        self.embedded = frozenset(c.capability for c in matrix.capabilities if c.embedded)
        self._bad: dict[tuple[str, str], tuple[KnownBad, ...]] = {}

    def gpu(self, text: str) -> GpuFact | None:
        """The facts of a GPU name or of a capability such as 8.6; None when unknown."""
        word = text.strip().lower().removeprefix("sm_")
        target = re.fullmatch(r"([0-9]{1,2})([0-9])[af]?", word)
        capability = self.capabilities.get(f"{target[1]}.{target[2]}" if target else word)
        if capability is not None:
            return GpuFact(
                label=capability.capability,
                capability=capability,
                data_center=False,
                driver_from=capability.driver_from,
                embedded=capability.embedded,
                source=capability.source,
                verified=capability.verified,
                driver_exact=capability.driver_from is None,
                note=capability.note,
            )
        gpu = self.gpus.get(gpu_key(text)) or self.gpus.get(gpu_key(text, drop_form=True))
        if gpu is None:
            return None
        capability = self.capabilities[gpu.capability]
        return GpuFact(
            label=gpu.name,
            capability=capability,
            data_center=gpu.kind == "data-center",
            driver_from=gpu.driver_from or capability.driver_from,
            embedded=gpu.kind == "embedded" or capability.embedded,
            host_arch=gpu.host_arch,
            source=gpu.source or capability.source,
            verified=gpu.verified and capability.verified,
            driver_exact=gpu.driver_from is not None or capability.driver_from is None,
            note=gpu.note or capability.note,
        )

    def branch_of(self, driver: str) -> DriverBranch:
        """The branch of a driver version; an unlisted branch counts as the next older one."""
        number = versions.major(driver)
        known = [b for b in self.branches if b.branch <= number]
        return known[-1] if known else self.branches[0]

    def run_floor(self, cuda: str) -> CudaMajor:
        """The run floor of the CUDA major of a series or version."""
        return self.majors[versions.major(cuda)]

    def bad_for(self, torch: str, variant: str) -> tuple[KnownBad, ...]:
        """Known-bad entries that concern a release and variant (whatever the Python)."""
        found = self._bad.get((torch, variant))
        if found is None:
            found = tuple(
                bad
                for bad in self.matrix.known_bad
                if bad.effect != "note"
                and (bad.torch is None or versions.satisfies(torch, bad.torch))
                and (not bad.variants or variant in bad.variants)
            )
            self._bad[(torch, variant)] = found
        return found

    def ptxas_for(self, triton: str, capability: str) -> tuple[str, Triton]:
        """The assembler version that a triton uses for a GPU, and the fact it comes from."""
        fact = self.tritons[triton]
        rules = self.matrix.compile_rules
        if fact.ptxas_blackwell and versions.at_least(capability, rules.blackwell_from):
            return fact.ptxas_blackwell, fact
        return fact.ptxas, fact


_BRAND = frozenset({"nvidia", "geforce", "tesla", "quadro"})
_FORM = re.compile(
    r"(sxm[0-9]?|pcie?|nvl|hgx|dgxs?|fhhl|[0-9]{2,3}gb?|hbm[0-9]?e?|generation"
    r"|laptop|mobile|gpu|with|max|q|design)"
)


def gpu_key(name: str, *, drop_form: bool = False) -> str:
    """A GPU name without maker, brand words, blanks and case: `NVIDIA GeForce RTX 3090`.

    `drop_form` also drops form factor and memory, as in `A100-SXM4-80GB` or `RTX 4090 Laptop GPU`.
    """
    words = re.sub(r"[-_()]", " ", name.lower()).split()
    kept = [w for w in words if w not in _BRAND and not (drop_form and _FORM.fullmatch(w))]
    return "".join(kept or words)


_indexes: list[tuple[Matrix, MatrixIndex]] = []


def index_of(matrix: Matrix) -> MatrixIndex:
    """The index of a matrix, made once while it is in use."""
    for known, index in _indexes:
        if known is matrix:
            return index
    index = MatrixIndex(matrix)
    _indexes.insert(0, (matrix, index))
    del _indexes[4:]
    return index
