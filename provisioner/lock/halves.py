"""Both halves of a cell's lock as they lie in a folder: pip's lock.json, conda's conda-lock.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.cells import not_rendered
from provisioner.conda import explicit, virtual
from provisioner.errors import FindingError
from provisioner.lock.licenses import FILE as LICENSES
from provisioner.lock.licenses import read_licenses
from provisioner.lock.writer import LOCK, folder_of, read_lock
from provisioner.regular import read_regular
from provisioner.render.fileset import check_path
from provisioner.render.spec import read_spec

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.conda.explicit import CondaLock
    from provisioner.lock.licenses import Licenses
    from provisioner.lock.model import Lock

LIMIT = 64 << 20
Reader = Callable[[str], bytes | None]
"""File name -> its content, None where there is no such file."""


@dataclass(frozen=True, kw_only=True)
class Halves:
    """What a folder of locks holds. `conda` is None for a cell on the base image's Python."""

    lock: Lock
    conda: CondaLock | None


@dataclass(frozen=True, kw_only=True)
class LockedCell:
    """A rendered cell (plain values, as spec.json has them) with both of its locks."""

    name: str
    cell: Mapping[str, Any]
    mirrors: Mapping[str, str]
    halves: Halves
    licenses: Licenses


def read_cell(root: Path, name: str) -> LockedCell:
    """Returns a rendered and locked cell below `root`; raises UsageError `cell.not-rendered`,
    FindingError `lock.not-*`.
    """
    path = check_path(f"docker/{name}/spec.json")
    raw = folder_reader((root / path).parent)("spec.json")
    if raw is None:
        raise not_rendered(root, name)
    spec = read_spec(raw, path)
    folder = root / folder_of(name)
    conda = spec.cell["python_from"] == "conda"
    read = folder_reader(folder)
    halves = read_halves(read, str(folder), spec.cell["arch"], conda=conda)
    licenses = read_licenses(read(LICENSES), name)
    return LockedCell(
        name=name, cell=spec.cell, mirrors=spec.mirrors, halves=halves, licenses=licenses
    )


def read_halves(read: Reader, where: str, arch: str, *, conda: bool | None = None) -> Halves:
    """Returns the locks that `read` gives. `conda` says whether there must be a conda half.

    None takes it where it is. Raises FindingError (`lock.not-locked`, `lock.damaged`,
    `conda.lock-*`); `where` is named in it.
    """
    raw = read(LOCK)
    record = None if conda is False else read(explicit.RECORD)
    missing = LOCK if raw is None else explicit.RECORD if conda and record is None else None
    if raw is None or missing is not None:
        raise FindingError(
            "lock.not-locked",
            f"{where} holds no {missing}.",
            next_step="Lock the cell first (`provision lock CELL`), or name another folder.",
        )
    try:
        lock = read_lock(raw)
    except msgspec.MsgspecError as error:
        raise FindingError(
            "lock.damaged",
            f"{LOCK} of {where} cannot be read: {error}.",
            next_step="Restore it from version control, or lock again (`provision lock CELL`).",
        ) from None
    parsed = None
    if record is not None:
        parsed = explicit.parse_conda_lock(record, virtual.SUBDIRS[arch])
    return Halves(lock=lock, conda=parsed)


def folder_reader(folder: Path) -> Reader:
    """Returns what reads the files of a folder; FindingError `lock.unreadable` for a refusal."""

    def read(name: str) -> bytes | None:
        path = folder / name
        try:
            raw = read_regular(path, LIMIT + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FindingError(
                "lock.unreadable", f"{path} cannot be read: {error.strerror}."
            ) from None
        if len(raw) > LIMIT:
            raise FindingError("lock.unreadable", f"{path} is over 64 MiB: no lock is.")
        return raw

    return read
