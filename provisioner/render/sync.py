"""Syncs many open files or folders to the disk, several at a time.

On a busy disk each sync waits for a flush. Flushes that wait together are served together, so
that many files take little more time than a few; one after the other they would add up.
"""

from __future__ import annotations

import errno
import os
import threading

MOST_OPEN = 256
_FEW = 16
_THREADS = 16
# Some network and FUSE file systems can't sync a folder: they keep the order by themselves.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)


def batch_size() -> int:
    """Returns how many files to hold open for one `sync_all`, within the descriptor limit."""
    return max(_FEW, min(MOST_OPEN, os.sysconf("SC_OPEN_MAX") // 4))


def sync_all(fds: list[int], *, folders: bool = False) -> None:
    """Makes all the open files durable; raises the first OSError met, after trying them all.

    With `folders` a file system that can't sync a folder is no error.
    """
    errors: list[OSError] = []

    def work(part: list[int]) -> None:
        for fd in part:
            error = _sync(fd)
            if error is not None and not (folders and error.errno in _NO_FOLDER_SYNC):
                errors.append(error)

    count = _THREADS if len(fds) > _FEW else 1
    mine = fds[::count]
    threads = []
    for first in range(1, count):
        thread = threading.Thread(target=work, args=(fds[first::count],))
        if _started(thread):
            threads.append(thread)
        else:
            mine = mine + fds[first::count]
    work(mine)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _sync(fd: int) -> OSError | None:
    try:
        os.fsync(fd)
    except OSError as error:
        return error
    return None


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # this user may have no more threads
        return False
    return True
