"""The one error base of the tool, and its table of exit statuses.

A user sees: what is wrong with the numbers, the facts that decide, and the next step.
A script sees: a stable code and the exit status. Nothing here prints.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar


class Exit(enum.IntEnum):
    """Exit statuses of `provision` (documented in docs/exit-status.md)."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    REFUSED = 3
    OUTSIDE = 4
    BUG = 5


class ProvisionError(Exception):
    """An expected failure.

    `code` is stable and machine-readable (`matrix.unknown-key`), `message` is one or more
    full sentences, `facts` are (name, value) pairs shown below it, `next_step` says what to do.
    """

    exit_status: ClassVar[Exit] = Exit.OUTSIDE

    def __init__(
        self,
        code: str,
        message: str,
        *,
        facts: dict[str, Any] | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = dict(facts or {})
        self.next_step = next_step

    def to_dict(self) -> dict[str, Any]:
        """The object printed under `error` with `--json`."""
        return {
            "code": self.code,
            "message": self.message,
            "facts": self.facts,
            "next_step": self.next_step,
            "exit_status": int(self.exit_status),
        }


class FindingError(ProvisionError):
    """A check found a problem: a stale file, a failed verification (exit status 1)."""

    exit_status = Exit.FINDING


class UsageError(ProvisionError):
    """The caller gave something that cannot be understood (exit status 2)."""

    exit_status = Exit.USAGE


class RefusedError(ProvisionError):
    """The matrix has no cell for the request (exit status 3)."""

    exit_status = Exit.REFUSED


class OutsideError(ProvisionError):
    """A program, device, file or origin failed or is missing (exit status 4)."""

    exit_status = Exit.OUTSIDE
