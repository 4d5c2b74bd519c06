"""Files of a fleet: whole or not there, private to their owner, read with a limit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError
from provisioner.regular import read_regular

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 2 << 30
"""No file of a fleet is larger, in bytes."""


def write_whole(path: Path, data: bytes) -> str:
    """Writes a file under its name in one step, synced; returns its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)  # noqa: PTH105 - the name is a string
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
    sync_folder(path.parent)
    return sha256(data)


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(path: Path, what: str, next_step: str) -> bytes:
    """The bytes of a file; raises OutsideError, with the next step, where there is none."""
    try:
        return read_regular(path, LIMIT)
    except OSError as error:
        raise OutsideError(
            "fleet.unreadable",
            f"{what} {path} cannot be read: {(error.strerror or str(error)).lower()}.",
            next_step=next_step,
        ) from None


def sha256(data: bytes) -> str:
    """The hexadecimal digest of bytes."""
    return hashlib.sha256(data).hexdigest()
