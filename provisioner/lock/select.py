"""Which files of an index page count for a lock: wheels for the platform, up to the day.

A source archive never counts: building it would run unlocked code and fetch unlocked tools. Pure;
what was left out, and why, can be asked for later (`reasons`), for a refusal to tell.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from provisioner.errors import OutsideError
from provisioner.lock.inputs import normal_name
from provisioner.lock.tags import WheelName, rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from provisioner.lock.model import Kind, Target
    from provisioner.lock.pages import IndexFile

LATER = "uploaded after the day of the lock"
OTHER_PYTHON = "for another Python"
OTHER_PLATFORM = "a wheel for another platform"
SOURCE = "a source archive"
OTHER_VERSION = "not the pinned version"
UNREADABLE = "a name that cannot be read"
_SOURCE_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".zip")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What may be taken of one project.

    `until`: last day of upload (null: any). `dated`: the index has to say when. `only`: the one
    version that counts.
    """

    target: Target
    until: str | None = None
    dated: bool = True
    only: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One version: all files that could be installed, by name, and the one taken first."""

    version: Version
    files: tuple[IndexFile, ...]
    best: IndexFile
    yanked: bool


@dataclass(frozen=True, kw_only=True)
class Project:
    """What an index offers of one name: the candidates, oldest first, and all that is listed.

    `known` is false when the index does not have the name.
    """

    name: str
    kind: Kind
    candidates: dict[str, Candidate] = field(default_factory=dict)
    listed: tuple[IndexFile, ...] = ()
    rules: Rules | None = None
    known: bool = True


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A file that may be taken, with what an installer compares."""

    file: IndexFile
    version: Version
    rank: int
    build: tuple[int, str]

    def liking(self) -> tuple[int, tuple[int, str], str]:
        """Higher is taken first: the best tag, then the highest build number."""
        return (-self.rank, self.build, self.file.filename)


@functools.lru_cache(maxsize=20_000)
def version(text: str) -> Version | None:
    """Returns the parsed version, or None when it is none of PEP 440."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@functools.lru_cache(maxsize=2_000)
def admits(requires_python: str, python: str) -> bool:
    """Returns whether a Requires-Python lets this Python in; nonsense in it is ignored."""
    try:
        return SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def select(name: str, kind: Kind, files: Iterable[IndexFile], rules: Rules) -> Project:
    """Returns the candidates among the files of a page; raises OutsideError for undated files."""
    listed = tuple(files)
    found: dict[Version, list[_Entry]] = {}
    only = version(rules.only) if rules.only is not None else None
    for file in listed:
        entry = _judge(file, name, rules, only)
        if isinstance(entry, str):
            continue
        if rules.dated and rules.until is not None and file.uploaded is None:
            raise _undated(name, file)
        found.setdefault(entry.version, []).append(entry)
    return Project(
        name=name,
        kind=kind,
        candidates={str(number): _candidate(number, found[number]) for number in sorted(found)},
        listed=listed,
        rules=rules,
    )


def reasons(project: Project) -> dict[Version, str]:
    """Returns for each version that is listed but no candidate the last reason against a file."""
    if project.rules is None:
        return {}
    only = version(project.rules.only) if project.rules.only is not None else None
    found: dict[Version, str] = {}
    for file in project.listed:
        verdict = _judge(file, project.name, project.rules, only)
        number = _version(file, project.name)
        if number is not None and isinstance(verdict, str) and verdict != OTHER_PLATFORM:
            found[number] = verdict
        elif number is not None and isinstance(verdict, str):
            found.setdefault(number, verdict)
    return {number: why for number, why in found.items() if str(number) not in project.candidates}


def _judge(file: IndexFile, name: str, rules: Rules, only: Version | None) -> _Entry | str:
    """The entry for a file, or why it does not count. The cheap questions come first."""
    if rules.until is not None and file.uploaded is not None and file.uploaded[:10] > rules.until:
        return LATER
    if not file.filename.endswith(".whl"):
        return SOURCE if file.filename.endswith(_SOURCE_SUFFIXES) else UNREADABLE
    entry = _wheel(file, name, rules.target)
    if isinstance(entry, str):
        return entry
    if only is not None and entry.version != only:
        return OTHER_VERSION
    if file.requires_python and not admits(file.requires_python, rules.target.python_full):
        return OTHER_PYTHON
    return entry


def _wheel(file: IndexFile, name: str, target: Target) -> _Entry | str:
    try:
        parts = WheelName(file.filename)
    except ValueError:
        return UNREADABLE
    fit = rank(parts, target)
    if fit is None:
        return OTHER_PLATFORM
    number = version(parts.version)
    if number is None or normal_name(parts.distribution) != name:
        return UNREADABLE
    return _Entry(file=file, version=number, rank=fit, build=parts.build)


def _version(file: IndexFile, name: str) -> Version | None:
    if file.filename.endswith(".whl"):
        try:
            return version(WheelName(file.filename).version)
        except ValueError:
            return None
    end = next((s for s in _SOURCE_SUFFIXES if file.filename.endswith(s)), None)
    stem = file.filename[: -len(end)] if end is not None else ""
    front, rest = stem[: len(name)], stem[len(name) :]
    same = normal_name(front) == name and rest.startswith("-")
    return version(rest[1:]) if same else None


def _candidate(number: Version, entries: list[_Entry]) -> Candidate:
    kept = [entry for entry in entries if not entry.file.yanked] or entries
    best = max(kept, key=_Entry.liking)
    files = sorted({entry.file.filename: entry.file for entry in kept}.items())
    return Candidate(
        version=number,
        files=tuple(file for _, file in files),
        best=best.file,
        yanked=best.file.yanked,
    )


def _undated(name: str, file: IndexFile) -> OutsideError:
    return OutsideError(
        "lock.undated-index",
        f"The index does not say when {file.filename} was uploaded, so {name} cannot be taken as "
        "of a day.",
        facts={"package": name, "file": file.filename},
        next_step="Name an index that tells upload times (PEP 700), or lock without a day: "
        "`--as-of none`.",
    )
