"""Days and upgrades reach conda's half of a lock: on local indexes and the recorded channel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.conda_channel import SNAPSHOT
from support.locking import Indexes

from provisioner.cli.main import run
from provisioner.conda import condalock, explicit

CELL = "torch2.0.1-cpu-py310-ubuntu22.04"
Lock = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def indexes() -> Iterator[Indexes]:
    both = Indexes()
    for name, version in (("torch", "2.0.1"), ("torchvision", "0.15.2"), ("torchaudio", "2.0.2")):
        needs = ["numpy", "pillow"] if name == "torchvision" else ["numpy"]
        both.torch.add(name, f"{version}+cpu", *needs, uploaded=None)
    for version, day in (("8.0", "2023-01-01"), ("9.0", "2025-01-01")):
        both.package.add("pillow", version, uploaded=f"{day}T00:00:00Z")
    with both.package.serve(), both.torch.serve():
        yield both


@pytest.fixture
def lock(
    indexes: Indexes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Lock:
    """Locks the rendered cell: lock("--upgrade", "pip") -> (status, all that was said)."""
    monkeypatch.setenv("PROVISION_CONDA_CHANNEL_MAP", f"conda-forge={SNAPSHOT.as_uri()}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: str, command: str = "lock") -> tuple[int, str]:
        status = run([command, *words, "--out", str(tmp_path)])
        said = capsys.readouterr()
        return status, said.out + said.err

    index, torch = indexes.package.url, indexes.torch.url.removesuffix("/simple")
    mirrors = [f"--mirror=package_index={index}", f"--mirror=torch_index={torch}"]
    assert call("--torch=2.0.1", "--cuda=cpu", *mirrors, command="render")[0] == 0
    return lambda *words: call(CELL, *words)


def conda(root: Path) -> dict[str, str]:
    record = (root / "lockfiles" / CELL / "conda-lock.yml").read_bytes()
    return {p.name: p.version for p in explicit.parse_conda_lock(record, "linux-64").packages}


def lock_json(root: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((root / "lockfiles" / CELL / "lock.json").read_bytes())
    return value


def moved(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_a_named_day_bounds_both_halves_and_one_package_moves_alone(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock("--as-of", "2024-09-01")[0] == 0
    then = conda(tmp_path)
    assert (then["python"], then["pip"], then["openssl"]) == ("3.10.14", "24.2", "3.3.1")
    assert "nothing to do" in lock()[1]
    assert "nothing to do" in lock("--as-of", "2024-09-01")[1]
    assert lock("--check")[0] == 0

    # conda's pip, pip's pillow: each under --upgrade, each as of its own day.
    status, said = lock("--upgrade", "PIP=2025-06-01", "--upgrade", "pillow=2025-02-01")
    assert status == 0, said
    assert "pillow 8.0 -> 9.0" in said
    assert moved(then, conda(tmp_path)) == {"pip"}
    assert conda(tmp_path)["pip"] == "25.1.1"
    assert lock("--check")[0] == 0
    # It stays, and a second one starts from what is there.
    assert "nothing to do" in lock()[1]
    status, said = lock("--upgrade", "openssl", "--upgrade", "wheel")
    assert (status, "conda.upgrade-unknown" in said, "environment.yml" in said) == (2, True, True)
    status, said = lock("--upgrade", "wheel", "--upgrade", "python")
    assert (status, moved(then, conda(tmp_path))) == (0, {"pip", "wheel", "packaging"})
    assert "+ packaging" in said  # which the new wheel needs
    assert "wheel 0.44.0 -> " in said
    assert " ".join(said.split()).count("python stays at 3.10.14: as of 20") == 1
    now = conda(tmp_path)
    provided = lock_json(tmp_path)["provided"]
    assert isinstance(provided, dict)
    assert provided["pip"] == "25.1.1"
    assert lock("--check")[0] == 0
    # Everything anew, with the same choices: the same packages as of the same days.
    assert lock("--refresh")[0] == 0
    assert conda(tmp_path) == now
    # A day for everything ends the others; the cell's own day bounds pip's half alone.
    assert lock("--as-of", "cell")[0] == 0
    assert conda(tmp_path)["pip"] > "26"
    assert lock_json(tmp_path)["as_of"] == "2023-07-07"

    before = (tmp_path / "lockfiles" / CELL / "conda-lock.yml").read_bytes()
    status, said = lock("--upgrade", "nonsense")
    assert (status, "lock.upgrade-unknown" in said) == (2, True)
    assert (tmp_path / "lockfiles" / CELL / "conda-lock.yml").read_bytes() == before
    # What is unchanged asks no solver.
    monkeypatch.setattr(condalock, "run", None)
    assert "nothing to do" in lock("--as-of", "cell")[1]
