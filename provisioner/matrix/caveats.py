"""What a user should know of a cell before building: warnings, and what nobody confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.matrix.assemble import Chosen
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.index import GpuFact, MatrixIndex
    from provisioner.matrix.request import Want


def warnings(index: MatrixIndex, want: Want, chosen: Chosen, cell: Cell) -> tuple[str, ...]:
    """What the user should know before building: one sentence each."""
    c = chosen.candidate
    out = [
        f"{bad.combination}: {bad.symptom}. {bad.fix}"
        + ("" if bad.verified else " (not confirmed at first hand)")
        for bad in index.bad_for(c.release.torch, c.variant.tag)
        if bad.effect == "warn" and (not bad.python or chosen.python in bad.python)
    ]
    out += _image_warnings(index, cell)
    out += _driver_warnings(index, want, cell)
    told = [what for _, what in unverified(index, want, chosen, cell)]
    if told:
        out.append("Not confirmed at first hand: " + ", ".join(told) + ".")
    return tuple(out)


def unverified(
    index: MatrixIndex, want: Want, chosen: Chosen, cell: Cell
) -> tuple[tuple[str, str], ...]:
    """(part, words) of every fact behind a cell that no first-hand source confirms."""
    c = chosen.candidate
    toolkit = index.toolkits[cell.cuda] if cell.cuda is not None else None
    facts = [
        ("torch", f"torch {cell.torch}", c.release.verified),
        ("variant", f"the {cell.variant} build of torch {cell.torch}", c.variant.verified),
        ("arch_list", f"the arch list of torch {c.label}", c.variant.arch_list_verified),
        (
            "torchvision",
            f"torchvision {cell.torchvision}",
            cell.torchvision is None or c.release.torchvision.verified,
        ),
        (
            "torchaudio",
            f"torchaudio {cell.torchaudio}",
            cell.torchaudio is None or c.release.torchaudio.verified,
        ),
        *(("gpu", f"what is told of the {gpu.label}", gpu.verified) for gpu in want.gpus),
        *(
            ("gpu_floor", _first_driver(gpu), gpu.driver_exact)
            for gpu in want.gpus
            if cell.cuda is not None and gpu.label != gpu.capability.capability
        ),
        (
            "forward_compat",
            f"forward compatibility to CUDA {cell.cuda}",
            cell.forward_compat is None or toolkit is None or toolkit.forward_compat_verified,
        ),
    ]
    return tuple((part, words) for part, words, sure in facts if not sure)


def _first_driver(gpu: GpuFact) -> str:
    return (
        f"the first driver for the {gpu.label} ({gpu.driver_from} is the first for any GPU of "
        f"compute capability {gpu.capability.capability})"
    )


def _image_warnings(index: MatrixIndex, cell: Cell) -> list[str]:
    version = cell.base_image.partition(":")[2].partition("-")[0]
    out = [
        f"NVIDIA's policy allows {cell.base_image} to be deleted at any time: mirror it and pin "
        "the copy by digest (--mirror image_registry=...)."
        for image in index.matrix.cuda_images
        if cell.base_image.startswith("nvidia/cuda:")
        and image.version == version
        and image.state == "deletable"
    ]
    system = index.systems[cell.os]
    ended = system.end_of_extended or system.end_of_life
    if ended < index.matrix.meta.as_of:
        out.append(f"{cell.os} is out of support since {ended}.")
    elif system.end_of_life < index.matrix.meta.as_of:
        out.append(
            f"{cell.os} is out of standard support since {system.end_of_life} (extended support "
            f"ends {ended})."
        )
    return out


def _driver_warnings(index: MatrixIndex, want: Want, cell: Cell) -> list[str]:
    out: list[str] = []
    if want.gpus and cell.cuda is None:
        names = ", ".join(gpu.label for gpu in want.gpus)
        out.append(f"A build for the CPU was asked for: it uses no GPU ({names}).")
    if cell.forward_compat is not None:
        out.append(
            f"The host driver is too old for CUDA {cell.cuda} by itself: {cell.forward_compat} has "
            "to come first for the loader. "
            + (
                "NVIDIA's base image brings it, and its container toolkit puts it first."
                if cell.base_image.startswith("nvidia/cuda:")
                else "No base image of NVIDIA's is known to bring it on this OS: install it on the "
                "host, and build images on a --base-image that has it."
            )
        )
    if cell.ptxas is not None and not cell.ptxas.verified:
        out.append(
            f"{cell.ptxas.id} is unverified: reported to work, not proved for this release and GPU."
        )
    elif cell.ptxas is not None:
        entry = next(o for o in index.matrix.ptxas_overrides if o.id == cell.ptxas.id)
        out.append(
            f"{cell.ptxas.id} was seen to assemble what triton {cell.triton} makes, without a GPU; "
            f"no kernel ran on a driver this old. It serves compute capability "
            f"{entry.capability_min} to {entry.capability_max}."
        )
    flavours = {g.capability.modules for g in want.gpus} & {"open", "proprietary"}
    if cell.cuda is not None and len(flavours) == 2:
        out.append(
            "These GPUs need different kernel modules (open and proprietary): one host cannot run "
            "both at once."
        )
    if want.driver is not None:
        branch = index.branch_of(want.driver)
        if branch.end_of_life and branch.end_of_life < index.matrix.meta.as_of[:7]:
            out.append(f"Driver branch {branch.branch} is past its end of life.")
        if versions.major(want.driver) > index.branches[-1].branch:
            out.append(
                f"Driver {want.driver} is newer than the matrix knows; judged as branch "
                f"{branch.branch}."
            )
    return out
