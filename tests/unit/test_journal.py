"""write, apply and recover: what is on disk after each, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from output_tools import AtCall, child, debris, files_of, finish, names, snapshot

from provisioner.errors import Exit, FindingError, OutsideError
from provisioner.render.journal import Outcome, apply, write
from provisioner.render.manifest import MANIFEST
from provisioner.render.moves import JOURNAL, NEW, OLD, STAGE, UNDO, Journal, Step
from provisioner.render.plan import check, plan
from provisioner.render.recovery import Recovery, recover
from provisioner.render.rootlock import LOCK
from provisioner.render.tree import sha256_hex

G = {"g"}
FIRST = {"docker/a/Dockerfile": "FROM a\n", "docker/b/Dockerfile": "FROM b\n", "bake.json": "{}"}
SECOND = {"docker/a/Dockerfile": "FROM z\n", "docker/c/d/run.sh": "true\n", "bake.json": "{}"}

TOUCHED = ["docker/a/Dockerfile", "docker/b/Dockerfile", "docker/c/d/run.sh"]
"""What a write of SECOND over FIRST updates, prunes and creates."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that holds FIRST."""
    write(tmp_path / "out", files_of(FIRST), G)
    return tmp_path / "out"


def texts(root: Path) -> dict[str, str]:
    return {
        path: found[0].decode()
        for path, found in snapshot(root).items()
        if found is not None and path != MANIFEST
    }


def test_first_write_makes_root_and_all_files(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "out"
    outcome = write(root, files_of(FIRST), G)
    assert outcome == Outcome(created=tuple(sorted(FIRST)), recovered=Recovery())
    assert texts(root) == FIRST
    assert set(json.loads((root / MANIFEST).read_text())["files"]) == set(FIRST)
    assert debris(root) == []


def test_second_write_updates_creates_and_prunes(root: Path) -> None:
    outcome = write(root, files_of(SECOND), G)
    assert outcome.created == ("docker/c/d/run.sh",)
    assert outcome.updated == ("docker/a/Dockerfile",)
    assert outcome.pruned == ("docker/b/Dockerfile",)
    assert outcome.unchanged == ("bake.json",)
    assert texts(root) == SECOND
    assert not (root / "docker/b").exists()
    assert check(root, files_of(SECOND), G) == []
    assert debris(root) == []


def test_pruning_keeps_a_folder_that_holds_something_else(root: Path) -> None:
    (root / "docker/b/notes.txt").write_text("mine")
    write(root, files_of(SECOND), G)
    assert (root / "docker/b/notes.txt").read_text() == "mine"
    write(root, files_of({}), G)
    assert texts(root) == {"docker/b/notes.txt": "mine"}


def test_unchanged_files_are_not_touched(root: Path) -> None:
    def stamps() -> dict[str, tuple[int, int]]:
        paths = [root, *sorted(root.rglob("*"))]
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_ino) for p in paths}

    before = stamps()
    outcome = write(root, files_of(FIRST), G)
    assert outcome.unchanged == tuple(sorted(FIRST))
    assert stamps() == before  # not even the root, by a lock or a staging folder
    write(root, files_of({**FIRST, "bake.json": "[]"}), G)
    after = stamps()
    changed = {Path(path).name for path in before if after[path] != before[path]}
    assert changed == {"out", "bake.json", MANIFEST}


def test_only_the_given_groups_change(root: Path) -> None:
    write(root, files_of({"lockfiles/x/x.txt": "pins"}, "lock:x"), {"lock:x"})
    write(root, files_of({"other/y": "1"}, "h"), {"h"})
    write(root, files_of({}), G)
    assert texts(root) == {"lockfiles/x/x.txt": "pins", "other/y": "1"}
    write(root, files_of({"other/y": "2"}, "h"), {"h", "lock:x"})
    assert texts(root) == {"other/y": "2"}


def test_equal_bytes_are_adopted(tmp_path: Path) -> None:
    (tmp_path / "bake.json").write_text("{}")
    inode = (tmp_path / "bake.json").stat().st_ino
    outcome = write(tmp_path, files_of(FIRST), G)
    assert "bake.json" in outcome.unchanged
    assert (tmp_path / "bake.json").stat().st_ino == inode
    write(tmp_path, files_of({}), G)
    assert texts(tmp_path) == {}  # adopted is ours, so it is pruned like the rest


def test_a_lost_manifest_is_rebuilt_without_force(root: Path) -> None:
    before = (root / MANIFEST).read_bytes()
    (root / MANIFEST).unlink()
    outcome = write(root, files_of(FIRST), G)
    assert outcome.created == outcome.updated == ()
    assert (root / MANIFEST).read_bytes() == before


