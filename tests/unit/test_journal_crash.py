"""Ends a write at every system call, by every means, and holds the rest against the promise.

After recovery the tree is all old or all new, to the byte and the mode, and nothing of ours is
left over. Before recovery each single file is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from output_tools import SYSCALLS, AtCall, calls_of, child, debris, files_of, finish, snapshot

from provisioner.errors import FindingError, OutsideError
from provisioner.render.fileset import FileSet
from provisioner.render.journal import apply, write
from provisioner.render.manifest import MANIFEST
from provisioner.render.moves import STAGE
from provisioner.render.plan import check, plan
from provisioner.render.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

G = {"g"}
BEFORE = {
    "bake.json": "old bake",
    "docker/a/Dockerfile": "old a",
    "docker/gone/Dockerfile": "old gone",
    "docker/same": "same",
    "run.sh": "script",
}
AFTER = {
    "bake.json": "new bake",
    "docker/a/Dockerfile": "new a",
    "docker/new/deep/Dockerfile": "new deep",
    "docker/same": "same",
    "run.sh": "script",
}
Snapshot = dict[str, "tuple[bytes, int] | None"]


class Scene:
    """A tree that holds BEFORE, and what it looks like after a write of AFTER."""

    def __init__(self, folder: Path) -> None:
        self.template = folder / "template"
        write(self.template, files_of(BEFORE), G)
        write(self.template, files_of({"lockfiles/x/x": "pins"}, "lock:x"), {"lock:x"})
        (self.template / "run.sh").chmod(0o644)  # a step with the same bytes before and after
        (self.template / "notes").write_text("not ours")
        self.before = snapshot(self.template)
        self.root = folder / "out"
        self.reset()
        write(self.root, files_of(AFTER), G)
        self.after = snapshot(self.root)

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)

    def write(self) -> None:
        write(self.root, files_of(AFTER), G)

    def assert_each_file_whole(self) -> None:
        for path, found in snapshot(self.root).items():
            assert found in (self.before.get(path, found), self.after.get(path, found)), path
            assert path in self.before or path in self.after
        for path in self.before.keys() & self.after.keys():
            assert os.path.lexists(self.root / path), path

    def assert_old_or_new(self) -> str:
        assert debris(self.root) == []
        now = snapshot(self.root)
        assert now in (self.before, self.after)
        return "old" if now == self.before else "new"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def count_calls(work: Callable[[], object], names: frozenset[str] = SYSCALLS) -> int:
    return len(calls_of(work, names))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Whether a child that runs `work` was killed before it ended by itself."""

    def run() -> None:
        with AtCall(number, die):
            work()

    status = finish(child(run))
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_everything_is_synced_before_what_relies_on_it(scene: Scene) -> None:
    """What only a power cut could show: the order of syncs, renames and removals."""
    scene.reset()
    calls = calls_of(scene.write, frozenset({"fsync", "rename", "unlink", "rmdir"}))
    commit = calls.index("rename")
    # Two updates, a create, a mode and the manifest; their folder; the journal.
    assert calls[:commit] == ["fsync"] * (5 + 1 + 1)
    assert calls[commit + 1 : commit + 3] == ["fsync", "fsync"]  # the stage and the root
    moves = ["rename"] * (5 + 1)  # and the pruned one
    folders = ["fsync"] * 6  # root, docker, docker/a, docker/gone, docker/new, docker/new/deep
    rest = calls[commit + 3 :]
    assert rest[: len(moves)] == moves
    assert rest[len(moves) : len(moves + folders)] == folders
    assert set(rest[len(moves + folders) :]) == {"rmdir", "unlink"}


def test_kill_at_every_system_call(scene: Scene) -> None:
    scene.reset()
    total = count_calls(scene.write)
    assert total > 80
    seen = []
    for number in range(1, total + 1):
        scene.reset()
        assert killed_at(number, scene.write)
        scene.assert_each_file_whole()
        action = recover(scene.root).action
        seen.append((action, scene.assert_old_or_new()))
        assert recover(scene.root).action == "nothing"
    # In this order: nothing staged, staged, committed, closed.
    order = [pair for i, pair in enumerate(seen) if i == 0 or pair != seen[i - 1]]
    assert order == [
        ("nothing", "old"),
        ("cleared", "old"),
        ("completed", "new"),
        ("cleared", "new"),
        ("nothing", "new"),
    ]
    assert check(scene.root, files_of(AFTER), G) == []


def test_kill_recovery_at_every_system_call(scene: Scene) -> None:
    scene.reset()
    total = count_calls(scene.write)
    kills = 0
    for number in range(1, total + 1, 7):
        again = 1
        while True:
            scene.reset()
            assert killed_at(number, scene.write)
            if not killed_at(again, lambda: recover(scene.root)):
                break
            kills += 1
            scene.assert_each_file_whole()
            recover(scene.root)
            scene.assert_old_or_new()
            again += 5
    assert kills > 50


def raised_at(number: int, error: BaseException, scene: Scene) -> BaseException | None:
    """What a write raised that met `error` at its nth system call (closing can't fail)."""

    def fail() -> None:
        raise error

    with AtCall(number, fail, SYSCALLS - {"close"}) as at:
        try:
            scene.write()
        except BaseException as met:  # noqa: BLE001  an interrupt is one of them
            assert at.fired
            return met
    assert at.fired
    return None


