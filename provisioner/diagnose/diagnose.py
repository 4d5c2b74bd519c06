"""From the hits of some logs to ranked causes: decide, weigh, put consequences behind causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from provisioner.diagnose.advice import advise
from provisioner.diagnose.decide import Case, decide
from provisioner.diagnose.environment import facts_of, shown
from provisioner.diagnose.model import CERTAIN, Cause, Diagnosis
from provisioner.diagnose.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from provisioner.diagnose.model import Book, Facts, Hit, Line, Rule
    from provisioner.matrix.model import Matrix

MAX_CAUSES = 5
MAX_LINES = 4
_MORE_RULES = 2
"""Hundredths for each further rule that says the same."""
_BEHIND = 15
"""A consequence stands this far behind its cause."""
_EXCERPT = 12
"""Lines: somebody chose so few of them, so a sign that would not do in a whole log is a cause."""
_CHOSEN = 10
_COLLECT = (
    "python -m torch.utils.collect_env",
    "nvidia-smi",
    "python -m pip list",
    "sudo dmesg",
)


class _Vote(NamedTuple):
    weight: int
    order: int
    line: Line
    rule: str


def diagnose(
    logs: Sequence[tuple[str, BinaryIO]], book: Book, matrix: Callable[[], Matrix]
) -> Diagnosis:
    """Diagnose logs, given as (name, binary stream), together. Streams are read once, to the end.

    `matrix` is called only where a decision or a remedy needs it.
    """
    scanner = Scanner(book)
    hits: list[Hit] = []
    found: dict[str, list[tuple[int, str]]] = {}
    lines = 0
    for name, stream in logs:
        scanned = scanner.scan(stream, name)
        hits += scanned.hits
        lines += scanned.lines
        for fact, values in scanned.facts.items():
            found.setdefault(fact, []).extend(values)
    facts = facts_of(found)
    votes = _votes(hits, book, facts, matrix) if hits else {}
    ranked = _ranked(votes, book)
    if ranked and lines <= _EXCERPT and ranked[0][1] < CERTAIN:
        ranked[0] = (ranked[0][0], ranked[0][1] + _CHOSEN)
    causes = [_cause(cls, weight, votes[cls], book, facts, matrix) for cls, weight in ranked]
    certain = [c for c in causes if c.confidence * 100 >= CERTAIN][:MAX_CAUSES]
    hints = [c for c in causes if c.confidence * 100 < CERTAIN][:MAX_CAUSES]
    return Diagnosis(
        causes=tuple(certain),
        unknown=not certain,
        collect=() if certain else _collect(hints, book),
        hints=tuple(hints),
        environment=shown(facts),
        logs=tuple(name for name, _ in logs),
    )


def _votes(
    hits: list[Hit], book: Book, facts: Facts, matrix: Callable[[], Matrix]
) -> dict[str, list[_Vote]]:
    votes: dict[str, list[_Vote]] = {}
    for order, hit in enumerate(hits):
        rule: Rule = book.rules[hit.rule]
        chosen = (
            decide(Case(rule, hit, facts, matrix()))
            if rule.decide
            else [(rule.cls, rule.weight), *rule.also.items()]
        )
        for cls, weight in chosen:
            votes.setdefault(cls, []).append(_Vote(weight, order, hit.line, rule.id))
    return votes


def _ranked(votes: dict[str, list[_Vote]], book: Book) -> list[tuple[str, int]]:
    """Classes with their weight, best first: a cause before its consequences, early lines first."""
    weights: dict[str, int] = {}
    for cls, given in votes.items():
        rules = {vote.rule for vote in given}
        top = max(vote.weight for vote in given)
        weights[cls] = min(99, top + _MORE_RULES * (len(rules) - 1)) if top >= CERTAIN else top
    for cls in list(weights):
        if weights[cls] < CERTAIN:
            continue
        for consequence in book.classes[cls].over:
            if weights.get(consequence, CERTAIN + 99) <= weights[cls]:
                weights[consequence] = min(weights[consequence], weights[cls] - _BEHIND)
    first = {cls: min(vote.order for vote in given) for cls, given in votes.items()}
    return sorted(weights.items(), key=lambda item: (-item[1], first[item[0]], item[0]))


def _cause(
    cls: str,
    weight: int,
    given: list[_Vote],
    book: Book,
    facts: Facts,
    matrix: Callable[[], Matrix],
) -> Cause:
    about = book.classes[cls]
    advice = advise(cls, facts, matrix()) if weight >= CERTAIN else None
    best = sorted(given, key=lambda vote: (-vote.weight, vote.order))
    lines: dict[tuple[str, int], Line] = {}
    for vote in best:
        lines.setdefault((vote.line.log, vote.line.number), vote.line)
    return Cause(
        cls=cls,
        confidence=weight / 100,
        meaning=about.meaning,
        remedy=f"{advice.text} {about.remedy}" if advice else about.remedy,
        commands=((*advice.commands, *about.commands) if advice else about.commands),
        lines=tuple(lines.values())[:MAX_LINES],
        rules=tuple(dict.fromkeys(vote.rule for vote in best)),
        claim=about.claim,
    )


def _collect(hints: list[Cause], book: Book) -> tuple[str, ...]:
    """What to gather next: what the hinted classes want, then what nearly always helps."""
    wanted = [command for hint in hints for command in book.classes[hint.cls].collect]
    return tuple(dict.fromkeys([*wanted, *_COLLECT]))
