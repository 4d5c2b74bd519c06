"""What an environment promises: the fields of a cell that can be held against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from provisioner.errors import FindingError

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.matrix.cell import Cell


class _Ptxas(msgspec.Struct, frozen=True, kw_only=True):
    package: str


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as far as an environment can be judged by it; see `Cell` for the fields."""

    name: str
    torch: str
    local_version: str
    variant: str
    device: Literal["cuda", "cpu"]
    python: str
    os: str
    arch: str
    python_from: Literal["conda", "base"]
    requirements: tuple[str, ...]
    index_url: str | None = None
    torchvision: str | None = None
    torchaudio: str | None = None
    companions: tuple[str, ...] = ()
    cuda: str | None = None
    ptxas: _Ptxas | None = None


def expected_of(cell: Cell) -> Expected:
    """Returns what a cell promises."""
    return msgspec.convert(cell, Expected, from_attributes=True)


def read_expected(path: Path) -> Expected:
    """Returns what the cell of a spec.json promises; raises FindingError.

    The file may come from another version of provision: only these fields count.
    """
    from provisioner.render.spec import read_spec_file

    recorded = read_spec_file(path, whole=False)
    try:
        return msgspec.convert(recorded.cell, Expected)
    except msgspec.ValidationError as error:
        raise FindingError(
            "env.spec-damaged",
            f"{path} does not describe a cell: {error}.",
            facts={"path": str(path)},
            next_step="Render the cell again (`provision render`).",
        ) from None
