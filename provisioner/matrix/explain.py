"""Why a cell is what it is: one Decision for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix import versions
from provisioner.matrix.cell import Cell, Decision, PassedOver
from provisioner.matrix.rules import driver_state, sass_for

if TYPE_CHECKING:
    from provisioner.matrix.assemble import Chosen
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.request import Want

_SHOWN = 4
"""How many passed-over candidates are kept; more only repeat themselves."""


def decisions(index: MatrixIndex, want: Want, chosen: Chosen, cell: Cell) -> tuple[Decision, ...]:
    """One decision for each part of the cell, in reading order."""
    made = [
        _torch(index, want, chosen),
        _variant(index, want, chosen, cell),
        _python(want, chosen, cell),
        _os(want, chosen),
    ]
    if cell.gpu:
        made.append(_gpu(want, chosen))
    if cell.cuda is not None:
        made += [_run_floor(index, cell), *_compile_floor(index, want, chosen, cell)]
    if want.driver is not None and cell.cuda is not None:
        made.append(_host_driver(index, want, cell))
    made += _compile(chosen, cell)
    return tuple(made)


def _host_driver(index: MatrixIndex, want: Want, cell: Cell) -> Decision:
    state = driver_state(index, want, cell.cuda or "")
    floor, branch = index.run_floor(cell.cuda or ""), index.branch_of(want.driver or "")
    toolkit = index.toolkits[cell.cuda or ""]
    bridged = state.level == "compat"
    return Decision(
        part="host driver",
        value=f"{want.driver} ({state.level})",
        because=state.because,
        source=toolkit.source if bridged else floor.source,
        verified=floor.verified
        and branch.verified
        and (toolkit.forward_compat_verified or not bridged),
    )


def _torch(index: MatrixIndex, want: Want, chosen: Chosen) -> Decision:
    release = chosen.candidate.release
    if want.torch is not None:
        because = "asked for"
    elif want.torch_range is not None:
        because = f"the newest release in {want.torch_range} that fits"
    elif want.newest:
        because = "the newest release that fits"
    elif release.torch == index.matrix.defaults.torch:
        because = "the matrix's default"
    else:
        because = f"the default {index.matrix.defaults.torch} does not fit; the newest that does"
    passed = tuple(
        PassedOver(value=c.label, because=problem.message)
        for c, problem in chosen.passed
        if c.release is not release
    )
    return Decision(
        part="torch",
        value=release.torch,
        because=because,
        source=release.source,
        verified=release.verified,
        passed_over=passed[:_SHOWN],
    )


def _variant(index: MatrixIndex, want: Want, chosen: Chosen, cell: Cell) -> Decision:
    c = chosen.candidate
    if want.variant is not None:
        because = "asked for"
    elif cell.torch == index.matrix.defaults.torch and cell.cuda == index.matrix.defaults.cuda:
        because = "the matrix's default CUDA series"
    elif c.from_package_index:
        because = "the build that the package index serves for this release"
    else:
        because = "the best variant of this release against which no rule speaks"
    if c.from_package_index and cell.local_version != cell.torch:
        because += (
            f"; it comes from the package index as {cell.torch} and calls itself "
            f"{cell.local_version}"
        )
    passed = tuple(
        PassedOver(value=other.label, because=problem.message)
        for other, problem in chosen.passed
        if other.release is c.release
    )
    return Decision(
        part="variant",
        value=c.variant.tag,
        because=because,
        source=c.variant.source,
        verified=c.variant.verified,
        passed_over=passed[:_SHOWN],
    )


def _python(want: Want, chosen: Chosen, cell: Cell) -> Decision:
    ceiling = chosen.candidate.release.compile.python_max
    if want.python is not None:
        because = "asked for"
    elif want.python_from == "base":
        because = f"the Python that {chosen.system.id} ships"
    else:
        because = "the matrix's preferred Python that this release takes"
    if ceiling is not None:
        because += f"; torch.compile works up to Python {ceiling}"
    return Decision(
        part="python",
        value=cell.python,
        because=because,
        source=chosen.candidate.release.source,
    )


def _os(want: Want, chosen: Chosen) -> Decision:
    system = chosen.system
    because = "asked for" if want.os is not None else "the first preferred OS that fits"
    because += f"; glibc {system.glibc}, torch needs {chosen.candidate.release.glibc}"
    return Decision(
        part="os",
        value=system.id,
        because=because,
        source=system.source,
        verified=system.toolchain_verified,
    )


def _gpu(want: Want, chosen: Chosen) -> Decision:
    c = chosen.candidate
    strictest = min(want.gpus, key=lambda g: versions.key(g.capability.capability))
    parts: list[str] = []
    for gpu in want.gpus:
        cap = gpu.capability.capability
        code = sass_for(cap, c.arch_list)
        if c.variant.toolkit is None:
            parts.append(f"{gpu.label} is not used by a cpu build")
        elif code is not None:
            parts.append(f"{gpu.label} ({cap}) runs the {code} machine code")
        else:
            ptx = [p for p in c.ptx if versions.at_least(cap, p)]
            parts.append(f"{gpu.label} ({cap}) runs PTX {ptx[-1]} through the driver's compiler")
    because = "; ".join(parts)
    if len(want.gpus) > 1:
        because += f"; the strictest is {strictest.label}"
    return Decision(
        part="gpu",
        value=", ".join(g.label for g in want.gpus),
        because=because,
        source=c.variant.source,
        verified=c.variant.arch_list_verified and all(g.verified for g in want.gpus),
    )


def _run_floor(index: MatrixIndex, cell: Cell) -> Decision:
    floor = index.run_floor(cell.cuda or "")
    return Decision(
        part="run floor",
        value=floor.run_floor,
        because=f"the oldest driver that runs CUDA {floor.major}.x machine code",
        source=floor.source,
        verified=floor.verified,
    )


def _compile_floor(index: MatrixIndex, want: Want, chosen: Chosen, cell: Cell) -> list[Decision]:
    pin = chosen.candidate.release.triton
    if cell.driver.compile_floor is None or pin is None or not cell.compile:
        return []
    caps = [g.capability.capability for g in want.gpus]
    top = max(caps, key=versions.key) if caps else index.matrix.compile_rules.capability_min
    ptxas, fact = index.ptxas_for(pin.version, top)
    if cell.ptxas is not None:
        return [
            Decision(
                part="compile floor",
                value=cell.driver.compile_floor,
                because=f"{cell.ptxas.package} replaces triton's ptxas {ptxas}",
                source=next(
                    o.source for o in index.matrix.ptxas_overrides if o.id == cell.ptxas.id
                ),
                verified=cell.ptxas.verified,
            )
        ]
    return [
        Decision(
            part="compile floor",
            value=cell.driver.compile_floor,
            because=f"triton {pin.version} assembles with ptxas {ptxas}: the higher of the run "
            f"floors of CUDA {cell.cuda} and {ptxas}",
            source=fact.source,
            verified=fact.verified,
        )
    ]


def _compile(chosen: Chosen, cell: Cell) -> list[Decision]:
    if cell.compile:
        return []
    supported = chosen.candidate.release.compile.supported
    because = "--no-compile" if supported else "torch.compile does not exist before torch 2.0"
    return [
        Decision(
            part="compile",
            value="eager-only",
            because=because,
            source=chosen.candidate.release.source,
        )
    ]
