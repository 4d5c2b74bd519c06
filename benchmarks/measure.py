"""How the benchmarks measure: CPU seconds and peak memory of whole processes, in turn.

Two programs are run alternately, so that a busy machine slows both; the ratio of their medians is
what counts, never the seconds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One measured figure against its goal; `better` says in which direction."""

    name: str
    value: float
    unit: str
    goal: float
    better: str
    detail: str

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.better == "less" else self.value >= self.goal

    def line(self) -> str:
        sign = "<=" if self.better == "less" else ">="
        word = "ok  " if self.met else "MISS"
        head = f"{word} {self.name}: {self.value:.3g} {self.unit} (goal {sign} {self.goal:g})"
        return f"{head}\n       {self.detail}"


@dataclass(frozen=True)
class Spent:
    """CPU seconds (user and system) and peak resident memory (bytes) of one process."""

    cpu: float
    peak: int


def spend(command: Sequence[str], cwd: str | None = None) -> Spent:
    """Run a program to its end with its output thrown away; raises when it fails.

    Bytecode is kept, as on a user's machine: else every run would compile what it imports.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        list(command), cwd=cwd, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    stderr = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.stderr:
        process.stderr.close()
    if process.returncode != 0:
        raise RuntimeError(f"{list(command)} ended with {process.returncode}: {stderr.decode()}")
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def alternate(
    ours: Callable[[], Spent], peer: Callable[[], Spent], runs: int
) -> tuple[float, float]:
    """Median CPU seconds of both, run in turn after one warm-up each."""
    ours(), peer()
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(runs):
        mine.append(ours().cpu)
        theirs.append(peer().cpu)
    return statistics.median(mine), statistics.median(theirs)


def per_call(function: Callable[[], object], seconds: float = 1.0) -> float:
    """CPU seconds of one call, the median of five batches."""
    function()
    batches: list[float] = []
    for _ in range(5):
        count = 0
        begun = time.process_time()
        while time.process_time() - begun < seconds / 5:
            function()
            count += 1
        batches.append((time.process_time() - begun) / count)
    return statistics.median(batches)


def tool(name: str) -> str:
    """The path of a program beside the running interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)  # noqa: PTH118, PTH120
