"""What the engine is made of: rules and classes (data), hits, facts of a log, causes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Decide = Literal[
    "blackwell_only",
    "gcc_differs",
    "gpu_arch",
    "index_exists",
    "pip_requirement",
    "unsupported_wheel",
    "uv_platform",
]
Weight = Annotated[int, Meta(ge=1, le=99)]
"""How sure a match makes its class, in hundredths; below `CERTAIN` it is only a hint."""

CERTAIN = 50


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable; an unknown key is an error."""


class Rule(_Struct, frozen=True, kw_only=True, rename={"cls": "class"}):
    """One way in which software reports one cause (docs/diagnose.md).

    `any`: RE2 patterns, case-insensitive; one of them on a line is a match. `needs`: one of these
    within `within` lines as well. `unless`: none of these there. `decide`: a function of decide.py
    that chooses the class from the facts of the log. `also`: further classes that are possible.
    `matches`, `spares`: examples of either, tested.
    """

    id: str
    cls: str
    weight: Weight
    any: tuple[str, ...]
    source: str
    matches: tuple[str, ...]
    spares: tuple[str, ...]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    within: Annotated[int, Meta(ge=0, le=400)] = 60
    decide: Decide | None = None
    also: dict[str, Weight] = {}


class CauseClass(_Struct, frozen=True, kw_only=True):
    """A word of the vocabulary. `over`: its consequences, which stand behind it.

    `claim`: the anchor of docs/claims.md for what is often said of it.
    """

    kind: str
    meaning: str
    remedy: str
    commands: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    claim: str | None = None


class FactPattern(_Struct, frozen=True, kw_only=True):
    """A fact about the environment: patterns with one group each, the most reliable first."""

    name: str
    any: tuple[str, ...]


class Pattern(_Struct, frozen=True, kw_only=True):
    """One regular expression with the literals of which one is on every line that it matches.

    `owner`: index of its rule, or of its fact pattern where `fact`. `order`: place in the owner.
    """

    regex: str
    literals: tuple[str, ...]
    owner: int
    order: int
    fact: bool = False


class Book(_Struct, frozen=True, kw_only=True):
    """Everything that the engine reads: rules, vocabulary, facts, and the patterns of both."""

    rules: tuple[Rule, ...]
    classes: dict[str, CauseClass]
    facts: tuple[FactPattern, ...]
    patterns: tuple[Pattern, ...]


class Line(_Struct, frozen=True, kw_only=True):
    """A quoted line: the log's name, its number there (from 1), its text without secrets."""

    log: str
    number: int
    text: str


class Hit(_Struct, frozen=True, kw_only=True):
    """A rule that matched: where, and what is needed to decide on its class."""

    rule: int
    line: Line
    groups: dict[str, str]
    context: str


class Facts(_Struct, frozen=True, kw_only=True):
    """What a log says of its environment; None or empty where it says nothing."""

    torch: str | None = None
    variant: str | None = None
    cuda: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    gpu: str | None = None
    capability: str | None = None
    arch_list: tuple[str, ...] = ()
    python: str | None = None
    triton: str | None = None
    numpy: str | None = None
    os: str | None = None
    kernel: str | None = None
    glibc: str | None = None
    gcc: str | None = None
    indexes: tuple[str, ...] = ()


class Cause(_Struct, frozen=True, kw_only=True, rename={"cls": "class"}):
    """A cause with its remedy for this environment. `confidence` is between 0 and 1."""

    cls: str
    confidence: float
    meaning: str
    remedy: str
    commands: tuple[str, ...]
    lines: tuple[Line, ...]
    rules: tuple[str, ...]
    claim: str | None = None


class Diagnosis(_Struct, frozen=True, kw_only=True):
    """The answer: causes best first; `unknown` where none is certain, with what to collect."""

    causes: tuple[Cause, ...]
    unknown: bool
    collect: tuple[str, ...]
    hints: tuple[Cause, ...]
    environment: dict[str, str]
    logs: tuple[str, ...]
