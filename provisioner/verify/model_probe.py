#!/usr/bin/env python3
"""Says what torch.compile makes of a user's own model. Run by the interpreter that is judged.

    PYTHON model_probe.py < JOB      one JSON object on standard input, one on standard output

One file, the standard library and torch 2.0 or newer, Python 3.8 or newer. The job: `model`
(module:function, which returns the model or the callable to compile), `path` (folders for
sys.path), `shapes` (for each call a list of [sizes, dtype]), `device`, `phase`. The phase `cold`
does everything, `warm` only the first call, on the cache that `cold` left.

Every step is tried by itself: what fails is told as {"error": ...} and the next goes on.
"""
# ruff: noqa: BLE001, PTH120, PTH123, UP006, UP031, UP035, UP045

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    Json = Dict[str, Any]

SCHEMA = "provision.model-probe/1"
WARM_CALLS, TIMED_CALLS, ROUNDS = 3, 20, 3
FLOORS = {"float16": 5e-3, "bfloat16": 4e-2}  # relative to the largest value; else FLOOR
FLOOR = 1e-5
SEED = 20


def said(error: BaseException) -> str:
    """The first lines of an error, with its class."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, " ".join(lines[:3])[:400])


def attempt(step: Callable[[], Any]) -> Any:
    """What a step gives, or what went wrong."""
    try:
        return step()
    except Exception as error:  # a model of somebody else's: anything may come
        return {"error": said(error)}


def load(job: Json) -> Any:
    """The model: what the named function returns; a module is set to eval."""
    import importlib

    import torch

    sys.path[:0] = job["path"]
    name, _, function = job["model"].partition(":")
    made = getattr(importlib.import_module(name), function)()
    if not callable(made):
        raise TypeError("%s returned %s, nothing to call" % (job["model"], type(made).__name__))
    if isinstance(made, torch.nn.Module):
        made = made.to(job["device"]).eval()
    return made


def inputs(job: Json) -> List[List[Any]]:
    """The tensors of each call, the same in every process."""
    import torch

    torch.manual_seed(SEED)
    calls = []
    for call in job["shapes"]:
        tensors = []
        for sizes, dtype in call:
            kind = getattr(torch, dtype)
            if kind.is_floating_point or kind.is_complex:
                made = torch.randn(sizes).to(kind)
            else:
                made = torch.randint(0, 2, sizes).to(kind)
            tensors.append(made.to(job["device"]))
        calls.append(tensors)
    return calls


def tensors_of(value: Any) -> List[Any]:
    """The tensors in whatever a model returns, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


class Counting:
    """A backend that compiles nothing and counts the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, _example: Any) -> Any:
        self.graphs += 1
        return graph.forward


def reset(torch: Any) -> None:
    import torch._dynamo as dynamo

    dynamo.reset()
    torch.manual_seed(SEED)


def find_breaks(torch: Any, model: Any, call: List[Any]) -> Json:
    """{graphs, breaks}: where the model leaves the graph, with file and line of the user's code."""
    import torch._dynamo as dynamo

    reset(torch)
    if tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) == (2, 0):
        told = dynamo.explain(model, *call)
        graphs, reasons = len(told[2]), told[4]
    else:
        result = dynamo.explain(model)(*call)
        graphs, reasons = result.graph_count, result.break_reasons
    breaks = []
    for item in reasons:
        if not getattr(item, "graph_break", True):
            continue
        frames = [f for f in item.user_stack if "/torch/" not in f.filename] or item.user_stack
        frame = frames[-1] if frames else None
        breaks.append(
            {
                "reason": " ".join(str(item.reason).split())[:300],
                "file": frame.filename if frame else None,
                "line": frame.lineno if frame else None,
                "text": (frame.line or "").strip() if frame else None,
            }
        )
    return {"graphs": graphs, "breaks": breaks}


def try_fullgraph(torch: Any, model: Any, call: List[Any]) -> Json:
    reset(torch)
    torch.compile(model, backend=Counting(), fullgraph=True)(*call)
    return {"works": True}


def count_recompiles(torch: Any, model: Any, calls: List[List[Any]], dynamic: Any) -> Json:
    """How many graphs there are after each call, for one value of `dynamic`."""
    reset(torch)
    backend = Counting()
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    after = []
    for call in calls:
        compiled(*call)
        after.append(backend.graphs)
    return {"graphs": after}


def first_call(torch: Any, model: Any, call: List[Any], job: Json) -> Json:
    """Seconds of the first call of a freshly compiled model: compiling, and running once."""
    compiled = torch.compile(model)
    start = time.perf_counter()
    compiled(*call)
    synchronise(torch, job)
    return {"seconds": time.perf_counter() - start}


def synchronise(torch: Any, job: Json) -> None:
    if job["device"] == "cuda":
        torch.cuda.synchronize()


