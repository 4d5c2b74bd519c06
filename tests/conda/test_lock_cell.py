"""Both halves of a conda cell's lock in one command, against the recorded channel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.cli.main import run

pytestmark = pytest.mark.network

NAME = "torch2.0.1-cu117-py310-ubuntu22.04"
CHANNEL = Path(__file__).parents[1] / "data" / "conda_forge_snapshot"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered and locked cell."""
    folder = tmp_path_factory.mktemp("cell")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROVISION_CONDA_CHANNEL_MAP", f"conda-forge={CHANNEL.as_uri()}")
        assert run(["render", "--cuda=11.7", f"--out={folder}"]) == 0
        assert run(["lock", NAME, f"--out={folder}"]) == 0
    return folder


def test_what_conda_owns_is_not_in_the_pip_lock(root: Path) -> None:
    folder = root / "lockfiles" / NAME
    lock = json.loads((folder / "lock.json").read_text(encoding="utf-8"))
    assert {"numpy", "pip", "setuptools"} <= lock["provided"].keys()
    names = {package["name"] for package in lock["packages"]}
    assert "torch" in names
    assert not names & lock["provided"].keys()
    requirements = (folder / "requirements.txt").read_text(encoding="ascii")
    assert "numpy==" not in requirements
    explicit = (folder / "conda-linux-64.lock").read_text(encoding="ascii")
    assert f"/numpy-{lock['provided']['numpy']}-" in explicit
    assert "https://conda.anaconda.org/conda-forge/linux-64/python-3.10" in explicit
    assert str(CHANNEL) not in explicit + (folder / "conda-lock.yml").read_text(encoding="utf-8")


def test_an_unchanged_lock_is_left_alone_and_a_changed_half_is_seen(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["lock", NAME, f"--out={root}"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run(["lock", "--check", f"--out={root}"]) == 0
    environment = root / "lockfiles" / NAME / "environment.yml"
    before = environment.read_bytes()
    environment.write_bytes(before + b"  - scipy\n")
    try:
        assert run(["lock", "--check", f"--out={root}"]) == 1
    finally:
        environment.write_bytes(before)
    explicit = root / "lockfiles" / NAME / "conda-linux-64.lock"
    kept = explicit.read_bytes()
    explicit.write_bytes(kept.replace(b"# sha256", b"# sha257", 1))
    try:
        assert run(["lock", "--check", f"--out={root}"]) == 1
    finally:
        explicit.write_bytes(kept)
