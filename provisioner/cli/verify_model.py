"""`provision verify --model`: what torch.compile makes of the user's own model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from provisioner.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from provisioner.cli.output import Output
    from provisioner.verify.model_advice import Advice

SCHEMA = "provision.verify-model/1"


def judge_model(
    python: Path, model: str, shapes: str, *, device: str, timeout_s: float | None, out: Output
) -> int:
    """Run the model, print what was found; exit status 1 where it is not to be used compiled."""
    from provisioner.verify.model_advice import advise
    from provisioner.verify.model_run import check_model, read_shapes, verify_model
    from provisioner.verify.probe import switches

    calls = read_shapes(shapes)
    check_model(model)
    out.note("Compiling your model twice; this takes a minute or more.")
    found = verify_model(
        python, model, calls, device=device, timeout_s=timeout_s, environ=os.environ
    )
    advice = advise(found, switches(dict(os.environ), found["torch"]))
    failed = any(item.level == "fail" for item in advice)
    if out.json:
        told = {key: value for key, value in found.items() if key != "schema"}
        head = {"schema": SCHEMA, "verdict": "failed" if failed else "compiles", "model": model}
        out.result({**head, "shapes": shapes.split(","), **told, "advice": advice})
    else:
        for line in as_lines(found, advice, model):
            out.line(line)
    return int(Exit.FINDING if failed else Exit.DONE)


def as_lines(found: Mapping[str, Any], advice: Sequence[Advice], model: str) -> list[str]:
    """The answer for people in 80 columns, failures first."""
    from provisioner.cli.output import printable, wrap

    lines: list[str] = []
    for item in advice:
        place = f" {item.where}" if item.where else ""
        lines += wrap(printable(item.text), "      ", f"{item.level:<5} {item.topic}{place}: ")
    cold, warm = (found.get(name, {}).get("seconds") for name in ("first", "warm"))
    if cold is not None:
        seconds = f"{cold:.1f} s with a fresh cache"
        seconds += f", {warm:.1f} s with a warm one" if warm is not None else ""
        lines.append(f"First call: {seconds}.")
    speed = found.get("speed", {})
    if "compiled_ms" in speed:
        lines.append(f"Eager {speed['eager_ms']:.3f} ms, compiled {speed['compiled_ms']:.3f} ms.")
    failed = any(item.level == "fail" for item in advice)
    verdict = "not to be used compiled" if failed else "compiles"
    where = found.get("gpu") or found.get("device") or "no device"
    return [*lines, f"{model} on torch {found['torch']}, {where}: {verdict}."]
