"""`provision lock CELL --diff OLD`: both halves, for people and programs."""

import json
import shutil
from pathlib import Path

import pytest
from support.engine import PROJECT

from provisioner.cli.main import run

CELL = "torch2.0.1-cu118-py310-ubuntu22.04"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the shipped lock, to be changed."""
    return Path(shutil.copytree(PROJECT / "lockfiles" / CELL, tmp_path / "old"))


def diff(old: Path, *words: str) -> int:
    return run(["lock", CELL, f"--out={PROJECT}", f"--diff={old}", *words])


def test_the_same_lock_has_no_difference(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(old) == 0
    assert capsys.readouterr().out == f"The same packages as in {old}.\n"


def test_each_kind_of_change_is_told_in_both_halves(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = json.loads((old / "lock.json").read_bytes())
    by_name = {package["name"]: package for package in lock["packages"]}
    by_name["sympy"]["version"] = "1.0"
    by_name["torch"]["origin"] = "torch-index"
    by_name["idna"]["files"][0]["sha256"] = "0" * 64
    lock["packages"].remove(by_name["certifi"])
    lock["packages"].append({**by_name["idna"], "name": "gone"})
    (old / "lock.json").write_text(json.dumps(lock))
    record = (old / "conda-lock.yml").read_text()
    changed = record.replace("/conda-forge/linux-64/bzip2-", "/other/linux-64/bzip2-")
    assert changed != record
    (old / "conda-lock.yml").write_text(changed)
    assert diff(old) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "conda: 1 differs"
    here = "https://conda.anaconda.org"
    assert lines[1] == f"  ~ bzip2 from {here}/other -> {here}/conda-forge"
    assert lines[2:4] == ["pip: 5 differ", f"  + certifi {by_name['certifi']['version']}"]
    assert lines[4].startswith("  - gone ")
    assert lines[5].startswith(f"  ~ idna {by_name['idna']['version']}: sha256 000000000000 -> ")
    assert lines[6].startswith("  ~ sympy 1.0 -> 1.")
    assert lines[7] == "  ~ torch from torch-index -> recorded"
    assert diff(old, "--json") == 1
    told = json.loads(capsys.readouterr().out)["differences"]
    assert [each["kind"] for each in told] == ["changed", "added", "removed", *["changed"] * 3]
    assert told[-2]["fields"] == ["version"]
    assert told[-1]["new"]["source"] == "recorded"


def test_a_folder_without_a_lock_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(tmp_path) == 4
    error = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path} holds no lock.json. [lock.not-locked]" in error
    assert run(["lock", f"--out={PROJECT}", f"--diff={tmp_path}"]) == 2
    assert run(["lock", "--check", f"--out={PROJECT}", f"--diff={tmp_path}"]) == 2
    assert "lock.no-cell" in capsys.readouterr().err
