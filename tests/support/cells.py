"""Cells of the shipped matrix, with their operating system and the matrix's origins."""

import functools

from provisioner.matrix.cell import Cell, Request, Resolution
from provisioner.matrix.load import load_matrix
from provisioner.matrix.model import Matrix, OperatingSystem
from provisioner.matrix.resolve import resolve


@functools.cache
def shipped() -> Matrix:
    """Return the shipped matrix."""
    return load_matrix(None).matrix


def cell_of(**request: str) -> tuple[Cell, OperatingSystem]:
    """Return the cell of a request and its operating system."""
    answer = resolve(shipped(), Request(**request))  # type: ignore[arg-type]
    assert isinstance(answer, Resolution), answer
    return answer.cell, next(s for s in shipped().operating_systems if s.id == answer.cell.os)
