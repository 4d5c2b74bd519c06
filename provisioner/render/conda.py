"""conda's half of a cell: environment.yml with Python and the base scientific stack.

It has no pip section: pip's half is locked on its own, with what conda owns as constraints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.render.fileset import RenderedFile
from provisioner.render.quote import Safe, all_checked, yaml_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """The matrix's base stack with its bounds, then the user's packages; one line for each name."""
    cell = context.cell
    bounds = {_NAME.split(bound, 1)[0]: bound for bound in cell.constraints}
    specs = [
        f"python={cell.python}.*" if package == "python" else bounds.get(package, package)
        for package in context.matrix.defaults.conda_packages
    ]
    both = [
        *all_checked("conda", specs, "a package of the conda base"),
        *all_checked("conda", cell.packages.conda, "packages.conda of provision.yaml"),
    ]
    return list(all_checked("conda", merged(both), "a package of the conda half"))


def merged(specs: Iterable[str]) -> list[str]:
    """Returns one spec for each name, at its first place, with all bounds joined by commas.

    Of two lines for one name some solvers take the last and forget the other.
    """
    bounds: dict[str, list[str]] = {}
    for spec in specs:
        name = _NAME.split(spec, 1)[0]
        parts = bounds.setdefault(name, [])
        parts += [part for part in spec[len(name) :].split(",") if part and part not in parts]
    return [name + ",".join(_in_list(parts)) for name, parts in bounds.items()]


def _in_list(parts: list[str]) -> list[str]:
    """Several bounds so that each means what it means alone: =1.2 is 1.2 with whatever follows."""
    if len(parts) < 2:
        return parts
    fuzzy = [part for part in parts if re.match(r"=[^=]", part)]
    spelled = [part if part.endswith("*") else f"{part}.*" for part in fuzzy]
    return [*(part for part in parts if part not in fuzzy), *spelled]
