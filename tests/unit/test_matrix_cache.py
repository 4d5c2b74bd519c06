"""The parsed copy of a matrix: used when it can be trusted, silent when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.matrices import SMALL, replaced

from provisioner.matrix import cache as cache_module
from provisioner.matrix import load as load_module
from provisioner.matrix.load import load_matrix


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "provision"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*")) if cache.is_dir() else []


def no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object) -> None:
        raise AssertionError("the YAML was read again")

    monkeypatch.setattr(load_module, "_parse", parse)


def test_the_second_load_reads_no_yaml(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_matrix(SMALL)
    assert len(entries(cache)) == 1
    no_yaml(monkeypatch)
    assert load_matrix(SMALL) == first


def test_cache_false_neither_reads_nor_writes(cache: Path) -> None:
    load_matrix(SMALL, cache=False)
    assert entries(cache) == []


def test_another_content_is_another_entry(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(SMALL.read_text(encoding="utf-8"), encoding="utf-8")
    load_matrix(path)
    path.write_text(
        replaced(path.read_text(encoding="utf-8"), "A small matrix", "Another"), encoding="utf-8"
    )
    assert load_matrix(path).matrix.meta.title == "Another"
    assert len(entries(cache)) == 2


def test_an_overlay_is_part_of_the_key(cache: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("meta: {title: Laid over}", encoding="utf-8")
    assert load_matrix(SMALL).matrix.meta.title == "A small matrix"
    assert load_matrix(SMALL, [overlay]).matrix.meta.title == "Laid over"
    assert load_matrix(SMALL, [overlay]).matrix.meta.title == "Laid over"
    assert len(entries(cache)) == 2


def test_an_invalid_matrix_is_not_kept(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("schema: 1", encoding="utf-8")
    with pytest.raises(Exception, match="problems"):
        load_matrix(path)
    assert entries(cache) == []


def test_other_code_does_not_use_the_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_matrix(SMALL)
    monkeypatch.setattr(load_module, "__version__", "0.0.0")
    load_matrix(SMALL)
    assert len(entries(cache)) == 2


def damage(entry: Path, how: str) -> None:
    data = entry.read_bytes()
    if how == "cut":
        entry.write_bytes(data[:-100])
    elif how == "bit":
        entry.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif how == "empty":
        entry.write_bytes(b"")
    elif how == "folder":
        entry.unlink()
        entry.mkdir()
    elif how == "pipe":
        entry.unlink()
        os.mkfifo(entry)
    elif how == "link":
        target = entry.with_name("target")
        entry.rename(target)
        entry.symlink_to(target)
    elif how == "writable by others":
        entry.chmod(0o666)
    elif how == "other type":
        entry.unlink()
        cache_module.write_entry(entry.parent, entry.stem.removeprefix("matrix-"), b"\x93\x01")


@pytest.mark.parametrize(
    "how", ["cut", "bit", "empty", "folder", "pipe", "link", "writable by others", "other type"]
)
def test_an_entry_that_cannot_be_trusted_is_passed_over(how: str, cache: Path) -> None:
    expected = load_matrix(SMALL)
    damage(entries(cache)[0], how)
    assert load_matrix(SMALL) == expected


def test_an_entry_of_another_user_is_passed_over(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_matrix(SMALL)
    key = entries(cache)[0].stem.removeprefix("matrix-")
    assert cache_module.read_entry(cache, key) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache_module.read_entry(cache, key) is None


def test_a_full_or_read_only_place_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    cache_module.write_entry(tmp_path / "file" / "provision", "k", b"x")
    assert cache_module.read_entry(tmp_path / "file" / "provision", "k") is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/provision")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, Path("/h/.cache/provision")),
        ({"HOME": "/h"}, Path("/h/.cache/provision")),
        ({"HOME": ""}, None),
    ],
)
def test_where_the_cache_is(
    environment: dict[str, str], expected: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_module.cache_directory() == expected


def test_only_the_newest_entries_are_kept(cache: Path) -> None:
    for number in range(12):
        cache_module.write_entry(cache, f"{number}", b"x")
        entry = cache / f"matrix-{number}.msgpack"
        os.utime(entry, (number + 1, number + 1))
    names = {entry.name for entry in entries(cache)}
    assert "matrix-11.msgpack" in names
    assert "matrix-0.msgpack" not in names
    assert len(names) <= 9


def test_what_a_killed_writer_left_is_swept_up(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / ".new-old").write_bytes(b"half")
    os.utime(cache / ".new-old", (1, 1))
    (cache / ".new-fresh").write_bytes(b"half")
    cache_module.write_entry(cache, "1", b"x")
    assert {entry.name for entry in entries(cache)} == {".new-fresh", "matrix-1.msgpack"}


def test_a_warm_load_is_quick_and_imports_no_yaml(cache: Path) -> None:
    script = (
        "import time, sys, msgspec, provisioner.matrix.load as l\n"
        "l.load_matrix()\n"
        "best = 9.0\n"
        "for _ in range(5):\n"
        "    start = time.process_time(); l.load_matrix()\n"
        "    best = min(best, time.process_time() - start)\n"
        "print(best, 'yaml' in sys.modules, 'packaging' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, capture_output=True)
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told[1:] == ["False", "False"]
    assert float(told[0]) < 0.015
