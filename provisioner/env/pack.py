"""Packs an environment whole, for hosts whose own Python is too old for provision.

One tar archive: the program that unpacks it there (unpack.py), a manifest with the hash of each
file, and the files. The same environment gives the same bytes: sorted, no owner, no clock.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from provisioner.conda import prefix as prefixes
from provisioner.env.check import CheckOptions, cell_of, check_env
from provisioner.env.finding import error_of
from provisioner.env.inventory import read_inventory
from provisioner.env.ownership import file_hash
from provisioner.env.unpack import INSIDE, MANIFEST, SCHEMA
from provisioner.errors import OutsideError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.env.expected import Expected

_UNPACK = Path(__file__).with_name("unpack.py")
_EPOCH = 315532800
"""1980: what an archive says where the time of a file tells nothing."""
_PYC_HEADER = 16


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What `pack_env` wrote: sizes in bytes, the sha256 of the archive."""

    cell: str
    prefix: Path
    link: Path
    files: int
    size: int
    sha256: str


def pack_env(place: Path, target: Path, glibc: str | None) -> Packed:
    """Writes the archive of an environment that `provision env create` made, after proving it.

    `glibc` is what a host needs at least. Raises UsageError for a name of another kind,
    OutsideError `env.not-made-here` or `env.pack-not-written`, FindingError `env.check-failed`.
    """
    if not target.name.endswith((".tar", ".tar.gz")):
        raise UsageError("env.pack-name", f"{target} ends neither in .tar nor in .tar.gz.")
    if not target.parent.is_dir():
        raise _not_written(target, "there is no such folder")
    prefix = Path(os.path.realpath(place))
    cell = cell_of(prefix)
    if cell is None or not prefixes.is_whole(prefix) or not prefix.parent.name.endswith(".d"):
        raise OutsideError(
            "env.not-made-here",
            f"{place} is no whole environment of `provision env create`.",
            next_step="provision env create CELL --prefix DIR, for the path that it has there.",
        )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    findings = check_env(prefix, CheckOptions(environ=clean | {"PYTHONNOUSERSITE": "1"}))
    if findings:
        raise error_of(findings, str(place))
    manifest, times = manifest_of(prefix, cell, glibc)
    link = Path(manifest["link"])
    aside = target.with_name(f".new-{target.name}")
    try:
        with aside.open("wb") as stream:
            _write(stream, prefix, manifest, times, compress=target.name.endswith(".gz"))
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(target)
    except OSError as error:
        raise _not_written(target, error.strerror or str(error)) from None
    finally:
        aside.unlink(missing_ok=True)
    return Packed(
        cell=cell.name,
        prefix=prefix,
        link=link,
        files=len(manifest["files"]),
        size=target.stat().st_size,
        sha256=file_hash(target),
    )


def _not_written(target: Path, why: str) -> OutsideError:
    return OutsideError(
        "env.pack-not-written",
        f"{target} cannot be written: {why}.",
        next_step="Name a file in a folder that is there and has room.",
    )


def manifest_of(
    prefix: Path, cell: Expected, glibc: str | None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns what unpack.py is told, and path -> time of the files that have one."""
    owned = read_inventory(prefix).conda_owners()
    files, links, folders = _walk(prefix, owned.keys())
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        hashes = list(pool.map(lambda path: file_hash(prefix / path), files))
    entries = {}
    for path, sha256 in zip(files, hashes, strict=True):
        about = (prefix / path).stat()
        executable = bool(about.st_mode & 0o100)
        entries[path] = {"sha256": sha256, "size": about.st_size, "executable": executable}
    base = None
    if cell.python_from == "base":
        base = os.path.realpath(prefix / "bin" / "python")
    told = {
        "schema": SCHEMA,
        "cell": cell.name,
        "prefix": str(prefix),
        "link": str(prefix.parent).removesuffix(".d"),
        "arch": cell.arch,
        "glibc": glibc,
        "python": cell.python,
        "local_version": cell.local_version,
        "base_python": base,
        "folders": folders,
        "links": links,
        "files": entries,
    }
    return told, dict(_times(prefix, files))


def _walk(prefix: Path, owned: Any) -> tuple[list[str], dict[str, str], list[str]]:
    """Files, links and folders, sorted. Compiled Python comes along where conda ships it."""
    files: list[str] = []
    links: dict[str, str] = {}
    folders: list[str] = []
    for folder, names, entries in os.walk(prefix):
        base = Path(folder)
        for name in [*names, *entries]:
            path = base / name
            below = str(path.relative_to(prefix))
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                links[below] = str(path.readlink())
            elif stat.S_ISDIR(mode):
                folders.append(below)
            elif stat.S_ISREG(mode) and (not name.endswith(".pyc") or below in owned):
                files.append(below)
    return sorted(files), dict(sorted(links.items())), sorted(folders)


def _times(prefix: Path, files: list[str]) -> Iterator[tuple[str, int]]:
    """The time of each source that compiled code comes along for: else it would count as stale."""
    for path in files:
        folder, _, name = path.rpartition("/")
        if not name.endswith(".pyc") or not folder.endswith("__pycache__"):
            continue
        with (prefix / path).open("rb") as stream:
            header = stream.read(_PYC_HEADER)
        if len(header) == _PYC_HEADER and header[4:8] == bytes(4):  # stale by time, not by hash
            source = f"{folder.removesuffix('__pycache__')}{name.split('.', 1)[0]}.py"
            yield source, int.from_bytes(header[8:12], "little")


def _write(
    stream: IO[bytes],
    prefix: Path,
    manifest: dict[str, Any],
    times: dict[str, int],
    *,
    compress: bool,
) -> None:
    if compress:
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0, compresslevel=6) as out:
            _tar(out, prefix, manifest, times)
    else:
        _tar(stream, prefix, manifest, times)


def _tar(out: Any, prefix: Path, manifest: dict[str, Any], times: dict[str, int]) -> None:
    text = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("unpack.py", _UNPACK.read_bytes()), (MANIFEST, text)):
            tar.addfile(_member(name, len(data), _EPOCH), io.BytesIO(data))
        for path, entry in manifest["files"].items():
            member = _member(INSIDE + path, entry["size"], times.get(path, _EPOCH))
            member.mode = 0o755 if entry["executable"] else 0o644
            with (prefix / path).open("rb") as stream:
                source = _Hashing(stream)
                tar.addfile(member, source)  # type: ignore[arg-type]  # it only reads
            if source.sha256 != entry["sha256"]:
                raise OutsideError("env.pack-changed", f"{prefix / path} changed meanwhile.")


def _member(name: str, size: int, mtime: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, mtime, 0o644
    return member


class _Hashing:
    """A stream that is hashed while it is read to its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._found = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._found.update(block)
        return block

    @property
    def sha256(self) -> str:
        return self._found.hexdigest()
