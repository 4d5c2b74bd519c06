"""The guards on locked and installed distributions; guard.py as an image runs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cells import cell_of
from support.engine import PROJECT
from support.locking import CPU_CELL, GPU_CELL, python
from support.needs import skip_or_fail

from provisioner.errors import OutsideError
from provisioner.lock import installed
from provisioner.lock.guards import check_pins
from provisioner.lock.model import LockInput

GPU: dict[str, Any] = msgspec.to_builtins(cell_of(torch="2.0.1", cuda="11.8")[0])
CPU: dict[str, Any] = msgspec.to_builtins(cell_of(torch="2.0.1", cuda="cpu")[0])
LOCKED = sorted(PROJECT.glob("lockfiles/*/lock.json"))


def family(cell: dict[str, Any], **other: str) -> list[tuple[str, str]]:
    return list({**installed.pins_of(cell), **other}.items())


@pytest.mark.parametrize("lock", LOCKED, ids=lambda path: path.parent.name)
def test_every_shipped_lock_keeps_the_guards(lock: Path) -> None:
    spec = json.loads((PROJECT / "docker" / lock.parent.name / "spec.json").read_bytes())
    packages = json.loads(lock.read_bytes())["packages"]
    found = [(package["name"], package["version"]) for package in packages]
    assert installed.problems(spec["cell"], found) == []


@pytest.mark.parametrize(
    ("cell", "found", "codes"),
    [
        (GPU, family(GPU), []),
        (GPU, family(GPU, torch="2.0.1+cpu"), ["torch-variant"]),
        (GPU, family(GPU, torch="2.0.1"), ["torch-variant"]),
        (GPU, family(GPU, torchvision="0.15.2+cpu", torchaudio="2.0.2+cu117"),
         ["family-variant", "family-variant"]),
        (GPU, family(GPU, torchvision="0.15.1+cu118"), ["family-version"]),
        (GPU, [*family(GPU), ("Torch", "2.0.1+cu118")], ["torch-twice"]),
        (GPU, family(GPU)[1:], ["torch-missing"]),
        (GPU, family(GPU)[:2], ["family-missing"]),
        ({**GPU, "requirements": GPU["requirements"][:1]}, family(GPU),
         ["family-uncalled", "family-uncalled"]),
        (GPU, [*family(GPU), ("pytorch-cpu", "1.0")], ["second-torch"]),
        (GPU, [*family(GPU), ("nvidia-cudnn-cu11", "8.5.0.96")], []),
        (GPU, [*family(GPU), ("nvidia_cudnn_cu12", "8.9")], ["other-cuda"]),
        ({**GPU, "ptxas": {"package": "nvidia-cuda-nvcc-cu12==12.1"}},
         [*family(GPU), ("nvidia-cuda-nvcc-cu12", "12.1")], []),
        (CPU, family(CPU), []),
        (CPU, [*family(CPU), ("nvidia-ml-py", "12.0")], ["cuda-on-cpu"]),
        (CPU, family(CPU, torch="2.0.1+cu118"), ["torch-variant"]),
    ],
)  # fmt: skip
def test_what_goes_with_a_cell_and_what_does_not(
    cell: dict[str, Any], found: list[tuple[str, str]], codes: list[str]
) -> None:
    assert [problem.code for problem in installed.problems(cell, found)] == codes


def site_of(folder: Path, found: list[tuple[str, str]]) -> Path:
    for name, version in found:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def guard(python: str, spec: Path, site: Path) -> subprocess.CompletedProcess[str]:
    script = shutil.copy(installed.__file__, spec.with_name("guard.py"))
    return subprocess.run(
        [python, "-S", script, str(spec)],
        env={"PYTHONPATH": str(site), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("series", ["3.8", "3.13"])
def test_in_an_image_it_ends_the_build_with_a_line_for_each_problem(
    series: str, tmp_path: Path
) -> None:
    interpreter = python(series)
    if interpreter is None:
        skip_or_fail("pythons", f"no Python {series} here")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"cell": CPU}))
    (tmp_path / "good").mkdir()
    done = guard(interpreter, spec, site_of(tmp_path / "good", family(CPU)))
    assert (done.returncode, done.stderr) == (0, "")
    bad = [*family(CPU, torchvision="0.15.2+cu118"), ("nvidia-cublas-cu11", "11.10")]
    (tmp_path / "bad").mkdir()
    done = guard(interpreter, spec, site_of(tmp_path / "bad", bad))
    assert done.returncode == 1
    reason = "the cell is for the CPU and takes no CUDA libraries"
    assert done.stderr.splitlines() == [
        "guard: torchvision is 0.15.2+cu118, the cell has 0.15.2+cpu. [family-variant]",
        f"guard: nvidia-cublas-cu11 11.10 is there: {reason}. [cuda-on-cpu]",
    ]


LABELLED = msgspec.structs.replace(
    GPU_CELL,
    family=("torch==2.0.1+cu117", "torchvision==0.15.2+cu117"),
    torch_index="cu117",
)


@pytest.mark.parametrize(
    ("cell", "pins", "need"),
    [
        (GPU_CELL, {"torch": "2.0.1+cpu"}, "2.0.1"),
        (CPU_CELL, {"torch": "2.0.1"}, "2.0.1+cpu"),
        (LABELLED, {"torch": "2.0.1+cu117", "torchvision": "0.15.2+cpu"}, "0.15.2+cu117"),
        (LABELLED, {"torch": "2.0.1+cu117", "torchvision": "0.15.2"}, "0.15.2+cu117"),
        (LABELLED, {"torch": "2.0.1+cu117"}, "0.15.2+cu117"),
        (msgspec.structs.replace(LABELLED, torch_index="cu118"),
         {"torch": "2.0.1+cu117", "torchvision": "0.15.2+cu117"},
         "a version that ends with +cu118"),
    ],
)  # fmt: skip
def test_no_lock_has_another_build_than_the_cells(
    cell: LockInput, pins: dict[str, str], need: str
) -> None:
    with pytest.raises(OutsideError) as caught:
        check_pins(cell, pins, [])
    assert (caught.value.code, caught.value.facts["need"]) == ("lock.wrong-build", need)
