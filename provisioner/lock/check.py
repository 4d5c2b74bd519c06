"""Whether the lock on disk still answers its cell, and if not, why. No network and no engine.

quick.py gives the same answer for an unchanged lock, sooner.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from provisioner.lock.inputs import lock_input
from provisioner.lock.model import Choices, Lock
from provisioner.lock.writer import LOCK, complete, folder_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

State = Literal["current", "missing", "changed-inputs", "edited", "damaged"]

SAID: dict[State, str] = {
    "current": "answers its cell",
    "missing": "is missing",
    "changed-inputs": "was made for other inputs than the cell has now",
    "edited": "has requirements that are not those of its lock.json",
    "damaged": "has a lock.json that cannot be read",
}
_LIMIT = 64 << 20
_ANY_GLIBC = "2.17"
"""The digest does not look at it."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the lock of a cell stands. `lock` is there when lock.json could be read."""

    cell: str
    state: State
    lock: Lock | None = None


def standing(root: Path, cell: Mapping[str, Any], choices: Choices | None = None) -> Standing:
    """Returns how the lock below `root` stands to `cell`.

    `choices` are those of the command line; None means those that the lock was made with.
    """
    folder = root / folder_of(cell["name"])
    raw = _read(folder / LOCK)
    if raw is None:
        return Standing(cell=cell["name"], state="missing")
    try:
        lock = msgspec.json.decode(raw, type=Lock)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return Standing(cell=cell["name"], state="damaged")
    wanted = lock_input(
        cell, lock.chosen if choices is None else choices, _ANY_GLIBC, lock.provided
    )
    if lock.inputs != wanted.digest():
        return Standing(cell=cell["name"], state="changed-inputs", lock=lock)
    found = {name: _sha256(folder / name) for name in lock.requirements}
    # The packages of lock.json must give those very files, whatever hashes it states.
    if not found or found != lock.requirements or complete(lock).requirements != found:
        return Standing(cell=cell["name"], state="edited", lock=lock)
    return Standing(cell=cell["name"], state="current", lock=lock)


def _sha256(path: Path) -> str | None:
    raw = _read(path)
    return hashlib.sha256(raw).hexdigest() if raw is not None else None


def _read(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > _LIMIT:
            return b"" if path.exists() else None
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
