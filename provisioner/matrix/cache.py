"""A parsed matrix on disk, so that a warm start reads no YAML.

The cache is a convenience and never a source of errors: when it cannot be read, trusted or written,
the matrix is read from its YAML. An entry is trusted only when it is a regular file of this user
that nobody else may write, and its digest is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

_MAGIC = b"provision-matrix-1\n"
_DIGEST = 32
_MAX_ENTRY = 32_000_000
_KEEP = 8
_LEFT_SECONDS = 3600


def cache_directory() -> Path | None:
    """$XDG_CACHE_HOME/provision or ~/.cache/provision; None without a home directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "provision"
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    # "/" is what comes out where there is none.
    return Path(home) / ".cache" / "provision" if home.startswith("/") and home != "/" else None


def read_entry(directory: Path, key: str) -> bytes | None:
    """The payload stored under a key, or None when there is none that can be trusted."""
    try:
        data = _read_trusted(_entry(directory, key))
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST
    payload = data[head:]
    if (
        data[: len(_MAGIC)] != _MAGIC
        or hashlib.sha256(payload).digest() != data[len(_MAGIC) : head]
    ):
        return None
    return payload


def _read_trusted(path: Path) -> bytes:
    """The content of a file that only this user may write; empty for any other."""
    # Not to be held up by a pipe that somebody put there.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        about = os.fstat(descriptor)
        if (
            not stat.S_ISREG(about.st_mode)
            or about.st_uid != os.geteuid()
            or about.st_mode & 0o022
            or about.st_size > _MAX_ENTRY
        ):
            return b""
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def write_entry(directory: Path, key: str, payload: bytes) -> None:
    """Store a payload in one step (written aside, renamed); silent when that is not possible."""
    import tempfile  # costs start-up time, and most runs read only

    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.geteuid():
            return  # e.g. sudo with the caller's HOME: leave no root-owned files there
        descriptor, name = tempfile.mkstemp(prefix=".new-", dir=directory)
        aside = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            aside.replace(_entry(directory, key))
        except OSError:
            aside.unlink(missing_ok=True)
            return
        _prune(directory)


def _entry(directory: Path, key: str) -> Path:
    return directory / f"matrix-{key}.msgpack"


def _prune(directory: Path) -> None:
    """Keep the newest entries only: each edit of a matrix makes a new one."""
    entries = sorted(
        directory.glob("matrix-*.msgpack"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for old in entries[_KEEP:]:
        old.unlink(missing_ok=True)
    for left in directory.glob(".new-*"):  # of a writer that was killed
        if left.stat().st_mtime < entries[0].stat().st_mtime - _LEFT_SECONDS:
            left.unlink(missing_ok=True)
