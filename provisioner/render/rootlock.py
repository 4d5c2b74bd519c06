"""One writer at a time below an output root.

The kernel holds the lock (flock), so that it ends with the process whatever ends it; the file
`.provision-lock` is only its handle and the place for the holder's process number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = ".provision-lock"
_POLL_S = 0.05
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BusyError(OutsideError):
    """Another live process writes below the root; `pid` is None when it can't be told."""

    def __init__(self, root: Path, pid: int | None, waited_s: float) -> None:
        holder = f"Process {pid}" if pid is not None else "Another process"
        super().__init__(
            "output.busy",
            f"{holder} is writing below {root}; waited {waited_s:g} s for it.",
            facts={"root": str(root), "pid": pid, "waited_s": waited_s},
            next_step="Wait until it has ended, then run this again.",
        )
        self.pid = pid


@contextlib.contextmanager
def locked(root: Path, *, wait_s: float) -> Iterator[None]:
    """Holds the root's lock; raises BusyError when another process keeps it over `wait_s`.

    `root` must exist. OSErrors of a root that can't be written come out as they are.
    """
    fd = _acquire(root, wait_s)
    try:
        yield
    finally:
        # Removed while held: whoever waits on this inode sees that the name is gone.
        with contextlib.suppress(OSError):
            (root / LOCK).unlink()
        os.close(fd)


def held(root: Path) -> bool:
    """Whether a live process holds the root's lock; changes nothing."""
    try:
        fd = os.open(root / LOCK, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _acquire(root: Path, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while True:
        fd = _open(root)
        try:
            if _take(fd, root):
                return fd
            pid = _holder(fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() >= deadline:
            raise BusyError(root, pid, wait_s)
        time.sleep(_POLL_S)


def _take(fd: int, root: Path) -> bool:
    """Locks the file and signs it; False when it is held, or was removed by its last holder."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not _still_named(fd, root):
        return False
    _sign(fd)
    return True


def _open(root: Path) -> int:
    path = root / LOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o644)
    except PermissionError:
        # Left by another user (a killed `sudo provision`): reading it is enough to lock it.
        if not path.is_file():
            raise
        return os.open(path, os.O_RDONLY | _FLAGS)


def _still_named(fd: int, root: Path) -> bool:
    try:
        named = (root / LOCK).lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _sign(fd: int) -> None:
    # Only for the other side's message: a full disk or a read-only handle must not matter.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)


def _holder(fd: int) -> int | None:
    try:
        pid = int(os.pread(fd, 32, 0))
    except (OSError, ValueError):
        return None
    # A number left by a dead process names nobody.
    return pid if pid > 0 and Path("/proc", str(pid)).exists() else None
