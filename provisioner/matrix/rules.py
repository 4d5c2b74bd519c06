"""The rules of the matrix: each looks at one candidate and says what stands against it.

Every rule is a pure function of (index, want, candidate) and gives Problems: a stable code, the
axis, what is there, what is needed, and where the deciding fact was read. Nothing here chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.matrix.index import GpuFact, MatrixIndex
    from provisioner.matrix.model import Release, Variant
    from provisioner.matrix.request import Want


class Candidate(msgspec.Struct, frozen=True):
    """A release and a variant, before Python and OS are chosen."""

    release: Release
    variant: Variant
    from_package_index: bool
    arch_list: tuple[str, ...]
    ptx: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.release.torch}+{self.variant.tag}"


class Problem(msgspec.Struct, frozen=True):
    """Why a candidate cannot be."""

    code: str
    axis: str
    message: str
    have: str
    need: str
    source: tuple[str, ...]
    verified: bool = True


class DriverState(msgspec.Struct, frozen=True):
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


def sass_for(capability: str, arch_list: tuple[str, ...]) -> str | None:
    """The machine code that a GPU runs: same major, highest minor not above its own."""
    have = versions.key(capability)
    fits = [
        a
        for a in arch_list
        if versions.major(a) == versions.major(capability) and versions.key(a) <= have
    ]
    return max(fits, key=versions.key) if fits else None
