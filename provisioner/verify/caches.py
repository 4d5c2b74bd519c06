"""Finds and removes damaged entries of the compile caches of torch and Triton.

torch trusts what lies there: a kernel library or a `.cubin` that was cut short kills every process
that loads it, at every start, and is never built again (measured on torch 2.0.1, 2.13.0 and, for
`.cubin`, 2.11.0). Cut pickles of the graph caches are no danger: torch reads past them.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from provisioner.errors import OutsideError
from provisioner.verify.probe import default_cache, host_machine, read_elf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CUDA_MACHINE = 190
_JSON_LIMIT = 8 << 20
_NAMELESS = "2.13.0"
"""From this release on a user without a name has a cache folder as well."""

_BESIDE = (".so", ".o", ".lock", ".cpp")
"""What belongs to one kernel library: with the source gone, too, it is generated again."""

Kind = Literal["library", "cubin", "metadata", "foreign", "unreadable"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged entry. `remove` are files of this user to take away; empty: not ours to touch.

    kinds: library (a `.so` that cannot be loaded here), cubin (no whole CUDA image), metadata (a
    `.json` of Triton that cannot be read), foreign (a file of another user), unreadable.
    """

    path: Path
    kind: Kind
    problem: str
    remove: tuple[Path, ...] = ()


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at: the folders that are there, and how many files they hold."""

    folders: tuple[Path, ...]
    files: int
    damaged: tuple[Entry, ...]


def default_folders(environ: Mapping[str, str]) -> list[Path]:
    """Returns the cache folders of this user, there or not: Inductor's, then Triton's."""
    user = {"name": environ.get("USER") or _user(), "uid": os.geteuid(), "error": None}
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache(user, _NAMELESS)
    home = environ.get("TRITON_HOME") or str(Path("~").expanduser())
    triton = environ.get("TRITON_CACHE_DIR") or str(Path(home, ".triton", "cache"))
    return [Path(folder) for folder in (inductor, triton) if folder]


def _user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def look(folders: list[Path]) -> Looked:
    """Returns what is damaged below the folders; a folder that is not there holds nothing.

    Links are not followed. Raises OutsideError for a folder that cannot be listed at all.
    """
    there = tuple(folder for folder in folders if folder.is_dir())
    damaged: list[Entry] = []
    files = 0
    for folder in there:
        for path, status in _files(folder):
            files += 1
            entry = _judge(path, status)
            if entry is not None:
                damaged.append(entry)
    return Looked(folders=there, files=files, damaged=tuple(damaged))


def clear(looked: Looked) -> list[Path]:
    """Removes what the damaged entries name, if it is still this user's file; returns what went.

    Nothing outside the folders that were looked at is touched, and no folder is removed.
    """
    gone: list[Path] = []
    for entry in looked.damaged:
        for path in entry.remove:
            try:
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    continue
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OutsideError(
                    "cache.cannot-remove",
                    f"{path} cannot be removed: {error.strerror}.",
                    facts={"removed": [str(done) for done in gone]},
                    next_step="Have its folder made writable, or remove it as its owner.",
                ) from None
            gone.append(path)
    return gone


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    def refuse(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise OutsideError(
                "cache.unreadable",
                f"The cache folder {folder} cannot be read: {error.strerror}.",
                facts={"folder": str(folder)},
                next_step="Run this as the user whose cache it is.",
            ) from None

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            try:
                status = path.lstat()
            except OSError:
                continue  # another process has just removed it
            if stat.S_ISREG(status.st_mode):
                yield path, status


def _judge(path: Path, status: os.stat_result) -> Entry | None:
    if status.st_uid != os.geteuid():
        owner = f"belongs to uid {status.st_uid}: whoever owns a file here can run code as you"
        return Entry(path=path, kind="foreign", problem=owner)
    if path.suffix == ".so":
        return _library(path)
    if path.suffix == ".cubin":
        return _cubin(path)
    if path.suffix == ".json":
        return _metadata(path)
    return None


def _library(path: Path) -> Entry | None:
    elf = read_elf(str(path))
    problem = elf["problem"]
    if problem is None and elf["machine"] != host_machine():
        problem = f"built for ELF machine {elf['machine']}, this machine is {host_machine()}"
    if problem is None:
        return None
    beside = [path.with_suffix(suffix) for suffix in _BESIDE]
    found = tuple(file for file in beside if file.is_file())
    return Entry(path=path, kind="library", problem=str(problem), remove=found)


def _cubin(path: Path) -> Entry | None:
    elf = read_elf(str(path))
    problem = elf["problem"]
    if problem is None and elf["machine"] != _CUDA_MACHINE:
        problem = f"ELF machine {elf['machine']}, a CUDA image has {_CUDA_MACHINE}"
    if problem is None:
        return None
    return Entry(path=path, kind="cubin", problem=str(problem), remove=_whole_entry(path.parent))


def _metadata(path: Path) -> Entry | None:
    try:
        with path.open("rb") as stream:
            json.loads(stream.read(_JSON_LIMIT))
    except OSError as error:
        return Entry(path=path, kind="unreadable", problem=error.strerror or "cannot be read")
    except (ValueError, RecursionError):
        # Triton keeps one entry in one folder: half an entry is worse than none.
        triton = any(file.suffix in (".ttir", ".ptx", ".cubin") for file in path.parent.iterdir())
        remove = _whole_entry(path.parent) if triton else (path,)
        return Entry(path=path, kind="metadata", problem="is no JSON", remove=remove)
    return None


def _whole_entry(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.iterdir() if file.is_file()))