def off(torch: Any, have: Any, reference: Any) -> Optional[float]:
    """The largest difference relative to the largest value of the reference; None: not finite."""
    worst = 0.0
    pairs = list(zip(tensors_of(have), tensors_of(reference)))  # noqa: B905 - of 3.10
    for one, other in pairs:
        one, other = one.detach().to("cpu", torch.float64), other.detach().to("cpu", torch.float64)
        if one.shape != other.shape:
            return None
        if not other.numel():
            continue
        scale = max(float(other.abs().max()), 1e-12)
        error = float((one - other).abs().max()) / scale
        if error != error or error == float("inf"):
            return None
        worst = max(worst, error)
    return worst


def compare(torch: Any, model: Any, calls: List[List[Any]], _job: Json) -> Json:
    """Eager and compiled against float64, for every call; `allowed` is what compiled may be off."""
    import copy

    precise = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
    compiled = torch.compile(model)
    rows = []
    for call in calls:
        torch.manual_seed(SEED)
        eager = model(*call)
        torch.manual_seed(SEED)
        ours = compiled(*call)
        if not tensors_of(eager):
            return {"skipped": "the model returns no tensor"}
        wide = [t.double() if t.is_floating_point() else t for t in call]
        try:
            torch.manual_seed(SEED)
            reference = precise(*wide)
            by_float64 = True
        except Exception:  # a model that cannot work in float64 is held against its eager self
            reference, by_float64 = eager, False
        floor = max(FLOORS.get(str(t.dtype)[6:], FLOOR) for t in tensors_of(eager))
        have, own = off(torch, ours, reference), off(torch, eager, reference)
        allowed = max(floor, 4 * own) if own is not None else floor
        right = have is not None and have <= allowed
        row = {"eager": own, "compiled": have, "allowed": allowed, "float64": by_float64}
        rows.append(dict(row, right=right))
    return {"calls": rows}


def time_calls(torch: Any, model: Any, call: List[Any], job: Json) -> Json:
    """Median milliseconds of eager and compiled calls, timed in turn after a warm-up of both."""
    compiled = torch.compile(model)
    runs = {"eager_ms": model, "compiled_ms": compiled}
    for run in runs.values():
        for _ in range(WARM_CALLS):
            run(*call)
    took: Dict[str, List[float]] = {name: [] for name in runs}
    for _ in range(TIMED_CALLS):
        for name, run in runs.items():
            synchronise(torch, job)
            start = time.perf_counter()
            run(*call)
            synchronise(torch, job)
            took[name].append((time.perf_counter() - start) * 1000)
    return {name: sorted(values)[len(values) // 2] for name, values in took.items()}


def memory(torch: Any, job: Json) -> int:
    """Bytes that the process holds: of the GPU, else resident."""
    if job["device"] == "cuda":
        return int(torch.cuda.memory_allocated())
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watch_memory(torch: Any, model: Any, calls: List[List[Any]], job: Json) -> Json:
    """Bytes after each round over all shapes with the compiled model."""
    import gc

    compiled = torch.compile(model)
    after = []
    for _ in range(ROUNDS):
        for call in calls:
            compiled(*call)
        gc.collect()
        after.append(memory(torch, job))
    return {"bytes": after}


def judge(job: Json) -> Json:
    """All that is asked; `failed` names the step that left nothing to go on with."""
    import torch

    found: Json = {"schema": SCHEMA, "torch": str(torch.__version__), "failed": None}
    if not hasattr(torch, "compile"):
        return dict(found, failed="torch", error="this torch has no torch.compile")
    if job["device"] == "auto":
        job["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    found["device"] = job["device"]
    if job["device"] == "cuda":
        found["gpu"] = attempt(lambda: torch.cuda.get_device_name(0))
    model = attempt(lambda: load(job))
    if isinstance(model, dict) and "error" in model:
        return dict(found, failed="load", error=model["error"])
    with torch.no_grad():
        calls = attempt(lambda: inputs(job))
        if isinstance(calls, dict):
            return dict(found, failed="inputs", error=calls["error"])
        for call in calls:
            ran = attempt(lambda call=call: [model(*call), {}][1])  # type: ignore[misc]
            if "error" in ran:
                return dict(found, failed="eager", error=ran["error"])
        reset(torch)
        found["first"] = attempt(lambda: first_call(torch, model, calls[0], job))
        if job["phase"] == "warm":
            return found
        if "error" not in found["first"]:
            found["numerics"] = attempt(lambda: compare(torch, model, calls, job))
            found["speed"] = attempt(lambda: time_calls(torch, model, calls[0], job))
            found["memory"] = attempt(lambda: watch_memory(torch, model, calls, job))
        found["breaks"] = attempt(lambda: find_breaks(torch, model, calls[0]))
        found["fullgraph"] = attempt(lambda: try_fullgraph(torch, model, calls[0]))
        found["recompiles"] = {
            str(dynamic): attempt(
                lambda dynamic=dynamic: count_recompiles(torch, model, calls, dynamic)  # type: ignore[misc]
            )
            for dynamic in (None, True, False)
        }
    return found


def main() -> int:
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0] or ".") == here:
        del sys.path[0]
    job = json.load(sys.stdin)
    # What a model prints while it runs is not the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer.write(json.dumps(judge(job)) + "\n")
    answer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
