"""Runs model_probe.py twice, on a private cache: once cold, once on the cache that was left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from provisioner.errors import OutsideError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBE: Final = Path(__file__).with_name("model_probe.py")
Call = list[tuple[list[int], str]]
_TENSOR = re.compile(r"(\d{1,9}(?:x\d{1,9})*)(?::([a-z]+\d+))?")
_DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"}
)
_MODEL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_LIMIT_S = 1800.0
_LAST_LINES = 8


def read_shapes(text: str) -> list[Call]:
    """The calls of `8x3x224x224,16x3x224x224`; `+` joins the tensors of one, `:int64` is a type.

    Raises UsageError `verify.shapes`.
    """
    calls: list[Call] = []
    for part in text.split(","):
        call: Call = []
        for tensor in part.strip().split("+"):
            found = _TENSOR.fullmatch(tensor)
            if found is None or (found[2] or "float32") not in _DTYPES:
                raise UsageError(
                    "verify.shapes",
                    f"--shapes: {tensor!r} is no shape.",
                    next_step="Sizes joined by x, calls by a comma: 8x3x224x224,16x3x224x224; "
                    "several tensors of a call by +, a type behind a colon: 8x16+8:int64.",
                )
            call.append(([int(size) for size in found[1].split("x")], found[2] or "float32"))
        calls.append(call)
    return calls


def check_model(name: str) -> str:
    """The name of a model, module:function; raises UsageError `verify.model`."""
    if not _MODEL.fullmatch(name):
        raise UsageError(
            "verify.model",
            f"--model: {name!r} is not module:function.",
            next_step="Name a function that returns the model, such as train.model:build.",
        )
    return name


def verify_model(
    python: Path,
    model: str,
    calls: list[Call],
    *,
    device: str,
    timeout_s: float | None,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """What the probe told of both phases: that of `cold`, with the first call of `warm` beside.

    The model is imported as from a script in the current folder. Raises OutsideError.
    """
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise OutsideError(
            "verify.no-python",
            f"There is no Python to verify at {python}.",
            next_step="Name the environment with --prefix, or an interpreter with --python.",
        )
    job = {"model": model, "shapes": calls, "device": device, "path": [str(Path.cwd())]}
    with tempfile.TemporaryDirectory(prefix="provision-model-") as folder:
        own = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "TMPDIR": f"{folder}/tmp",  # noqa: S108 - below a folder of our own
        }
        for name in own.values():
            Path(name).mkdir()
        surroundings = {**environ, **own}
        limit = _LIMIT_S if timeout_s is None else timeout_s
        found = _phase(python, {**job, "phase": "cold"}, surroundings, limit)
        if found["failed"] is None and "error" not in found["first"]:
            warm = _phase(python, {**job, "phase": "warm"}, surroundings, limit)
            found["warm"] = warm.get("first") or {"error": warm.get("error")}
    return found


def _phase(
    python: Path, job: Mapping[str, Any], environ: Mapping[str, str], limit: float
) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-B", str(PROBE)],
            input=json.dumps(job).encode(),
            env=dict(environ),
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OutsideError(
            "verify.timeout",
            f"The model was not through within {limit:g} s ({job['phase']} cache).",
            next_step="Give it more with --timeout, or fewer --shapes.",
        ) from None
    except OSError as error:
        raise OutsideError(
            "verify.no-python", f"{python} cannot be started: {error.strerror}."
        ) from None
    last = done.stdout.strip().rpartition(b"\n")[2]
    if done.returncode != 0 or not last.startswith(b"{"):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        raise OutsideError(
            "verify.model-died",
            f"The process with the model ended with {done.returncode} ({job['phase']} cache):\n"
            + "\n".join(lines),
            next_step="Run `provision doctor` and `provision verify` for this environment first.",
        )
    found: dict[str, Any] = json.loads(last)
    return found
