"""One thing that is wrong with an environment."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - part of public signatures
from typing import Any

import msgspec

from provisioner.errors import FindingError

_SHOWN = 5


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong: a stable code, a sentence, the paths below the prefix, what to do."""

    code: str
    message: str
    paths: tuple[str, ...] = ()
    next_step: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `--json` prints."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def listed(paths: Sequence[str]) -> str:
    """Returns a few of the paths in a row, and how many more there are."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def error_of(findings: Sequence[Finding], where: str) -> FindingError:
    """Returns the error for an environment with findings."""
    return FindingError(
        "env.check-failed",
        f"{where} is not as it was locked: " + " ".join(found.message for found in findings[:3]),
        facts={"findings": [found.to_dict() for found in findings]},
        next_step=next((found.next_step for found in findings if found.next_step), None),
    )
