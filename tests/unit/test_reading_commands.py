"""Commands that only read leave an interrupted write to the next one that writes."""

import json
import os
from pathlib import Path

import pytest
from output_tools import AtCall, child, finish, snapshot

from provisioner.cli.main import run
from provisioner.render.moves import JOURNAL

NAME = "torch2.7.1-cpu-py310-ubuntu22.04"
OPTIONS = ["--torch=2.7.1", "--cuda=cpu"]


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root in which a second render died between the renames of its files."""
    for name in [name for name in os.environ if name.startswith("PROVISION_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "root"
    assert run(["render", f"--out={root}", *OPTIONS]) == 0

    def work() -> None:
        with AtCall(3, lambda: os._exit(42), frozenset({"rename"})):
            run(["render", f"--out={root}", *OPTIONS, "--mirror=apt=http://mirror.example/u"])

    assert finish(child(work)) == 42
    assert (root / JOURNAL).exists()
    return root


@pytest.mark.parametrize(
    "words",
    [
        ["render", "--check"],
        ["render", "--diff", *OPTIONS],
        ["render", "--check", "--remove", NAME],
        ["lock", "--check"],
        ["lock", "--check", NAME],
        ["build", NAME, "--locked"],
        ["env", "create", NAME, "--prefix=/nowhere/env"],
    ],
    ids=" ".join,
)
def test_an_interrupted_write_is_reported_and_left(
    half: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = snapshot(half)
    capsys.readouterr()
    assert run([*words, f"--out={half}", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "output.interrupted"
    assert "--again" in error["next_step"]
    assert snapshot(half) == before
    assert run(["render", "--again", f"--out={half}"]) == 0
    assert "was completed" in capsys.readouterr().err
    assert not (half / JOURNAL).exists()
    assert run(["render", "--check", f"--out={half}"]) == 0
