"""From a chosen candidate to the Cell: its name, pins, drivers and the reasons for each part."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, cast

import msgspec

from provisioner.matrix import versions
from provisioner.matrix.cell import (
    Cell,
    DriverNeeds,
    Ptxas,
    Resolution,
)
from provisioner.matrix.compiling import (
    compile_floor,
    override_for,
    override_serves,
    override_verified,
)
from provisioner.matrix.placing import devel_image
from provisioner.matrix.rules import Candidate, Problem, driver_state, sass_for

if TYPE_CHECKING:
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import Arch, Flavour, OperatingSystem, PythonFrom
    from provisioner.matrix.request import Want


class Chosen(msgspec.Struct, frozen=True):
    """The candidate, its Python and OS, and the better liked candidates that fell out."""

    candidate: Candidate
    python: str
    system: OperatingSystem
    passed: tuple[tuple[Candidate, Problem], ...]


def assemble(index: MatrixIndex, want: Want, chosen: Chosen) -> Resolution:
    """The Resolution for a choice; every field of the cell is derived here and nowhere else."""
    c = chosen.candidate
    driver = _driver_needs(index, want, c)
    state = (
        driver_state(index, want, c.variant.toolkit)
        if want.driver is not None and c.variant.toolkit is not None
        else None
    )
    companions, constraints = _guards(index, chosen)
    compat = state is not None and state.level == "compat"
    cell = Cell(
        name=cell_name(want, chosen),
        torch=c.release.torch,
        local_version=_local_version(want, c),
        variant=c.variant.tag,
        cuda=c.variant.toolkit,
        python=chosen.python,
        os=chosen.system.id,
        arch=cast("Arch", want.arch),
        torchvision=_companion(want, "torchvision", c.release.torchvision.version),
        torchaudio=_companion(want, "torchaudio", c.release.torchaudio.version),
        triton=_triton(want, c),
        index_url=_index_url(index, c),
        device="cpu" if c.variant.toolkit is None else "cuda",
        flavour=cast("Flavour", want.flavour),
        python_from=cast("PythonFrom", want.python_from),
        compile=want.request.compile and c.release.compile.supported,
        driver=driver,
        arch_list=c.arch_list,
        ptx=c.ptx,
        glibc=c.release.glibc,
        base_image=_base_image(index, want, chosen, compat=compat),
        requirements=_requirements(want, c),
        companions=companions,
        constraints=constraints,
        as_of=_as_of(index, c.release.released),
        forward_compat=_compat_package(c) if compat else None,
        ptxas=_ptxas(index, want, c),
        gpu=tuple(g.label for g in want.gpus),
        packages=want.request.packages,
        verified=c.variant.verified,
    )
    from provisioner.matrix.caveats import unverified, warnings
    from provisioner.matrix.explain import decisions

    return Resolution(
        cell=cell,
        decisions=decisions(index, want, chosen, cell),
        warnings=warnings(index, want, chosen, cell),
        unverified=tuple(dict.fromkeys(part for part, _ in unverified(index, want, chosen, cell))),
        request=want.request,
    )


def cell_name(want: Want, chosen: Chosen) -> str:
    """The cell's name: default axes first, then other than default ones in a fixed order."""
    c = chosen.candidate
    parts = [
        f"torch{c.release.torch}",
        c.variant.tag,
        "py" + chosen.python.replace(".", ""),
        chosen.system.id,
    ]
    if want.arch == "aarch64":
        parts.append("aarch64")
    if want.python_from == "base":
        parts.append("basepy")
    if want.flavour == "devel":
        parts.append("devel")
    if want.request.ptxas:
        parts.append(want.request.ptxas)
    if not want.request.compile and c.release.compile.supported:
        parts.append("eager")
    if c.variant.tag == c.release.pypi.variant and not c.from_package_index:
        parts.append("idx")
    name = "-".join(parts)
    return f"{want.request.name}--{name}" if want.request.name else name


def _companion(want: Want, name: str, version: str) -> str | None:
    return None if name in want.request.without else version


def _triton(want: Want, c: Candidate) -> str | None:
    pin = c.release.triton
    if pin is None or c.variant.toolkit is None:
        return None
    if want.arch == "aarch64" and not pin.aarch64:
        return None
    return pin.version


def _local_version(want: Want, c: Candidate) -> str:
    """What torch.__version__ says: the label is there even where the index leaves it out."""
    if want.arch == "aarch64" and not c.release.pypi.aarch64_labelled:
        return c.release.torch
    return f"{c.release.torch}+{c.variant.tag}"


def _index_url(index: MatrixIndex, c: Candidate) -> str | None:
    if c.from_package_index:
        return index.matrix.origins.package_index.url
    base = index.matrix.origins.torch_index.url or ""
    return f"{base.rstrip('/')}/{c.variant.tag}"


