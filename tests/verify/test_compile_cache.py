"""The compile cache of a real torch: damage found and mended, many processes on one cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import UnavailableError, skip_or_fail
from torch_env import CLEARED, KEPT, make_environment

QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
PROGRAM = """\
import sys, torch
torch.manual_seed(int(sys.argv[1]))
def function(x):
    return torch.sin(x) * torch.cos(x) + 0.517283
x = torch.randn(64, 64)
have, want = torch.compile(function, fullgraph=True)(x), function(x.double())
assert float((have.double() - want).abs().max()) < 1e-5
print("right")
"""


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        found: Path = make_environment()
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    return found


def start(python: Path, cache: Path, seed: int = 0) -> "subprocess.Popen[str]":
    """A process that compiles one function in this cache and checks the result."""
    kept = {n: v for n, v in os.environ.items() if n in KEPT or not n.startswith(CLEARED)}
    return subprocess.Popen(
        [str(python), "-c", PROGRAM, str(seed)],
        env={**kept, **QUICK, "TORCHINDUCTOR_CACHE_DIR": str(cache), "USER": "tester"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def compiled(python: Path, cache: Path) -> int:
    process = start(python, cache)
    process.communicate(timeout=300)
    return process.returncode


def cache_command(verb: str, cache: Path, *words: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", "cache", verb, f"--dir={cache}", "--json", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_kernel_cut_short_is_found_removed_and_built_again(python: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert compiled(python, cache) == 0
    assert cache_command("check", cache)[0] == 0
    kernels = [p for p in cache.rglob("*.so") if b"0.517283" in p.with_suffix(".cpp").read_bytes()]
    assert kernels
    for kernel in kernels:
        os.truncate(kernel, 1000)
    # torch itself never mends it: every start ends like this one.
    assert compiled(python, cache) != 0
    assert compiled(python, cache) != 0
    status, told = cache_command("check", cache)
    assert status == 1
    assert told["damaged"]
    assert cache_command("clear", cache, "--yes")[0] == 0
    assert compiled(python, cache) == 0
    assert cache_command("check", cache)[0] == 0


def test_eight_processes_on_one_cache_are_all_right(python: Path, tmp_path: Path) -> None:
    """No dead-lock, no half-written kernel taken for whole, no wrong number."""
    cache = tmp_path / "cache"
    running = [start(python, cache, seed) for seed in range(8)]
    for process in running:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert out == "right\n"
    assert cache_command("check", cache)[0] == 0
