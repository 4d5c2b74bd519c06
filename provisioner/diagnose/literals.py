"""The literal texts without which a regular expression cannot match: food for the prefilter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LITERAL = 28
"""Longer ones are cut: a message may be wrapped in the middle."""
MIN_LITERAL = 4
_MAX_SET = 60
_PENALTY = 12
_COMMON = frozenset(
    {
        *("error", "failed", "failed to", "unable to", "cannot find", "could not", "exit"),
        *("not found", ": not found", "no such file", "no such file or directory", "require"),
        *("nvidia", "nvidia driver", "torch", "pytorch", "cuda", "version", "kernel", "module"),
        *("install", "import", "python", "driver", "build", "compile", "warning", "command"),
        *("match", "mismatch", "parse", "determine", "detect", "compiler", "compiled", "built"),
        *("library", "package", "supported", "required", "too old", "not set", "unknown"),
    }
)
"""Texts that ordinary logs are full of: taken only where there is nothing better."""


def literals(regex: str) -> tuple[str, ...]:
    """Lower-case texts, one of which is in every match; empty where there is no such set."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as parser
    best = _best(parser.parse(regex))
    return tuple(sorted({text[:MAX_LITERAL].lower() for text in best}))


def _best(nodes: Iterable[Any]) -> frozenset[str]:
    """The best set of a sequence: each of its runs of characters and required groups offers one."""
    offers: list[frozenset[str]] = []
    run = ""
    for operator, argument in nodes:
        name = str(operator)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            offers.append(frozenset({run}))
            run = ""
        if name == "SUBPATTERN":
            offers.append(_best(argument[3]))
        elif name == "BRANCH":
            branches = [_best(branch) for branch in argument[1]]
            if all(branches):
                offers.append(frozenset().union(*branches))
        elif name == "MAX_REPEAT" and argument[0] >= 1:
            offers.append(_best(argument[2]))
    if run:
        offers.append(frozenset({run}))
    return max((offer for offer in offers if offer), key=_worth, default=frozenset())


def _worth(offer: frozenset[str]) -> float:
    """Long and rare texts are worth most, and few of them."""
    if len(offer) > _MAX_SET:
        return -2 * MAX_LITERAL
    return min(map(_length, offer)) - 0.05 * len(offer)


def _length(text: str) -> int:
    if len(text) < MIN_LITERAL:
        return len(text) - 2 * MAX_LITERAL
    return min(len(text), MAX_LITERAL) - _PENALTY * (text.strip().lower() in _COMMON)
