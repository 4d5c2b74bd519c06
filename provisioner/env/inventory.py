"""What lies in a prefix, as conda and pip each wrote it down. Reads metadata, no package code."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - type of a field

from provisioner.errors import OutsideError

_SEPARATORS = re.compile(r"[-_.]+")
_LINKED = frozenset({"hardlink", "unix_python_entry_point", "softlink"})


@dataclass(frozen=True, kw_only=True)
class CondaFile:
    """A file of a conda package. `sha256` is what it has in this prefix, None when unknown."""

    path: str
    sha256: str | None
    link: bool


@dataclass(frozen=True, kw_only=True)
class CondaPackage:
    """A package as conda-meta has it."""

    name: str
    version: str
    files: tuple[CondaFile, ...]


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """A line of a RECORD; the path is below the prefix, `sha256` hex or None."""

    path: str
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A .dist-info folder. `owner` is the conda package that wrote it, None when it is pip's."""

    name: str
    version: str
    folder: str
    files: tuple[RecordedFile, ...]
    owner: str | None
    has_metadata: bool
    has_record: bool

    @property
    def label(self) -> str:
        """As people say it."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """A prefix as conda and pip describe it. `sites` are site-packages folders below it."""

    prefix: Path
    conda: tuple[CondaPackage, ...]
    distributions: tuple[Distribution, ...]
    sites: tuple[str, ...]

    def conda_owners(self) -> dict[str, str]:
        """Returns path below the prefix -> the conda package that owns it."""
        return {file.path: package.name for package in self.conda for file in package.files}

    def of_conda(self) -> dict[str, str]:
        """Returns normalized name -> version of the distributions that conda owns."""
        return {d.name: d.version for d in self.distributions if d.owner is not None}


def normalized(name: str) -> str:
    """Returns a distribution name as PEP 503 writes it."""
    return _SEPARATORS.sub("-", name).lower()


def read_inventory(prefix: Path) -> Inventory:
    """Returns what a prefix holds; raises OutsideError (`env.no-environment`, `env.unreadable`)."""
    if not (prefix / "bin").is_dir():
        raise OutsideError(
            "env.no-environment",
            f"There is no environment in {prefix}.",
            next_step="Name the folder that holds bin/python.",
        )
    conda = tuple(_conda_package(path) for path in sorted((prefix / "conda-meta").glob("*.json")))
    sites = _sites(prefix)
    owners = {file.path: package.name for package in conda for file in package.files}
    found = [
        _distribution(prefix, site, folder, owners)
        for site in sites
        for folder in sorted((prefix / site).glob("*.dist-info"))
        if folder.is_dir()
    ]
    return Inventory(prefix=prefix, conda=conda, distributions=tuple(found), sites=sites)


def _conda_package(path: Path) -> CondaPackage:
    try:
        record = json.loads(path.read_bytes())
        entries = record["paths_data"]["paths"]
        files = tuple(
            CondaFile(
                path=os.path.normpath(entry["_path"]),
                sha256=_hash_in_prefix(entry),
                link=entry["path_type"] == "softlink",
            )
            for entry in entries
            if entry["path_type"] in _LINKED
        )
        return CondaPackage(name=record["name"], version=record["version"], files=files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutsideError(
            "env.unreadable",
            f"{path} is no record of a conda package: {type(error).__name__}.",
            next_step="Build the environment anew (`provision env create`).",
        ) from None


def _hash_in_prefix(entry: dict[str, str]) -> str | None:
    if "sha256_in_prefix" in entry:
        return entry["sha256_in_prefix"]
    return None if "prefix_placeholder" in entry else entry.get("sha256")


def _sites(prefix: Path) -> tuple[str, ...]:
    """site-packages folders, each once: lib64 is a link to lib in many environments."""
    seen: dict[str, str] = {}
    for path in sorted(prefix.glob("lib*/python3*/site-packages")):
        seen.setdefault(os.path.realpath(path), str(path.relative_to(prefix)))
    return tuple(seen.values())


def _distribution(prefix: Path, site: str, folder: Path, owners: dict[str, str]) -> Distribution:
    inside = f"{site}/{folder.name}"
    name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
    owner = next(
        (owners[f"{inside}/{f}"] for f in ("METADATA", "RECORD") if f"{inside}/{f}" in owners), None
    )
    record = folder / "RECORD"
    return Distribution(
        name=normalized(name),
        version=version,
        folder=inside,
        files=_read_record(prefix, site, record) if record.is_file() else (),
        owner=owner,
        has_metadata=(folder / "METADATA").is_file(),
        has_record=record.is_file(),
    )


def _read_record(prefix: Path, site: str, record: Path) -> tuple[RecordedFile, ...]:
    try:
        with record.open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OutsideError("env.unreadable", f"{record} cannot be read: {error}.") from None
    return tuple(
        RecordedFile(path=_below(prefix, site, row[0]), sha256=_hex(row[1] if row[1:] else ""))
        for row in rows
    )


def _below(prefix: Path, site: str, path: str) -> str:
    """A RECORD's path, which starts at site-packages, as a path below the prefix."""
    if path.startswith("/"):
        return os.path.relpath(path, prefix)
    return os.path.normpath(f"{site}/{path}")


def _hex(text: str) -> str | None:
    kind, _, value = text.partition("=")
    if kind != "sha256" or not value:
        return None
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except (binascii.Error, ValueError):
        return "unreadable"
