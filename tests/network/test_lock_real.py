"""Locks of real cells from the package index that this machine's own client asks."""

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from support.locking import cell_input, pins, python, shipped_matrix, uv

from provisioner.lock.client import Client
from provisioner.lock.compile import LockResult, Means, make_lock
from provisioner.lock.defaults import package_index
from provisioner.lock.engines import Engine
from provisioner.lock.find import find_engine
from provisioner.lock.model import Choices, LockInput
from provisioner.lock.recorded import load_records
from provisioner.lock.sources import Addresses
from provisioner.lock.writer import lock_bytes, requirements_texts

pytestmark = pytest.mark.network

NOWHERE = "http://127.0.0.1:9/whl/cu118"
NEWEST = shipped_matrix().releases[-1].torch


@lru_cache(maxsize=1)
def client() -> Client:
    return Client()


@lru_cache(maxsize=1)
def package() -> str:
    return package_index(None, os.environ)


def lock(inputs: LockInput, engine: Engine, torch: str | None = None) -> LockResult:
    addresses = Addresses(package=package(), torch=torch)
    return make_lock(inputs, Choices(), Means(engine=engine, client=client(), addresses=addresses))


REAL = {
    "2.0.1": {"torch": "2.0.1", "cuda": "11.7", "python": "3.9", "os": "debian11"},
    "1.13.1": {"torch": "1.13.1", "cuda": "11.7", "python": "3.10", "os": "ubuntu22.04"},
    "newest": {"torch": NEWEST, "python": "3.11", "os": "debian12"},
}


@pytest.mark.parametrize("name", REAL)
def test_both_engines_give_the_same_bytes(name: str) -> None:
    inputs = cell_input(**REAL[name])
    interpreter = python(inputs.target.python)
    if interpreter is None:
        pytest.skip(f"pip-tools needs Python {inputs.target.python}, and none starts here")
    named = None if interpreter == sys.executable else interpreter
    pip_tools = find_engine("pip-tools", inputs.target, named, client(), package())
    by_uv, by_pip_tools = lock(inputs, uv()), lock(inputs, pip_tools)
    assert lock_bytes(by_uv.lock) == lock_bytes(by_pip_tools.lock)
    assert (
        f"torch=={inputs.family[0].partition('==')[2]} "
        in requirements_texts(by_uv.lock)["requirements.txt"]
    )


def test_an_old_torch_keeps_the_company_of_its_time() -> None:
    result = lock(cell_input(**REAL["2.0.1"]), uv())
    found = pins(result)
    assert found["torch"] == "2.0.1"
    assert found["triton"] == "2.0.0"
    assert found["nvidia-cublas-cu11"] == "11.10.3.66"
    assert found["numpy"] == "1.25.0"
    assert found["setuptools"] == "68.0.0"
    assert found["lit"] == "15.0.6"  # 16.0.x of that time are source archives
    recorded = {file.filename: file.sha256 for p in load_records().projects for file in p.files}
    torch = next(package for package in result.lock.packages if package.name == "torch")
    assert [file.filename for file in torch.files] == [
        "torch-2.0.1-cp39-cp39-manylinux1_x86_64.whl"
    ]
    assert torch.files[0].sha256 == recorded[torch.files[0].filename]


def test_2_0_1_cu118_is_locked_from_records_without_its_index() -> None:
    inputs = cell_input(torch="2.0.1", cuda="11.8", python="3.10", os="ubuntu22.04")
    result = lock(inputs, uv(), torch=NOWHERE)
    family = {p.name: p for p in result.lock.packages if p.origin == "recorded"}
    assert sorted(family) == ["torch", "torchaudio", "torchvision"]
    for found in family.values():
        assert found.version.endswith("+cu118")
        assert all(file.confirmed_by >= 2 for file in found.files)
    assert not any(name.startswith("nvidia-") for name in pins(result))
    assert pins(result)["triton"] == "2.0.0"
    assert set(result.lock.requirements) == {"requirements.txt", "requirements-torch.txt"}


def test_a_cpu_cell_takes_torch_from_its_own_index_and_installs_by_hash(
    torch_cpu_index: str, tmp_path: Path
) -> None:
    inputs = cell_input(
        torch="2.13.0",
        cuda="cpu",
        python="3.11",
        os="debian12",
        without=("torchaudio", "torchvision"),
    )
    result = lock(inputs, uv(), torch=f"{torch_cpu_index}/cpu")
    found = pins(result)
    assert found["torch"] == "2.13.0+cpu"
    assert not any(name.startswith("nvidia-") for name in found)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(requirements_texts(result.lock)["requirements.txt"])
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "-q"]
    command += ["--require-hashes", "--dest", str(tmp_path / "w"), "-r", str(requirements)]
    environ = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": package()}
    environ.pop("PIP_FIND_LINKS", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "w").iterdir())) == len(found) - 1
