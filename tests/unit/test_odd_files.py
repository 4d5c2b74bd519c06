"""What lies where a file belongs, or what a file holds, may be anything: one message, no hang."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine import PROJECT

from provisioner.cli.main import run
from provisioner.regular import NotAFileError, read_regular
from provisioner.render.spec import read_spec_file

CELL = "torch2.0.1-cu117-py39-debian11-basepy"
SPEC = f"docker/{CELL}/spec.json"
PROVISION = [sys.executable, "-m", "provisioner"]
LIMIT_S = 60

Odd = Callable[[Path], None]


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD = (_pipe, _folder, _device, _loop)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shipped cell, rendered and locked, in a folder of its own; no engine is reachable."""
    for place in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / place / CELL, tmp_path / place / CELL)
    manifest = json.loads((PROJECT / ".provision-manifest.json").read_bytes())
    kept = {path: entry for path, entry in manifest["files"].items() if f"/{CELL}/" in path}
    (tmp_path / ".provision-manifest.json").write_text(json.dumps({**manifest, "files": kept}))
    for name in [name for name in os.environ if name.startswith("PROVISION_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    return tmp_path


def told(words: list[str], cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [*PROVISION, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert "Traceback" not in done.stderr
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.parametrize("odd", ODD)
def test_a_named_file_that_is_none_is_not_waited_for(tmp_path: Path, odd: Odd) -> None:
    odd(tmp_path / "x.yaml")
    for words, code in (
        (["resolve", "-f", "x.yaml"], "project.unreadable"),
        (["resolve", "--matrix", "x.yaml"], "matrix.unreadable"),
        (["resolve", "--overlay", "x.yaml"], "matrix.unreadable"),
        (["matrix", "validate", "x.yaml"], "matrix.unreadable"),
    ):
        status, text = told(words, tmp_path)
        assert (status, f"[{code}]" in text) == (2, True), (words, text)


@pytest.mark.parametrize("odd", ODD)
def test_a_spec_that_is_no_file_is_not_waited_for(root: Path, odd: Odd) -> None:
    (root / SPEC).unlink()
    odd(root / SPEC)
    for words in (["lock", CELL], ["lock", "--check"], ["build", CELL], ["render", "--check"]):
        status, text = told(words, root)
        assert status == 4, (words, text)
        assert SPEC in text
        assert any(f"[{code}]" in text for code in CODES), (words, text)
    status, text = told(["verify", "--cell", CELL, "--prefix", str(root)], root)
    assert status == 4, text


CODES = ("render.spec-unreadable", "output.not-a-file", "output.symlink")


@pytest.mark.parametrize("odd", ODD)
def test_a_lock_that_is_no_file_is_not_waited_for(root: Path, odd: Odd) -> None:
    path = root / "lockfiles" / CELL / "lock.json"
    path.unlink()
    odd(path)
    assert told(["lock", "--check"], root)[0] == 1
    for words in (["build", CELL], ["render", "--check"]):
        status, text = told(words, root)
        assert status == 4, (words, text)
        assert "[output.not-a-file]" in text or "[output.symlink]" in text


VALUES: tuple[Any, ...] = (None, [], {}, "x" * 100_000, 10**30, -1, True, ["a"], "../../x", "a\nb")


@pytest.mark.parametrize(
    "key", ["name", "python_from", "requirements", "driver", "device", "packages", "cuda", "ptxas"]
)
def test_odd_fields_of_a_spec_are_one_message(
    root: Path, key: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, to try many: a bug would be status 5."""
    monkeypatch.chdir(root)
    good = json.loads((root / SPEC).read_bytes())
    lock = ["lock", CELL, "--engine=pip-tools", "--lock-python=/none"]  # asks no index
    commands = (lock, ["lock", "--check"], ["build", CELL, "--locked"], ["build", CELL, "--edited"])
    without = {name: value for name, value in good["cell"].items() if name != key}
    for cell in [*({**without, key: value} for value in VALUES), without]:
        (root / SPEC).write_text(json.dumps({**good, "cell": cell}))
        for words in (*commands, ["render", "--check"]):
            status = run(words)
            text = capfd.readouterr().err
            assert status in range(5), (key, str(cell.get(key))[:40], words, text)
            assert "Traceback" not in text
            assert status == 0 or words[-1] == "--check" or "]" in text


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b"\xff", b"[" * 200_000, b'{"cell":' * 5000, b"{}" + b" " * (5 << 20)],
    ids=["empty", "list", "null", "binary", "deep", "deeper", "huge"],
)
def test_a_spec_that_is_no_spec_is_one_message(root: Path, raw: bytes) -> None:
    (root / SPEC).write_bytes(raw)
    for words in (["lock", CELL], ["lock", "--check"], ["build", CELL], ["render", "--check"]):
        status, text = told(words, root)
        assert (status, "[render.spec-damaged]" in text) == (1, True), (words, text)


def test_the_shipped_specs_are_read(root: Path) -> None:
    for path in sorted(PROJECT.glob("docker/*/spec.json")):
        assert read_spec_file(path).cell["name"] == path.parent.name


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_regular(path, 4) == b"0123"
    assert read_regular(path, 100) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 1)
    signal.alarm(LIMIT_S)  # a pipe without a writer would be waited for without end
    try:
        for name, odd in (("pipe", _pipe), ("folder", _folder), ("device", _device)):
            odd(tmp_path / name)
            with pytest.raises(NotAFileError):
                read_regular(tmp_path / name, 1)
    finally:
        signal.alarm(0)
