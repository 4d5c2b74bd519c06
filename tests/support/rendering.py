"""Cells for the tests of what is made from them: resolved from the shipped matrix, or bent."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from provisioner.cli.settings import with_mirrors
from provisioner.matrix.cell import Cell, Request, Resolution, UserPackages
from provisioner.matrix.load import load_matrix
from provisioner.matrix.model import Matrix
from provisioner.matrix.resolve import resolve
from provisioner.render.context import Facts
from provisioner.render.engine import render_cell

SHA256 = "0" * 64
"""Stands for the hash of the matrix, so that expected files do not change with every edit of it."""


@lru_cache(maxsize=1)
def shipped_matrix() -> Matrix:
    """The matrix of this checkout."""
    return load_matrix(cache=False).matrix


def facts(mirrors: Mapping[str, str] | None = None) -> Facts:
    """The shipped matrix as renderers take it, with mirrors."""
    matrix = with_mirrors(shipped_matrix(), mirrors or {})
    return Facts(matrix=matrix, sha256=SHA256, mirrors=dict(mirrors or {}))


def resolved(mirrors: Mapping[str, str] | None = None, **asked: Any) -> Resolution:
    """The resolution of a request that has one."""
    packages = UserPackages(**asked.pop("packages", {}))
    found = resolve(facts(mirrors).matrix, Request(packages=packages, **asked))
    assert isinstance(found, Resolution), found
    return found


def bent(resolution: Resolution, **fields: Any) -> Resolution:
    """The same resolution with other fields in its cell, without any check."""
    cell: Cell = msgspec.structs.replace(resolution.cell, **fields)
    return msgspec.structs.replace(resolution, cell=cell)


def rendered(resolution: Resolution, mirrors: Mapping[str, str] | None = None) -> dict[str, str]:
    """The text of every file of a cell, by path without the cell's name."""
    name = resolution.cell.name
    return {
        file.path.replace(f"/{name}/", "/").replace(
            f"/{name}.yml", "/cell.yml"
        ): file.content.decode("utf-8")
        for file in render_cell(resolution, facts(mirrors))
    }


def every_cell() -> list[Resolution]:
    """Every release with every variant that has a cell at its defaults."""
    found = [
        resolve(shipped_matrix(), Request(torch=release.torch, cuda=variant.tag))
        for release in shipped_matrix().releases
        for variant in release.variants
    ]
    return [answer for answer in found if isinstance(answer, Resolution)]
