"""Every rule about a release and a variant, in the order of the decision procedure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix.compiling import driver_compiles, gpu_compiles
from provisioner.matrix.rules import (
    driver_runs,
    gpu_against_driver,
    gpu_code,
    known_bad,
    published,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.request import Want
    from provisioner.matrix.rules import Candidate, Problem

PAIR_RULES: tuple[Callable[[MatrixIndex, Want, Candidate], Iterator[Problem]], ...] = (
    published,
    known_bad,
    gpu_against_driver,
    driver_runs,
    gpu_code,
    gpu_compiles,
    driver_compiles,
)


def pair_problems(index: MatrixIndex, want: Want, c: Candidate) -> list[Problem]:
    """Everything that stands against a release and variant, in order of the procedure."""
    return [problem for rule in PAIR_RULES for problem in rule(index, want, c)]
