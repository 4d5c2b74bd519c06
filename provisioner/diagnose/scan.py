"""Reads a log of any size as a stream and finds the lines that rules and fact patterns match.

Two stages: an Aho-Corasick automaton over the raw bytes finds the places that can matter; RE2
(linear time on any input) looks at these lines only. Memory is bounded by the constants here and
in lines.py, whatever the length of the log or of a line.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import ahocorasick_rs
import re2

from provisioner.diagnose.lines import AROUND, LONG_LINE, Place, chunks, context, place_at, quote
from provisioner.diagnose.model import Hit, Line

if TYPE_CHECKING:
    from typing import BinaryIO

    from provisioner.diagnose.model import Book, Pattern

RULE_HITS = 12
RULE_TRIES = 400
FACT_HITS = 8
FACT_TRIES = 300
"""A pattern that has matched, or been tried, so often has told what it can: it is left out."""
_SEEN_LIMIT = 50_000
_TIMES = 3
_HIT_CONTEXT = 16 << 10
_DECIDING_LINES = 20

# One pass: lower case, and line ends to blanks, so that a wrapped message is still found.
_FOLD = bytes(
    ord(" ") if byte in b"\n\r\t\x00" else byte + 32 if 65 <= byte <= 90 else byte
    for byte in range(256)
)
_NUMBERS = bytes(ord("0") if 48 <= byte <= 57 else byte for byte in range(256))


# A test that passed is named after the message that it expects.
_TEST_PASSED = re.compile(r"^(?:PASSED|SKIPPED|XFAIL|XPASS) |::\S.* (?:PASSED|SKIPPED|XFAIL)\b")


class Scanned(NamedTuple):
    """What one log holds: hits in the order of the log, fact values (name -> (order, value))."""

    hits: list[Hit]
    facts: dict[str, list[tuple[int, str]]]
    lines: int


class Scanner:
    """Scans logs with one book. A regular expression is compiled when it is first needed."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def scan(self, stream: BinaryIO, name: str) -> Scanned:
        """Read a binary stream to its end. Raises OSError as the stream does."""
        return _Log(self, self._book, name).read(stream)

    def search(self, regex: str, text: str) -> Any:
        """The match of a case-insensitive RE2 search, or None."""
        return _compiled(regex).search(text)


@cache
def _compiled(regex: str) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(regex, options)


