"""The probe on a real torch: it passes there, and each way not to compile is found."""

import ctypes
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.needs import UnavailableError, skip_or_fail
from torch_env import Outcome, TorchEnv, make_environment, mounted, without_namespaces

from provisioner.errors import Exit
from provisioner.verify import probe, report

# One promise in full, as a rendered cell makes it.
PROMISE: dict[str, Any] = {
    "name": "torch2.13.0-cpu-py311-debian12-basepy",
    "torch": "2.13.0",
    "local_version": "2.13.0+cpu",
    "cuda": None,
    "python": "3.11",
    "compile": True,
    "device": "cpu",
    "torchvision": None,
    "torchaudio": None,
}
# Saves the vector-unit probes and the precompiled header where they are not what is tested.
NO_PROBES = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
QUICK = NO_PROBES | {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> TorchEnv:
    """The environment that the probe judges."""
    try:
        python = make_environment()
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    return TorchEnv(python=python, scratch=tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def verified(torch: TorchEnv) -> Outcome:
    """One run in a good environment, from nothing to its verdict."""
    folder = torch.scratch / "tmp"
    folder.mkdir()
    promise = ("--expect", json.dumps(PROMISE))
    return torch.probe("--strict-cache", *promise, env={"TMPDIR": str(folder)})


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Needs mount namespaces."""
    reason = without_namespaces()
    if reason:
        skip_or_fail("system", f"no mount namespace can be made here: {reason}")


def stand_in(folder: Path, body: str) -> dict[str, str | None]:
    """Variables with which a shell script stands for g++; it answers --version truly."""
    path = folder / "g++"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\n{body}\n')
    path.chmod(0o755)
    return {"CXX": str(path)}


def test_a_good_environment_is_verified(verified: Outcome) -> None:
    assert verified.code == 0, verified.stdout
    assert verified.report["verdict"] == "verified"
    assert verified.report["torch"] == "2.13.0+cpu"
    assert {c["status"] for c in verified.report["checks"]} <= {"pass", "skip"}
    assert max(map(len, verified.stdout.splitlines())) <= 80
    jsonschema.validate(verified.report, report.json_schema())
    model = report.parse_report(json.dumps(verified.report).encode(), "here")
    assert report.exit_status(model) is Exit.DONE


def test_its_report_shows_the_evidence(verified: Outcome) -> None:
    artefacts, details = verified.report["artefacts"], verified.report["details"]
    assert artefacts["kernel_so"] >= 1
    assert artefacts["cpp"] > artefacts["kernel_so"]
    kernels = {kernel["path"] for kernel in details["cache"]["kernel_so"] if kernel["marked"]}
    cold, warm = details["children"]
    for child in (cold, warm):
        assert kernels & set(child["mapped_so"])
        assert set(child["runs"]) == {*probe.RUNS, "bf16"}
        assert child["runs"]["counted"]["calls"] >= 1
        for run in child["runs"].values():
            assert run["error_compiled"] < run.get("floor", 1e-5)
    hits = [child["runs"]["net"]["cache_hits"] for child in (cold, warm)]
    assert hits == [0, 1]
    assert cold["runs"]["function"]["first_call_s"] > warm["runs"]["function"]["first_call_s"]


def test_nothing_is_left_behind(verified: Outcome) -> None:
    assert list(Path(verified.report["details"]["tmp"]["judged"]).iterdir()) == []


def test_the_private_folder_is_kept_on_request(torch: TorchEnv, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "PATH": "/nowhere"}
    outcome = torch.probe("--keep", env=env)
    assert [str(path) for path in tmp_path.iterdir()] == [outcome.report["details"]["kept"]]


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
    ("cpu build", {}, ["--expect", '{"cuda": "11.8"}'], "torch", 20, "CPU build"),
    ("other python", {}, ["--expect", '{"python": "3.10"}'], "python", 20, "promises Python 3.10"),
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
    assert words in " ".join(outcome.stdout.split())
    assert outcome.report["details"]["children"] == []


def test_a_compiler_that_writes_an_empty_file(torch: TorchEnv, tmp_path: Path) -> None:
    body = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done'
    outcome = torch.probe(env=stand_in(tmp_path, body))
    assert (outcome.decided, outcome.code) == ("cxx", 10)
    assert "the file is empty" in outcome.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("noexec", "--tmpfs /tmp:exec"),
        ("size=16k", "No space left on device"),
        ("size=64m", "needs 200 MB"),
        ("ro", "Read-only file system"),
    ],
)
@pytest.mark.usefixtures("namespaces")
def test_a_temporary_folder_that_cannot_hold_compiled_code(
    torch: TorchEnv, tmp_path: Path, options: str, words: str
) -> None:
    outcome = torch.probe(env={"TMPDIR": str(tmp_path)}, inside=mounted(options, tmp_path))
    assert (outcome.decided, outcome.code) == ("tmp", 10)
    assert words in " ".join(outcome.stdout.split())


@pytest.mark.usefixtures("namespaces")
def test_missing_python_headers(torch: TorchEnv) -> None:
    outcome = torch.probe(inside=mounted("size=1m", torch.include))
    assert (outcome.decided, outcome.code) == ("python-headers", 10)
    assert "python3.11-dev" in " ".join(outcome.stdout.split())


@pytest.mark.usefixtures("namespaces")
def test_a_uid_without_a_name_is_no_failure_in_this_release(torch: TorchEnv) -> None:
    outcome = torch.probe(
        *("--strict-cache", "--expect", '{"torch": "2.12.0"}'),
        env={"USER": None, "LOGNAME": None},
        inside=("unshare", "-U", "--map-user=12345"),
    )
    assert outcome.report["details"]["user"]["error"].startswith("KeyError")
    assert outcome.check("user")["status"] == "pass"
    assert outcome.check("user-cache")["detail"].startswith("/tmp/torchinductor_uid_12345")


def test_two_torch_on_the_path(torch: TorchEnv, tmp_path: Path) -> None:
    for entry in [torch.site / "torch", *torch.site.glob("torch-*.dist-info")]:
        (tmp_path / entry.name).symlink_to(entry)
    outcome = torch.probe(env={"PYTHONPATH": str(tmp_path)})
    assert (outcome.decided, outcome.code) == ("torch-unique", 20)
    assert str(tmp_path) in outcome.check("torch-unique")["detail"]


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_switched_off_by_a_variable(torch: TorchEnv, name: str) -> None:
    outcome = torch.probe(env={name: "1"})
    assert (outcome.decided, outcome.code) == ("switches", 4)
    assert f"{name}=1 turns torch.compile off" in " ".join(outcome.stdout.split())
    assert outcome.report["details"]["switched_off_by"] == {name: "1"}


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


def test_a_compiler_that_fails_on_real_kernels_with_errors_suppressed(
    torch: TorchEnv, tmp_path: Path
) -> None:
    """The trial passes; torch would then run eagerly, without a word."""
    body = 'case "$*" in */trial/*) exec g++ "$@";; esac; echo "error: not today" >&2; exit 1'
    env = stand_in(tmp_path, body) | QUICK | {"TORCHDYNAMO_SUPPRESS_ERRORS": "1"}
    outcome = torch.probe(env=env)
    assert outcome.check("cxx")["status"] == "pass"
    assert (outcome.decided, outcome.code) == ("compile", 10)
    assert outcome.check("suppress-errors")["status"] == "warn"
    assert "hides this" in outcome.check("compile")["detail"]


TRUNCATE = """
if phase == "warm":
    import os
    for place, _, names in os.walk(os.environ["TORCHINDUCTOR_CACHE_DIR"]):
        for name in names:
            if name.endswith(".main.so"):
                os.truncate(os.path.join(place, name), 1000)
"""


def test_kernels_damaged_between_the_two_children(torch: TorchEnv) -> None:
    """A cut library kills whoever maps it: the parent lives and tells."""
    outcome = torch.probe(env=torch.start_up("damaged", TRUNCATE) | NO_PROBES)
    assert (outcome.decided, outcome.code) == ("warm", 13)
    assert outcome.report["details"]["children"][1]["signal"] == "SIGBUS"


def test_a_child_that_crashes(torch: TorchEnv) -> None:
    code = "if phase:\n    import ctypes\n    ctypes.string_at(0)\n"
    outcome = torch.probe(env=torch.start_up("crash", code))
    assert (outcome.decided, outcome.code) == ("cold", 13)
    assert "died of SIGSEGV" in outcome.stdout


def test_a_child_that_hangs_is_ended_with_all_it_started(torch: TorchEnv) -> None:
    code = (
        "if phase:\n    import subprocess, time\n"
        "    subprocess.Popen(['sleep', '4242'])\n    time.sleep(4242)\n"
    )
    outcome = torch.probe("--timeout", "2", env=torch.start_up("hang", code))
    assert (outcome.decided, outcome.code) == ("cold", 13)
    assert "no result in 2 s" in outcome.stdout
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"4242" in read(p)]
    assert left == []


def read(path: Path) -> bytes:
    """The content of a file that may vanish."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_cuda_without_a_gpu_is_unjudged(torch: TorchEnv) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a CUDA driver")
    outcome = torch.probe("--device", "cuda")
    assert (outcome.decided, outcome.code) == ("device", 21)
    assert outcome.report["verdict"] == "unjudged"
    assert "--device cpu" in outcome.stdout
