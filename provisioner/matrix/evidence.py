"""What is proved about cells: documented < locked < built < verified on CPU < verified on GPU.

A report is kept as evidence/<cell>/<name>.json: {"cell": name, "level": ..., "report": {...}}. The
level that counts is what the report itself proves; a file that claims more is refused. A file of
another schema (`OTHER_SCHEMAS`) is evidence about a fact of the matrix, not about one cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LEVELS = ("documented", "locked", "built", "verified on CPU", "verified on GPU")
"""From the least to the most; `documented` is what the matrix alone says."""

OTHER_SCHEMAS = ("provision.ptxas-evidence/1", "provision.probe-evidence/1")
"""Evidence about something else than a cell: which ptxas assembles what, the probe itself."""

_MAX_REPORT = 4_000_000


class EvidenceFile(msgspec.Struct, frozen=True):
    """One file below evidence/."""

    cell: str
    level: str
    report: dict[str, Any]


class _Kind(msgspec.Struct, frozen=True):
    schema: str | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The most that is proved about one cell; `report` is the file, null for a lock alone."""

    cell: str
    level: str
    report: str | None = None


def proved(report: dict[str, Any]) -> str:
    """The level that a verification report proves. A report without a pass proves a build."""
    verdict, device = report.get("verdict"), report.get("device")
    if verdict == "verified" and device == "cuda":
        return "verified on GPU"
    if verdict in {"verified", "cpu-verified-cuda-deferred"}:
        return "verified on CPU"
    return "built"


def read_evidence(
    evidence: Path | None, lockfiles: Path | None
) -> tuple[dict[str, Evidence], list[str]]:
    """The highest evidence per cell name, and a sentence per file that is no evidence.

    `lockfiles` has a folder for each cell that was rendered.
    """
    found: dict[str, Evidence] = {}
    refused: list[str] = []
    if lockfiles is not None:
        for rendered in sorted(lockfiles.glob("*/requirements.in")):
            folder = rendered.parent
            level = "locked" if _locked(folder) else "documented"
            found[folder.name] = Evidence(cell=folder.name, level=level)
    if evidence is not None:
        for path in sorted(evidence.glob("*/*.json")):
            entry = _read(path)
            if entry is None:
                continue
            if isinstance(entry, str):
                refused.append(f"{path}: {entry}")
            elif _rank(entry) > _rank(found.get(entry.cell)):
                found[entry.cell] = entry
    return found, refused


def highest(entries: Iterable[Evidence]) -> str:
    """The highest level among some cells; `documented` when there are none."""
    return max((entry.level for entry in entries), key=LEVELS.index, default=LEVELS[0])


def _locked(folder: Path) -> bool:
    """Whether a cell's folder holds its whole lock: the pip half, and conda's where it has one."""
    conda = (folder / "environment.yml").exists()
    return (
        (folder / "requirements.txt").exists()
        and (folder / "lock.json").exists()
        and (not conda or any(folder.glob("conda-linux-*.lock")))
    )


def _read(path: Path) -> Evidence | str | None:
    """The evidence in a file, or why it is none; None for evidence about something else."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_REPORT)
        if msgspec.json.decode(content, type=_Kind).schema in OTHER_SCHEMAS:
            return None
        file = msgspec.json.decode(content, type=EvidenceFile)
    except (OSError, msgspec.MsgspecError) as error:
        return f"cannot be read as evidence: {error}"
    if file.cell != path.parent.name:
        return f"names the cell {file.cell}, its folder {path.parent.name}"
    torch = str(file.report.get("torch") or "").partition("+")[0]
    if torch and not file.cell.rpartition("--")[2].startswith(f"torch{torch}-"):
        return f"is a report about torch {torch}, which {file.cell} is not"
    level = proved(file.report)
    if file.level not in LEVELS:
        return f"has the level {file.level!r}; known are {', '.join(LEVELS)}"
    if LEVELS.index(file.level) > LEVELS.index(level):
        return f"claims {file.level!r}, its report proves {level!r}"
    return Evidence(cell=file.cell, level=file.level, report=str(path))


def _rank(entry: Evidence | None) -> int:
    return LEVELS.index(entry.level) if entry else -1
