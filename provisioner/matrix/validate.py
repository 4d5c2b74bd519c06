"""Checks that no type can say: that what refers to something finds it, that orders and dates hold.

`validate` is pure: a typed matrix in, problems with their paths out. Places in files are added by
the loader, which still has the node tree.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from provisioner.matrix import model
from provisioner.matrix.identity import IDENTITY, ORDERED, order_key
from provisioner.matrix.problems import DocumentPath, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_SOURCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?( .*)?")


class Findings:
    """Collects problems; what the groups of checks share."""

    def __init__(self, matrix: model.Matrix) -> None:
        self.matrix = matrix
        self.problems: list[Problem] = []
        self.toolkits = {toolkit.series: toolkit for toolkit in matrix.toolkits}
        self.branches = [branch.branch for branch in matrix.driver_branches]
        self.capabilities = [entry.capability for entry in matrix.capabilities]
        self.families = list(dict.fromkeys(entry.family for entry in matrix.capabilities))

    def say(self, kind: str, path: DocumentPath, message: str) -> None:
        self.problems.append(Problem(kind=kind, message=message, path=path))

    def refer(self, path: DocumentPath, what: str, value: Any, known: Collection[Any]) -> bool:
        """Whether `value` is among `known`; a problem when it is not."""
        if value in known:
            return True
        listed = [str(entry) for entry in known]
        shown = ", ".join(listed[-12:]) if listed else "none"
        known_as = "known" if len(listed) <= 12 else "the last known"
        message = f"refers to {what} {value}, which the matrix does not have; {known_as}: {shown}"
        self.say("dangling-reference", path, message)
        return False

    def specifier(self, path: DocumentPath, text: str) -> SpecifierSet | None:
        """The specifier, or None and a problem."""
        try:
            return SpecifierSet(text)
        except InvalidSpecifier:
            self.say("value", path, f"expected a version specifier, found {text!r}")
            return None

    def requirement(self, path: DocumentPath, text: str) -> Requirement | None:
        """The requirement, or None and a problem."""
        try:
            return Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            self.say("value", path, f"expected a requirement, found {text!r}: {reason}")
            return None

    def ascending(self, path: DocumentPath, values: tuple[str, ...]) -> None:
        """A problem where version-like texts do not ascend, or repeat."""
        for index in range(1, len(values)):
            before, here = (number(values[index - 1]), number(values[index]))
            if here <= before:
                message = (
                    f"expected ascending values, found {values[index]} after {values[index - 1]}"
                )
                self.say("order", (*path, index), message)

    def known_capabilities(self, path: DocumentPath, values: tuple[str, ...]) -> None:
        """Compute capabilities that ascend and that the matrix knows."""
        self.ascending(path, values)
        for index, value in enumerate(values):
            self.refer((*path, index), "compute capability", value, self.capabilities)


def number(text: str) -> tuple[int, ...]:
    """The numbers of a dotted version, for comparisons."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def validate(matrix: model.Matrix) -> list[Problem]:
    """Everything that is wrong with a typed matrix, in no particular order."""
    from provisioner.matrix import validate_cuda, validate_releases

    findings = Findings(matrix)
    for path, value in walk(matrix):
        if isinstance(value, tuple):
            _entries(findings, path, value)
        elif isinstance(value, model.Fact):
            _sources(findings, path, value)
        _dates(findings, path, value)
    validate_releases.check(findings)
    validate_cuda.check(findings)
    return findings.problems


def walk(value: Any, path: DocumentPath = ()) -> Iterator[tuple[DocumentPath, Any]]:
    """Every struct and every list of structs below a value, with its path."""
    if isinstance(value, msgspec.Struct):
        yield path, value
        for name in value.__struct_fields__:
            yield from walk(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        yield path, value
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))


def _entries(findings: Findings, path: DocumentPath, entries: tuple[Any, ...]) -> None:
    """Identities are unique, and ordered lists ascend."""
    kind = type(entries[0])
    key = IDENTITY[kind]
    seen: dict[str, int] = {}
    last: str | None = None
    for index, entry in enumerate(entries):
        identity = str(getattr(entry, key))
        here = (*path, index, key)
        if identity.casefold() in seen:
            first = seen[identity.casefold()]
            message = f"expected each {key} once, found {identity} again (first in entry {first})"
            findings.say("duplicate-entry", here, message)
            continue
        seen[identity.casefold()] = index
        if kind in ORDERED:
            if last is not None and order_key(kind, identity) < order_key(kind, last):
                message = f"expected entries in ascending order, found {identity} after {last}"
                findings.say("order", here, message)
            last = identity


def _sources(findings: Findings, path: DocumentPath, fact: model.Fact) -> None:
    if not fact.source and not isinstance(fact, model.Gpu):  # a GPU has its capability's
        findings.say("no-source", (*path, "source"), "expected where this was read, found nothing")
    for index, source in enumerate(fact.source):
        here = (*path, "source", index)
        if source.startswith(("http://", "https://")):
            if not _ADDRESS.fullmatch(source):
                findings.say("value", here, f"expected an address, found {source!r}")
        elif _SOURCE_ID.fullmatch(source):
            findings.refer(here, "the source", source, findings.matrix.sources)


_DATES = ("as_of", "released", "end_of_life", "end_of_extended", "read")


def _dates(findings: Findings, path: DocumentPath, value: Any) -> None:
    for name in _DATES:
        text = getattr(value, name, None)
        if isinstance(text, str):
            day = text if text.count("-") == 2 else f"{text}-01"
            try:
                dt.date.fromisoformat(day)
            except ValueError:
                message = f"expected a date of the calendar, found {text}"
                findings.say("value", (*path, name), message)