def test_a_full_disk_at_every_system_call_gives_the_old_tree_back(scene: Scene) -> None:
    scene.reset()
    total = count_calls(scene.write, SYSCALLS - {"close"})
    ends = []
    for number in range(1, total + 1):
        scene.reset()
        met = raised_at(number, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), scene)
        recover(scene.root)  # what could not be tidied away
        ends.append(scene.assert_old_or_new())
        # Success is only told of the new tree, failure only of the old one.
        assert (met is None) == (ends[-1] == "new"), met
        if met is not None:
            assert isinstance(met, OutsideError)
            assert met.code == "output.no-space"
    assert ends.count("old") > 40


def test_an_interrupt_at_every_system_call_leaves_old_or_new(scene: Scene) -> None:
    def work(number: int) -> None:
        assert isinstance(raised_at(number, KeyboardInterrupt(), scene), KeyboardInterrupt)

    scene.reset()
    total = count_calls(scene.write, SYSCALLS - {"close"})
    for number in range(1, total + 1):
        scene.reset()
        assert finish(child(partial(work, number))) == 0
        scene.assert_each_file_whole()
        recover(scene.root)
        scene.assert_old_or_new()


def test_kill_while_going_back(scene: Scene) -> None:
    """A file saved between plan and apply turns the write back; a kill at every call of that."""
    edited = "docker/a/Dockerfile"
    for tree in (scene.before, scene.after):
        tree[edited] = (b"saved just now", 0o644)

    def work(number: int) -> None:
        planned = plan(scene.root, files_of(AFTER), G)
        (scene.root / edited).write_text("saved just now")
        with AtCall(number, die), contextlib.suppress(FindingError):
            apply(scene.root, planned)

    ends = []
    for number in range(1, 1000):
        scene.reset()
        status = finish(child(partial(work, number)))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        scene.assert_each_file_whole()
        action = recover(scene.root).action
        ends.append((action, scene.assert_old_or_new()))
    assert scene.assert_old_or_new() == "old"
    assert ends.count(("completed", "new")) > 5
    assert ends.count(("undone", "old")) > 10


# --- random instants, bigger trees, real signals ------------------------------------------


def many(text: str, count: int) -> FileSet:
    fileset = FileSet()
    for number in range(count):
        # Each third file comes and goes, so that creates and prunes happen as well.
        if number % 3 or text == "a":
            path = f"docker/c{number % 10}-{text if number % 5 == 0 else ''}/f{number}"
            fileset.add(path, f"{text}{number}\n" * 200, group="g")
    return fileset


@contextlib.contextmanager
def writer(root: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that writes one set and the other in turn, having said that it is ready."""
    program = (
        "import signal, sys; from pathlib import Path\n"
        # Whoever started the tests may ignore these, and that is inherited: nohup, a shell's `&`.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_journal_crash import many, write\n"
        "a, b = many('a', int(sys.argv[3])), many('b', int(sys.argv[3]))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    write(Path(sys.argv[2]), a, {'g'})\n"
        "    write(Path(sys.argv[2]), b, {'g'})\n"
    )
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, "-c", program, here, str(root), str(count)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def forked_writer(root: Path, a: FileSet, b: FileSet) -> int:
    def work() -> None:
        while True:
            write(root, a, G)
            write(root, b, G)

    return child(work)


def assert_one_of(root: Path, a: FileSet, b: FileSet) -> str:
    assert debris(root) == []
    found = {path: data for path, data in snapshot(root).items() if data is not None}
    for name, fileset in (("a", a), ("b", b)):
        if check(root, fileset, G) == []:
            wanted = {file.path for file in fileset} | {MANIFEST}
            assert set(found) == wanted
            return name
    raise AssertionError("the tree is neither of the two sets")


def test_kill_at_random_instants(tmp_path: Path) -> None:
    a, b = many("a", 60), many("b", 60)
    contents: dict[str, set[bytes]] = {file.path: set() for file in [*a, *b]}
    for file in [*a, *b]:
        contents[file.path].add(file.content)
    write(tmp_path, a, G)
    chance = random.Random(13)
    began = time.monotonic()
    write(tmp_path, b, G)
    write(tmp_path, a, G)
    cycle = time.monotonic() - began  # so that a busy machine meets both sets as well
    ends, actions = set(), set()
    for _ in range(100):
        pid = forked_writer(tmp_path, a, b)
        time.sleep(chance.uniform(0.0, 1.5 * cycle))
        os.kill(pid, signal.SIGKILL)
        assert finish(pid) == -signal.SIGKILL
        for path, found in snapshot(tmp_path).items():
            if found is not None and path != MANIFEST:
                assert found[0] in contents[path], path
        actions.add(recover(tmp_path).action)
        ends.add(assert_one_of(tmp_path, a, b))
    assert ends == {"a", "b"}
    assert {"cleared", "completed"} <= actions


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_real_signals_leave_nothing_that_recover_does_not_clear(
    tmp_path: Path, number: signal.Signals
) -> None:
    root = tmp_path / "out"
    a, b = many("a", 120), many("b", 120)
    write(root, a, G)
    chance = random.Random(int(number))
    for _ in range(5):
        with writer(root, 120) as process:
            time.sleep(chance.uniform(0.02, 0.2))
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == -number
        if number == signal.SIGINT:
            assert "KeyboardInterrupt" in errors
        else:
            assert errors == ""
        recover(root)
        assert_one_of(root, a, b)
    assert not (root / STAGE).exists()
