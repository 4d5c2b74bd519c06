"""Files that the user names: a pipe or a folder is one message, never a wait or a trace."""

import json
import os
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.conda.install import InstallOptions, install_conda
from provisioner.errors import FindingError, OutsideError
from provisioner.lock.halves import folder_reader


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = run([*words, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    return status, error["code"], error["message"]


def test_a_report_to_compare(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("verify", "--compare", str(pipe), str(pipe))
    assert error_of(capsys, *words)[:2] == (2, "report.unreadable")
    pipe.unlink()
    pipe.write_text("nonsense")
    assert error_of(capsys, *words)[:2] == (2, "report.invalid")


def test_a_manifest(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("env", "check", f"--manifest={pipe}", str(pipe.parent))
    status, code, message = error_of(capsys, *words)
    assert (status, code) == (2, "env.manifest-unreadable")
    assert "is a pipe" in message


def test_a_lock(pipe: Path) -> None:
    with pytest.raises(FindingError, match="is a pipe"):
        folder_reader(pipe.parent)(pipe.name)
    with pytest.raises(OutsideError, match="is a pipe"):
        install_conda(pipe, pipe.parent / "prefix", InstallOptions())
    assert not (pipe.parent / "prefix").exists()


def test_the_list_of_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    assert run(["env", "manifest", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert (told["files"], told["links"]) == ({"file": empty}, {"link": "file"})
