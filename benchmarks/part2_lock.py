"""`provision lock` of a cell that did not change, against `provision --version`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.measure import Goal, alternate, spend, tool

PROJECT = Path(__file__).parent.parent
CELLS = {
    "pip alone": "torch2.0.1-cu117-py39-debian11-basepy",
    "conda and pip": "torch2.0.1-cu117-py310-ubuntu22.04",
}


def goals(runs: int) -> list[Goal]:
    """One goal for each kind of cell; the first call of a cell with a conda half is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        return [_unchanged(kind, cell, runs) for kind, cell in CELLS.items()]


def _unchanged(kind: str, cell: str, runs: int) -> Goal:
    ours, version = alternate(
        lambda: spend([tool("provision"), "lock", cell], cwd=str(PROJECT)),
        lambda: spend([tool("provision"), "--version"]),
        runs,
    )
    return Goal(
        name=f"lock of an unchanged cell ({kind}) / provision --version",
        value=ours / version,
        unit="x",
        goal=3,
        better="less",
        detail=f"{ours * 1e3:.1f} ms of CPU against {version * 1e3:.1f} ms",
    )