@pytest.mark.parametrize("path", TOUCHED)
def test_hand_edited_or_foreign_files_survive_until_forced(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("by hand")
    before = snapshot(root)
    with pytest.raises(FindingError) as caught:
        write(root, files_of(SECOND), G)
    assert caught.value.code == "output.conflict"
    assert path in caught.value.message
    assert snapshot(root) == before
    assert debris(root) == []
    write(root, files_of(SECOND), G, force=True)
    assert texts(root) == SECOND
    assert check(root, files_of(SECOND), G) == []


def test_an_empty_set_on_an_empty_root_leaves_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, files_of({}), G) == Outcome(recovered=Recovery())
    assert names(tmp_path) == []


def test_apply_refuses_a_plan_with_conflicts(root: Path) -> None:
    (root / "bake.json").write_text("by hand")
    planned = plan(root, files_of({"bake.json": "new"}), G)
    with pytest.raises(FindingError, match="in the way"):
        apply(root, planned)
    assert (root / "bake.json").read_text() == "by hand"


@pytest.mark.parametrize("path", TOUCHED)
def test_apply_gives_everything_back_when_a_file_changed_since_the_plan(
    root: Path, path: str
) -> None:
    planned = plan(root, files_of(SECOND), G)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("saved just now")
    before = snapshot(root)
    with pytest.raises(FindingError) as caught:
        apply(root, planned)
    assert caught.value.code == "output.changed-meanwhile"
    assert path in caught.value.message
    assert snapshot(root) == before
    assert debris(root) == []


def test_apply_refuses_a_plan_of_another_manifest(root: Path) -> None:
    planned = plan(root, files_of(SECOND), G)
    write(root, files_of({"h": "1"}, "h"), {"h"})
    before = snapshot(root)
    with pytest.raises(FindingError) as caught:
        apply(root, planned)
    assert caught.value.facts["paths"] == [MANIFEST]
    assert snapshot(root) == before


def test_apply_does_nothing_for_a_plan_that_writes_nothing(root: Path) -> None:
    planned = plan(root, files_of(FIRST), G)
    before = root.stat().st_mtime_ns
    assert apply(root, planned).unchanged == tuple(sorted(FIRST))
    assert root.stat().st_mtime_ns == before


# --- symbolic links -----------------------------------------------------------------------


