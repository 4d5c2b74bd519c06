"""The conda half: locking against a bare solve, installing against py-rattler alone."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Goal, Spent, spend

SNAPSHOT = Path(__file__).parent.parent / "tests" / "data" / "conda_forge_snapshot"
SPECS = ("python 3.10.*", "pip", "setuptools <70", "wheel", "numpy <2", "scipy")
_BARE = f"""
import asyncio, os, rattler
from rattler.package.build_string import BuildString
def fact(name, version):
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), BuildString("0"))
async def solve():
    return await rattler.solve(
        ["file://{SNAPSHOT}"], [rattler.MatchSpec(s, strict=False) for s in {SPECS}],
        platforms=["linux-64", "noarch"],
        virtual_packages=[fact("__glibc", "2.35"), fact("__unix", "0"), fact("__linux", "5.15")])
assert len(asyncio.run(solve())) > 30
os._exit(0)
"""
_OURS = f"""
import sys
from provisioner.conda.lock import CondaLockOptions, lock_conda
from provisioner.matrix.cell import Request
from provisioner.matrix.load import load_matrix
from provisioner.matrix.resolve import resolve
matrix = load_matrix(None).matrix
cell = resolve(matrix, Request(cuda="11.8")).cell
system = next(s for s in matrix.operating_systems if s.id == cell.os)
specs = "".join(f"  - {{s!r}}\\n" for s in {SPECS})
options = CondaLockOptions(
    environment=f"channels:\\n  - conda-forge\\ndependencies:\\n{{specs}}".encode(),
    system=system, channel_map={{"conda-forge": "file://{SNAPSHOT}"}})
assert len(lock_conda(cell, matrix.origins, options).files) == 3
"""


def goals(runs: int) -> list[Goal]:
    """All goals of this part."""
    runs = max(3, runs // 3)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        return [_locking(runs)]


def _locking(runs: int) -> Goal:
    """CPU of the conda half of a lock against a bare solve and conda-lock's own start."""
    start = [sys.executable, "-m", "conda_lock", "--version"]
    commands = {
        "lock": [sys.executable, "-c", _OURS],
        "solve": [sys.executable, "-c", _BARE],
        "start": start,
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for run in range(runs + 1):
        for name, command in commands.items():
            cost: Spent = spend(command)
            if run:
                spent[name].append(cost.cpu)
    cpu = {name: statistics.median(values) for name, values in spent.items()}
    peer = cpu["solve"] + cpu["start"]
    return Goal(
        name="conda half of a lock / bare py-rattler solve + conda-lock's start, CPU",
        value=cpu["lock"] / peer,
        unit="x",
        goal=1.5,
        better="less",
        detail=f"{cpu['lock']:.2f} s against {cpu['solve']:.2f} s + {cpu['start']:.2f} s, "
        f"median of {runs}",
    )
