"""The files of a pip lock: what installers read, and lock.json for everything else.

requirements.txt is installed from the package index, requirements-torch.txt (for a cell whose torch
family comes from an index of its own) from that one alone: no name can be taken from the other.

Pure, and the same bytes for the same lock: sorted, no clock, no address, no path.
"""

from __future__ import annotations

import hashlib

import msgspec

from provisioner.lock.model import Lock, LockedPackage
from provisioner.render.fileset import FileSet

LOCK = "lock.json"
REQUIREMENTS = "requirements.txt"
REQUIREMENTS_TORCH = "requirements-torch.txt"
FROM_TORCH_INDEX = ("torch-index", "recorded")


def group_of(cell: str) -> str:
    """Returns the manifest group that owns the lock of a cell."""
    return f"lock:{cell}"


def folder_of(cell: str) -> str:
    """Returns the folder of a cell's locks, below the output root."""
    return f"lockfiles/{cell}"


def complete(lock: Lock) -> Lock:
    """Returns the lock with the hashes of its requirements files."""
    hashes = {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in requirements_texts(lock).items()
    }
    return msgspec.structs.replace(lock, requirements=hashes)


def lock_files(lock: Lock) -> FileSet:
    """Returns all files of the lock, owned by the group of this cell's lock."""
    files = FileSet()
    group, folder = group_of(lock.cell), folder_of(lock.cell)
    files.add(f"{folder}/{LOCK}", lock_bytes(lock), group=group)
    for name, text in requirements_texts(lock).items():
        files.add(f"{folder}/{name}", text, group=group)
    return files


def requirements_texts(lock: Lock) -> dict[str, str]:
    """Returns file name -> text in pip's requirements format, one for each index."""
    family = [package for package in lock.packages if package.origin in FROM_TORCH_INDEX]
    others = [package for package in lock.packages if package.origin not in FROM_TORCH_INDEX]
    texts = {REQUIREMENTS: _text(lock, others, "the package index")}
    if family:
        texts[REQUIREMENTS_TORCH] = _text(lock, family, "the torch index of the cell's variant")
    return texts


def _text(lock: Lock, packages: list[LockedPackage], index: str) -> str:
    target = lock.platforms[0]
    day = f"packages as of {lock.as_of}" if lock.as_of is not None else "packages of any day"
    lines = [
        f"# Written by `provision lock {lock.cell}`. Do not edit: run it again.",
        f"# CPython {target.python}, Linux {target.arch}, glibc {target.glibc} or newer; {day}.",
        f"# From {index}.",
        "# Install: pip install --no-deps --only-binary :all: --require-hashes -r FILE",
    ]
    for package in packages:
        hashes = sorted({file.sha256 for file in package.files})
        lines.append(f"{package.name}=={package.version} \\")
        lines += [f"    --hash=sha256:{value} \\" for value in hashes]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


def lock_bytes(lock: Lock) -> bytes:
    """Returns lock.json."""
    return msgspec.json.format(msgspec.json.encode(lock), indent=2) + b"\n"


def read_lock(raw: bytes) -> Lock:
    """Returns the lock in a lock.json; raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(raw, type=Lock)
