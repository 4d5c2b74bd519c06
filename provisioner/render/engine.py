"""All emitters of one cell, and the functions that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.render import ansible, conda, dockerfile, pip, spec
from provisioner.render.context import CellContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.matrix.cell import Resolution
    from provisioner.render.context import Facts
    from provisioner.render.fileset import RenderedFile

EMITTERS: dict[str, Callable[[CellContext], list[RenderedFile]]] = {
    "conda": conda.emit,
    "pip": pip.emit,
    "dockerfile": dockerfile.emit,
    "spec": spec.emit,
    "ansible": ansible.emit,
}
"""One entry per kind of output; a new kind is one module and one entry."""


def render_cell(resolution: Resolution, facts: Facts) -> list[RenderedFile]:
    """Returns all files of one cell, sorted by path; the same input gives the same bytes.

    Raises UsageError for a value that may not stand in a rendered file.
    """
    return render_context(CellContext(resolution, facts))


def render_context(context: CellContext) -> list[RenderedFile]:
    """Returns all files of a cell whose context is at hand."""
    files = [file for emit in EMITTERS.values() for file in emit(context)]
    return sorted(files, key=lambda file: file.path)
