"""Plan, check, diff and manifest: what is decided about each path."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from output_tools import files_of, names, snapshot

from provisioner.errors import Exit, FindingError, OutsideError, ProvisionError, UsageError
from provisioner.render.diff import FILE_LIMIT, TEXT_LIMIT, diff
from provisioner.render.journal import write
from provisioner.render.manifest import MANIFEST, Entry, encode_manifest, parse_manifest
from provisioner.render.plan import check, plan

G = {"g"}
OLD = {"keep": "k", "change": "1", "drop/me": "d"}
NEW = {"keep": "k", "change": "2", "add/it": "a"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that holds OLD."""
    root = tmp_path / "out"
    write(root, files_of(OLD), G)
    return root


def kinds(root: Path, content: dict[str, str], *, force: bool = False) -> dict[str, str]:
    planned = plan(root, files_of(content), G, force=force)
    return {a.path: f"{a.kind} {a.reason}".strip() for a in planned.actions}


def test_each_path_gets_its_action(root: Path) -> None:
    assert kinds(root, NEW) == {
        "add/it": "create",
        "change": "update",
        "drop/me": "prune",
        "keep": "unchanged",
    }


def test_a_missing_root_is_an_empty_one(tmp_path: Path) -> None:
    assert kinds(tmp_path / "no" / "where", {"a": "x"}) == {"a": "create"}
    assert not (tmp_path / "no").exists()


def test_planning_writes_nothing(root: Path) -> None:
    before = snapshot(root)
    plan(root, files_of(NEW), G, force=True)
    check(root, files_of(NEW), G)
    diff(root, files_of(NEW), G)
    assert snapshot(root) == before


@pytest.mark.parametrize(
    ("path", "content", "action", "forced"),
    [
        ("change", "by hand", "conflict edited", "update edited"),
        ("drop/me", "by hand", "conflict edited", "prune edited"),
        ("add/it", "not ours", "conflict foreign", "update foreign"),
        ("change", "2", "unchanged", "unchanged"),
        ("add/it", "a", "unchanged", "unchanged"),
        ("keep", "by hand", "conflict edited", "update edited"),
    ],
)
def test_bytes_that_are_not_ours_need_force(
    root: Path, path: str, content: str, action: str, forced: str
) -> None:
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text(content)
    assert kinds(root, NEW)[path] == action
    assert kinds(root, NEW, force=True)[path] == forced


def test_a_pruned_file_that_is_gone_is_forgotten(root: Path) -> None:
    (root / "drop/me").unlink()
    assert kinds(root, NEW)["drop/me"] == "forget"
    write(root, files_of(NEW), G)
    assert "drop/me" not in json.loads((root / MANIFEST).read_text())["files"]


def test_other_groups_are_neither_pruned_nor_overwritten(root: Path) -> None:
    write(root, files_of({"lockfiles/x/r.txt": "pins"}, "lock:x"), {"lock:x"})
    assert "lockfiles/x/r.txt" not in kinds(root, NEW)
    write(root, files_of(NEW), G)
    assert (root / "lockfiles/x/r.txt").read_text() == "pins"
    taken = {**NEW, "lockfiles/x/r.txt": "other"}
    assert kinds(root, taken)["lockfiles/x/r.txt"] == "conflict other-group"
    assert kinds(root, taken, force=True)["lockfiles/x/r.txt"] == "update other-group"


def test_a_file_of_a_group_that_is_not_rendered_is_a_bug(root: Path) -> None:
    with pytest.raises(ValueError, match="'h'"):
        plan(root, files_of(NEW, "h"), G)


def test_only_a_missing_execute_bit_is_stale(root: Path) -> None:
    scripts = {**OLD, "run.sh": "#!/bin/sh\n"}
    write(root, files_of(scripts), G)
    (root / "keep").chmod(0o600)
    (root / "change").chmod(0o775)
    assert set(kinds(root, scripts).values()) == {"unchanged"}
    (root / "run.sh").chmod(0o644)
    assert kinds(root, scripts)["run.sh"] == "update"
    assert [d.kind for d in check(root, files_of(scripts), G)] == ["stale"]
    assert diff(root, files_of(scripts), G) == "Mode of run.sh differs\n"
    write(root, files_of(scripts), G)
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755


def test_check_names_every_kind_of_difference(root: Path) -> None:
    write(root, files_of({"keep": "k", "change": "1", "drop/me": "d", "hand": "h"}), G)
    (root / "hand").write_text("mine")
    (root / "add").mkdir()
    (root / "add/it").write_text("not ours")
    wanted = {**NEW, "hand": "h", "new": "n"}
    assert [(d.path, d.kind) for d in check(root, files_of(wanted), G)] == [
        ("add/it", "foreign"),
        ("change", "stale"),
        ("drop/me", "extra"),
        ("hand", "edited"),
        ("new", "missing"),
    ]
    (root / "add/it").unlink()
    (root / "hand").write_text("h")
    write(root, files_of(wanted), G)
    assert check(root, files_of(wanted), G) == []


