"""Each way in which code is not compiled, or not by this machine, on a real torch: it is found."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.needs import UnavailableError, skip_or_fail
from support.pythons import has_headers, interpreter
from torch_env import (
    NO_PROBES,
    QUICK,
    VENVS,
    Outcome,
    TorchEnv,
    install,
    mounted,
)


def said(outcome: Outcome) -> str:
    """What a person reads, on one line."""
    return " ".join(outcome.stdout.split())


def stand_in(folder: Path, body: str) -> dict[str, str | None]:
    """Variables with which a shell script stands for g++; it answers --version truly.

    On PATH, since torch 2.0 does not read CXX.
    """
    real = shutil.which("g++")
    assert real is not None
    path = folder / "bin" / "g++"
    path.parent.mkdir()
    script = f'#!/bin/sh\ncase "$*" in *--version*) exec {real} "$@";; esac\n{body}\n'
    path.write_text(script.replace("REAL", real))
    path.chmod(0o755)
    return {"PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}", "CXX": None}


# What needs no start of torch: (name, variables, options, check, exit code, words to be read).
EARLY = [
    ("no compiler", {"PATH": "/nowhere"}, [], "cxx", 10, "apt-get install g++"),
    ("broken compiler", {"GCC_EXEC_PREFIX": "/nowhere/"}, [], "cxx", 10, "cannot build"),
    (
        "broken compiler, errors suppressed",
        {"GCC_EXEC_PREFIX": "/nowhere/", "TORCHDYNAMO_SUPPRESS_ERRORS": "1"},
        [],
        "cxx",
        10,
        "TORCHDYNAMO_SUPPRESS_ERRORS=1 hides this",
    ),
    ("other torch", {}, ["--expect", '{"torch": "2.12.0"}'], "torch", 20, "promises 2.12.0"),
    ("other python", {}, ["--expect", '{"python": "3.8"}'], "python", 20, "promises Python 3.8"),
    ("no folder", {"TMPDIR": "/nowhere"}, [], "tmp", 10, "TMPDIR=/nowhere does not exist"),
]


@pytest.mark.parametrize(
    ("env", "options", "check", "code", "words"),
    [pytest.param(*case[1:], id=case[0]) for case in EARLY],
)
def test_early_failures(
    torch: TorchEnv,
    env: dict[str, str | None],
    options: list[str],
    check: str,
    code: int,
    words: str,
) -> None:
    outcome = torch.probe(*options, env=env)
    assert (outcome.decided, outcome.code) == (check, code)
    assert words in said(outcome)
    assert outcome.report["details"]["children"] == []


def test_a_build_for_another_cuda_or_for_none(torch: TorchEnv) -> None:
    outcome = torch.probe("--expect", '{"cuda": "11.8"}')
    assert (outcome.decided, outcome.code) == ("torch", 20)
    built = torch.build.cuda
    assert ("is a CPU build" if built is None else f"was built for CUDA {built}") in said(outcome)
    outcome = torch.probe("--expect", '{"cuda": null}', env={"PATH": "/nowhere"})
    assert outcome.decided == ("cxx" if built is None else "torch")


def test_a_compiler_that_writes_an_empty_file(torch: TorchEnv, tmp_path: Path) -> None:
    body = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done'
    outcome = torch.probe(env=stand_in(tmp_path, body))
    assert (outcome.decided, outcome.code) == ("cxx", 10)
    assert "the file is empty" in said(outcome)


TIGHT = [
    ("noexec", "--tmpfs /tmp:exec"),
    ("size=16k", "No space left on device"),
    ("ro", "Read-only file system"),
]


@pytest.mark.parametrize(("options", "words"), TIGHT)
@pytest.mark.usefixtures("namespaces")
def test_a_temporary_folder_that_cannot_hold_compiled_code(
    torch: TorchEnv, tmp_path: Path, options: str, words: str
) -> None:
    outcome = torch.probe(env={"TMPDIR": str(tmp_path)}, inside=mounted(options, tmp_path))
    assert (outcome.decided, outcome.code) == ("tmp", 10)
    assert words in said(outcome)


@pytest.mark.usefixtures("namespaces")
def test_a_temporary_folder_too_small_for_the_precompiled_header(
    torch: TorchEnv, tmp_path: Path
) -> None:
    """64 MB were enough before 2.8; there it is a warning, and the run goes on."""
    outcome = torch.probe(
        *("--expect", '{"torch": "2.12.0"}'),
        env={"TMPDIR": str(tmp_path)},
        inside=mounted("size=64m", tmp_path),
    )
    if torch.build.release >= (2, 8):
        assert outcome.check("tmp")["status"] == "fail"
        assert "needs 200 MB" in outcome.check("tmp")["detail"]
    else:
        assert outcome.check("tmp")["status"] == "warn"


@pytest.mark.parametrize(("options", "words"), TIGHT)
@pytest.mark.usefixtures("namespaces")
def test_a_default_cache_that_cannot_hold_compiled_code(
    torch: TorchEnv, tmp_path: Path, options: str, words: str
) -> None:
    """The proof has a folder of its own, so this is judged apart, and counts when asked to."""
    cache = tmp_path / "cache"
    cache.mkdir()
    inside = mounted(options, cache)
    env = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    outcome = torch.probe("--strict-cache", env=env, inside=inside)
    assert (outcome.decided, outcome.code) == ("user-cache", 10)
    assert words in said(outcome)
    loose = torch.probe("--expect", '{"torch": "2.12.0"}', env=env, inside=inside)
    assert loose.check("user-cache")["status"] == "warn"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to somebody else")
def test_a_default_cache_of_somebody_else(torch: TorchEnv, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o777)
    os.chown(cache, 12345, 12345)
    outcome = torch.probe("--strict-cache", env={"TORCHINDUCTOR_CACHE_DIR": str(cache)})
    assert (outcome.decided, outcome.code) == ("user-cache", 10)
    assert "belongs to uid 12345" in said(outcome)


@pytest.mark.usefixtures("namespaces")
def test_missing_python_headers(torch: TorchEnv) -> None:
    """CPU kernels need them from 2.3 on; before, only what Triton builds does."""
    inside = mounted("size=1m", torch.include)
    options = [] if torch.build.release >= (2, 3) else ["--expect", json.dumps(torch.build.promise)]
    outcome = torch.probe(*options, inside=inside)
    assert (outcome.decided, outcome.code) == ("python-headers", 10)
    assert f"python{torch.build.python}-dev" in said(outcome)


@pytest.mark.usefixtures("namespaces")
def test_a_uid_without_a_name(torch: TorchEnv) -> None:
    """2.13 took care of it; before, torch cannot even name its cache."""
    outcome = torch.probe(
        *("--strict-cache", "--expect", '{"torch": "2.12.0"}'),
        env={"USER": None, "LOGNAME": None},
        inside=("unshare", "-U", "--map-user=12345"),
    )
    assert outcome.report["details"]["user"]["error"].startswith(("KeyError", "OSError"))
    if torch.build.release >= (2, 13):
        assert outcome.check("user")["status"] == "pass"
        assert outcome.check("user-cache")["detail"].startswith("/tmp/torchinductor_uid_12345")
    else:
        assert outcome.check("user")["status"] == "fail"
        assert "uid 12345 has no passwd entry" in outcome.check("user")["detail"]


def test_two_torch_on_the_path(torch: TorchEnv, tmp_path: Path) -> None:
    for entry in [torch.site / "torch", *torch.site.glob("torch-*.dist-info")]:
        (tmp_path / entry.name).symlink_to(entry)
    outcome = torch.probe(env={"PYTHONPATH": str(tmp_path)})
    assert (outcome.decided, outcome.code) == ("torch-unique", 20)
    assert str(tmp_path) in outcome.check("torch-unique")["detail"]


@pytest.mark.builds.with_args(lambda build: build.release < (2, 3))
def test_a_numpy_that_the_build_does_not_know(copied: TorchEnv) -> None:
    install(copied.python, ["numpy==2.0.2"])
    outcome = copied.probe()
    assert (outcome.decided, outcome.code) == ("numpy", 20)
    assert "Pin numpy<2" in said(outcome)


def test_a_torchvision_of_another_torch(copied: TorchEnv) -> None:
    """It is the one that is named, and yet its operators cannot be had."""
    named = copied.build.other_torchvision
    install(copied.python, [f"torchvision=={named}", "pillow"], "--no-deps")
    outcome = copied.probe("--expect", json.dumps({"torchvision": named}))
    assert (outcome.decided, outcome.code) == ("torchvision", 20)
    assert outcome.check("torchvision")["status"] == "fail"


@pytest.mark.builds.with_args(lambda build: build.cuda is not None)
def test_no_triton_in_a_cell_for_gpus(copied: TorchEnv) -> None:
    shutil.rmtree(copied.site / "triton")
    outcome = copied.probe("--expect", json.dumps(copied.build.promise))
    assert (outcome.decided, outcome.code) == ("triton", 10)
    assert "Triton cannot be used" in said(outcome)


@pytest.mark.builds.with_args(lambda build: build.release == (2, 0))
def test_a_python_that_this_torch_has_wheels_for_and_does_not_compile_on(
    torch: TorchEnv, tmp_path: Path
) -> None:
    """The libraries of CUDA are lent by the other environment: they are of no Python."""
    python = interpreter("python3.11")
    if python is None or not has_headers(python):
        skip_or_fail("torch", "no Python 3.11 with its headers (Python.h) is on this machine")
    needed = [
        "filelock",
        "jinja2",
        "markupsafe",
        "mpmath",
        "networkx",
        "sympy",
        "typing-extensions",
    ]
    with tempfile.TemporaryDirectory(prefix="newer-", dir=VENVS) as folder:
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        newer = Path(folder) / "bin" / "python"
        try:
            install(newer, [f"torch=={torch.build.torch}", *needed], "--no-deps")
        except UnavailableError as error:
            skip_or_fail("torch", str(error))
        other = TorchEnv(python=newer, scratch=tmp_path, build=torch.build)
        (other.site / "nvidia").symlink_to(torch.site / "nvidia")
        outcome = other.probe()
    assert (outcome.decided, outcome.code) == ("python-ceiling", 5)
    assert "does not compile on Python 3.11" in said(outcome)


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_switched_off_by_a_variable(torch: TorchEnv, name: str) -> None:
    outcome = torch.probe(env={name: "1"})
    assert (outcome.decided, outcome.code) == ("switches", 4)
    assert f"{name}=1 turns torch.compile off" in said(outcome)
    assert outcome.report["details"]["switched_off_by"] == {name: "1"}


def test_switched_off_by_start_up_code(torch: TorchEnv) -> None:
    code = "if phase:\n    import torch._dynamo.config as c\n    c.disable = True\n"
    outcome = torch.probe(env=torch.start_up("off", code))
    assert (outcome.decided, outcome.code) == ("switches", 4)
    assert "by no variable" in said(outcome)


def test_torch_compile_replaced_by_start_up_code(torch: TorchEnv) -> None:
    code = "if phase:\n    import torch\n    torch.compile = lambda f=None, **more: f\n"
    outcome = torch.probe(env=torch.start_up("replaced", code))
    assert (outcome.decided, outcome.code) == ("capture", 11)
    assert "sitecustomize.py" in outcome.stdout


FORGED = """
if phase:
    import torch
    real = torch.compile
    def forged(f, **more):
        compiled = real(f, **more)
        if not more.get("fullgraph"):
            return compiled
        def both(*args):
            compiled(*args)
            return f(*args)
        return both
    torch.compile = forged
