"""How old a matrix is, and what to say about it. Today is an input."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.matrix.model import MatrixMeta


def today() -> str:
    """The date of today in UTC, as the matrix writes dates."""
    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def age_days(meta: MatrixMeta, day: str) -> int:
    """Days from the matrix to a day; 0 where the clock is behind the matrix."""
    return max(0, (dt.date.fromisoformat(day) - dt.date.fromisoformat(meta.as_of)).days)


def age_warning(meta: MatrixMeta, day: str) -> str | None:
    """One line when the matrix is older than it says it should be, else None."""
    days = age_days(meta, day)
    if days <= meta.warn_after_days:
        return None
    return (
        f"The matrix is {days} days old (as of {meta.as_of}): newer releases are unknown to it. "
        "See what is new with: provision matrix audit"
    )
