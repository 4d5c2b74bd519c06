"""What every emitter of one cell is given, and the command that would make the cell again."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from provisioner.render.quote import Safe, checked, comment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.matrix.cell import Cell, Resolution
    from provisioner.matrix.model import Matrix, OperatingSystem, Origins


class Facts(msgspec.Struct, frozen=True):
    """A matrix and the hash of what it was read from.

    `mirrors` are the addresses that the user gave; `matrix.origins` has them already. `laid_over`
    are the names of the user's own matrix (`--matrix`) and overlays as options, without folders.
    """

    matrix: Matrix
    sha256: str
    mirrors: Mapping[str, str] = {}
    laid_over: tuple[str, ...] = ()


class CellContext(msgspec.Struct, frozen=True, dict=True):
    """One resolution with the facts beside it. Everything derived here is checked text."""

    resolution: Resolution
    facts: Facts

    @property
    def cell(self) -> Cell:
        return self.resolution.cell

    @property
    def matrix(self) -> Matrix:
        return self.facts.matrix

    @property
    def origins(self) -> Origins:
        return self.facts.matrix.origins

    @cached_property
    def name(self) -> Safe:
        """The cell's name; it becomes a folder, an image name and a word of messages."""
        return checked("name", self.cell.name, "the name of the cell")

    @property
    def group(self) -> str:
        """The owner of the cell's files in the manifest."""
        return f"cell/{self.name}"

    @property
    def docker(self) -> Safe:
        """The folder of the cell's image, relative to the output root."""
        return Safe(f"docker/{self.name}")

    @property
    def locks(self) -> Safe:
        """The folder of the cell's locks, relative to the output root."""
        return Safe(f"lockfiles/{self.name}")

    @cached_property
    def system(self) -> OperatingSystem:
        """The facts of the cell's operating system."""
        return next(s for s in self.matrix.operating_systems if s.id == self.cell.os)

    @property
    def from_torch_index(self) -> bool:
        """Whether the torch family comes from an index of its own."""
        return any("+" in pin for pin in self.cell.requirements)

    @cached_property
    def command(self) -> Safe:
        """The command line that makes these files again, without this machine's paths."""
        return comment(
            shlex.join(
                ("provision", "render", *cell_options(self.resolution), *self.facts.laid_over)
            )
        )

    @property
    def made_by(self) -> Safe:
        """The first line of every file that can hold a comment, without its comment mark."""
        return Safe(f"Made by: {self.command}")


def cell_options(resolution: Resolution) -> tuple[str, ...]:
    """Returns the options that name this cell and no other, however it was asked for.

    Files of one cell are the same bytes whether the user wrote `--cuda 11.8` or every axis.
    """
    cell = resolution.cell
    request = resolution.request
    options: list[str] = []
    if request.packages or request.name:
        options += ["--file", "provision.yaml"]
    options += ["--torch", cell.torch, "--cuda", cell.variant, "--python", cell.python]
    options += ["--os", cell.os]
    if cell.arch != "x86_64":
        options += ["--arch", cell.arch]
    for gpu in cell.gpu:
        options += ["--gpu", gpu]
    if request.driver is not None:
        options += ["--driver", request.driver]
    if cell.flavour != "slim":
        options += ["--flavour", cell.flavour]
    if cell.python_from != "conda":
        options += ["--python-from", cell.python_from]
    if request.index is not None and cell.name.endswith("-idx"):
        options += ["--index", request.index]
    if cell.ptxas is not None:
        options += ["--ptxas", cell.ptxas.id]
    for left_out in sorted(request.without):
        options += ["--without", left_out]
    if not request.compile:
        options += ["--no-compile"]
    return tuple(options)
