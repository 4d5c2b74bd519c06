"""What every emitter of one cell is given, and the command that would make the cell again."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from provisioner.errors import UsageError
from provisioner.matrix.cell import Request, Resolution
from provisioner.matrix.resolve import resolve
from provisioner.render.quote import Safe, checked, comment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.matrix.cell import Cell
    from provisioner.matrix.model import Matrix, OperatingSystem, Origins

PROJECT: Final = "provision.yaml"
"""What a project file is called where nobody says otherwise."""


class OwnMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix file of the user: `option` it was given with, name without folder, SHA-256.

    The name alone, since folders differ by machine.
    """

    option: Literal["--matrix", "--overlay"]
    name: str
    sha256: str


class Facts(msgspec.Struct, frozen=True):
    """A matrix and the hash of what it was read from.

    `mirrors` are the addresses that the user gave; `matrix.origins` has them already. `own` are the
    user's own matrix and overlays, in order; `project` is the name of the user's project file.
    """

    matrix: Matrix
    sha256: str
    mirrors: Mapping[str, str] = {}
    own: tuple[OwnMatrix, ...] = ()
    project: str = PROJECT


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
        words = ["provision", "render", *cell_options(self.resolution, self.facts.project)]
        for origin, url in sorted(self.facts.mirrors.items()):
            words += ["--mirror", f"{origin}={url}"]
        for file in self.facts.own:
            words += [file.option, file.name]
        return comment(shlex.join(words))

    @cached_property
    def recorded(self) -> Resolution:
        """The cell resolved from `pinned_request`: what is recorded of it.

        So that one cell is the same bytes however it was asked for, and stays this cell when the
        defaults of the matrix move on.
        """
        try:
            pinned = resolve(self.matrix, pinned_request(self.resolution))
        except UsageError:
            return self.resolution  # words that no matrix gives: the emitters judge them
        if isinstance(pinned, Resolution) and pinned.cell == self.cell:
            return pinned
        return self.resolution

    @property
    def made_by(self) -> Safe:
        """The first line of every file that can hold a comment, without its comment mark."""
        return Safe(f"Made by: {self.command}")


def from_project(request: Request) -> bool:
    """Whether only a project file says what this request says: a name, own packages."""
    return bool(request.packages or request.name)


def pinned_request(resolution: Resolution) -> Request:
    """Returns the request that names this cell and no other, however it was asked for."""
    cell, request = resolution.cell, resolution.request
    marks = cell.name.rpartition("-py")[2].split("-")
    return Request(
        torch=cell.torch,
        cuda=cell.variant,
        python=cell.python,
        os=cell.os,
        arch=cell.arch,
        gpu=cell.gpu,
        driver=request.driver,
        flavour=cell.flavour,
        compile="eager" not in marks,
        python_from=cell.python_from,
        index=request.index if "idx" in marks else None,
        ptxas=cell.ptxas.id if cell.ptxas is not None else None,
        without=tuple(sorted(request.without)),
        name=request.name,
        packages=request.packages,
    )


def cell_options(resolution: Resolution, project: str = PROJECT) -> tuple[str, ...]:
    """Returns the options of `pinned_request`, without those that say what is the default.

    Files of one cell are the same bytes whether the user wrote `--cuda 11.8` or every axis.
    """
    request = pinned_request(resolution)
    options = ["--file", project] if from_project(request) else []
    options += ["--torch", str(request.torch), "--cuda", str(request.cuda)]
    options += ["--python", str(request.python), "--os", str(request.os)]
    if request.arch != "x86_64":
        options += ["--arch", str(request.arch)]
    for gpu in request.gpu:
        options += ["--gpu", gpu]
    if request.driver is not None:
        options += ["--driver", request.driver]
    if request.flavour not in (None, "slim"):
        options += ["--flavour", str(request.flavour)]
    if request.python_from not in (None, "conda"):
        options += ["--python-from", str(request.python_from)]
    if request.index is not None:
        options += ["--index", request.index]
    if request.ptxas is not None:
        options += ["--ptxas", request.ptxas]
    for left_out in request.without:
        options += ["--without", left_out]
    if not request.compile:
        options += ["--no-compile"]
    return tuple(options)
