"""The rules of the matrix: each looks at one candidate and says what stands against it.

Every rule is a pure function of (index, want, candidate) and gives Problems: a stable code, the
axis, what is there, what is needed, and where the deciding fact was read. Nothing here chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from provisioner.matrix.index import GpuFact, MatrixIndex
    from provisioner.matrix.model import PtxasOverride, Release, Variant
    from provisioner.matrix.request import Want


@dataclass(frozen=True)
class Candidate:
    """A release and a variant, before Python and OS are chosen."""

    release: Release
    variant: Variant
    from_package_index: bool
    arch_list: tuple[str, ...]
    ptx: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.release.torch}+{self.variant.tag}"


@dataclass(frozen=True)
class Problem:
    """Why a candidate cannot be."""

    code: str
    axis: str
    message: str
    have: str
    need: str
    source: tuple[str, ...]
    verified: bool = True


@dataclass(frozen=True)
class DriverState:
    """How a host driver relates to a variant: `native`, `limited`, `compat` or `none`."""

    level: str
    because: str
    cuda: str


def driver_state(index: MatrixIndex, want: Want, toolkit: str) -> DriverState:
    """Step 3 of the decision procedure: can this driver run a build of this CUDA series?"""
    driver = want.driver
    if driver is None:
        raise ValueError("driver_state needs a driver")
    branch = index.branch_of(driver)
    floor = index.run_floor(toolkit)
    if versions.at_least(branch.cuda, toolkit) and versions.at_least(driver, floor.run_floor):
        return DriverState("native", f"driver {driver} speaks CUDA {branch.cuda}", branch.cuda)
    if versions.at_least(driver, floor.run_floor):
        return DriverState(
            "limited",
            f"CUDA {floor.major}.x minor-version compatibility: machine code runs from driver "
            f"{floor.run_floor} on, no JIT of newer PTX and no newer API calls",
            branch.cuda,
        )
    fact = index.toolkits[toolkit]
    data_center = bool(want.gpus) and all(g.data_center for g in want.gpus)
    # The whitelist names branches: an unlisted one is not taken for its neighbour here.
    if data_center and versions.major(driver) in fact.forward_compat_from:
        return DriverState(
            "compat",
            f"data-center GPU on branch {branch.branch}: cuda-compat-{toolkit.replace('.', '-')} "
            "brings the newer user-mode driver",
            toolkit,
        )
    return DriverState("none", f"driver {driver} speaks CUDA {branch.cuda}", branch.cuda)


def published(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """Only builds whose files were seen are offered."""
    del index, want
    if c.variant.published != "yes":
        yield Problem(
            "variant.unpublished",
            "cuda",
            f"the {c.variant.tag} build of torch {c.release.torch} was never confirmed to be "
            f"published (state: {c.variant.published})",
            c.variant.tag,
            "a published variant",
            c.variant.source,
            verified=False,
        )


def known_bad(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """Combinations that the matrix refuses by name."""
    del want
    for bad in index.bad_for(c.release.torch, c.variant.tag):
        if bad.effect == "refuse" and not bad.python:
            yield Problem(
                f"known-bad.{bad.id}",
                "cuda",
                f"torch {c.label} is known to be broken: {bad.symptom}",
                c.variant.tag,
                bad.fix,
                bad.source,
                verified=bad.verified,
            )


def gpu_against_driver(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """Step 2: the driver must know the chip, whatever CUDA is asked for."""
    del index
    if want.driver is None or c.variant.toolkit is None:
        return
    number = versions.major(want.driver)
    for gpu in want.gpus:
        cap = gpu.capability
        if gpu.driver_from and not versions.at_least(want.driver, gpu.driver_from):
            yield Problem(
                "driver.gpu-too-new",
                "driver",
                f"driver {want.driver} does not know the {gpu.label} (compute capability "
                f"{cap.capability})",
                want.driver,
                f">={gpu.driver_from}",
                gpu.source,
                verified=gpu.verified,
            )
        if cap.driver_branch_last is not None and number > cap.driver_branch_last:
            yield Problem(
                "driver.gpu-dropped",
                "driver",
                f"driver branch {number} has dropped {cap.family} GPUs ({gpu.label}, "
                f"compute capability {cap.capability})",
                want.driver,
                f"branch <={cap.driver_branch_last}",
                cap.source,
                verified=gpu.verified,
            )


def driver_runs(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """Step 3: run floor, minor-version compatibility, forward compatibility.

    What needs a compatibility package gives way to whatever runs without one (`Want.bridged`),
    unless its CUDA series was named.
    """
    if want.driver is None or c.variant.toolkit is None:
        return
    state = driver_state(index, want, c.variant.toolkit)
    bridged = state.level == "compat" and (want.bridged or want.variant is not None)
    if bridged or state.level in {"native", "limited"}:
        return
    floor = index.run_floor(c.variant.toolkit)
    toolkit = index.toolkits[c.variant.toolkit]
    compat = toolkit.forward_compat_from
    hint = ""
    branch = versions.major(want.driver)
    if branch in compat and not want.gpus:
        hint = "; on a data-center GPU cuda-compat could bridge it: name the GPU with --gpu"
    elif state.level == "compat":
        hint = f"; cuda-compat could bridge it: ask for it with --cuda {c.variant.toolkit}"
    elif (
        not toolkit.forward_compat_verified and want.gpus and all(g.data_center for g in want.gpus)
    ):
        hint = f"; whether a cuda-compat of CUDA {toolkit.series} bridges it is not confirmed"
    yield Problem(
        "driver.run-floor",
        "driver",
        f"driver {want.driver} is older than {floor.run_floor}, the oldest that runs CUDA "
        f"{floor.major}.x builds{hint}",
        want.driver,
        f">={floor.run_floor}",
        floor.source,
        verified=floor.verified,
    )


def gpu_code(index: MatrixIndex, want: Want, c: Candidate) -> Iterator[Problem]:
    """Steps 4 and 5: machine code of the same major and no higher minor, else PTX that JITs."""
    if c.variant.toolkit is None:
        return
    for gpu in want.gpus:
        cap = gpu.capability.capability
        if sass_for(cap, c.arch_list) is not None:
            continue
        targets = [p for p in c.ptx if versions.at_least(cap, p)]
        if not targets:
            yield Problem(
                "gpu.no-kernels",
                "gpu",
                f"torch {c.label} has no code for the {gpu.label} (compute capability {cap}): "
                f"it holds {', '.join(c.arch_list)}" + (f" and PTX {c.ptx[0]}" if c.ptx else ""),
                cap,
                f"a build with {versions.major(cap)}.x machine code, minor not above {cap}",
                c.variant.source,
                verified=c.variant.arch_list_verified,
            )
            continue
        problem = _jit(index, want, c, gpu)
        if problem is not None:
            yield problem


def _jit(index: MatrixIndex, want: Want, c: Candidate, gpu: GpuFact) -> Problem | None:
    """Whether the driver can compile the variant's PTX for a GPU without machine code."""
    toolkit = index.toolkits[c.variant.toolkit or ""]
    if want.driver is None:
        return None
    state = driver_state(index, want, toolkit.series)
    speaks = index.toolkits.get(state.cuda)
    if speaks is None or not versions.at_least(speaks.ptx_isa, toolkit.ptx_isa):
        return Problem(
            "driver.ptx-jit",
            "driver",
            f"torch {c.label} holds only PTX for the {gpu.label}, and driver {want.driver} "
            f"(CUDA {state.cuda}) cannot compile PTX ISA {toolkit.ptx_isa}",
            want.driver,
            f"a driver of branch {toolkit.native_branch} or newer",
            toolkit.source,
            verified=toolkit.ptx_isa_verified,
        )
    return None


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


def sass_for(capability: str, arch_list: tuple[str, ...]) -> str | None:
    """The machine code that a GPU runs: same major, highest minor not above its own."""
    have = versions.key(capability)
    fits = [
        a
        for a in arch_list
        if versions.major(a) == versions.major(capability) and versions.key(a) <= have
    ]
    return max(fits, key=versions.key) if fits else None


PAIR_RULES: tuple[Callable[[MatrixIndex, Want, Candidate], Iterator[Problem]], ...] = (
    published,
    known_bad,
    gpu_against_driver,
    driver_runs,
    gpu_code,
    gpu_compiles,
    driver_compiles,
)


def pair_problems(index: MatrixIndex, want: Want, c: Candidate) -> list[Problem]:
    """Everything that stands against a release and variant, in order of the procedure."""
    return [problem for rule in PAIR_RULES for problem in rule(index, want, c)]
