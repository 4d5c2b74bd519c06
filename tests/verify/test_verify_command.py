"""`provision verify` on a real environment: what it finds is the tool's exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.needs import UnavailableError, skip_or_fail
from torch_env import CLEARED, KEPT, make_environment

CELL = "torch2.13.0-cpu-py311-debian12-basepy"
OTHER = "torch2.0.1-cu117-py39-debian11-basepy"


@pytest.fixture(scope="module")
def prefix() -> Path:
    """A virtual environment with torch 2.13.0 for the CPU."""
    try:
        python: Path = make_environment()
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    return python.parents[1]


def verify(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(CLEARED)
    }
    return subprocess.run(
        [sys.executable, "-m", "provisioner", "verify", *words],
        env={**kept, "TORCHINDUCTOR_VEC_ISA_OK": "1", **env},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_a_good_environment_is_verified_and_its_report_kept(prefix: Path, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    done = verify(f"--prefix={prefix}", f"--cell={CELL}", f"--report={kept}", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    assert told == json.loads(kept.read_bytes())
    assert told["schema"] == "provision.report/1"
    assert told["verdict"] == "verified"
    assert told["details"]["expect"]["name"] == CELL
    assert {"verdict", "torch", "cuda", "device", "checks", "artefacts", "speed"} <= told.keys()
    assert all(
        check.keys() >= {"id", "status", "seconds", "detail", "remedy"} for check in told["checks"]
    )
    assert told["artefacts"]["kernel_so"] > 0


@pytest.mark.parametrize(
    ("words", "env", "status", "decided"),
    [
        ((), {"TORCHDYNAMO_DISABLE": "1"}, 1, "switches"),
        ((f"--cell={OTHER}",), {}, 1, "python"),
        (("--device=cuda",), {}, 4, "device"),
        ((), {"CXX": "/bin/false"}, 1, "cxx"),
    ],
)
def test_what_is_wrong_decides_the_status(
    prefix: Path, words: tuple[str, ...], env: dict[str, str], status: int, decided: str
) -> None:
    done = verify(f"--prefix={prefix}", *words, "--json", **env)
    assert done.returncode == status, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["verdict"] in {"failed", "unjudged"}
    assert next(c["id"] for c in told["checks"] if c["status"] == "fail") == decided


def test_people_read_the_deciding_check_with_its_remedy(prefix: Path) -> None:
    done = verify(f"--prefix={prefix}", TORCHDYNAMO_DISABLE="1")
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED switches: TORCHDYNAMO_DISABLE=1")
    assert "remedy: Unset TORCHDYNAMO_DISABLE" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_active_environment_is_judged_without_a_place(prefix: Path) -> None:
    done = verify("--json", VIRTUAL_ENV=str(prefix), TORCHDYNAMO_DISABLE="1")
    told = json.loads(done.stdout)
    assert told["torch"] == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("--prefix=/nowhere",), 4, "verify.no-python"),
        (("--python=/bin/cat",), 4, "verify.no-report"),
        (("--cell=none", "--python=/bin/cat"), 2, "cell.not-rendered"),
        (("--host", "--image=x"), 2, "verify.one-place"),
        (("--report=/nowhere/report.json",), 2, "verify.no-folder"),
        (("--timeout=nan",), 2, "usage"),
    ],
)
def test_what_cannot_be_judged_is_one_message(
    words: tuple[str, ...], status: int, code: str
) -> None:
    done = verify(*words, "--json")
    assert done.returncode == status, done.stderr + done.stdout
    assert json.loads(done.stdout)["error"]["code"] == code