class _Log:
    """The state of one scan."""

    def __init__(self, scanner: Scanner, book: Book, name: str) -> None:
        self._scanner = scanner
        self._book = book
        self._name = name
        self._hits: list[Hit] = []
        self._facts: dict[str, list[tuple[int, str]]] = {}
        self._count: dict[tuple[bool, int], int] = {}
        self._tries: dict[tuple[bool, int], int] = {}
        self._seen: dict[int, int] = {}
        self._active = list(book.patterns)
        self._prefilter()

    def _prefilter(self) -> None:
        """The automaton of every pattern that is not left out yet."""
        owners: dict[str, list[int]] = {}
        for index, pattern in enumerate(self._active):
            for literal in pattern.literals:
                owners.setdefault(literal, []).append(index)
        self._owners = list(owners.values())
        self._automaton = ahocorasick_rs.BytesAhoCorasick([text.encode() for text in owners])

    def read(self, stream: BinaryIO) -> Scanned:
        buffer, done, number = b"", 0, 1
        for chunk in chunks(stream):
            buffer += chunk
            limit = len(buffer) if not chunk else max(done, len(buffer) - AROUND)
            self._look(buffer, done, limit, number)
            keep = max(0, limit - AROUND)
            number += buffer.count(b"\n", 0, keep)
            buffer, done = buffer[keep:], limit - keep
        return Scanned(self._hits, self._facts, number + buffer.count(b"\n"))

    def _look(self, buffer: bytes, begin: int, limit: int, number: int) -> None:
        """Everything that starts at `begin` or later and before `limit`."""
        counted = 0
        folded = buffer.translate(_FOLD)
        position, again = begin, True
        while again and position < limit:
            again = False
            offset = position
            for _, found, _ in self._automaton.find_matches_as_indexes(folded[offset:]):
                start = found + offset
                if start >= limit:
                    break
                if start < position or self._is_repeated(buffer, folded, start):
                    continue
                place = place_at(buffer, start)
                if place.begin > counted:
                    number += buffer.count(b"\n", counted, place.begin)
                    counted = place.begin
                position = max(place.end, start + 1)
                if self._line(buffer, place, number):
                    again = True
                    break
            if again:
                self._prefilter()

    def _is_repeated(self, buffer: bytes, folded: bytes, start: int) -> bool:
        """Whether the same line, numbers aside, was looked at often enough at this place."""
        begin = buffer.rfind(b"\n", max(0, start - LONG_LINE), start) + 1
        end = buffer.find(b"\n", start, start + LONG_LINE)
        if end < 0 or start - begin > LONG_LINE:
            return False
        mark = hash((folded[begin:end].translate(_NUMBERS), start - begin))
        times = self._seen.get(mark, 0)
        if times >= _TIMES:
            return True
        if len(self._seen) >= _SEEN_LIMIT:
            self._seen.clear()
        self._seen[mark] = times + 1
        return False

    def _line(self, buffer: bytes, place: Place, number: int) -> bool:
        """Try every pattern that can match here; whether one of them is left out from now on."""
        if _TEST_PASSED.search(place.text):
            return False
        folded = place.paragraph.lower().encode(errors="replace")
        matches = self._automaton.find_matches_as_indexes(folded, overlapping=True)
        full: set[tuple[bool, int]] = set()
        matched: set[tuple[bool, int]] = set()
        for index in sorted({owner for which, _, _ in matches for owner in self._owners[which]}):
            pattern = self._active[index]
            owner = (pattern.fact, pattern.owner)
            if owner in matched:
                continue
            match = self._match(pattern, place)
            if pattern.fact or match is not None:
                self._tries[owner] = self._tries.get(owner, 0) + 1
            if match is not None:
                matched.add(owner)
                taken = (
                    self._fact(pattern, match.group(1))
                    if pattern.fact
                    else self._rule(pattern.owner, match, place, buffer, number)
                )
                self._count[owner] = self._count.get(owner, 0) + taken
            if self._is_full(owner):
                full.add(owner)
        if full:
            self._active = [p for p in self._active if (p.fact, p.owner) not in full]
        return bool(full)

    def _match(self, pattern: Pattern, place: Place) -> Any:
        """Its match, where it begins on this line; facts and anchored patterns see it alone."""
        alone = (
            pattern.fact or pattern.regex.startswith(("^", "(?:^")) or pattern.regex.endswith("$")
        )
        match = self._scanner.search(pattern.regex, place.text if alone else place.paragraph)
        return None if match is None or match.start() > len(place.text) else match

    def _fact(self, pattern: Pattern, value: str | None) -> bool:
        if value:
            name = self._book.facts[pattern.owner].name
            self._facts.setdefault(name, []).append((pattern.order, value.strip()))
        return bool(value)

    def _rule(self, index: int, match: Any, place: Place, buffer: bytes, number: int) -> bool:
        """Take a match as a hit where its surroundings allow it."""
        rule = self._book.rules[index]
        around = context(buffer, place, rule.within)
        if rule.needs and not any(self._scanner.search(need, around) for need in rule.needs):
            return False
        if any(self._scanner.search(but, around) for but in rule.unless):
            return False
        if rule.decide and rule.within < _DECIDING_LINES:
            around = context(buffer, place, _DECIDING_LINES)
        groups = {name: value for name, value in match.groupdict().items() if value}
        line = Line(log=self._name, number=number, text=quote(place.text, match.start()))
        self._hits.append(Hit(rule=index, line=line, groups=groups, context=around[:_HIT_CONTEXT]))
        return True

    def _is_full(self, owner: tuple[bool, int]) -> bool:
        hits, tries = (FACT_HITS, FACT_TRIES) if owner[0] else (RULE_HITS, RULE_TRIES)
        return self._count.get(owner, 0) >= hits or self._tries.get(owner, 0) >= tries