def test_check_sees_a_manifest_that_is_missing_or_stale(root: Path) -> None:
    (root / MANIFEST).unlink()
    assert [(d.path, d.kind) for d in check(root, files_of(OLD), G)] == [(MANIFEST, "missing")]
    write(root, files_of(OLD), G)
    (root / MANIFEST).write_bytes(encode_manifest({}))
    assert [(d.path, d.kind) for d in check(root, files_of(OLD), G)] == [(MANIFEST, "stale")]
    write(root, files_of(OLD), G)
    assert check(root, files_of(OLD), G) == []


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(path.parent)  # the whole path may be too long for an address
        try:
            sock.bind(path.name)
        finally:
            os.chdir(here)


BLOCKERS: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "folder": ("change", lambda path: path.mkdir(), "output.not-a-file", "a folder"),
    "pipe": ("change", os.mkfifo, "output.not-a-file", "pipe"),
    "socket": ("change", _socket, "output.not-a-file", "socket"),
    "symlink": ("change", lambda path: path.symlink_to("keep"), "output.symlink", "symbolic"),
    "dangling": ("change", lambda path: path.symlink_to("gone"), "output.symlink", "symbolic"),
    "loop": ("change", lambda path: path.symlink_to("change"), "output.symlink", "symbolic"),
    "linked folder": ("add", lambda path: path.symlink_to("/etc"), "output.symlink", "symbolic"),
    "linked inside": ("add", lambda path: path.symlink_to("drop"), "output.symlink", "symbolic"),
    "file for folder": ("add", lambda path: path.write_text("x"), "output.not-a-folder", "add"),
}


@pytest.mark.parametrize("name", BLOCKERS)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_is_one_clear_error(root: Path, name: str, force: bool) -> None:
    path, make, code, word = BLOCKERS[name]
    (root / path).unlink(missing_ok=True)
    make(root / path)
    before = names(root)
    for attempt in (
        lambda: plan(root, files_of(NEW), G, force=force),
        lambda: check(root, files_of(NEW), G),
        lambda: diff(root, files_of(NEW), G),
        lambda: write(root, files_of(NEW), G, force=force),
    ):
        with pytest.raises(OutsideError) as caught:
            attempt()
        assert caught.value.code == code
        assert path in caught.value.message
        assert word in caught.value.message
    assert names(root) == before


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for attempt in (plan, check, diff, write):
        with pytest.raises(UsageError) as caught:
            attempt(tmp_path / "file", files_of(NEW), G)
        assert caught.value.code == "output.not-a-folder"
    assert (tmp_path / "file").read_text() == "x"


def test_conflicts_are_listed_and_bounded(root: Path) -> None:
    for number in range(25):
        (root / f"n{number:02}").write_text("not ours")
    wanted = {**OLD, **{f"n{number:02}": "ours" for number in range(25)}}
    before = snapshot(root)
    with pytest.raises(FindingError) as caught:
        write(root, files_of(wanted), G)
    error = caught.value
    assert error.code == "output.conflict"
    assert error.exit_status == Exit.FINDING
    assert "25 files are in the way" in error.message
    assert "n00 (not written by provision)" in error.message
    assert "and 15 more" in error.message
    assert "n10" not in error.message
    assert len(error.facts["conflicts"]) == 25
    assert error.next_step is not None
    assert "--force" in error.next_step
    assert snapshot(root) == before


# --- manifest -----------------------------------------------------------------------------


