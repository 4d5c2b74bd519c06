"""`provision verify --model`: a model of somebody's, compiled for real; and what is said of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.needs import UnavailableError, skip_or_fail
from torch_env import CLEARED, make_environment

from provisioner.cli.main import cli
from provisioner.errors import ProvisionError
from provisioner.verify.model_advice import advice_for, advise
from provisioner.verify.model_run import read_shapes

MODEL = '''"""A model that leaves the graph once."""
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, x):
        scale = x.mean().item()
        return self.layer(x) * scale

def build():
    print("building")  # what a model prints is not the answer
    return Net()

def broken():
    raise ValueError("no weights here")

def number():
    return 3
'''


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        found: Path = make_environment()
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    return found


def verify(folder: Path, python: Path, model: str, shapes: str) -> tuple[int, dict[str, Any]]:
    import os

    environ = {k: v for k, v in os.environ.items() if not k.startswith(CLEARED)}
    words = ["--python", str(python), "--model", model, "--shapes", shapes, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", "verify", *words],
        cwd=folder,
        env={**environ, "TORCHINDUCTOR_VEC_ISA_OK": "1", "HOME": "/root"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mymodel.py").write_text(MODEL)
    return tmp_path


def test_a_model_is_compiled_and_its_break_is_named_by_line(python: Path, folder: Path) -> None:
    status, told = verify(folder, python, "mymodel:build", "2x16,3x16")
    assert (status, told["verdict"], told["device"]) == (0, "compiles", "cpu")
    (item,) = told["breaks"]["breaks"]
    assert (Path(item["file"]).name, item["line"]) == ("mymodel.py", 10)
    (advice,) = [row for row in told["advice"] if row["topic"] == "graph-break"]
    assert "capture_scalar_outputs" in advice["text"]
    # Under fullgraph=True this release keeps the number of .item() in the graph.
    assert told["fullgraph"] == {"works": True}
    (note,) = [row["text"] for row in told["advice"] if row["topic"] == "fullgraph"]
    assert note.startswith("fullgraph=True takes this model as one graph all the same")
    assert told["recompiles"]["False"]["graphs"] == [2, 4]
    assert told["recompiles"]["True"]["graphs"] == [2, 2]
    assert all(row["right"] and row["float64"] for row in told["numerics"]["calls"])
    assert told["warm"]["seconds"] < told["first"]["seconds"]
    assert told["speed"]["compiled_ms"] > 0
    assert len(told["memory"]["bytes"]) == 3


@pytest.mark.parametrize(
    ("model", "shapes", "failed", "error"),
    [
        ("mymodel:broken", "2x16", "load", "no weights here"),
        ("mymodel:missing", "2x16", "load", "missing"),
        ("nomodel:build", "2x16", "load", "nomodel"),
        ("mymodel:number", "2x16", "load", "nothing to call"),
        ("mymodel:build", "2x15", "eager", "shapes cannot be multiplied"),
    ],
)
def test_a_model_that_does_not_run_says_at_which_step(
    model: str, shapes: str, failed: str, error: str, python: Path, folder: Path
) -> None:
    status, told = verify(folder, python, model, shapes)
    assert (status, told["verdict"], told["failed"]) == (1, "failed", failed)
    assert error in told["error"]


# --- what is said, without torch ---

FOUND: dict[str, Any] = {
    "torch": "2.6.0+cu124",
    "failed": None,
    "device": "cuda",
    "first": {"seconds": 8.0},
    "warm": {"seconds": 2.0},
    "numerics": {"calls": [{"eager": 1e-7, "compiled": 2e-7, "allowed": 1e-5, "right": True}]},
    "speed": {"eager_ms": 2.0, "compiled_ms": 1.0},
    "memory": {"bytes": [100 << 20, 100 << 20, 101 << 20]},
    "breaks": {"graphs": 1, "breaks": []},
    "fullgraph": {"works": True},
    "recompiles": {
        "None": {"graphs": [1, 2, 2]},
        "True": {"graphs": [1, 1, 1]},
        "False": {"graphs": [1, 2, 3]},
    },
}


def said(**changed: Any) -> dict[str, tuple[str, str]]:
    off = changed.pop("off", {})
    return {a.topic: (a.level, a.text) for a in advise({**FOUND, **changed}, off)}


def test_a_good_model_gets_notes_alone() -> None:
    found = said()
    assert {level for level, _ in found.values()} == {"note"}
    assert "dynamic=True saves" in found["recompiles"][1]
    assert "2.00 times" in found["speed"][1]
    assert "reduce-overhead" in found["speed"][1]


@pytest.mark.parametrize(
    ("changed", "topic", "level", "part"),
    [
        ({"first": {"error": "InductorError: no g++"}}, "compile", "fail", "no g++"),
        ({"off": {"TORCHDYNAMO_DISABLE": "1"}}, "compile", "fail", "Unset it"),
        ({"failed": "load", "error": "ImportError: x"}, "model", "fail", "load: ImportError"),
        (
            {"numerics": {"calls": [{"compiled": 3e-3, "allowed": 1e-5, "right": False}]}},
            "numerics", "fail", "3.0e-03",
        ),
        (
            {"numerics": {"calls": [{"compiled": None, "allowed": 1e-5, "right": False}]}},
            "numerics", "fail", "no finite number",
        ),
        ({"numerics": {"skipped": "no tensor"}}, "numerics", "warn", "no tensor"),
        ({"memory": {"bytes": [0, 64 << 20, 128 << 20]}}, "memory", "warn", "64 MiB"),
        ({"speed": {"eager_ms": 1.0, "compiled_ms": 2.0}}, "speed", "note", "reduce-overhead"),
        (
            {"speed": {"eager_ms": 2.0, "compiled_ms": 1.0}, "device": "cpu"},
            "speed", "note", "no effect on the CPU",
        ),
        (
            {"recompiles": {"None": {"graphs": [1, 8]}, "True": {"graphs": [1, 8]}}},
            "recompiles", "warn", "even with dynamic=True",
        ),
        ({"fullgraph": {"error": "Unsupported: x"}}, "fullgraph", "note", "Unsupported"),
    ],
)  # fmt: skip
def test_what_was_found_is_said(changed: dict[str, Any], topic: str, level: str, part: str) -> None:
    found = said(**changed)
    assert found[topic][0] == level
    assert part in found[topic][1]


@pytest.mark.parametrize(
    ("reason", "code", "part"),
    [
        ("Tensor.item", "s = x.item()", "capture_scalar_outputs"),
        ("Unsupported Tensor.item() call", "n = int(x)", "capture_scalar_outputs"),
        ("generic_jump TensorVariable()", "if x.sum() > 0:", "torch.where"),
        ("Data-dependent branching", "while x.max() > 1:", "torch.where"),
        ("call_function BuiltinVariable(print)", "print(x)", "outside"),
        ("Failed to trace builtin operator `print`", "report(x)", "outside"),
        ("call_function", "pdb.set_trace()", "breakpoint"),
        ("something else", "y = odd(x)", "Move that line"),
    ],
)
def test_a_break_gets_the_advice_for_its_cause(reason: str, code: str, part: str) -> None:
    assert part in advice_for(reason, code)


def test_shapes_are_read() -> None:
    assert read_shapes("8x3x224x224, 16x3") == [
        [([8, 3, 224, 224], "float32")],
        [([16, 3], "float32")],
    ]
    assert read_shapes("4x16+4:int64") == [[([4, 16], "float32"), ([4], "int64")]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--model", "a:b"], "verify.model"),
        (["--shapes", "2"], "verify.model"),
        (["--model", "a:b", "--shapes", "2", "--image", "x"], "verify.model"),
        (["--model", "a.b", "--shapes", "2"], "verify.model"),
        (["--model", "a:b", "--shapes", "2xx3"], "verify.shapes"),
        (["--model", "a:b", "--shapes", ""], "verify.shapes"),
        (["--model", "a:b", "--shapes", "2:string5"], "verify.shapes"),
        (["--model", "a:b", "--shapes", "2", "--prefix", "/nonexistent"], "verify.no-python"),
        (["--model", "a:b", "--shapes", "2", "--python", "/bin/false"], "verify.model-died"),
    ],
)
def test_wrong_use_is_one_message(words: list[str], code: str) -> None:
    done = CliRunner().invoke(cli, ["verify", *words], standalone_mode=False)
    assert isinstance(done.exception, ProvisionError), done.exception
    assert done.exception.code == code
