"""`provision diagnose` as people and scripts call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPORT = """\
PyTorch version: 2.0.1+cu118
Nvidia driver version: 470.82.01
RuntimeError: Triton Error [CUDA]: device kernel image is invalid
pip --index-url https://ci:geheim@mirror.example/simple libcuda.so cannot found!
"""


def provision(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioner", "diagnose", *words],
        input=text,
        capture_output=True,
        text=True,
    )


def read(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_object_that_scripts_read() -> None:
    found = read(provision("-", "--json", text=REPORT))
    assert found["schema"] == "provision.diagnose/1"
    assert found["unknown"] is False
    first, second = found["causes"][:2]
    assert (first["class"], second["class"]) == (
        "libcuda_not_found",
        "driver_older_than_wheel_cuda",
    )
    assert first["confidence"] > second["confidence"] > 0.5
    assert second["lines"] == [
        {
            "log": "-",
            "number": 3,
            "text": "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        }
    ]
    assert "525.60.13 or newer" in second["remedy"]
    assert "nvidia-cuda-nvcc-cu11" in second["remedy"]
    assert found["environment"]["driver"] == "470.82.01"


def test_nothing_certain_is_unknown_with_what_to_collect() -> None:
    found = read(provision("-", "--json", text="all went well\n"))
    assert found["causes"] == []
    assert found["unknown"] is True
    assert "nvidia-smi" in found["collect"]
    shown = provision("-", text="all went well\n")
    assert shown.returncode == 0
    assert "No cause is certain." in shown.stdout


def test_people_see_lines_in_80_columns_and_no_secret() -> None:
    shown = provision("-", text=REPORT + "x" * 5000 + " libcuda.so cannot found!\n")
    assert shown.returncode == 0
    assert "1. libcuda_not_found (95%)" in shown.stdout
    assert "line 4: " in shown.stdout
    assert "geheim" not in shown.stdout
    for line in shown.stdout.splitlines():
        assert len(line) <= 80 or line.startswith("     "), line


def test_several_logs_are_one_case(tmp_path: Path) -> None:
    smi, log = tmp_path / "smi.txt", tmp_path / "train.log"
    smi.write_text("| NVIDIA-SMI 610.10  KMD Version: 470.82.01  CUDA UMD Version: 11.4 |\n")
    log.write_text(
        "torch                    2.1.0+cu121\n"
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"
    )
    found = read(provision(str(smi), str(log), "--json"))
    assert found["logs"] == [str(smi), str(log)]
    assert found["causes"][0]["class"] == "driver_older_than_wheel_cuda"
    assert found["causes"][0]["lines"][0]["log"] == str(log)
    assert "Driver 470.82.01 does not run torch 2.1.0+cu121" in found["causes"][0]["remedy"]
    assert f"{log}:2: " in provision(str(smi), str(log)).stdout.replace("\n     | ", "")


def test_a_log_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none.log")):
        done = provision(name)
        assert done.returncode == 4
        assert "[diagnose.unreadable]" in done.stderr
        assert "Traceback" not in done.stderr
        error = json.loads(provision(name, "--json").stdout)["error"]
        assert error["code"] == "diagnose.unreadable"
    assert provision().returncode == 2


def test_a_terminal_is_not_steered_by_a_log() -> None:
    shown = provision("-", text="libcuda.so cannot found! \x1b]0;title\x07\x9b31m\u202e\n")
    assert shown.returncode == 0
    assert all(char.isprintable() or char == "\n" for char in shown.stdout)
