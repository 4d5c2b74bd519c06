"""What the answers of model_probe.py mean for the user's model. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

Level = Literal["fail", "warn", "note"]
_SLOWER = 1.0  # eager time over compiled time below which compiling loses
_GROWTH = 16 << 20  # bytes a round, after the first, that are no noise
_MANY = 8  # graphs of one function at which torch gives up and goes on in eager code
# What a break's reason or its line of code says, and what to do; the first that matches counts.
_ITEM = (
    "Keep it a tensor, or take the number outside the compiled function; or set "
    "torch._dynamo.config.capture_scalar_outputs = True."
)
_BRANCH = (
    "A branch on a tensor's value: use torch.where, or torch.cond for whole blocks; a branch on a "
    "shape is no break."
)
_PRINT = (
    "Print or log outside the compiled function, or name the function in "
    "torch._dynamo.config.reorderable_logging_functions."
)
_BREAKS: tuple[tuple[str, str], ...] = (
    (r"Tensor\.item|\.item\(\)|_local_scalar_dense|\.tolist\(\)|aten\.nonzero", _ITEM),
    (r"generic_jump|[Dd]ata-dependent", _BRANCH),
    (r"\bprint\b|\blogg(er|ing)\b|\bwarn", _PRINT),
    (r"pdb|breakpoint", "Take the breakpoint out: it breaks the graph where it stands."),
    (r"numpy", "Stay in torch there: numpy code runs outside the graph, on the CPU."),
)
_OTHER = (
    "Move that line out of the compiled function, or compile the parts around it. "
    "TORCH_LOGS=graph_breaks tells more (from torch 2.1 on)."
)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found. `fail` says that the compiled model is not to be used as it is."""

    topic: str
    level: Level
    text: str
    where: str | None = None


def advise(found: Mapping[str, Any], switched_off: Mapping[str, str]) -> list[Advice]:
    """What to know and to do, failures first."""
    if found["failed"] is not None:
        text = f"{found['failed']}: {found['error']}"
        return [Advice(topic="model", level="fail", text=text)]
    advice: list[Advice] = []
    if switched_off:
        named = ", ".join(f"{k}={v}" for k, v in switched_off.items())
        text = f"{named} turns torch.compile off: nothing here was compiled. Unset it."
        advice.append(Advice(topic="compile", level="fail", text=text))
    if "error" in found["first"]:
        text = f"Compiling fails: {found['first']['error']}"
        advice.append(Advice(topic="compile", level="fail", text=text))
    advice += _breaks(found)
    advice += _recompiles(found.get("recompiles", {}))
    advice += _numerics(found.get("numerics", {}))
    advice += _speed(found)
    advice += _memory(found.get("memory", {}))
    order = {"fail": 0, "warn": 1, "note": 2}
    return sorted(advice, key=lambda item: order[item.level])


def _breaks(found: Mapping[str, Any]) -> list[Advice]:
    told = found.get("breaks", {})
    advice = []
    for item in told.get("breaks", ()):
        where = f"{item['file']}:{item['line']}" if item["file"] else None
        text = f"Graph break at `{item['text']}`. {advice_for(item['reason'], item['text'] or '')}"
        advice.append(Advice(topic="graph-break", level="warn", text=text, where=where))
    fullgraph = found.get("fullgraph", {})
    if fullgraph.get("works") and not advice:
        text = (
            "One graph: fullgraph=True works, and would say so when a later change breaks it. It "
            "makes nothing faster."
        )
        advice.append(Advice(topic="fullgraph", level="note", text=text))
    elif fullgraph.get("works"):
        text = (
            "fullgraph=True takes this model as one graph all the same: newer releases keep the "
            "numbers of .item() in the graph then."
        )
        advice.append(Advice(topic="fullgraph", level="note", text=text))
    elif "error" in fullgraph and not advice:
        text = f"fullgraph=True fails: {fullgraph['error']}"
        advice.append(Advice(topic="fullgraph", level="note", text=text))
    return advice


def advice_for(reason: str, code: str) -> str:
    """What to do about a graph break, by what torch says of it and by the line of code."""
    for pattern, text in _BREAKS:
        if re.search(pattern, reason) or re.search(pattern, code):
            return text
    return _OTHER


def _recompiles(told: Mapping[str, Any]) -> list[Advice]:
    graphs = {name: value["graphs"] for name, value in told.items() if "graphs" in value}
    if len(graphs.get("None", ())) < 2:
        return []
    extra = {name: values[-1] - values[0] for name, values in graphs.items()}
    said = ", ".join(f"dynamic={name}: {values[-1]}" for name, values in graphs.items())
    calls = len(graphs["None"])
    text = f"Graphs after {calls} calls: {said}."
    if extra["None"] and not extra.get("True", 1):
        text += " dynamic=True saves the second compile, at the cost of more general code."
    elif extra["None"] and extra.get("True"):
        text += (
            " It compiles again even with dynamic=True: sizes 0 and 1, or a size that the code "
            "branches on. Pad to a few sizes."
        )
    level: Level = "warn" if graphs["None"][-1] >= _MANY * max(1, graphs["None"][0]) else "note"
    return [Advice(topic="recompiles", level=level, text=text)]


def _numerics(told: Mapping[str, Any]) -> list[Advice]:
    if "error" in told or "skipped" in told:
        text = f"Numbers were not compared: {told.get('error') or told['skipped']}"
        return [Advice(topic="numerics", level="warn", text=text)]
    wrong = [row for row in told.get("calls", ()) if not row["right"]]
    if not wrong:
        return []
    row = wrong[0]
    have = "no finite number" if row["compiled"] is None else f"{row['compiled']:.1e}"
    text = (
        f"The compiled model is off by {have} of the largest value, {row['allowed']:.1e} is "
        "allowed (four times what eager code is off). Random numbers in the model do that, too."
    )
    return [Advice(topic="numerics", level="fail", text=text)]


def _speed(found: Mapping[str, Any]) -> list[Advice]:
    told = found.get("speed", {})
    if "compiled_ms" not in told:
        return []
    ratio = told["eager_ms"] / told["compiled_ms"] if told["compiled_ms"] else 0.0
    text = f"{ratio:.2f} times the speed of eager code on the first shape."
    if ratio < _SLOWER:
        text += " So small a model is not worth compiling by itself"
        text += (
            '; mode="reduce-overhead" may help where launches cost more than the work.'
            if found["device"] == "cuda"
            else "; compile the whole step around it instead."
        )
        return [Advice(topic="speed", level="note", text=text)]
    if found["device"] == "cuda":
        text += ' For a fixed shape try mode="reduce-overhead", for long runs mode="max-autotune".'
    else:
        text += ' mode="reduce-overhead" has no effect on the CPU.'
    return [Advice(topic="speed", level="note", text=text)]


def _memory(told: Mapping[str, Any]) -> list[Advice]:
    after = told.get("bytes", ())
    steps = [b - a for a, b in pairwise(after)]
    if not steps or min(steps) < _GROWTH:
        return []
    text = f"Memory grows by {min(steps) >> 20} MiB with every round over the same shapes."
    return [Advice(topic="memory", level="warn", text=text)]
