"""Comparable forms of the version strings in the matrix.

Facts are numbers with dots; tuples compare them exactly and cost nothing. Where a user may write
any PEP 440 version or range, `packaging` reads it.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from packaging.specifiers import SpecifierSet

_NUMBERS = re.compile(r"[0-9]+")
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)*")
_CLAUSE = re.compile(r"(==|!=|<=|>=|<|>)([0-9]+(?:\.[0-9]+)*)")
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """The numbers of a dotted version, without trailing zeros: 525.60.13 -> (525, 60, 13)."""
    numbers = [int(n) for n in _NUMBERS.findall(version.split("+", 1)[0])]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def at_least(have: str, need: str) -> bool:
    """Whether version `have` is `need` or newer."""
    return key(have) >= key(need)


def newest(versions: tuple[str, ...] | list[str]) -> str:
    """The highest of some versions; at least one is needed."""
    return max(versions, key=key)


def major(version: str) -> int:
    """The first number of a version."""
    return key(version)[0]


@lru_cache(maxsize=1024)
def specifier(text: str) -> SpecifierSet:
    """The parsed PEP 440 specifier; raises `packaging.specifiers.InvalidSpecifier`."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(text)


@lru_cache(maxsize=8192)
def satisfies(version: str, spec: str) -> bool:
    """Whether a version fulfils a specifier (pre-releases count).

    Plain numbers under plain comparisons, which is what the matrix holds, are compared here:
    importing `packaging` would cost a tenth of a whole `provision render`.
    """
    clauses = [_CLAUSE.fullmatch(clause) for clause in spec.split(",")]
    if _PLAIN.fullmatch(version) and all(clauses):
        have = key(version)
        return all(_COMPARE[c[1]](have, key(c[2])) for c in clauses if c is not None)
    return specifier(spec).contains(version, prereleases=True)
