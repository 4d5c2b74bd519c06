"""The verification on the CPU against two bare processes that compile the same graphs."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Goal, Spent, alternate, spend

PROJECT = Path(__file__).parent.parent
PROBE = PROJECT / "provisioner" / "verify" / "probe.py"
VARIABLE = "PROVISION_BENCH_TORCH"
"""An interpreter with torch; default: the environment that the tests keep."""

_BARE = """
import copy, torch
from torch._inductor.compile_fx import compile_fx
torch.manual_seed(1234)
def function(x):
    return (torch.sin(x) * torch.cos(x) + 0.123457 + 1.0) * 2.0
def half(x):
    return torch.sin(x) * torch.cos(x) + x
def net():
    n = torch.nn
    return n.Sequential(n.Conv2d(3, 8, 3, padding=1), n.BatchNorm2d(8), n.ReLU(), n.Flatten(),
                        n.Linear(512, 10), n.Softmax(dim=1))
x = torch.randn(64, 64)
for backend in ("inductor", lambda module, inputs: compile_fx(module, inputs)):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    compiled(x), compiled(x)
torch._dynamo.reset()
images, target = torch.randn(4, 3, 8, 8), torch.randn(4, 10)
with torch.no_grad():
    torch.compile(net().eval(), fullgraph=True)(images)
torch._dynamo.reset()
model = net().train()
(torch.compile(model, fullgraph=True)(images) * target).sum().backward()
torch._dynamo.reset()
torch.compile(half, fullgraph=True)(x.to(torch.bfloat16))
"""
_IMPORT = (
    "import runpy, sys; sys.path.insert(0, {folder!r}); import probe; "
    "assert 'torch' not in sys.modules"
)
_NOTHING = "import sys; sys.path.insert(0, {folder!r})"


def goals(runs: int) -> list[Goal]:
    """All goals of this part; none of the compiling ones without an interpreter with torch."""
    found = [_import_cost(max(runs, 5))]
    python = _torch_python()
    if python is None:
        print(f"part3: name an interpreter with torch in {VARIABLE}", file=sys.stderr)
        return found
    return [*found, *_whole(python, max(1, runs // 7))]


def _torch_python() -> str | None:
    named = os.environ.get(VARIABLE)
    kept = sorted((PROJECT / ".cache" / "venvs").glob("torch*/bin/python"))
    return named or (str(kept[0]) if kept else None)


def _import_cost(runs: int) -> Goal:
    """Milliseconds that importing the probe adds to an interpreter that starts."""
    folder = str(PROBE.parent)

    def start(text: str) -> Spent:
        return spend([sys.executable, "-I", "-c", text.format(folder=folder)])

    ours, bare = alternate(lambda: start(_IMPORT), lambda: start(_NOTHING), runs)
    return Goal(
        name="importing the probe, without torch",
        value=(ours - bare) * 1e3,
        unit="ms",
        goal=30,
        better="less",
        detail=f"{ours * 1e3:.1f} ms of CPU against {bare * 1e3:.1f} ms without it",
    )


def _whole(python: str, runs: int) -> list[Goal]:
    """CPU seconds of a whole verification, and the memory of its largest process."""
    mine: list[Spent] = []
    theirs: list[Spent] = []
    for _ in range(runs):
        mine.append(spend([python, str(PROBE), "--device", "cpu"]))
        with tempfile.TemporaryDirectory() as folder:
            # Everything in one fresh cache, as the probe has it; TMPDIR holds precompiled headers.
            settings = [f"TORCHINDUCTOR_CACHE_DIR={folder}/cache", f"TMPDIR={folder}"]
            bare = ["env", *settings, python, "-c", _BARE]
            cold, warm = spend(bare), spend(bare)
        theirs.append(Spent(cold.cpu + warm.cpu, max(cold.peak, warm.peak)))
    cpu, bare_cpu = (statistics.median(s.cpu for s in side) for side in (mine, theirs))
    peak, bare_peak = (statistics.median(s.peak for s in side) for side in (mine, theirs))
    return [
        Goal(
            name="verification / two bare processes that compile the same graphs",
            value=cpu / bare_cpu,
            unit="x",
            goal=1.2,
            better="less",
            detail=f"{cpu:.1f} s of CPU against {bare_cpu:.1f} s, cold and warm, {python}",
        ),
        Goal(
            name="peak memory of the largest process / bare",
            value=peak / bare_peak,
            unit="x",
            goal=1.2,
            better="less",
            detail=f"{peak / 1e6:.0f} MB against {bare_peak / 1e6:.0f} MB",
        ),
    ]
