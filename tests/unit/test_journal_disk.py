"""Writes to disks that are really full, read-only, foreign or slow to give permission."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from output_tools import AtCall, child, debris, failure, files_of, finish, names, snapshot
from support.needs import needs, skip_or_fail

from provisioner.errors import OutsideError
from provisioner.render.journal import apply, write
from provisioner.render.moves import JOURNAL, STAGE
from provisioner.render.plan import check, plan
from provisioner.render.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from provisioner.render.fileset import FileSet

G = {"g"}
NOBODY = 65534
OLD = {"bake.json": "old", "docker/a/Dockerfile": "old a", "docker/gone": "gone"}
NEW = {"bake.json": "new", "docker/a/Dockerfile": "new a", "docker/b/c/Dockerfile": "new b"}

as_root = needs("system", missing=os.geteuid() != 0, reason="mounts and other users need root")


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        skip_or_fail("system", f"{command[0]} is not possible here: {done.stderr.strip()}")


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    point = tmp_path / "disk"
    point.mkdir()
    if request.param == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "none", point)
    else:
        if shutil.which("mkfs.ext4") is None:
            skip_or_fail("system", "mkfs.ext4 (e2fsprogs) is not installed")
        image = tmp_path / "image"
        image.write_bytes(b"")
        os.truncate(image, 1 << 20)
        run("mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", "-O", "^has_journal", image)
        run("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(disk: Path, free_blocks: int) -> None:
    """Fills the disk but for about so many blocks, which stay free."""
    block = os.statvfs(disk).f_frsize
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, b"x" * block)
        os.ftruncate(fd, os.fstat(fd).st_size - free_blocks * block)
        os.fsync(fd)
    finally:
        os.close(fd)


@as_root
def test_a_full_disk_leaves_the_old_tree_untouched(small_disk: Path) -> None:
    """With no block left, one, two and so on: until the write fits."""
    root = small_disk / "out"
    template = small_disk.parent / "template"
    write(template, files_of(OLD), G)
    before = snapshot(template)
    failures, free = 0, 0
    while True:
        (small_disk / "filler").unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(template, root)
        fill(small_disk, free)
        stamp = (root / "bake.json").stat()
        error = failure(lambda: write(root, files_of(NEW), G))
        if error is None:
            break
        assert error.code == "output.no-space"
        assert "no space left" in error.message
        assert str(root) in error.message
        assert snapshot(root) == before
        assert debris(root) == []
        assert (root / "bake.json").stat().st_ino == stamp.st_ino
        failures += 1
        free += 1
        assert free < 200
    # Nothing free, then room for some of three new files, the manifest and the journal; on
    # ext4 the new folders need room as well, after the commit.
    assert failures >= 6
    assert check(root, files_of(NEW), G) == []
    assert debris(root) == []


@as_root
def test_the_full_disk_error_says_how_much_is_needed(small_disk: Path) -> None:
    root = small_disk / "out"
    write(root, files_of(OLD), G)
    fileset = files_of({"big": "x" * (2 << 20)})
    with pytest.raises(OutsideError) as caught:
        write(root, fileset, G)
    error = caught.value
    assert error.code == "output.no-space"
    assert "2 files" in error.message  # the big one and the manifest
    assert error.facts["needed_bytes"] > 2 << 20
    assert 0 < error.facts["free_bytes"] < 1 << 20
    assert "--out" in (error.next_step or "")
    assert check(root, files_of(OLD), G) == []


@as_root
def test_no_inode_left(tmp_path: Path) -> None:
    point = tmp_path / "disk"
    point.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=24,mode=755", "none", point)
    try:
        root = point / "out"
        write(root, files_of(OLD), G)
        before = snapshot(root)
        fileset = files_of({**NEW, **{f"n/{n}": "x" for n in range(12)}})
        with pytest.raises(OutsideError) as caught:
            write(root, fileset, G)
        assert caught.value.code == "output.no-space"
        assert snapshot(root) == before
        assert debris(root) == []
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.mark.parametrize("limit", [1, 50, 150, 299, 600])
def test_a_file_size_limit_leaves_the_old_tree_untouched(tmp_path: Path, limit: int) -> None:
    """Limits below a rendered file, below the manifest and below the journal."""
    root = tmp_path / "out"
    write(root, files_of(OLD), G)
    before = snapshot(root)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(OutsideError) as caught:
            write(root, files_of(NEW), G)
        assert caught.value.code == "output.failed"
        assert "file too large" in caught.value.message

    assert finish(child(work)) == 0
    assert snapshot(root) == before
    assert debris(root) == []


def test_many_folders_need_few_descriptors(tmp_path: Path) -> None:
    content = {f"docker/c{number}/deep/er/Dockerfile": "x" for number in range(200)}

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
        write(tmp_path / "out", files_of(content), G)
        assert check(tmp_path / "out", files_of(content), G) == []
        write(tmp_path / "out", files_of({}), G)

    assert finish(child(work)) == 0
    assert names(tmp_path / "out") == [".provision-manifest.json"]


def test_a_new_root_does_not_stay_when_its_first_write_fails(tmp_path: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
        with pytest.raises(OutsideError, match="file too large"):
            write(tmp_path / "deep" / "out", files_of(NEW), G)

    assert finish(child(work)) == 0
    assert names(tmp_path) == []


# --- read-only and other users ------------------------------------------------------------


@as_root
def test_a_read_only_file_system(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, files_of(OLD), G)
    before = snapshot(root)
    run("mount", "--bind", root, root)
    try:
        run("mount", "-o", "remount,ro,bind", root)
        with pytest.raises(OutsideError) as caught:
            write(root, files_of(NEW), G)
        assert caught.value.code == "output.read-only"
        assert "read-only file system" in caught.value.message
        assert snapshot(root) == before
        # Nothing to do is done, and reading goes on.
        assert write(root, files_of(OLD), G).unchanged == tuple(sorted(OLD))
        assert [d.kind for d in check(root, files_of(NEW), G)]
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


@as_root
def test_debris_on_a_read_only_file_system_does_not_stop_a_reader(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, files_of(OLD), G)
    (root / STAGE).mkdir()
    run("mount", "--bind", root, root)
    try:
        run("mount", "-o", "remount,ro,bind", root)
        recovery = recover(root)
        assert recovery.action == "blocked"
        assert "read-only file system" in recovery.message
        with pytest.raises(OutsideError) as caught:
            write(root, files_of(OLD), G)
        assert caught.value.code == "output.read-only"
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)
    assert recover(root).action == "cleared"


@as_root
def test_a_folder_on_another_file_system_is_refused_whole(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, files_of(OLD), G)
    point = root / "other"
    point.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "none", point)
    try:
        before = snapshot(root)
        with pytest.raises(OutsideError) as caught:
            write(root, files_of({**NEW, "other/x": "x"}), G)
        assert caught.value.code == "output.other-file-system"
        assert snapshot(root) == before
        assert debris(root) == []
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user can reach (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_nobody(work: Callable[[], None]) -> int:
    """The exit status of a child that runs `work` without any power."""

    def run_without_power() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    return finish(child(run_without_power))


def give(root: Path, *paths: str) -> None:
    for path in paths:
        os.chown(root / path, NOBODY, NOBODY)


def denied(root: Path, fileset: FileSet) -> Callable[[], None]:
    def work() -> None:
        with pytest.raises(OutsideError) as caught:
            write(root, fileset, G)
        assert caught.value.code == "output.denied", caught.value.message
        assert "permission denied" in caught.value.message
        assert str(root) in caught.value.message

    return work


@as_root
def test_an_unreadable_file_is_named(public: Path) -> None:
    write(public, files_of(OLD), G)
    (public / "docker/a/Dockerfile").chmod(0)

    def work() -> None:
        for attempt in (plan, check, write):
            with pytest.raises(OutsideError) as caught:
                attempt(public, files_of(NEW), G)
            assert caught.value.code == "output.denied"
            assert "reading docker/a/Dockerfile" in caught.value.message

    assert as_nobody(work) == 0


@as_root
@pytest.mark.parametrize("where", ["root", "above", "folder"])
def test_a_folder_without_permission_leaves_the_old_tree_untouched(
    public: Path, where: str
) -> None:
    root = public / "out"
    if where == "above":
        assert as_nobody(denied(root, files_of(NEW))) == 0
        assert not root.exists()
        return
    write(root, files_of(OLD), G)
    if where == "folder":
        # As after one `sudo provision`: the root is the user's, docker/ is not.
        give(root, ".", "bake.json", ".provision-manifest.json")
    before = snapshot(root)
    assert as_nobody(denied(root, files_of(NEW))) == 0
    assert snapshot(root) == before
    assert debris(root) == []


@as_root
def test_files_of_another_user_that_can_not_be_linked_are_copied(public: Path) -> None:
    """fs.protected_hardlinks forbids the second name; the way back needs the old bytes."""
    setting = Path("/proc/sys/fs/protected_hardlinks")
    if setting.read_text().strip() != "1":
        pytest.skip("fs.protected_hardlinks is off here, so every link is allowed")
    root = public / "out"
    write(root, files_of(OLD), G)
    give(root, ".", "docker", "docker/a")
    before = snapshot(root)

    def changed_meanwhile() -> None:
        planned = plan(root, files_of(NEW), G)
        (root / "docker/b").mkdir()
        (root / "docker/b/c").mkdir()
        (root / "docker/b/c/Dockerfile").write_text("mine")
        with pytest.raises(Exception, match="changed while"):
            apply(root, planned)

    def forward() -> None:
        write(root, files_of(NEW), G)

    assert as_nobody(changed_meanwhile) == 0
    shutil.rmtree(root / "docker/b")
    assert snapshot(root) == before
    assert as_nobody(forward) == 0
    assert check(root, files_of(NEW), G) == []
    assert debris(root) == []


@as_root
def test_recovery_without_permission_says_why_and_works_once_it_is_there(public: Path) -> None:
    root = public / "out"
    write(root, files_of(OLD), G)
    before = snapshot(root)

    def killed() -> None:
        # The fourth rename is the third file's; two are in place already.
        with AtCall(4, lambda: os._exit(42), frozenset({"rename"})):
            write(root, files_of(NEW), G)

    assert finish(child(killed)) == 42
    assert (root / JOURNAL).exists()
    for path in (root, root / STAGE, root / STAGE / "new", root / STAGE / "old"):
        os.chown(path, NOBODY, NOBODY)

    def work() -> None:
        with pytest.raises(OutsideError) as caught:
            recover(root)
        assert caught.value.code == "output.recovery-failed"
        assert "permission denied" in caught.value.message.lower()
        assert "Every file is whole" in caught.value.message

    assert as_nobody(work) == 0
    assert recover(root).action == "undone"  # it had begun to go back
    assert snapshot(root) == before
    assert debris(root) == []


@as_root
def test_the_lock_of_another_user_s_dead_process_does_not_block(public: Path) -> None:
    root = public / "out"
    write(root, files_of(OLD), G)
    give(root, ".", "docker", "docker/a", "bake.json", "docker/a/Dockerfile", "docker/gone")
    (root / ".provision-lock").write_text("1\n")  # root's, as a killed sudo leaves it

    def work() -> None:
        write(root, files_of(NEW), G, wait_s=0)

    assert as_nobody(work) == 0
    assert check(root, files_of(NEW), G) == []
    assert debris(root) == []
