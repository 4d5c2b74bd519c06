"""From a cell and the choices of the command line to the LockInput."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.errors import FindingError, UsageError
from provisioner.lock.digest import plain_inputs
from provisioner.lock.model import Choices, LockInput

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def normal_name(name: str) -> str:
    """Returns the form of a distribution name under which names are compared (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def name_of(requirement: str) -> str:
    """Returns the compared name at the front of a requirement."""
    found = _NAME.match(requirement)
    return normal_name(found.group(0)) if found else ""


def lock_input(
    cell: Mapping[str, Any],
    choices: Choices,
    glibc: str,
    provided: Mapping[str, str] | None = None,
) -> LockInput:
    """Returns what the lock of a cell is made from; raises FindingError when `cell` is none.

    Everything that will reach an engine or a file is held against its pattern here.

    `cell` holds the plain values of a Cell, as spec.json has them. `glibc` is that of the cell's
    operating system: it bounds the wheels that can be installed. `provided` is name -> version
    of what conda owns.
    """
    try:
        plain = plain_inputs(cell, msgspec.to_builtins(choices), provided or {})
        plain["target"]["glibc"] = glibc
        inputs = msgspec.convert(plain, LockInput)
        _refuse_line_breaks(plain)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FindingError(
            "lock.bad-cell",
            f"The cell was edited, or written by another version of provision: {error}.",
            next_step="Render the cell again, then lock it.",
        ) from error
    day(inputs.as_of or "none")
    return inputs


def _refuse_line_breaks(plain: dict[str, Any]) -> None:
    """A pattern's $ lets one pass at the end of a text."""
    if b"\\n" in msgspec.json.encode(plain):
        raise ValueError("a line break in a field")


def day(text: str) -> str | None:
    """Returns a date in its one form, or None for `none`; raises UsageError for anything else."""
    if text == "none":
        return None
    try:
        # One spelling: Python 3.11 would take 20230707 too, 3.10 would not.
        return dt.datetime.strptime(text, "%Y-%m-%d").date().isoformat()  # noqa: DTZ007
    except ValueError:
        raise UsageError(
            "lock.bad-date",
            f"{ascii(text)[:40]} is not a date: a lock takes packages as of a day such as "
            "2023-07-07, or `none` for no limit.",
            facts={"as_of": text[:40]},
        ) from None
