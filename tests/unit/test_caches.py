"""Damaged entries of compile caches: found by what the file is, removed without a neighbour."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.needs import skip_or_fail

from provisioner.cli.main import run
from provisioner.verify import caches
from provisioner.verify.probe import host_machine


def elf(machine: int | None = None, *, cut: int = 0) -> bytes:
    """A small ELF64 image whose section table ends the file."""
    machine = host_machine() if machine is None else machine
    assert machine is not None
    table = 64 + 100
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, table, 0, 64, 0, 0, 64, 2, 1)
    whole = head + bytes(100) + bytes(128)
    return whole[: len(whole) - cut]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with one whole CPU kernel and one whole GPU kernel."""
    folder = tmp_path / "cache"
    cpu, gpu = folder / "ab", folder / "triton" / "0" / "XYZ"
    cpu.mkdir(parents=True)
    gpu.mkdir(parents=True)
    for name, content in (("k.so", elf()), ("k.cpp", b"// code"), ("k.lock", b"")):
        (cpu / name).write_bytes(content)
    for name, content in (("k.cubin", elf(190)), ("k.json", b"{}"), ("k.ttir", b"x")):
        (gpu / name).write_bytes(content)
    return folder


def found(folder: Path) -> dict[str, str]:
    looked = caches.look([folder])
    return {str(entry.path.relative_to(folder)): entry.kind for entry in looked.damaged}


def test_a_whole_cache_has_nothing_damaged(cache: Path) -> None:
    assert found(cache) == {}
    assert caches.look([cache]).files == 6


GPU = "triton/0/XYZ"


@pytest.mark.parametrize(
    ("path", "content", "kind", "left"),
    [
        ("ab/k.so", elf(cut=60), "library", set()),
        ("ab/k.so", b"", "library", set()),
        ("ab/k.so", elf(183 if host_machine() != 183 else 62), "library", set()),
        (f"{GPU}/k.cubin", elf(190, cut=60), "cubin", set()),
        (f"{GPU}/k.cubin", elf(62), "cubin", set()),
        (f"{GPU}/k.json", b'{"a":', "metadata", set()),
        (f"{GPU}/k.json", b"[" * 100_000, "metadata", set()),
        ("ab/other.json", b"{", "metadata", {"k.so", "k.cpp", "k.lock"}),
    ],
)
def test_what_is_damaged_goes_with_all_that_belongs_to_it_and_nothing_else(
    cache: Path, path: str, content: bytes, kind: str, left: set[str]
) -> None:
    (cache / path).write_bytes(content)
    assert found(cache) == {path: kind}
    neighbours = {p for p in cache.rglob("*") if p.is_file() and p.parent != (cache / path).parent}
    caches.clear(caches.look([cache]))
    assert found(cache) == {}
    assert {p.name for p in (cache / path).parent.iterdir()} == left
    assert all(p.is_file() for p in neighbours)


def test_links_are_not_followed_and_lead_to_no_removal(cache: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "bad.so").write_bytes(b"")
    (cache / "link").symlink_to(outside)
    (cache / "bad.so").symlink_to(outside / "bad.so")
    assert found(cache) == {}
    # A file that became a link after it was looked at is not taken away either.
    victim = cache / "ab" / "k.so"
    victim.write_bytes(b"")
    looked = caches.look([cache])
    victim.unlink()
    victim.symlink_to(outside / "bad.so")
    caches.clear(looked)
    assert victim.is_symlink()
    assert (outside / "bad.so").exists()


def test_another_users_file_is_told_and_stays(cache: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("system", "only root can give a file to another user")
    path = cache / "ab" / "k.so"
    path.write_bytes(b"")
    os.chown(path, 12345, 12345)
    assert found(cache) == {"ab/k.so": "foreign"}
    assert caches.clear(caches.look([cache])) == []
    assert path.exists()


def test_the_folders_are_those_of_this_user(tmp_path: Path) -> None:
    named = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i"),
        "TRITON_CACHE_DIR": str(tmp_path / "t"),
    }
    assert caches.default_folders(named) == [tmp_path / "i", tmp_path / "t"]
    assert caches.default_folders({"USER": "ann"})[0].name == "torchinductor_ann"
    assert caches.default_folders({"TRITON_HOME": "/x"})[1] == Path("/x/.triton/cache")


def test_the_commands_name_remove_and_say_so(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"--dir={cache}"
    assert run(["cache", "check", where]) == 0
    (cache / "ab" / "k.so").write_bytes(b"")
    assert run(["cache", "check", where]) == 1
    assert "the file is empty" in " ".join(capsys.readouterr().out.split())
    assert run(["cache", "clear", where]) == 1
    assert "Nothing was removed: --yes does it." in capsys.readouterr().out
    assert (cache / "ab" / "k.so").exists()
    assert run(["cache", "clear", where, "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "provision.cache/1"
    assert [entry["kind"] for entry in told["damaged"]] == ["library"]
    assert len(told["removed"]) == 3
    assert run(["cache", "check", where]) == 0
    assert run(["cache", "check", f"--dir={cache / 'none'}"]) == 0


def test_a_folder_that_cannot_be_read_is_one_message(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(
        folder: Path, onerror: Callable[[OSError], None]
    ) -> list[tuple[str, list[str], list[str]]]:
        onerror(PermissionError(13, "Permission denied", str(folder)))
        return []

    monkeypatch.setattr("provisioner.verify.caches.os.walk", refuse)
    assert run(["cache", "check", f"--dir={cache}"]) == 4
    assert "[cache.unreadable]" in capsys.readouterr().err
