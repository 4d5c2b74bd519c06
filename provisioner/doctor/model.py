"""What a check says. A check is a function of `Seen` that returns one Outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from provisioner.doctor.seen import Seen

SCHEMA = "provision.doctor/1"
Severity = Literal["error", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warn", "note")
Status = Literal["fail", "pass", "unknown", "skip"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One check's answer.

    `fail` has a severity, the reason with its source, and a remedy with commands. `unknown` says
    which fact could not be read, `skip` why the question does not arise; neither is a pass.
    `fix` are commands that change nothing but this user's own folders; `--fix` may run them.
    """

    status: Status
    evidence: str
    severity: Severity | None = None
    reason: str = ""
    remedy: str = ""
    commands: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    claim: str | None = None
    fix: tuple[tuple[str, ...], ...] = ()


class Check(NamedTuple):
    """A row of the registry. `id` is stable; `title` says in one line what is asked."""

    id: str
    title: str
    judge: Callable[[Seen], Outcome]


class Result(Outcome, frozen=True, kw_only=True):
    """An outcome with its check."""

    id: str
    title: str


def good(evidence: str) -> Outcome:
    """Nothing is wrong, and this shows it."""
    return Outcome(status="pass", evidence=evidence)


def unknown(what: str) -> Outcome:
    """The fact that decides could not be read."""
    return Outcome(status="unknown", evidence=what)


def skip(why: str) -> Outcome:
    """The question does not arise here."""
    return Outcome(status="skip", evidence=why)


def bad(
    severity: Severity,
    evidence: str,
    reason: str,
    remedy: str,
    *commands: str,
    source: Sequence[str],
    claim: str | None = None,
    fix: Sequence[tuple[str, ...]] = (),
) -> Outcome:
    """Something is wrong. `source` is never empty; `claim` is an anchor of docs/claims.md."""
    return Outcome(
        status="fail",
        severity=severity,
        evidence=evidence,
        reason=reason,
        remedy=remedy,
        commands=commands,
        source=tuple(source),
        claim=claim,
        fix=tuple(fix),
    )