def _requirements(want: Want, c: Candidate) -> tuple[str, ...]:
    """Exact pins; the label on all three of an index variant, or a resolver mixes variants."""
    label = "" if c.from_package_index else f"+{c.variant.tag}"
    pins = [f"torch=={c.release.torch}{label}"]
    for name, companion in (
        ("torchvision", c.release.torchvision),
        ("torchaudio", c.release.torchaudio),
    ):
        if name not in want.request.without:
            plain = companion.python == "any"
            pins.append(f"{name}=={companion.version}{'' if plain else label}")
    return tuple(pins)


def _guards(index: MatrixIndex, chosen: Chosen) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(requirements to add, bounds) that the matrix puts beside this release."""
    c = chosen.candidate
    add: list[str] = list(index.matrix.defaults.pip_packages)
    bounds: list[str] = []
    for bad in index.bad_for(c.release.torch, c.variant.tag):
        if bad.python and chosen.python not in bad.python:
            continue
        if bad.effect == "add":
            add += bad.requirements
        elif bad.effect == "constrain":
            bounds += bad.requirements
    return tuple(sorted(set(add))), tuple(sorted(set(bounds)))


def _as_of(index: MatrixIndex, released: str) -> str:
    """Companions are taken as they were some weeks after the release, never from its future."""
    days = dt.timedelta(days=index.matrix.defaults.companion_days)
    then = dt.date.fromisoformat(released) + days
    return min(then.isoformat(), index.matrix.meta.as_of)


def _base_image(index: MatrixIndex, want: Want, chosen: Chosen, *, compat: bool) -> str:
    """The OS's own image; NVIDIA's for a toolkit, and where the cuda-compat in it is needed."""
    series = chosen.candidate.variant.toolkit
    if series is not None and (want.flavour == "devel" or compat):
        version = devel_image(index, series, chosen.system)
        if version is not None:
            kind = "devel" if want.flavour == "devel" else "base"
            return f"nvidia/cuda:{version}-{kind}-{chosen.system.cuda_image_suffix}"
    return chosen.system.image


def _compat_package(c: Candidate) -> str:
    return f"cuda-compat-{(c.variant.toolkit or '').replace('.', '-')}"


def _ptxas(index: MatrixIndex, want: Want, c: Candidate) -> Ptxas | None:
    if want.request.ptxas is None:
        return None
    override = override_for(index, c, want)
    if override is None:
        return None
    return Ptxas(
        id=override.id,
        package=override.package,
        path=override.path,
        verified=override_verified(override, c, want),
    )


# --- drivers ------------------------------------------------------------------------------------


def _driver_needs(index: MatrixIndex, want: Want, c: Candidate) -> DriverNeeds:
    series = c.variant.toolkit
    if series is None:
        return DriverNeeds()
    caps = [g.capability.capability for g in want.gpus]
    general = compile_floor(index, c, None)
    floors = [f for cap in caps if (f := compile_floor(index, c, cap)) is not None]
    override = override_for(index, c, want) if want.request.ptxas else None
    by_arch = {
        cap: floor
        for cap in sorted({*c.arch_list, *c.ptx, *caps}, key=versions.key)
        if versions.at_least(cap, index.matrix.compile_rules.capability_min)
        and (floor := compile_floor(index, c, cap)) is not None
    }
    run = index.run_floor(series).run_floor
    if override is not None and general is not None:
        lower = max(run, index.run_floor(override.ptxas).run_floor, key=versions.key)
        general, floors = lower, [lower] if floors else []
        by_arch = {cap: lower for cap in by_arch if override_serves(override, cap)}
    gpu_floors = [g.driver_from for g in want.gpus if g.driver_from]
    return DriverNeeds(
        run_floor=run,
        compile_floor=max(floors, key=versions.key) if floors else general,
        compile_floor_by_arch=by_arch,
        native=str(index.toolkits[series].native_branch),
        gpu_floor=max(gpu_floors, key=versions.key) if gpu_floors else None,
        install=_install_branch(index, want, c),
    )


def _install_branch(index: MatrixIndex, want: Want, c: Candidate) -> int | None:
    """Step 6: the first preferred branch that knows every GPU and carries the variant."""
    series = c.variant.toolkit or ""
    by_number = {b.branch: b for b in index.branches}
    needs_jit = any(sass_for(g.capability.capability, c.arch_list) is None for g in want.gpus)
    compiles = all(
        versions.at_least(g.capability.capability, index.matrix.compile_rules.capability_min)
        for g in want.gpus
    )
    for number in index.matrix.defaults.driver_branches:
        branch = by_number.get(number)
        if branch is None or branch.latest is None:
            continue
        floor = (compiles and compile_floor(index, c, None)) or index.run_floor(series).run_floor
        if not versions.at_least(branch.latest, floor):
            continue
        if needs_jit and not versions.at_least(branch.cuda, series):
            continue
        if all(
            (g.driver_from is None or versions.at_least(branch.latest, g.driver_from))
            and (
                g.capability.driver_branch_last is None or number <= g.capability.driver_branch_last
            )
            for g in want.gpus
        ):
            return number
    return None
