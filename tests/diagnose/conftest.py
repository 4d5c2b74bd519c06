"""What the tests of diagnose share: the book, the matrix, and a way to diagnose a text."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING

import pytest

from provisioner.diagnose.diagnose import diagnose
from provisioner.diagnose.load import load_book
from provisioner.matrix.load import load_matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Book, Diagnosis
    from provisioner.matrix.model import Matrix


@cache
def _matrix() -> Matrix:
    return load_matrix().matrix


@pytest.fixture(scope="session")
def book() -> Book:
    """The shipped book, read from its YAML."""
    return load_book(cache=False)


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    """The shipped matrix."""
    return _matrix()


@pytest.fixture(scope="session")
def examine(book: Book) -> Callable[[str | bytes], Diagnosis]:
    """Diagnoses one text as one log."""

    def run(text: str | bytes) -> Diagnosis:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        return diagnose([("log", io.BytesIO(data))], book, _matrix)

    return run
