"""The quick answer for a cell whose Python is conda's: given only after the command gave it."""

import os
import shutil
from pathlib import Path

import pytest
from support.engine import PROJECT

from provisioner.cli.main import run
from provisioner.lock import quick, remembered

CELL = "torch2.0.1-cu117-py310-ubuntu22.04"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of a shipped cell with both halves locked; a cache folder of its own."""
    for name in list(os.environ):
        if name.startswith("PROVISION_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / name / CELL, tmp_path / "root" / name / CELL)
    shutil.copy(PROJECT / ".provision-manifest.json", tmp_path / "root")
    return str(tmp_path / "root")


def stamps(root: str) -> list[Path]:
    return list(Path(root).parent.glob("cache/provision/unchanged-*"))


@pytest.mark.parametrize("words", [[CELL], [CELL, "--check"]])
def test_what_the_command_found_unchanged_is_answered_at_once(
    root: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick.answer([CELL, "--out", root], {}) is None
    assert run(["lock", *words, "--out", root]) == 0
    assert "Locking the conda half" not in capsys.readouterr().err
    assert quick.answer([CELL, "--out", root], {}) == 0
    assert quick.answer([CELL, "--out", root], {"PROVISION_OVERLAY": "x"}) is None


@pytest.mark.parametrize(
    "path",
    [
        f"docker/{CELL}/spec.json",
        f"lockfiles/{CELL}/environment.yml",
        f"lockfiles/{CELL}/conda-lock.yml",
        f"lockfiles/{CELL}/conda-linux-64.lock",
        f"lockfiles/{CELL}/virtual-packages.yml",
    ],
)
def test_any_other_byte_is_another_question(root: str, path: str) -> None:
    assert run(["lock", CELL, "--out", root]) == 0
    file = Path(root, path)
    file.write_bytes(file.read_bytes() + b"\n")
    assert not remembered.known(root, CELL)
    file.unlink()
    assert not remembered.known(root, CELL)


def test_a_stamp_that_others_may_write_says_nothing(root: str) -> None:
    assert run(["lock", CELL, "--out", root]) == 0
    assert remembered.known(root, CELL)
    for stamp in stamps(root):
        stamp.chmod(0o666)
    assert not remembered.known(root, CELL)


def test_own_options_and_stale_locks_are_not_remembered(root: str) -> None:
    assert (
        run(["lock", CELL, "--check", "--out", root, "--mirror", "conda=https://m.example/c"]) == 0
    )
    assert stamps(root) == []
    Path(root, "lockfiles", CELL, "virtual-packages.yml").write_text("x\n", encoding="ascii")
    assert run(["lock", CELL, "--check", "--out", root]) == 1
    assert stamps(root) == []


def test_only_the_newest_are_kept(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_KEEP", 3)
    file = Path(root, "docker", CELL, "spec.json")
    for turn in range(6):
        file.write_bytes(file.read_bytes() + b"\n")
        remembered.remember(root, CELL)
        assert len(stamps(root)) == min(turn + 1, 3)
    assert remembered.known(root, CELL)
