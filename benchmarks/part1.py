"""Start-up, rendering and look-ups of the command line, against hpccm."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Goal, alternate, per_call, spend, tool

if TYPE_CHECKING:
    from provisioner.render.context import Facts

RECIPE = Path(__file__).parent / "recipes" / "pytorch.py"


def start_up(runs: int) -> Goal:
    """CPU of `provision --version` against `hpccm --version`."""
    ours, peer = alternate(
        lambda: spend([tool("provision"), "--version"]),
        lambda: spend([tool("hpccm"), "--version"]),
        runs,
    )
    return Goal(
        name="provision --version / hpccm --version, CPU of the process",
        value=ours / peer,
        unit="x",
        goal=0.8,
        better="less",
        detail=f"{ours * 1000:.0f} ms against {peer * 1000:.0f} ms, median of {runs}",
    )


def render_process(runs: int) -> list[Goal]:
    """CPU and peak memory of `provision render --cuda 11.8` against one hpccm Dockerfile."""
    with tempfile.TemporaryDirectory() as folder:
        command = [tool("provision"), "render", "--cuda", "11.8", "--out", folder]
        ours, peer = alternate(
            lambda: spend(command),
            lambda: spend([tool("hpccm"), "--recipe", str(RECIPE), "--format", "docker"]),
            runs,
        )
        peak = max(spend(command).peak for _ in range(3))
    return [
        Goal(
            name="provision render --cuda 11.8 / hpccm recipe, CPU of the process",
            value=ours / peer,
            unit="x",
            goal=1.5,
            better="less",
            detail=f"{ours * 1000:.0f} ms against {peer * 1000:.0f} ms, median of {runs}",
        ),
        Goal(
            name="peak memory of provision render --cuda 11.8",
            value=peak / 1e6,
            unit="MB",
            goal=60,
            better="less",
            detail="resident set of the process, highest of three",
        ),
    ]


def in_process() -> list[Goal]:
    """Rendering one cell and one query, once everything is loaded."""
    from provisioner.matrix.cell import Request, Resolution
    from provisioner.matrix.resolve import resolve
    from provisioner.render.engine import render_cell

    facts = _facts()
    answer = resolve(facts.matrix, Request(cuda="11.8"))
    if not isinstance(answer, Resolution):
        raise TypeError(answer.message)
    cell = per_call(lambda: render_cell(answer, facts))
    request = Request(torch="latest", gpu=("GTX 1080",), compile=False)
    query = per_call(lambda: resolve(facts.matrix, request))
    return [
        Goal(
            name="rendering one cell in process",
            value=cell * 1000,
            unit="ms",
            goal=2,
            better="less",
            detail="all files of the default cell, no writing",
        ),
        Goal(
            name="a query over the whole matrix",
            value=query * 1000,
            unit="ms",
            goal=1,
            better="less",
            detail="the newest torch for a GTX 1080, every release and variant looked at",
        ),
    ]


def render_all() -> Goal:
    """Files a second of `provision render --all`, from resolving to the synced tree."""
    from provisioner.render.job import every_cell_job
    from provisioner.render.journal import write

    facts = _facts()
    every_cell_job(facts, {})
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        job = every_cell_job(facts, {})
        outcome = write(Path(folder), job.files, job.groups)
        seconds = time.perf_counter() - begun
    written = len(outcome.created)
    return Goal(
        name="provision render --all",
        value=written / seconds,
        unit="files/s",
        goal=1000,
        better="more",
        detail=f"{written} files in {seconds:.2f} s of wall time, staged, synced and renamed",
    )


def _facts() -> Facts:
    from provisioner.matrix.load import load_matrix
    from provisioner.render.context import Facts

    loaded = load_matrix()
    return Facts(matrix=loaded.matrix, sha256=loaded.sha256, mirrors={})


def goals(runs: int) -> list[Goal]:
    """Every figure of this part."""
    return [start_up(runs), *render_process(runs), *in_process(), render_all()]
