"""Holds the files of a bundle against its list: changed, missing, extra."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from provisioner.bundle.model import MANIFEST, SUMS, Bundle, part_of, sums_bytes
from provisioner.errors import FindingError, OutsideError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from provisioner.bundle.model import BundleFile, Part

_PIECE = 1 << 20
_SHOWN = 5


class Difference(NamedTuple):
    """One file that is not as it was gathered."""

    path: str
    kind: Literal["changed", "missing", "extra"]


def differences(
    folder: Path,
    bundle: Bundle,
    parts: Collection[Part] | None = None,
    told: Callable[[int], None] | None = None,
) -> list[Difference]:
    """Returns what differs, sorted by path; every byte is read.

    With `parts` only files of these count. `told` gets the number of bytes read, again and again.
    Raises OutsideError where the system refuses to read.
    """
    known = {file.path: file for file in bundle.files}
    found = []
    for path, whole in present(folder):
        if path in (MANIFEST, SUMS):
            if path == SUMS and not (whole and _same(folder / SUMS, sums_bytes(bundle))):
                found.append(Difference(path, "changed"))
            continue
        if parts is not None and part_of(path) not in parts:
            known.pop(path, None)
            continue
        file = known.pop(path, None)
        if file is None:
            found.append(Difference(path, "extra"))
        elif not whole or not is_right(folder / path, file, told):
            found.append(Difference(path, "changed"))
    gone = [path for path in known if parts is None or part_of(path) in parts]
    if not (folder / SUMS).exists():
        gone.append(SUMS)
    return sorted([*found, *(Difference(path, "missing") for path in gone)])


def require_whole(
    folder: Path,
    bundle: Bundle,
    parts: Collection[Part] | None = None,
    told: Callable[[int], None] | None = None,
) -> None:
    """Raises FindingError `bundle.not-whole` that names what differs."""
    found = differences(folder, bundle, parts, told)
    if not found:
        return
    names = ", ".join(f"{path} ({kind})" for path, kind in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    counted = "1 file is" if len(found) == 1 else f"{len(found)} files are"
    raise FindingError(
        "bundle.not-whole",
        f"{counted} not as gathered in {folder}: {names}{more}.",
        facts={"files": dict(found)},
        next_step="Do not use it. Copy the bundle again, or gather it again.",
    )


def present(folder: Path) -> list[tuple[str, bool]]:
    """Returns every entry below a folder that is no folder, and whether it is a plain file.

    A link to a folder is an entry, too: it is never followed. Raises OutsideError.
    """
    found: list[tuple[str, bool]] = []

    def refuse(error: OSError) -> None:
        raise _unreadable(error)

    for place, folders, names in os.walk(folder, onerror=refuse):
        linked = [name for name in folders if os.path.islink(f"{place}/{name}")]  # noqa: PTH114
        for name in (*names, *linked):
            path = os.path.join(place, name)  # noqa: PTH118
            plain = stat.S_ISREG(os.lstat(path).st_mode)
            found.append((os.path.relpath(path, folder), plain))
    return sorted(found)


def is_right(path: Path, file: BundleFile, told: Callable[[int], None] | None = None) -> bool:
    """Returns whether a file has the size and the hash of the list; raises OutsideError."""
    try:
        if path.stat().st_size != file.size:
            return False
        return sha256_of(path, told) == file.sha256
    except OSError as error:
        raise _unreadable(error) from None


def sha256_of(path: Path, told: Callable[[int], None] | None = None) -> str:
    """Returns the hex SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
            if told is not None:
                told(len(piece))
    return digest.hexdigest()


def _same(path: Path, wanted: bytes) -> bool:
    try:
        return path.stat().st_size == len(wanted) and path.read_bytes() == wanted
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> OutsideError:
    return OutsideError(
        "bundle.unreadable",
        f"{error.filename} cannot be read: {(error.strerror or str(error)).lower()}.",
        next_step="Check the medium that the bundle is on, and who may read it.",
    )
