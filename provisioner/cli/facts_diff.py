"""`provision diff`: what differs between two hosts, by what it can break."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.options import common_options
from provisioner.errors import Exit, OutsideError, UsageError

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.host.compare import Difference

_LIMIT = 32 << 20
_WORDS = {"breaks": "BREAKS", "may-break": "may break", "other": "other", "unknown": "unknown"}


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@common_options
def command(a: str, b: str, out: Output) -> int:
    """Compare the facts of two hosts, ranked by what a difference can break.

    A and B are files of `provision host facts --json` or `provision doctor
    --record`; one of them may be -. Exit status 1 where anything may break.

    \b
    ssh HOST python3 - < facts.py | provision diff good.json -
    """
    from provisioner.host.compare import DIFF_SCHEMA, compare

    if a == b == "-":
        raise UsageError("diff.one-input", "Only one of the two can be standard input.")
    found = compare(_facts(a), _facts(b))
    dangerous = [item for item in found if item.level in ("breaks", "may-break")]
    status = int(Exit.FINDING if dangerous else Exit.DONE)
    if out.json:
        counts = {level: sum(item.level == level for item in found) for level in _WORDS}
        out.result({"schema": DIFF_SCHEMA, "a": a, "b": b, "counts": counts, "differences": found})
        return status
    for item in found:
        if item.level != "unknown" or out.verbose:
            for line in _lines(item):
                out.line(line)
    out.line(_verdict(found, dangerous, verbose=out.verbose > 0))
    return status


def _lines(item: Difference) -> list[str]:
    from provisioner.cli.output import printable, wrap

    head = f"{_WORDS[item.level]:<9} {item.path}: "
    values = f"{_said(item.a)} -> {_said(item.b)}"
    return [
        *wrap(printable(values), "          ", head),
        *wrap(printable(item.why), "          "),
    ]


def _said(value: Any) -> str:
    """A value for people; a set is what only this side has."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_said(item) for item in value) or "nothing"
    if isinstance(value, dict):
        named = [str(value[k]) for k in ("version", "model", "value") if value.get(k)]
        return named[0] if named else ", ".join(f"{k} {_said(v)}" for k, v in value.items())
    return str(value)


def _verdict(found: list[Difference], dangerous: list[Difference], *, verbose: bool) -> str:
    from provisioner.cli.output import counted

    unknown = sum(item.level == "unknown" for item in found)
    text = f"{counted(len(found) - unknown, 'difference')}, {len(dangerous)} may break something"
    hidden = f"; {unknown} not known on one side{'' if verbose else ' (-v)'}" if unknown else ""
    return f"{text}{hidden}."


def _facts(source: str) -> dict[str, Any]:
    """The facts in a file, as plain values."""
    import msgspec

    from provisioner.doctor.facts import read_facts
    from provisioner.regular import read_regular

    if source == "-":
        raw, name = sys.stdin.buffer.read(_LIMIT + 1), "Standard input"
    else:
        name = source
        try:
            raw = read_regular(Path(source), _LIMIT + 1)
        except OSError as error:
            raise OutsideError(
                "diff.unreadable",
                f"{source} cannot be read: {(error.strerror or str(error)).lower()}.",
                next_step="Make it with: provision doctor --record FILE",
            ) from None
    if len(raw) > _LIMIT:
        raise UsageError("diff.too-large", f"{name} is larger than {_LIMIT:,} bytes.")
    read_facts(raw, name)  # says what is wrong with a file that holds something else
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found