def test_manifest_bytes_are_stable_and_readable(root: Path) -> None:
    def line(path: str, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f'    "{path}": {{"group": "g", "sha256": "{digest}"}}'

    lines = [line("change", "1"), line("drop/me", "d"), line("keep", "k")]
    expected = '{\n  "schema": 1,\n  "files": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    assert (root / MANIFEST).read_text() == expected
    assert json.loads(expected)["schema"] == 1
    assert encode_manifest({}) == b'{\n  "schema": 1,\n  "files": {}\n}\n'


GOOD = "0" * 64
DAMAGED = {
    "no json": b"<<<<<<< HEAD\n",
    "empty": b"",
    "not utf-8": b'{"schema": 1, "files": {"\xff": 1}}',
    "no schema": b'{"files": {}}',
    "list": b"[]",
    "unknown field": b'{"schema": 1, "files": {}, "more": 1}',
    "number for hash": b'{"schema": 1, "files": {"a": {"group": "g", "sha256": 1}}}',
    "short hash": b'{"schema": 1, "files": {"a": {"group": "g", "sha256": "ab"}}}',
    "parent": f'{{"schema":1,"files":{{"../a":{{"group":"g","sha256":"{GOOD}"}}}}}}'.encode(),
    "absolute": f'{{"schema":1,"files":{{"/a":{{"group":"g","sha256":"{GOOD}"}}}}}}'.encode(),
    "other": f'{{"schema":1,"files":{{"playbooks/vars/b.yml":{{"group":"cell/a",'
    f'"sha256":"{GOOD}"}}}}}}'.encode(),
    "own": f'{{"schema":1,"files":{{".provision-x":{{"group":"g","sha256":"{GOOD}"}}}}}}'.encode(),
    "group": f'{{"schema":1,"files":{{"a":{{"group":"g g","sha256":"{GOOD}"}}}}}}'.encode(),
    "deep": b'{"x":' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_manifest_stops_everything(root: Path, name: str) -> None:
    outside = root.parent / "a"
    outside.write_text("")  # its hash is not asked for: the path alone must stop it
    (root / MANIFEST).write_bytes(DAMAGED[name])
    before = snapshot(root.parent)
    with pytest.raises(FindingError) as caught:
        write(root, files_of(NEW), G, force=True)
    assert caught.value.code == "output.manifest-damaged"
    assert MANIFEST in caught.value.message
    assert snapshot(root.parent) == before


def test_a_newer_manifest_is_not_guessed_at(root: Path) -> None:
    (root / MANIFEST).write_bytes(b'{"schema": 2, "files": [], "more": {}}')
    with pytest.raises(FindingError) as caught:
        plan(root, files_of(NEW), G)
    assert caught.value.code == "output.manifest-schema"
    assert "schema 2" in caught.value.message


def test_a_manifest_that_is_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    (root / MANIFEST).rename(tmp_path / "real")
    (root / MANIFEST).symlink_to(tmp_path / "real")
    with pytest.raises(ProvisionError) as caught:
        write(root, files_of(NEW), G, force=True)
    assert caught.value.code == "output.manifest-damaged"
    assert "symlink" in caught.value.message


def test_manifest_survives_a_round_trip(tmp_path: Path) -> None:
    files = {"b/c": Entry(group="h", sha256=GOOD), "a": Entry(group="g", sha256="f" * 64)}
    raw = encode_manifest(files)
    assert parse_manifest(raw, tmp_path).files == files
    assert encode_manifest(dict(reversed(files.items()))) == raw


# --- diff ---------------------------------------------------------------------------------


def test_diff_is_a_unified_diff_of_all_changes(root: Path) -> None:
    write(root, files_of({"change": "1\n2\n3\n", "drop/me": "d\n", "keep": "k"}), G)
    text = diff(root, files_of({"change": "1\nzwei\n3\n", "keep": "k", "add": "a"}), G)
    assert text == (
        "--- /dev/null\n+++ b/add\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"
        "--- a/change\n+++ b/change\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n"
        "--- a/drop/me\n+++ /dev/null\n@@ -1 +0,0 @@\n-d\n"
    )
    assert diff(root, files_of({"change": "1\n2\n3\n", "drop/me": "d\n", "keep": "k"}), G) == ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x00\x01", "Binary files a/change and b/change differ\n"),
        (b"\xff\xfe", "Binary files a/change and b/change differ\n"),
        (b"red \x1b[31m", "Binary files a/change and b/change differ\n"),
        (b"hidden\rtext\n", "Binary files a/change and b/change differ\n"),
        ("csi \u009b31m".encode(), "Binary files a/change and b/change differ\n"),
        (b"x" * (FILE_LIMIT + 1), "Large files a/change and b/change differ\n"),
        (b"1\r\n", "--- a/change\n+++ b/change\n@@ -1 +1 @@\n-1\r\n+2\n"),
        (b"", "--- a/change\n+++ b/change\n@@ -0,0 +1 @@\n+2\n"),
    ],
)
def test_diff_prints_nothing_odd(root: Path, content: bytes, expected: str) -> None:
    (root / "change").write_bytes(content)
    assert diff(root, files_of({**OLD, "change": "2\n"}), G) == expected


def test_diff_shows_empty_files(root: Path) -> None:
    assert diff(root, files_of({**OLD, "void": ""}), G) == "--- /dev/null\n+++ b/void\n"


def test_diff_is_bounded(root: Path) -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    wanted = files_of({**OLD, **{f"n{number:02}": lines for number in range(60)}})
    text = diff(root, wanted, G)
    assert TEXT_LIMIT < len(text) < TEXT_LIMIT + 2 * FILE_LIMIT
    last = text.splitlines()[-1]
    shown = text.count("+++ b/n")
    assert last == f"{60 - shown} more files differ"
