"""`provision diagnose`: the causes in some logs, best first, with the lines that decide."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from provisioner.cli.options import common_options, matrix_options
from provisioner.cli.output import WIDTH, wrap
from provisioner.errors import Exit, OutsideError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.diagnose.model import Cause, Diagnosis
    from provisioner.matrix.model import Matrix

SCHEMA = "provision.diagnose/1"
STANDARD_INPUT = "-"
_QUOTE_LINES = 4


@click.command("diagnose")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@matrix_options
@common_options
def command(logs: tuple[str, ...], settings: Settings, out: Output) -> int:
    """Find the root causes in logs: a file each, or - for standard input.

    Docker builds, Ansible and CI output, tracebacks, dmesg, collect_env and
    nvidia-smi output: several together tell more than one.

    \b
    provision diagnose build.log
    docker build . 2>&1 | provision diagnose -
    provision diagnose train.log collect_env.txt --json
    """
    from provisioner.diagnose.diagnose import diagnose
    from provisioner.diagnose.load import load_book

    opened: list[Matrix] = []

    def matrix() -> Matrix:
        if not opened:
            opened.append(settings.open().matrix)
        return opened[0]

    with contextlib.ExitStack() as stack:
        streams = [(name, stack.enter_context(_stream(name))) for name in dict.fromkeys(logs)]
        diagnosis = diagnose(streams, load_book(), matrix)
    if out.json:
        out.result(as_json(diagnosis))
    else:
        for line in as_lines(diagnosis, several=len(streams) > 1):
            out.line("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line))
    return int(Exit.DONE)


@contextlib.contextmanager
def _stream(name: str) -> Iterator[BinaryIO]:
    """A log as a binary stream. Raises OutsideError when it cannot be opened or read."""
    try:
        if name == STANDARD_INPUT:
            if sys.stdin is None:
                raise OSError("standard input is closed")  # noqa: TRY301
            yield sys.stdin.buffer
            return
        with open(name, "rb") as stream:  # noqa: PTH123 - a pipe is a log too
            yield stream
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutsideError(
            "diagnose.unreadable",
            f"{name}: {reason}.",
            next_step="Name a readable log, or - for standard input.",
        ) from error


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The object that `--json` prints (docs/json.md)."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return {"schema": SCHEMA, **plain}


def as_lines(diagnosis: Diagnosis, *, several: bool) -> list[str]:
    """The answer for people, in 80 columns; commands are never wrapped."""
    lines: list[str] = []
    for number, cause in enumerate(diagnosis.causes, start=1):
        lines += [*([""] if lines else []), *_cause_lines(number, cause, several=several)]
    if diagnosis.unknown:
        lines += _unknown_lines(diagnosis, several=several)
    if diagnosis.environment:
        said = ", ".join(f"{name} {value}" for name, value in diagnosis.environment.items())
        lines += ["", *wrap(said, "  ", "The log's environment: ")]
    return lines


def _cause_lines(number: int, cause: Cause, *, several: bool) -> list[str]:
    lines = [f"{number}. {cause.cls} ({cause.confidence:.0%})", *wrap(cause.meaning, "   ")]
    for line in cause.lines:
        place = f"{line.log}:{line.number}" if several else f"line {line.number}"
        lines += _quoted(place, line.text)
    lines += wrap(cause.remedy, "   ", "   Remedy: ")
    lines += [f"     {command}" for command in cause.commands]
    return [*lines, f"   See docs/claims.md#{cause.claim}"] if cause.claim else lines


def _quoted(place: str, text: str) -> list[str]:
    import textwrap

    shown = textwrap.wrap(text, WIDTH, initial_indent=f"   {place}: ", subsequent_indent="     | ")
    if len(shown) > _QUOTE_LINES:
        shown = [*shown[: _QUOTE_LINES - 1], "     | ..."]
    return shown


def _unknown_lines(diagnosis: Diagnosis, *, several: bool) -> list[str]:
    lines = ["No cause is certain."]
    for hint in diagnosis.hints:
        lines += wrap(f"It may be {hint.cls}: {hint.meaning}", "  ", "  ")
        for line in hint.lines[:1]:
            place = f"{line.log}:{line.number}" if several else f"line {line.number}"
            lines += _quoted(place, line.text)
    lines.append("Collect next, and give it to provision diagnose together with this log:")
    return [*lines, *(f"  {command}" for command in diagnosis.collect)]
