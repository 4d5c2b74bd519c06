"""conda's half of a cell: environment.yml with Python and the base scientific stack.

It has no pip section: pip's half is locked on its own, with what conda owns as constraints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.render.fileset import RenderedFile
from provisioner.render.quote import Safe, all_checked, yaml_scalar

if TYPE_CHECKING:
    from provisioner.render.context import CellContext

_NAME = re.compile(r"[^A-Za-z0-9._-]")


def emit(context: CellContext) -> list[RenderedFile]:
    """Returns environment.yml; nothing for a cell on the base image's Python."""
    if context.cell.python_from != "conda":
        return []
    lines = [
        f"# {context.made_by}",
        "# conda owns Python and the base stack; torch and all above it are pip's.",
        "channels:",
        *(f"  - {yaml_scalar(channel)}" for channel in _channels(context)),
        "  - nodefaults",
        "dependencies:",
        *(f"  - {yaml_scalar(spec)}" for spec in _specs(context)),
    ]
    return [
        RenderedFile(
            path=f"{context.locks}/environment.yml",
            content="".join(f"{line}\n" for line in lines).encode("ascii"),
            group=context.group,
        )
    ]


def _channels(context: CellContext) -> tuple[Safe, ...]:
    return all_checked("name", context.matrix.defaults.conda_channels, "a conda channel")


def _specs(context: CellContext) -> list[Safe]:
    """The matrix's base stack with its bounds, then the user's packages.

    A package that both name gets two lines, and the solver has to satisfy both.
    """
    cell = context.cell
    bounds = {_NAME.split(bound, 1)[0]: bound for bound in cell.constraints}
    specs = [
        f"python={cell.python}.*" if package == "python" else bounds.get(package, package)
        for package in context.matrix.defaults.conda_packages
    ]
    return [
        *all_checked("conda", specs, "a package of the conda base"),
        *all_checked("conda", cell.packages.conda, "packages.conda of provision.yaml"),
    ]
