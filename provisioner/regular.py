"""Reads whole files that a user or a checkout names, without ever waiting for a pipe or device."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISFIFO, "is a pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISDIR, "is a directory"),
)


class NotAFileError(OSError):
    """Something other than a regular file; `strerror` says what it is."""


def read_regular(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file, at most its first `limit` bytes.

    Symbolic links are followed. Raises NotAFileError for a pipe, a device, a socket or a folder,
    any other OSError as the system gives it.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            said = next((text for test, text in _KINDS if test(mode)), "is a device, not a file")
            raise NotAFileError(errno.EINVAL, said, str(path))
        data = bytearray()
        while len(data) < limit and (piece := os.read(descriptor, limit - len(data))):
            data += piece
        return bytes(data)
    finally:
        os.close(descriptor)