"""


def test_an_eager_result_passed_off_as_compiled(torch: TorchEnv) -> None:
    """Everything is captured, compiled and called; only the value that comes back is eager."""
    outcome = torch.probe(env=torch.start_up("forged", FORGED) | QUICK)
    assert outcome.check("graphs")["status"] == "pass"
    assert (outcome.decided, outcome.code) == ("witness", 11)


OTHER_BACKEND = """
if phase:
    import torch
    real = torch.compile
    torch.compile = lambda model=None, *, backend=None, **more: real(
        model, backend=backend or "aot_eager", **more
    )
"""


def test_a_compile_that_takes_another_back_end(torch: TorchEnv) -> None:
    """Traced, whole graphs, right results: only Inductor was never asked."""
    outcome = torch.probe(env=torch.start_up("other", OTHER_BACKEND) | QUICK)
    assert outcome.check("graphs")["status"] == "pass"
    assert (outcome.decided, outcome.code) == ("ran", 11)


NOT_TODAY = 'case "$*" in */trial/*) exec REAL "$@";; esac; echo "error: not today" >&2; exit 1'


def test_a_compiler_that_fails_on_real_kernels_with_errors_suppressed(
    torch: TorchEnv, tmp_path: Path
) -> None:
    """The trial passes; torch would then run eagerly, without a word."""
    env = stand_in(tmp_path, NOT_TODAY) | QUICK | {"TORCHDYNAMO_SUPPRESS_ERRORS": "1"}
    outcome = torch.probe(env=env)
    assert outcome.check("cxx")["status"] == "pass"
    assert (outcome.decided, outcome.code) == ("compile", 10)
    assert outcome.check("suppress-errors")["status"] == "warn"
    assert "hides this" in outcome.check("compile")["detail"]


def test_an_old_cache_lying_ready_proves_nothing(torch: TorchEnv, tmp_path: Path) -> None:
    """Kernels of an earlier day are neither taken nor touched: today's compiler has failed."""
    old = tmp_path / "old"
    code = "import torch\nprint(torch.compile(lambda x: x.sin() + 1)(torch.ones(64)).sum())\n"
    env: dict[str, str | None] = {**NO_PROBES, "TORCHINDUCTOR_CACHE_DIR": str(old)}
    torch.run(code, env)
    ready = {path: path.stat().st_mtime_ns for path in old.rglob("*")}
    assert any(path.suffix == ".so" for path in ready)
    outcome = torch.probe(env=env | stand_in(tmp_path, NOT_TODAY))
    assert (outcome.decided, outcome.code) == ("compile", 10)
    assert {path: path.stat().st_mtime_ns for path in old.rglob("*")} == ready
