"""`provision doctor` without torch: CPU of the command with everything that it starts."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile

from benchmarks.measure import Goal, spend


def goals(runs: int) -> list[Goal]:
    """All goals of this part. The interpreter that runs them has no torch."""
    runs = max(3, runs // 3)
    command = [sys.executable, "-m", "provisioner", "doctor", "--python", sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        cold = spend(command).cpu
        warm = statistics.median(spend(command).cpu for _ in range(runs))
        start = statistics.median(
            spend([sys.executable, "-m", "provisioner", "--version"]).cpu for _ in range(runs)
        )
    return [
        Goal(
            name="provision doctor without torch",
            value=warm,
            unit="s CPU",
            goal=0.25,
            better="less",
            detail=f"with its child processes; the first run {cold:.2f} s, --version {start:.3f} s",
        )
    ]
