"""The questions of the README: each is one command, its answer is right and fits a terminal."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from packaging.version import Version
from support import driver_oracle
from support.engine import PROJECT

from provisioner.cli.main import run

README = (PROJECT / "README.md").read_text(encoding="utf-8")
QUESTIONS = dict(
    re.findall(
        r"^\| ([a-z][^|]*?) \| `provision ((?:resolve|matrix show) [^`]*)` \|$",
        README,
        re.MULTILINE,
    )
)


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str]:
    """The exit status and everything that a command prints."""
    status = run(shlex.split(command))
    out = capsys.readouterr()
    return status, out.out + out.err


def told(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    run([*shlex.split(command), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_readme_has_the_questions() -> None:
    assert {
        "last torch for a GTX 1080",
        "oldest driver for a cell, to run and to compile",
        "what must change for this host to run torch 2.15",
    } <= set(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_fits_a_terminal(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, QUESTIONS[question])
    assert status in {0, 3}
    for line in text.splitlines():
        # A command that is there to be copied stays in one line.
        assert len(line) <= 80 or line.startswith("    provision "), line


def test_the_last_torch_for_a_gtx_1080(capsys: pytest.CaptureFixture[str]) -> None:
    cell = told(capsys, QUESTIONS["last torch for a GTX 1080"])["cell"]
    # Straight from the document: the newest release with a confirmed build that holds 6.x code.
    able = [
        (Version(torch), build["tag"])
        for torch, release in driver_oracle.RELEASES.items()
        for build in release["variants"]
        if build.get("verified", True)
        and build.get("published", "yes") == "yes"
        and any(
            Version(a).major == 6 and Version(a) <= Version("6.1")
            for a in build.get("arch_list", [])
        )
    ]
    newest = max(able)[0]
    assert Version(cell["torch"]) == newest
    assert (newest, cell["variant"]) in able
    assert cell["compile"] is False


def test_the_oldest_driver_to_run_and_to_compile(capsys: pytest.CaptureFixture[str]) -> None:
    driver = told(capsys, QUESTIONS["oldest driver for a cell, to run and to compile"])["cell"][
        "driver"
    ]
    assert Version(driver["run_floor"]) == driver_oracle.run_floor("11.8")
    assert Version(driver["compile_floor"]) == driver_oracle.compile_floor("2.0.1", "11.8", ())
    # One step older on either side is refused, and the floor itself is not.
    for older, younger, option in (
        ("450.80.01", driver["run_floor"], "--no-compile"),
        ("525.60.12", driver["compile_floor"], ""),
    ):
        command = f"resolve --torch 2.0.1 --cuda 11.8 {option} --driver "
        assert said(capsys, command + older)[0] == 3
        assert said(capsys, command + younger)[0] == 0


def test_what_must_change_for_torch_2_15(capsys: pytest.CaptureFixture[str]) -> None:
    command = QUESTIONS["what must change for this host to run torch 2.15"]
    refusal = told(capsys, command)["refusal"]
    assert set(refusal["have"]) == set(refusal["need"]) == {"driver"}
    needed = refusal["need"]["driver"].removeprefix(">=")
    changed = re.sub(r"--driver \S+", f"--driver {needed}", command)
    assert told(capsys, changed)["cell"]["torch"] == "2.15.0"
    # An old Python and an old glibc beside it are told with it.
    worse = told(capsys, command.replace("ubuntu20.04", "el8 --python 3.9"))["refusal"]
    assert {"driver", "python"} <= set(worse["need"])