def test_a_link_put_in_after_planning_leads_nowhere(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "etc"
    shutil.copytree(root / "docker", outside)
    planned = plan(root, files_of(SECOND), G)
    shutil.rmtree(root / "docker")
    (root / "docker").symlink_to(outside)
    before = snapshot(tmp_path)
    with pytest.raises(OutsideError) as caught:
        apply(root, planned)
    assert caught.value.code in {"output.symlink", "output.recovery-failed"}
    assert "docker below" in caught.value.message
    assert "symbolic link" in caught.value.message
    after = snapshot(tmp_path)
    assert {p: after[p] for p in after if p.startswith("etc")} == {
        p: before[p] for p in before if p.startswith("etc")
    }


def test_a_root_reached_through_a_link_is_fine(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    write(tmp_path / "link", files_of(SECOND), G)
    assert texts(root) == SECOND


@pytest.mark.parametrize("name", [STAGE, LOCK])
def test_own_names_that_are_links_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "journal").write_text("x")
    (outside / "new").mkdir()
    (root / name).symlink_to(outside)
    before = snapshot(tmp_path)
    with pytest.raises(OutsideError):
        write(root, files_of(SECOND), G)
    assert snapshot(tmp_path) == before
    assert (root / name).readlink() == outside


# --- recovery -----------------------------------------------------------------------------


def interrupted(root: Path, content: dict[str, str]) -> None:
    """Leaves what a process leaves that is killed before it has synced what it staged."""

    def work() -> None:
        with AtCall(1, lambda: os._exit(42), frozenset({"fsync"})):
            write(root, files_of(content), G)

    assert finish(child(work)) == 42


def stage_by_hand(root: Path, journal: Journal, new: dict[int, bytes]) -> None:
    (root / NEW).mkdir(parents=True)
    (root / OLD).mkdir()
    for number, content in new.items():
        (root / NEW / str(number)).write_bytes(content)
    here = msgspec.structs.replace(journal, stage=(root / STAGE).stat().st_ino)
    (root / JOURNAL).write_bytes(msgspec.json.encode(here))


def a_step(path: str, old: bytes | None, new: bytes | None, number: int = 0) -> Step:
    hashes = [None if data is None else sha256_hex(data) for data in (old, new)]
    return Step(path=path, number=number, old=hashes[0], new=hashes[1])


def test_recover_does_nothing_where_nothing_was_left(root: Path, tmp_path: Path) -> None:
    before = root.stat().st_mtime_ns
    assert recover(root) == Recovery()
    assert recover(tmp_path / "nowhere") == Recovery()
    assert root.stat().st_mtime_ns == before


def test_recover_clears_a_stage_without_a_journal(root: Path) -> None:
    before = snapshot(root)
    interrupted(root, SECOND)
    assert (root / STAGE).exists()
    assert not (root / JOURNAL).exists()
    assert recover(root) == Recovery(action="cleared")
    assert snapshot(root) == before
    assert debris(root) == []


def test_recover_clears_the_lock_of_a_dead_process(root: Path) -> None:
    (root / LOCK).write_text("999999999\n")
    assert recover(root) == Recovery()
    assert debris(root) == []


def test_recover_completes_a_journal(root: Path) -> None:
    step = a_step("bake.json", b"{}", b"[]")
    steps = (step, a_step("new/x", None, b"x", 1))
    stage_by_hand(root, Journal(stage=0, made=("new",), steps=steps), {0: b"[]", 1: b"x"})
    assert recover(root) == Recovery(action="completed")
    assert texts(root) == {**FIRST, "bake.json": "[]", "new/x": "x"}
    assert debris(root) == []


def test_recover_leaves_alone_what_was_edited_since(root: Path) -> None:
    steps = (
        a_step("bake.json", b"{}", b"[]", 0),
        a_step("docker/a/Dockerfile", b"FROM a\n", b"FROM z\n", 1),
        a_step("docker/b/Dockerfile", b"FROM b\n", None, 2),
        a_step("new/x", None, b"x", 3),
    )
    stage_by_hand(
        root, Journal(stage=0, made=("new",), steps=steps), {0: b"[]", 1: b"FROM z\n", 3: b"x"}
    )
    edited = {"bake.json": "mine", "docker/b/Dockerfile": "mine", "new/x": "mine"}
    (root / "new").mkdir()
    for path, text in edited.items():
        (root / path).write_text(text)
    recovery = recover(root)
    assert recovery.action == "completed"
    assert sorted(recovery.left) == sorted(edited)
    assert texts(root) == {**edited, "docker/a/Dockerfile": "FROM z\n"}


def test_recover_goes_back_when_a_staged_file_is_damaged(root: Path) -> None:
    before = snapshot(root)
    steps = (a_step("bake.json", b"{}", b"[]", 0), a_step("x", None, b"x", 1))
    stage_by_hand(root, Journal(stage=0, made=(), steps=steps), {0: b"[]", 1: b""})
    assert recover(root) == Recovery(action="undone")
    assert snapshot(root) == before
    assert debris(root) == []


def test_a_recovery_that_began_to_go_back_goes_on_back(root: Path) -> None:
    before = snapshot(root)
    steps = (a_step("bake.json", b"{}", b"[]", 0), a_step("x", None, b"x", 1))
    stage_by_hand(root, Journal(stage=0, made=(), steps=steps), {1: b"x"})
    (root / "bake.json").rename(root / OLD / "0")
    (root / "bake.json").write_text("[]")
    (root / JOURNAL).rename(root / UNDO)
    assert recover(root) == Recovery(action="undone")
    assert snapshot(root) == before


def test_going_back_leaves_alone_what_was_edited_since(root: Path) -> None:
    steps = (
        a_step("bake.json", b"{}", b"[]", 0),
        a_step("docker/b/Dockerfile", b"FROM b\n", None, 1),
        a_step("x", None, b"x", 2),
    )
    stage_by_hand(root, Journal(stage=0, made=(), steps=steps), {})
    (root / "bake.json").rename(root / OLD / "0")
    (root / "docker/b/Dockerfile").rename(root / OLD / "1")
    edited = {"bake.json": "mine", "docker/b/Dockerfile": "mine", "x": "mine"}
    for path, text in edited.items():
        (root / path).write_text(text)
    (root / JOURNAL).rename(root / UNDO)
    recovery = recover(root)
    assert recovery.action == "undone"
    assert sorted(recovery.left) == sorted(edited)
    assert texts(root) == {**FIRST, **edited}


_STEP = b'{"stage":0,"made":[],"steps":[{"path":"%s","number":0,"old":null,"new":null}]}'
BAD_JOURNALS = {
    "no json": b"{",
    "empty": b"",
    "schema": b'{"schema": 2, "stage": 0, "made": [], "steps": []}',
    "unknown": b'{"schema": 1, "stage": 0, "made": [], "steps": [], "more": 1}',
    "nowhere": b'{"schema": 1, "made": [], "steps": []}',
    "parent": _STEP % b"../x",
    "absolute": _STEP % b"/x",
    "own": _STEP % b".provision-x",
    "made": b'{"stage":0,"made":["../x"],"steps":[]}',
    "deep": b'{"x":' + b"[" * 100_000,
}


def test_a_journal_counts_in_the_folder_that_it_was_written_in_alone(
    root: Path, tmp_path: Path
) -> None:
    """It goes along with a renamed folder, and is not carried out in a copy of it."""
    steps = (a_step("bake.json", FIRST["bake.json"].encode(), None), a_step("x", None, b"x", 1))
    stage_by_hand(root, Journal(stage=0, made=(), steps=steps), {1: b"x"})
    copied, moved = tmp_path / "copied", tmp_path / "moved"
    shutil.copytree(root, copied)
    root.rename(moved)
    before = snapshot(copied)
    for name in (JOURNAL, UNDO):
        if name == UNDO:
            (copied / JOURNAL).rename(copied / UNDO)
            before = snapshot(copied)
        with pytest.raises(OutsideError) as caught:
            recover(copied)
        assert caught.value.code == "output.journal-elsewhere"
        assert str(copied / STAGE) in (caught.value.next_step or "")
        assert snapshot(copied) == before
    assert recover(moved).action == "completed"
    assert not (moved / "bake.json").exists()
    assert (moved / "x").read_bytes() == b"x"


@pytest.mark.parametrize("name", BAD_JOURNALS)
def test_a_damaged_journal_is_one_clear_error(root: Path, name: str) -> None:
    (root / STAGE).mkdir()
    (root / JOURNAL).write_bytes(BAD_JOURNALS[name])
    (root.parent / "x").write_text("outside")
    before = snapshot(root.parent)
    for attempt in (recover, lambda root: write(root, files_of(SECOND), G)):
        with pytest.raises(OutsideError) as caught:
            attempt(root)
        assert caught.value.code == "output.journal-damaged"
        assert caught.value.exit_status == Exit.OUTSIDE
        assert str(root / STAGE) in (caught.value.next_step or "")
    assert snapshot(root.parent) == before
    assert (root / JOURNAL).exists()


def test_a_stage_that_is_a_file_is_refused(root: Path) -> None:
    (root / STAGE).write_text("mine")
    with pytest.raises(OutsideError) as caught:
        recover(root)
    assert caught.value.code == "output.stage-not-ours"
    assert (root / STAGE).read_text() == "mine"


def test_write_recovers_first_and_says_so(root: Path) -> None:
    interrupted(root, SECOND)
    outcome = write(root, files_of({"bake.json": "new"}), G)
    assert outcome.recovered == Recovery(action="cleared")
    assert texts(root) == {"bake.json": "new"}
    stage_by_hand(root, Journal(stage=0, made=(), steps=(a_step("x", None, b"x"),)), {0: b"x"})
    outcome = write(root, files_of({"bake.json": "new", "x": "x"}), G)
    assert outcome.recovered == Recovery(action="completed")
    assert outcome.unchanged == ("bake.json", "x")
    assert check(root, files_of({"bake.json": "new", "x": "x"}), G) == []


# --- modes --------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o177])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "deep" / "out"

    def work() -> None:
        os.umask(umask)
        write(root, files_of(FIRST), G)
        write(root, files_of(SECOND), G)
        assert os.umask(0) == umask

    assert finish(child(work)) == 0
    modes = {p: oct(p.stat().st_mode & 0o7777) for p in [root.parent, root, *root.rglob("*")]}
    assert {oct_mode for path, oct_mode in modes.items() if path.is_dir()} == {"0o755"}
    files = {path.name: mode for path, mode in modes.items() if path.is_file()}
    assert files == {
        "Dockerfile": "0o644",
        "run.sh": "0o755",
        "bake.json": "0o644",
        MANIFEST: "0o644",
    }


def test_a_shared_folder_hands_down_its_group(root: Path) -> None:
    (root / "docker").chmod(0o2775)
    write(root, files_of(SECOND), G)
    assert (root / "docker/c").stat().st_mode & 0o2000
    assert (root / "docker").stat().st_mode & 0o7777 == 0o2775


def test_output_is_byte_identical_wherever_it_is_made(tmp_path: Path) -> None:
    write(tmp_path / "a", files_of(FIRST), G)
    write(tmp_path / "a", files_of(SECOND), G)
    write(tmp_path / "b", files_of(SECOND), G)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
