"""Writes files into a bundle: whole or not at all, by their hash, with a full disk as one message.

Nothing unfinished keeps a name of the list: it is `.part-NAME` until every byte is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from provisioner.bundle.model import PARTIAL, BundleFile
from provisioner.errors import FindingError, OutsideError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_stream(
    folder: Path,
    path: str,
    pieces: Iterable[bytes],
    sha256: str | None,
    told: Callable[[int], None] | None = None,
) -> BundleFile:
    """Writes a file from pieces and returns what it is.

    With `sha256` (hex) another content is refused: FindingError `bundle.wrong-hash`, and no file.
    Raises OutsideError `bundle.no-space` or `bundle.not-written`.
    """
    target = folder / path
    partial = target.with_name(PARTIAL + target.name)
    digest, size = hashlib.sha256(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
                digest.update(piece)
                size += len(piece)
                if told is not None:
                    told(len(piece))
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        found = digest.hexdigest()
        if sha256 is not None and found != sha256:
            raise FindingError(
                "bundle.wrong-hash",
                f"{target.name} is not what was locked: its sha256 differs.",
                facts={"locked": sha256, "found": found, "bytes": size},
                next_step="Do not use it. Check the index or its mirror; lock again if the file "
                "changed by right.",
            )
        partial.replace(target)
    except OSError as error:
        raise not_written(error, target) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return BundleFile(path=path, size=size, sha256=found)


def write_bytes(folder: Path, path: str, data: bytes) -> BundleFile:
    """Writes a small file; one that has this content already is left as it is."""
    target = folder / path
    file = BundleFile(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    with contextlib.suppress(OSError):
        plain = target.is_file() and not target.is_symlink()
        if plain and target.stat().st_size == len(data) and target.read_bytes() == data:
            return file
    return write_stream(folder, path, [data], file.sha256)


def remove(folder: Path, path: str) -> None:
    """Removes a file of the bundle, and the folders that are empty then."""
    try:
        (folder / path).unlink(missing_ok=True)
    except OSError as error:
        raise not_written(error, folder / path) from None
    place = (folder / path).parent
    while place != folder:
        try:
            place.rmdir()
        except OSError:
            return
        place = place.parent


def require_room(folder: Path, needed: int) -> None:
    """Raises OutsideError `bundle.no-space` where the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutsideError(
            "bundle.no-space",
            f"The disk of {folder} has {readable(free)} free; the bundle still needs "
            f"{readable(needed)}.",
            facts={"free_bytes": free, "needed_bytes": needed},
            next_step="Make room there, or name a folder on a larger disk.",
        )


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps other runs out of it; raises OutsideError `bundle.busy`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise not_written(error, folder) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutsideError(
                "bundle.busy",
                f"Another provision works on {folder}.",
                next_step="Wait until it has ended, or name another folder.",
            ) from None
        yield
    finally:
        os.close(descriptor)


def not_written(error: OSError, target: Path) -> OutsideError:
    """Returns the error for a file that the system would not take."""
    if error.errno in _FULL:
        return OutsideError(
            "bundle.no-space",
            f"The disk ran full while {target.name} was written.",
            facts={"file": str(target)},
            next_step="Make room and run the command again: what is there is kept.",
        )
    return OutsideError(
        "bundle.not-written",
        f"{target} cannot be written: {(error.strerror or str(error)).lower()}.",
        next_step="Name a folder that you may write to.",
    )


def readable(size: int) -> str:
    """A number of bytes for people."""
    if size < 1_000_000:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:.0f} MB" if size < 1_000_000_000 else f"{size / 1e9:.2f} GB"
