"""pip's half of a cell before locking: requirements.in and constraints.txt.

The locker turns them into requirements.txt and, where the torch family has an index of its own,
requirements-torch.txt. No index is named here: an index line in a requirements file would send
every package to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.render.fileset import RenderedFile
from provisioner.render.quote import all_checked, checked

if TYPE_CHECKING:
    from provisioner.render.context import CellContext


def emit(context: CellContext) -> list[RenderedFile]:
    """Returns requirements.in and constraints.txt of the cell."""
    return [
        RenderedFile(
            path=f"{context.locks}/{name}",
            content="".join(f"{line}\n" for line in lines).encode("ascii"),
            group=context.group,
        )
        for name, lines in (
            ("requirements.in", _requirements(context)),
            ("constraints.txt", _constraints(context)),
        )
    ]


def _requirements(context: CellContext) -> list[str]:
    cell = context.cell
    lines = [f"# {context.made_by}", f"# {_family(context)}"]
    lines += all_checked("requirement", cell.requirements, "a pin of the torch family")
    if cell.ptxas is not None:
        lines += [
            "# Another assembler for triton, for hosts with an old driver.",
            checked("requirement", cell.ptxas.package, "the package of the ptxas override"),
        ]
    if cell.companions:
        lines += ["# From the matrix: what this release needs without saying so."]
        lines += all_checked("requirement", cell.companions, "a companion of the torch family")
    if cell.packages.pip:
        lines += ["# From provision.yaml."]
        lines += all_checked("requirement", cell.packages.pip, "packages.pip of provision.yaml")
    return lines


def _family(context: CellContext) -> str:
    cell = context.cell
    origin = "its own index" if context.from_torch_index else "the package index"
    return (
        f"The torch family: release {checked('name', cell.torch, 'the torch version')}, "
        f"{checked('name', cell.variant, 'the variant')} build of {origin}."
    )


def _constraints(context: CellContext) -> list[str]:
    cell = context.cell
    lines = [f"# {context.made_by}"]
    if not cell.constraints:
        return [*lines, f"# torch {checked('name', cell.torch, 'the torch version')} needs none."]
    lines += ["# Bounds from the matrix: newer ones are known to break this release."]
    lines += all_checked("requirement", cell.constraints, "a bound of the matrix")
    return lines
