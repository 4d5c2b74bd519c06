"""Writes one file whole or not at all: after kill -9 or on a full disk the old one stands."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Puts `content` in the place of a file, readable by everybody; its folder must be there.

    Raises OSError as the system gives it; nothing is left beside the file then.
    """
    folder = path.absolute().parent
    # A name of 255 bytes is allowed and leaves no room for more.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", dir=folder)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(folder)


def _sync(folder: Path) -> None:
    """Brings the new name to the disk, where the file system lets folders be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # a folder that may be written and not read
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
