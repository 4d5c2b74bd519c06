"""The rules about torch.compile on a GPU: triton's reach, its assembler, another assembler.

Like `rules`: pure, each gives Problems, nothing chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix import versions
from provisioner.matrix.rules import Candidate, Problem, driver_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.matrix.index import GpuFact, MatrixIndex
    from provisioner.matrix.model import PtxasOverride
    from provisioner.matrix.request import Want


def gpu_compiles(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """triton compiles for capability 7.0 and newer only."""
    if c.variant.toolkit is None or not c.release.compile.supported or not want.request.compile:
        return
    rules = index.matrix.compile_rules
    for gpu in want.gpus:
        cap = gpu.capability.capability
        if not versions.at_least(cap, rules.capability_min):
            yield Problem(
                "gpu.no-compile",
                "gpu",
                f"torch.compile cannot target the {gpu.label}: triton needs compute capability "
                f"{rules.capability_min} or newer, the GPU has {cap}",
                cap,
                f">={rules.capability_min} to compile, or --no-compile",
                rules.source,
                verified=rules.verified,
            )
        elif (problem := _ptxas_knows(index, c, gpu)) is not None:
            yield problem


def _ptxas_knows(index: MatrixIndex, c: Candidate, gpu: GpuFact) -> Problem | None:
    """triton's assembler must be of a toolkit that compiles for the GPU at all."""
    pin, first = c.release.triton, gpu.capability.toolkit_first
    if pin is None or first is None:
        return None
    ptxas, fact = index.ptxas_for(pin.version, gpu.capability.capability)
    if versions.at_least(ptxas, first):
        return None
    return Problem(
        "gpu.ptxas-too-old",
        "ptxas",
        f"torch.compile cannot target the {gpu.label}: triton {pin.version} assembles with ptxas "
        f"{ptxas}, and compute capability {gpu.capability.capability} begins with CUDA {first}",
        ptxas,
        f"a ptxas of CUDA {first} or newer, or --no-compile",
        fact.source,
        verified=gpu.verified and fact.verified,
    )


def compile_floor(index: MatrixIndex, c: Candidate, capability: str | None) -> str | None:
    """The oldest driver that runs the variant and loads what triton's ptxas makes for a GPU.

    `capability` None stands for a GPU before Blackwell. None for cpu and for torch 1.x.
    """
    if c.variant.toolkit is None or not c.release.compile.supported or c.release.triton is None:
        return None
    run = index.run_floor(c.variant.toolkit).run_floor
    ptxas, _ = index.ptxas_for(
        c.release.triton.version, capability or index.matrix.compile_rules.capability_min
    )
    return max(run, index.run_floor(ptxas).run_floor, key=versions.key)


def override_for(index: MatrixIndex, c: Candidate, want: Want) -> PtxasOverride | None:
    """The other ptxas that could serve this candidate and these GPUs, if the matrix has one."""
    if c.release.triton is None or c.variant.toolkit is None:
        return None
    for override in index.matrix.ptxas_overrides:
        caps = [g.capability.capability for g in want.gpus]
        if versions.satisfies(c.release.triton.version, override.triton) and all(
            override_serves(override, cap) for cap in caps
        ):
            return override
    return None


def override_serves(override: PtxasOverride, capability: str) -> bool:
    """Whether the other ptxas is offered for a compute capability."""
    return versions.at_least(capability, override.capability_min) and versions.at_least(
        override.capability_max, capability
    )


def override_verified(override: PtxasOverride, c: Candidate, want: Want) -> bool:
    """Whether evidence says that the other ptxas takes what this triton makes for these GPUs.

    Without a GPU in the request that is asked of the build's machine code in the override's range.
    """
    if c.release.triton is None or not override.verified:
        return False
    asked = [g.capability.capability for g in want.gpus] or [
        arch for arch in c.arch_list if override_serves(override, arch)
    ]
    proved = override.assembled.get(c.release.triton.version, ())
    return bool(asked) and all(capability in proved for capability in asked)


def driver_compiles(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """The compile floor: the CUDA major of the ptxas decides, not that of the variant."""
    asked = want.request.ptxas
    if not want.request.compile or c.variant.toolkit is None or not c.release.compile.supported:
        if asked is not None:
            yield _nothing_to_assemble(c, asked)
        return
    override = override_for(index, c, want)
    if asked is not None:
        if override is None or override.id != asked:
            yield _no_override(index, c, asked)
        return
    if want.driver is None or c.release.triton is None:
        return
    level = driver_state(index, want, c.variant.toolkit).level
    if level == "none":
        return  # it does not even run; `driver_runs` has said so
    effective = want.driver
    if level == "compat":
        effective = f"{index.toolkits[c.variant.toolkit].native_branch}.999"
    worst: tuple[str, str] | None = None
    caps: list[str | None] = [g.capability.capability for g in want.gpus]
    for cap in caps or [None]:
        floor = compile_floor(index, c, cap)
        if floor and not versions.at_least(effective, floor):
            ptxas, _ = index.ptxas_for(
                c.release.triton.version, cap or index.matrix.compile_rules.capability_min
            )
            if worst is None or versions.key(floor) > versions.key(worst[0]):
                worst = (floor, ptxas)
    if worst is None:
        return
    fact = index.tritons[c.release.triton.version]
    yield Problem(
        "driver.compile-floor",
        "driver",
        f"driver {want.driver} runs torch {c.label} in eager mode but cannot load what "
        f"torch.compile makes on the GPU: triton {fact.version} assembles with ptxas {worst[1]}, "
        f"which needs driver {worst[0]} or newer",
        want.driver,
        f">={worst[0]}, or --no-compile",
        fact.source,
        verified=fact.verified,
    )


def _nothing_to_assemble(c: Candidate, asked: str) -> Problem:
    return Problem(
        "ptxas.not-possible",
        "ptxas",
        f"{asked} replaces the assembler of triton, and a cell of torch {c.label} that compiles "
        "nothing on a GPU has no use for it",
        asked,
        "a CUDA build with torch.compile, or no other ptxas",
        c.release.source,
    )


def _no_override(index: MatrixIndex, c: Candidate, asked: str) -> Problem:
    known = next((o for o in index.matrix.ptxas_overrides if o.id == asked), None)
    triton = c.release.triton.version if c.release.triton else "none"
    if known is None:
        names = ", ".join(o.id for o in index.matrix.ptxas_overrides) or "none"
        return Problem(
            "ptxas.unknown", "ptxas", f"no assembler {asked!r} is known", asked, names, ()
        )
    return Problem(
        "ptxas.not-possible",
        "ptxas",
        f"{asked} serves triton {known.triton} on compute capability {known.capability_min} to "
        f"{known.capability_max}, not triton {triton} of torch {c.label}",
        triton,
        known.triton,
        known.source,
        verified=known.verified,
    )
