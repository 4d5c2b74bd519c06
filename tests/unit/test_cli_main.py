"""The command line as a whole: statuses, one message per failure, and what start-up may import."""

import errno
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from support.engine import PROJECT
from support.matrices import SMALL, replaced

from provisioner import __version__, errors
from provisioner.cli import matrix as matrix_module
from provisioner.cli.lazy import LazyGroup
from provisioner.cli.main import COMMANDS, run
from provisioner.cli.output import counted, print_error
from provisioner.errors import FindingError, OutsideError, UsageError

PROVISION = [sys.executable, "-m", "provisioner"]
HEAVY = {
    "ansible",
    "docker",
    "hypothesis",
    "jinja2",
    "msgspec",
    "packaging",
    "pydantic",
    "requests",
    "rich",
    "urllib3",
    "yaml",
}


def imported(*arguments: str) -> set[str]:
    """The top-level modules that a run of the command imports."""
    script = (
        "import sys\n"
        f"sys.argv = ['provision', *{list(arguments)!r}]\n"
        "from provisioner.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('@@', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True
    )
    return set(done.stdout.rpartition("@@")[2].split())


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_imports_next_to_nothing(flag: str) -> None:
    found = imported(flag)
    assert not found & (HEAVY | {"click", "json", "pathlib", "importlib.metadata"})


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], [], ["nonsense"], ["matrix", "--help"], ["matrix", "list", "--help"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    found = imported(*arguments)
    assert "click" in found
    assert not found & HEAVY


def test_completion_of_command_names_imports_nothing_heavy() -> None:
    environment = {
        "_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": "provision re",
        "COMP_CWORD": "1",
        "PATH": os.environ["PATH"],
    }
    script = (
        "import sys\n"
        "from provisioner.cli.main import cli\n"
        "try: cli.main([], prog_name='provision', standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "print('@@', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    answer, _, modules = done.stdout.partition("@@")
    assert "plain,resolve" in answer
    assert "plain,render" in answer
    assert "plain,matrix" not in answer
    assert not set(modules.split()) & HEAVY


def test_the_version_is_one_line() -> None:
    done = subprocess.run([*PROVISION, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"provision {__version__}\n"


@pytest.mark.parametrize(
    "place",
    [entry[0] for table in (COMMANDS, matrix_module.COMMANDS) for entry in table.values()],
)
def test_every_command_of_the_tables_is_there(place: str) -> None:
    module, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.help or isinstance(command, click.Group)


def test_every_command_has_json_and_verbose() -> None:
    for table in (COMMANDS, matrix_module.COMMANDS):
        for place, _ in table.values():
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            if not isinstance(command, click.Group):
                flags = {flag for option in command.params for flag in option.opts}
                assert {"--json", "--verbose"} <= flags, place


USAGE = [
    (["matrix", "list", "--colour"], "No such option"),
    (["matrix", "lst"], "Did you mean 'list'?"),
    (["rendr"], "Did you mean 'render'?"),
    (["matrix", "show"], "Missing argument"),
    (["matrix", "audit", "--jobs", "many"], "'many' is not a valid integer"),
]


@pytest.mark.parametrize(("arguments", "says"), USAGE)
def test_usage_errors_are_one_message_with_a_next_step(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert "Next: provision" in told.err


@pytest.mark.parametrize(("arguments", "says"), USAGE)
def test_usage_errors_as_json(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--json"]) == 2
    told = capsys.readouterr()
    assert told.err == ""
    error = json.loads(told.out)["error"]
    assert error["code"] == "usage"
    assert error["exit_status"] == 2
    assert says in error["message"]


@pytest.mark.parametrize("arguments", [[], ["matrix"]])
def test_no_command_is_a_usage_error_with_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("Usage: provision")
    assert "Commands:" in told.err


FAILURES: list[tuple[Exception, int, str]] = [
    (errors.FindingError("a.b", "Found."), 1, "a.b"),
    (errors.UsageError("a.b", "Wrong."), 2, "a.b"),
    (errors.RefusedError("a.b", "No."), 3, "a.b"),
    (errors.OutsideError("a.b", "Gone."), 4, "a.b"),
    (PermissionError(errno.EACCES, "Permission denied", "/x"), 4, "system.eacces"),
    (OSError(errno.ENOSPC, "No space left on device"), 4, "system.enospc"),
    (FileNotFoundError(errno.ENOENT, "No such file", "/template"), 5, "provision.bug"),
    (ValueError("odd\x1b[31m"), 5, "provision.bug"),
    (RecursionError("deep"), 5, "provision.bug"),
]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    command = click.Command("fail", callback=fail, params=[click.Option(["--json"], is_flag=True)])
    command.callback = lambda json: fail()
    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)
    monkeypatch.setitem(COMMANDS, "fail", ("", ""))


@pytest.mark.parametrize(("error", "status", "code"), FAILURES)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_failure_is_one_message_and_its_status(
    error: Exception,
    status: int,
    code: str,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("PROVISION_DEBUG", raising=False)
    failing(monkeypatch, error)
    assert run(["fail", *(["--json"] if as_json else [])]) == status
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    if as_json:
        shown = json.loads(told.out)["error"]
        assert (shown["code"], shown["exit_status"]) == (code, status)
    else:
        assert f"[{code}]" in told.err
        assert "\x1b" not in told.err
    traces = list(tmp_path.glob("provision-trace-*.txt"))
    assert len(traces) == (1 if status == 5 else 0)
    if traces:
        assert "Traceback" in traces[0].read_text(encoding="utf-8")
        assert traces[0].stat().st_mode & 0o077 == 0
        assert str(traces[0]) in told.out + told.err


def test_debug_shows_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PROVISION_DEBUG", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, ValueError("odd"))
    assert run(["fail"]) == 5
    assert "Traceback" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    failing(monkeypatch, ValueError("odd"))
    assert run(["fail"]) == 5
    assert "trace: not written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_130(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, error)
    assert run(["fail"]) == 130
    assert capsys.readouterr().err.strip() == "provision: interrupted"


def test_a_reader_that_went_away_is_quiet() -> None:
    with subprocess.Popen(
        [*PROVISION, "matrix", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_full_disk_behind_the_output_is_one_message() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROVISION, "matrix", "show", "2.0.1"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["resolve", "--cuda", "11.8"],
        ["lock", "--check"],
        ["matrix", "list"],
    ],
)
def test_a_full_disk_or_a_closed_output_is_no_traceback(words: list[str]) -> None:
    for redirection, status in ((">/dev/full", 4), (">&-", 0), (">&- 2>&- <&-", 0)):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *PROVISION, *words],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (redirection, done.stderr)
        assert "Traceback" not in done.stderr
        assert ("[output.lost]" in done.stderr) == (status == 4)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    command = [*PROVISION, "render", "--cuda", "11.8", f"--out={tmp_path}"]
    script = ["/bin/sh", "-c", '"$@" >&- 2>&- <&-', "sh", *command]
    assert subprocess.run(script, check=False).returncode == 0
    check = [*PROVISION, "render", "--check", f"--out={tmp_path}"]
    assert subprocess.run(check, check=False, capture_output=True).returncode == 0


def test_a_folder_that_was_deleted_under_us_is_one_message(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = ["/bin/sh", "-c", 'rmdir ../gone; "$@"', "sh"]
    for words, status in ((["resolve"], 0), (["render", "--cuda", "11.8"], 4), (["lock", "x"], 4)):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            [*script, *PROVISION, *words], cwd=gone, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert "[provision.bug]" not in done.stderr


def test_any_locale_can_print_everything(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    text = replaced(SMALL.read_text(encoding="utf-8"), "\n- id: numpy2\n", "\n- id: Größe\n")
    path.write_text(text, encoding="utf-8")
    for locale in ("C", "POSIX", "en_US.ISO-8859-1"):
        done = subprocess.run(
            [*PROVISION, "matrix", "validate", str(path)],
            env={**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "known_bad[0].id" in done.stderr


def ran(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    status = run(arguments)
    told = capsys.readouterr()
    return status, told.out, told.err


def test_matrix_list_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ran(["matrix", "list"], capsys)
    assert status == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "2.0.1" in out
    assert "cu117*" in out


def test_matrix_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ran(["matrix", "list", "--torch", "2.0.1", "--json"], capsys)
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert answer["schema"] == "provision.matrix.list/1"
    assert answer["matrix_age_days"] >= 0
    assert [release["torch"] for release in answer["releases"]] == ["2.0.1"]


def test_an_old_matrix_is_told_on_standard_error_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.matrix.age.today", lambda: "2030-01-01")
    _, out, err = ran(["matrix", "list", "--matrix", str(SMALL)], capsys)
    assert "days old" in err
    assert "days old" not in out
    status, out, err = ran(["matrix", "list", "--matrix", str(SMALL), "--json"], capsys)
    assert (status, err) == (0, "")
    assert json.loads(out)["matrix_age_days"] == 1128


@pytest.mark.parametrize("name", ["2.0.1", "2.15.0", "11.8", "A100", "driver:535", "debian12"])
def test_matrix_show_is_a_page_and_an_object(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ran(["matrix", "show", name], capsys)
    assert status == 0
    words = [line for line in out.splitlines() if len(line) > 80]
    assert all(len(line.split()) <= 2 for line in words)  # only words that cannot be broken
    status, out, _ = ran(["matrix", "show", name, "--json"], capsys)
    assert json.loads(out)["schema"] == "provision.matrix.show/1"


def test_matrix_show_refuses_an_unknown_release(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ran(["matrix", "show", "2.3.9"], capsys)
    assert (status, out) == (3, "")
    assert "provision matrix show 2.3.1" in err
    status, out, err = ran(["matrix", "show", "2.3.9", "--json"], capsys)
    assert (status, err) == (3, "")
    refusal = json.loads(out)["refusal"]
    assert set(refusal) >= {"code", "message", "have", "need", "source", "nearest"}


def test_matrix_validate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = ran(["matrix", "validate", str(SMALL)], capsys)
    assert status == 0
    assert "valid" in out
    status, out, _ = ran(["matrix", "validate", str(SMALL), "--json"], capsys)
    assert json.loads(out)["counts"]["releases"] == 2
    path = tmp_path / "matrix.yaml"
    path.write_text(
        replaced(SMALL.read_text(encoding="utf-8"), "flavour: slim", "flavour: slimm"),
        encoding="utf-8",
    )
    status, out, err = ran(["matrix", "validate", str(path)], capsys)
    assert (status, out) == (2, "")
    assert "did you mean 'slim'?" in err
    assert f"Next: Correct {path}" in " ".join(err.split())
    status, out, err = ran(["matrix", "validate", str(path), "--json"], capsys)
    assert (status, err) == (2, "")
    error = json.loads(out)["error"]
    assert error["problems_total"] == 1
    assert error["problems"][0]["path"] == "$.defaults.flavour"


def test_matrix_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ran(["matrix", "schema"], capsys)
    assert status == 0
    assert json.loads(out)["title"] == "matrix.yaml of provision"


def test_errors_fit_the_width_and_commands_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Statuses 1 to 4 alike; what is there to be copied is never broken."""
    command = "provision lock torch2.0.1-cu117-py39-debian11-basepy --out 'some where/else/there'"
    steps = {
        f"{command}, or --edited to build with it as it is, whatever that may then mean.": command,
        f"Either wait a little, since that may be all that is needed, or run `{command}`.": command,
        "Wait until that has ended, look at what is there, then run the command again. "
        * 2: "Wait",
        command: command,
    }
    for error in (FindingError, UsageError, OutsideError):
        for step, whole in steps.items():
            facts = {"names": [f"name-{number}" for number in range(40)]}
            print_error(
                error("x.y", "A long word. " * 20, facts=facts, next_step=step), as_json=False
            )
            told = capsys.readouterr().err
            assert whole in told
            assert " ".join(step.split()) in " ".join(told.split())
            for line in told.splitlines():
                assert len(line) <= 80 or whole in line
    assert run(["render", "--" + "no-such-option-" * 3, "x"]) == 2
    assert run(["lock", "--as-of", "2" * 90]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [(0, ("file",), "0 files"), (1, ("file",), "1 file"), (2, ("hash", "hashes"), "2 hashes"),
     (1, ("hash", "hashes"), "1 hash"), (1234, ("cell",), "1,234 cells")],
)  # fmt: skip
def test_numbers_take_their_noun(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def test_a_cell_on_forward_compatibility_says_so_beside_its_floor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--torch=2.14.1", "--cuda=13.0", "--gpu=A100", "--driver=535.104.05"]
    assert run(["resolve", *words]) == 0
    told = capsys.readouterr().out
    assert "older driver as asked, with cuda-compat-13-0" in " ".join(told.split())
