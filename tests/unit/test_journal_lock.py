"""Two writers at once below one root."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from output_tools import AtCall, child, debris, files_of, finish

from provisioner.errors import Exit
from provisioner.render.journal import write
from provisioner.render.moves import STAGE
from provisioner.render.plan import check
from provisioner.render.recovery import recover
from provisioner.render.rootlock import LOCK, BusyError, locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

G = {"g"}


@contextlib.contextmanager
def holder(root: Path, seconds: float = 60.0) -> Iterator[int]:
    """A live process that holds the lock for so long."""
    reading, writing = os.pipe()

    def hold() -> None:
        with locked(root, wait_s=0):
            os.write(writing, b"x")
            time.sleep(seconds)

    pid = child(hold)
    assert os.read(reading, 1) == b"x"
    try:
        yield pid
    finally:
        os.close(reading)
        os.close(writing)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_the_second_writer_refuses_and_names_the_first(tmp_path: Path) -> None:
    with holder(tmp_path) as pid:
        began = time.monotonic()
        with pytest.raises(BusyError) as caught:
            write(tmp_path, files_of({"a": "1"}), G, wait_s=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        error = caught.value
        assert error.code == "output.busy"
        assert error.exit_status == Exit.OUTSIDE
        assert f"Process {pid} is writing below {tmp_path}; waited 0.3 s" in error.message
        assert error.pid == pid
        assert not (tmp_path / "a").exists()


def test_the_second_writer_waits_for_a_short_one(tmp_path: Path) -> None:
    with holder(tmp_path, seconds=0.3) as pid:
        write(tmp_path, files_of({"a": "1"}), G, wait_s=30)
        assert finish(pid) == 0
    assert (tmp_path / "a").read_text() == "1"
    assert debris(tmp_path) == []


def test_nothing_to_write_needs_no_lock(tmp_path: Path) -> None:
    write(tmp_path, files_of({"a": "1"}), G)
    with holder(tmp_path):
        assert write(tmp_path, files_of({"a": "1"}), G, wait_s=0).unchanged == ("a",)


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    with holder(tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        assert finish(pid) == -signal.SIGKILL
        assert (tmp_path / LOCK).read_text() == f"{pid}\n"
        write(tmp_path, files_of({"a": "1"}), G, wait_s=0)
    assert debris(tmp_path) == []


@pytest.mark.parametrize("content", ["", "no number", "0", "-1", "999999999"])
def test_a_holder_without_a_name_is_another_process(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    with (tmp_path / LOCK).open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="Another process is writing") as caught:
            write(tmp_path, files_of({"a": "1"}), G, wait_s=0)
        assert caught.value.pid is None


def test_recover_leaves_a_live_write_alone(tmp_path: Path) -> None:
    with holder(tmp_path) as pid:
        assert recover(tmp_path).action == "nothing"
        (tmp_path / STAGE).mkdir()
        recovery = recover(tmp_path)
        assert (recovery.action, recovery.pid) == ("busy", pid)
        assert (tmp_path / STAGE).exists()
    assert recover(tmp_path).action == "cleared"
    assert debris(tmp_path) == []


def test_the_lock_excludes(tmp_path: Path) -> None:
    """Four processes add to one number, read and written with a pause between."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def add() -> None:
        for _ in range(10):
            with locked(tmp_path, wait_s=60):
                value = int(counter.read_text())
                time.sleep(0.002)
                counter.write_text(str(value + 1))

    pids = [child(add) for _ in range(4)]
    assert [finish(pid) for pid in pids] == [0, 0, 0, 0]
    assert counter.read_text() == "40"
    assert debris(tmp_path) == []


def test_a_lock_file_removed_by_its_last_holder_is_not_taken(tmp_path: Path) -> None:
    """Between our opening and our locking it the holder ends: what we locked has no name."""
    with (
        AtCall(1, (tmp_path / LOCK).unlink, frozenset({"flock"})) as at,
        locked(tmp_path, wait_s=5),
    ):
        assert at.fired
        with (tmp_path / LOCK).open() as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_writers_at_once_end_as_one_of_them_with_all_groups(tmp_path: Path) -> None:
    def work(number: int) -> None:
        mine, both = f"own{number}", files_of({"shared": f"by {number}"})
        for turn in range(8):
            write(tmp_path, files_of({f"{mine}/f": f"{turn}"}, mine), {mine}, wait_s=60)
            write(tmp_path, both, G, wait_s=60)

    pids = [child(functools.partial(work, number)) for number in range(3)]
    assert [finish(pid) for pid in pids] == [0, 0, 0]
    winner = (tmp_path / "shared").read_text()
    assert winner in {"by 0", "by 1", "by 2"}
    assert check(tmp_path, files_of({"shared": winner}), G) == []
    for number in range(3):
        group = f"own{number}"
        assert check(tmp_path, files_of({f"{group}/f": "7"}, group), {group}) == []
    assert debris(tmp_path) == []
