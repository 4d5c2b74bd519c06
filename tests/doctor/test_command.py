"""`provision doctor` as people and scripts call it, on this machine and on recordings."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from doctor.conditions import CONDITIONS, GOOD, changed_facts
from doctor.test_checks import seen
from doctor.test_environment import put_torch, stubs
from provisioner.cli.main import cli, run
from provisioner.doctor.fix import apply
from provisioner.doctor.model import Result
from provisioner.doctor.registry import CHECKS, examine
from provisioner.errors import ProvisionError, UsageError

__all__ = ["stubs"]  # a fixture
FACTS = {"driver.loaded": "470.256.02", "driver.libraries": ["470.256.02"], "gpus": []}


def invoke(*words: str, environ: dict[str, str] | None = None, typed: str = "") -> Any:
    runner = CliRunner(env=environ)
    return runner.invoke(cli, ["doctor", *words], standalone_mode=False, input=typed)


def here(*words: str, **environ: str) -> dict[str, Any]:
    """What the doctor says of the interpreter that runs the tests, with some variables."""
    done = invoke("--python", sys.executable, "--json", *words, environ=dict(environ))
    assert done.exception is None, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    found["status"] = done.return_value
    found["answers"] = {result["id"]: result for result in found["results"]}
    return found


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(changed_facts(FACTS)))
    return path


# --- this machine, really ---


def test_this_machine_can_be_looked_at_whatever_it_is() -> None:
    found = here()
    assert found["schema"] == "provision.doctor/1"
    assert {result["id"] for result in found["results"]} == {check.id for check in CHECKS}
    assert sum(found["counts"].values()) == len(CHECKS)
    assert found["judged"]["python"] == sys.executable


def test_a_driver_that_refuses_is_the_first_finding(stubs: Path) -> None:
    found = here(LD_LIBRARY_PATH=str(stubs), STUB_INIT="803", STUB_NVML="18")
    assert found["status"] == 1
    assert found["results"][0]["severity"] == "error"
    answer = found["answers"]["driver.mismatch"]
    assert "cuInit returned 803" in answer["evidence"]
    assert "sudo reboot" in answer["commands"]


def test_variables_that_break_are_found_where_they_are_set(tmp_path: Path) -> None:
    wrong = {
        "TORCHDYNAMO_DISABLE": "1",
        "TORCHDYNAMO_SUPPRESS_ERRORS": "1",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "TORCHINDUCTOR_CACHE_DIR": "/proc/none",
        "CUDA_HOME": str(tmp_path),
    }
    answers = here(**wrong)["answers"]
    for check in (
        "process.switched-off", "process.suppressed", "libraries.path", "cache.writable",
        "toolkit.nvcc",
    ):  # fmt: skip
        assert answers[check]["status"] == "fail", answers[check]


def test_two_torches_are_found_and_one_that_dies(tmp_path: Path) -> None:
    one = put_torch(tmp_path / "a", "2.0.1+cu118", "import os; os.abort()\n")
    two = put_torch(tmp_path / "b", "2.6.0")
    found = here("--only", "packages", PYTHONPATH=f"{one}:{two}", PATH="/nonexistent")
    assert found["status"] == 1
    assert found["answers"]["packages.one-torch"]["severity"] == "error"
    assert found["answers"]["packages.import"]["evidence"] == "import torch: killed by signal 6"


def test_a_host_whose_python_is_too_old_to_ask_is_still_looked_at(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "python"
    old.write_text("#!/bin/sh\necho SyntaxError: future feature annotations >&2; exit 1\n")
    old.chmod(0o755)
    done = invoke("--json", environ={"VIRTUAL_ENV": str(tmp_path)})
    assert done.exception is None, done.exception
    told = json.loads(done.stdout)
    assert told["judged"]["python"] is None
    assert told["judged"]["os"]
    assert done.return_value in (0, 1), "as the host that runs the tests is"
    done = invoke(environ={"VIRTUAL_ENV": str(tmp_path)})
    assert "Only the host is looked at." in done.stderr


def test_a_record_made_here_is_read_anywhere(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    first = here("--record", str(record))
    done = invoke("--facts", str(record), "--json")
    assert json.loads(done.stdout)["results"] == first["results"]
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


# --- recordings: what is said, and the exit status ---


def test_the_driver_that_cannot_compile_gets_the_command_that_mends_it(recorded: Path) -> None:
    done = invoke("--facts", str(recorded))
    assert done.return_value == 1
    assert done.stdout.startswith(
        "error driver.compile-floor: driver 470.256.02; torch.compile of torch\n"
    )
    assert "        provision resolve --torch 2.0.1 --driver 470.256.02\n" in done.stdout
    assert "nvidia-driver-580-server" in done.stdout


def test_every_failure_reads_well_in_80_columns() -> None:
    from provisioner.cli.doctor import as_lines

    for condition in CONDITIONS:
        if condition.status != "fail":
            continue
        results = examine(seen(changed_facts(condition.changed), condition.cell))
        failed = [result for result in results if result.status == "fail"]
        commands = {command for result in failed for command in result.commands}
        for line in as_lines(failed, results, verbose=False):
            long = max(map(len, line.split()), default=0) > 60  # an address is kept whole
            assert len(line) <= 80 or line.strip() in commands or long, line


@pytest.mark.parametrize(
    ("changed", "words", "status"),
    [
        ({}, [], 0),
        (FACTS, [], 1),
        (FACTS, ["--only", "cache"], 0),
        (FACTS, ["--only", "driver.compile-floor,cache"], 1),
        ({"environment.cache.mode": 0o777}, [], 0),
        ({"environment.cache.mode": 0o777}, ["--severity", "warn"], 1),
        ({"environment.traced_by": 5}, ["--severity", "warn"], 0),
        ({"environment.traced_by": 5}, ["--severity", "note"], 1),
    ],
)
def test_the_exit_status_is_a_gate(
    changed: dict[str, Any], words: list[str], status: int, tmp_path: Path
) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(changed_facts(changed)))
    assert invoke("--facts", str(path), *words).return_value == status
    told = json.loads(invoke("--facts", str(path), *words, "--json").stdout)
    assert bool(told["failed"]) == bool(status)


def test_severity_hides_what_is_milder(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(changed_facts({"environment.traced_by": 5, **FACTS})))
    shown = invoke("--facts", str(path), "--severity", "error").stdout
    assert "driver.compile-floor" in shown
    assert "process.tracer" not in shown


def test_verbose_says_what_was_asked_and_not_known(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(changed_facts({"glibc": None})))
    short, long = (invoke("--facts", str(path), *more).stdout for more in ([], ["-v"]))
    assert "Not known here (-v says why): libraries.glibc" in short
    assert "?     libraries.glibc: the version of glibc" in long
    assert "ok    cache.noexec: /tmp/torchinductor_app is not mounted noexec" in long


def test_what_steers_a_terminal_is_shown_and_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    evil = "/tmp/\x1b]0;x\x07\x1b[2J"
    path.write_text(json.dumps(changed_facts({"environment.cache.path": evil} | CLOSED)))
    assert "\x1b" not in invoke("--facts", str(path)).stdout


CLOSED = {"environment.cache.writable": False, "environment.cache.error": "Permission denied"}


def test_list_names_every_check() -> None:
    shown = invoke("--list").stdout
    assert all(check.id in shown for check in CHECKS)


# --- wrong use ---


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--env", "/x", "--image", "y"], "doctor.one-place"),
        (["--facts", "/x", "--python", "y"], "doctor.one-place"),
        (["--facts", "/nonexistent"], "doctor.facts-unreadable"),
        (["--facts", "/dev/null"], "doctor.facts-unreadable"),
        (["--env", "/nonexistent"], "doctor.no-python"),
        (["--python", "/bin/false"], "doctor.no-facts"),
        (["--only", "nosuch", "--python", "/nonexistent"], "doctor.no-check"),
        (["--fix", "--image", "x"], "doctor.fix-here"),
        (["--fix", "--json"], "doctor.fix-json"),
        (["--cell", "../x"], "cell.not-rendered"),
    ],
)
def test_wrong_use_is_one_message(words: list[str], code: str) -> None:
    done = invoke(*words)
    assert isinstance(done.exception, ProvisionError), done.exception
    assert done.exception.code == code


def test_a_broken_record_ends_with_usage(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    assert run(["doctor", "--facts", str(path)]) == 2


# --- mending ---


def test_what_is_harmless_is_shown_asked_and_done(tmp_path: Path) -> None:
    cache = tmp_path / "new cache"
    words = ("--python", sys.executable, "--fix", "--only", "cache.missing")
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    done = invoke(*words, environ=environ, typed="n\n")
    assert not cache.exists()
    assert f"mkdir -p -m 700 -- '{cache}'" in done.output
    done = invoke(*words, environ=environ, typed="y\n")
    assert cache.stat().st_mode & 0o777 == 0o700
    assert done.return_value == 0
    assert "cache.missing" not in done.stdout.rpartition("?")[2], "looked at once more"


def test_root_is_asked_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    done = invoke("--fix", "--yes")
    assert isinstance(done.exception, UsageError)
    assert done.exception.code == "doctor.fix-root"


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "-cache"
    folder.mkdir()
    folder.chmod(0o777)
    uid = os.getuid()
    changed = {
        "environment.cache.path": str(folder), "environment.cache.judged": str(folder),
        "environment.cache.mode": 0o777, "environment.cache.owner": uid,
        "environment.user.uid": uid,
    }  # fmt: skip
    results = examine(seen(changed_facts(changed)), ["cache.shared"])
    (fix,) = apply(results, lambda check, command: True)
    assert fix.state == "done", fix.said
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_remedy_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    row = Result(
        id="x", title="x", status="fail", severity="note", evidence="x",
        fix=(("mkdir", "--", str(tmp_path / "file")),),
    )  # fmt: skip
    (fix,) = apply([row], lambda check, command: True)
    assert fix.state == "failed"
    assert "exists" in fix.said
    wrong = Result(id="x", title="x", status="fail", evidence="x", fix=(("rm", "-rf", "/x"),))
    with pytest.raises(ValueError, match="never runs"):
        apply([wrong], lambda check, command: True)


def test_the_help_names_every_option() -> None:
    from provisioner.cli.doctor import command

    shown = command.get_help(click.Context(command))
    for option in ("--env", "--image", "--facts", "--cell", "--only", "--severity", "--fix"):
        assert option in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_good_facts_make_no_noise(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(GOOD))
    shown = invoke("--facts", str(path)).stdout
    assert shown.startswith("/opt/env/bin/python: torch 2.0.1+cu118. ")
    assert "0 errors, 0 warnings, 0 notes" in " ".join(shown.split())
