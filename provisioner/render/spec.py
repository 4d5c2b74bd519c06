"""The cell as data: spec.json for people and programs, expect.json for the verification.

spec.json also carries what `provision render --check` needs to make the cell again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from provisioner import __version__
from provisioner.errors import FindingError
from provisioner.matrix.cell import Request  # noqa: TC001 - decoded at run time
from provisioner.render.context import PROJECT, OwnMatrix, from_project
from provisioner.render.fileset import RenderedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.matrix.cell import Cell, Decision
    from provisioner.render.context import CellContext, Facts

SPEC_SCHEMA: Final = "provision.spec/1"
PROMISES = (
    "name",
    "torch",
    "local_version",
    "cuda",
    "python",
    "compile",
    "device",
    "torchvision",
    "torchaudio",
)
"""The fields of a cell that the verification holds against the installed environment."""


class MatrixStamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which matrix a cell was resolved from; `own` are the user's files in it, none: not there."""

    as_of: str
    sha256: str
    own: tuple[OwnMatrix, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What is read back of a spec.json: enough to make the cell again and to compare it.

    The cell stays plain values, since another version of provision may have written it.
    """

    schema: Literal["provision.spec/1"]
    made_by: str
    mirrors: dict[str, str]
    request: Request
    cell: dict[str, Any]
    matrix: MatrixStamp | None = None
    project: str = PROJECT


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The content of docker/<cell>/spec.json. `mirrors` are the user's own addresses, `project` the
    name of the file that named the cell's own packages.
    """

    schema: Literal["provision.spec/1"]
    made_by: str
    provision: str
    matrix: MatrixStamp
    mirrors: dict[str, str]
    request: Request
    cell: Cell
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()
    project: str | msgspec.UnsetType = msgspec.UNSET


def emit(context: CellContext) -> list[RenderedFile]:
    """Returns spec.json and expect.json of the cell."""
    return [
        _json(context, "spec.json", spec_of(context)),
        _json(context, "expect.json", {"made_by": str(context.command)} | promise(context.cell)),
    ]


def spec_of(context: CellContext) -> Spec:
    """Returns the whole record of how the cell came to be."""
    resolution = context.recorded
    return Spec(
        schema=SPEC_SCHEMA,
        made_by=str(context.command),
        provision=__version__,
        matrix=stamp_of(context.facts),
        mirrors=dict(context.facts.mirrors),
        request=resolution.request,
        cell=context.cell,
        decisions=resolution.decisions,
        warnings=resolution.warnings,
        project=context.facts.project if from_project(resolution.request) else msgspec.UNSET,
    )


def stamp_of(facts: Facts) -> MatrixStamp:
    """Returns which matrix these facts are."""
    return MatrixStamp(as_of=facts.matrix.meta.as_of, sha256=facts.sha256, own=facts.own)


def promise(cell: Cell) -> dict[str, Any]:
    """Returns what the verification compares: release, variant, Python, whether it compiles."""
    plain = {field: getattr(cell, field) for field in PROMISES}
    return plain | _floors(cell.compile, cell.ptxas, cell.driver.compile_floor_by_arch)


def recorded_promise(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `promise` of a cell as its spec.json has it."""
    floors = (cell.get("driver") or {}).get("compile_floor_by_arch") or {}
    plain = {field: cell.get(field) for field in PROMISES}
    return plain | _floors(bool(cell.get("compile")), cell.get("ptxas"), floors)


def _floors(compiles: bool, ptxas: object, floors: Mapping[str, str]) -> dict[str, Any]:
    """The drivers that triton's own ptxas needs; another ptxas is there to need an older one."""
    return {"compile_floor_by_arch": dict(floors)} if compiles and floors and not ptxas else {}


def read_spec(raw: bytes, path: str) -> Recorded:
    """Returns what a spec.json records; raises FindingError when it is none."""
    try:
        return msgspec.json.decode(raw, type=Recorded)
    except msgspec.MsgspecError as error:
        raise FindingError(
            "render.spec-damaged",
            f"{path} is no spec of a cell: {error}.",
            facts={"path": path},
            next_step="Restore it from version control, or render the cell again with --force.",
        ) from None


def _json(context: CellContext, name: str, value: Any) -> RenderedFile:
    text = msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2)
    return RenderedFile(path=f"{context.docker}/{name}", content=text + b"\n", group=context.group)
