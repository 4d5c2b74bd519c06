"""What a lock is made by, beyond its cell: the words of the command line over those of the lock.

A choice stays with a lock until another one replaces it, so that `provision lock CELL` says the
same thing twice. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.errors import UsageError
from provisioner.lock.inputs import day, normal_name
from provisioner.lock.model import Choices

_OF_THE_CELL = "cell"


@dataclass(frozen=True, kw_only=True)
class Said:
    """The options of one command line. `as_of` is a date, `none`, or `cell` for the cell's own.

    `upgrades` are NAME or NAME=DATE; `own` are names; `single_source` is null where nothing was
    said.
    """

    as_of: str | None = None
    upgrades: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    single_source: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What decides a conda half: the choices that hold now, and those of the lock on disk."""

    choices: Choices | None = None
    before: Choices | None = None


def merged(kept: Choices | None, said: Said, today: str) -> Choices:
    """Returns the choices that hold now; raises UsageError for a bad date or name.

    A new day for everything ends earlier days for single names. A name without a date is taken as
    of `today`.
    """
    before = kept if kept is not None else Choices()
    as_of, upgrades = before.as_of, dict(before.upgrades)
    if said.as_of is not None:
        as_of = None if said.as_of == _OF_THE_CELL else said.as_of
        upgrades = {}
        if as_of is not None:
            day(as_of)
    for word in said.upgrades:
        name, _, date = word.partition("=")
        upgrades[_name(name)] = day(date or today) or today
    return Choices(
        as_of=as_of,
        upgrades=dict(sorted(upgrades.items())),
        own=tuple(sorted({_name(name) for name in said.own} | set(before.own))),
        single_source=before.single_source if said.single_source is None else said.single_source,
    )


def _name(text: str) -> str:
    name = normal_name(text)
    if not name or not name.isascii() or not name.replace("-", "a").isalnum():
        raise UsageError(
            "lock.bad-name", f"{ascii(text)[:60]} is not the name of a package.", facts={}
        )
    return name
