"""The cell as data: spec.json for people and programs, expect.json for the verification.

spec.json also carries what `provision render --check` needs to make the cell again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from provisioner import __version__
from provisioner.errors import FindingError, OutsideError
from provisioner.matrix.cell import Request  # noqa: TC001 - decoded at run time
from provisioner.regular import read_regular
from provisioner.render.context import PROJECT, OwnMatrix, from_project
from provisioner.render.fileset import RenderedFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from provisioner.matrix.cell import Cell, Decision
    from provisioner.render.context import CellContext, Facts

SPEC_SCHEMA: Final = "provision.spec/1"
SPEC_LIMIT = 4 << 20
"""A larger file is none."""

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


_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_Words = Annotated[tuple[_Word, ...], msgspec.Meta(max_length=10_000)]


class _Needs(msgspec.Struct, frozen=True, kw_only=True):
    compile_floor_by_arch: dict[str, str] | None = None


class _Used(msgspec.Struct, frozen=True, kw_only=True):
    """What lock, build, verify and env take from a recorded cell, whichever version wrote it."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
    torch: _Word
    local_version: _Word
    variant: _Word
    cuda: _Word | None
    python: _Word
    os: _Word
    arch: Literal["x86_64", "aarch64"]
    index_url: _Word | None
    device: Literal["cuda", "cpu"]
    python_from: Literal["conda", "base"]
    compile: bool
    base_image: _Word
    requirements: _Words
    companions: _Words
    constraints: _Words
    torchvision: _Word | None = None
    torchaudio: _Word | None = None
    driver: _Needs | None = None


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


def read_spec(raw: bytes, path: str, *, whole: bool = True) -> Recorded:
    """Returns what a spec.json records; raises FindingError when it is none.

    Unless `whole`, the fields of the cell are left to the caller.
    """
    try:
        spec = msgspec.json.decode(raw, type=Recorded)
        if whole:
            msgspec.convert(spec.cell, _Used)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FindingError(
            "render.spec-damaged",
            f"{path} is no spec of a cell: {error}.",
            facts={"path": path},
            next_step="Restore it from version control, or render the cell again with --force.",
        ) from None
    return spec


def read_spec_file(path: Path, shown: str | None = None, *, whole: bool = True) -> Recorded:
    """Returns what a spec.json on disk records (see read_spec); messages name it `shown`.

    Raises FindingError when it is none, OutsideError when the system refuses to read it, and
    FileNotFoundError or NotADirectoryError when it is absent.
    """
    name = shown or str(path)
    try:
        raw = read_regular(path, SPEC_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise OutsideError(
            "render.spec-unreadable",
            f"{name} cannot be read: {(error.strerror or str(error)).lower()}.",
            facts={"path": name},
            next_step="Put the file back from version control, or render the cell again.",
        ) from None
    return read_spec(raw, name, whole=whole)


def _json(context: CellContext, name: str, value: Any) -> RenderedFile:
    text = msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2)
    return RenderedFile(path=f"{context.docker}/{name}", content=text + b"\n", group=context.group)
