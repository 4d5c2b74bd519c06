"""What the tool prints: results on standard output, everything else on standard error."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.lazy import NoCommandError
from provisioner.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provisioner.errors import ProvisionError
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.model import Matrix

ERROR_SCHEMA = "provision.error/1"
REFUSAL_SCHEMA = "provision.resolve/1"
WIDTH = 80


class Output:
    """Where a command prints to. `json` and `verbose` are the options of that name."""

    def __init__(self, *, json: bool, verbose: int = 0) -> None:
        self.json = json
        self.verbose = verbose

    def result(self, value: Any) -> None:
        """Print an object as JSON: two blanks of indent, keys in their own order."""
        click.echo(to_json(value))

    def line(self, text: str = "") -> None:
        """Print a line of the result for people."""
        click.echo(text)

    def note(self, text: str) -> None:
        """Tell people something beside the result; silent with --json."""
        if not self.json:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """Tell people something only with -v."""
        if self.verbose:
            self.note(text)


def note_age(out: Output, matrix: Matrix) -> None:
    """Say on standard error how old the matrix is, where that matters and people look."""
    from provisioner.matrix.age import age_warning, today

    if not out.json and (line := age_warning(matrix.meta, today())) is not None:
        out.note(line)


def print_refusal(out: Output, refusal: Refusal, command: str) -> int:
    """Print why there is nothing for a request, with the nearest; returns the exit status.

    `command` is what the options of the nearest ones are appended to.
    """
    if out.json:
        out.result({"schema": REFUSAL_SCHEMA, "refusal": refusal})
        return int(Exit.REFUSED)
    sure = "" if refusal.verified else " (not confirmed at first hand)"
    lines = wrap(f"{refusal.message}{sure} [{refusal.code}]", "  ", "provision: ")
    for also in refusal.also:
        lines += wrap(also, "    ", "  also: ")
    for axis, have in refusal.have.items():
        lines += wrap(f"have {have}, need {refusal.need.get(axis, '')}", "    ", f"  {axis}: ")
    if refusal.source:
        lines += wrap(", ".join(refusal.source), "    ", "  source: ")
    if refusal.nearest:
        lines.append("Next: one of these works")
    for near in refusal.nearest:
        # One line, however long: it is there to be copied.
        lines += [f"  {near.name} ({near.differs})", f"    {command} {shlex.join(near.options)}"]
    for line in lines:
        _say(line)
    return int(Exit.REFUSED)


def to_json(value: Any) -> str:
    """The JSON text of plain values and msgspec structs."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a left-aligned table, two blanks between columns, no trailing blanks."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


def wrap(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """A paragraph in lines of at most WIDTH columns; long words are kept whole."""
    import textwrap

    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: 1 file, 2 files; `plural` where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """The text with what could steer a terminal shown, not sent."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def print_error(error: ProvisionError, *, as_json: bool, exit_status: Exit | None = None) -> None:
    """Print an expected failure: the problem, the facts, the next step."""
    status = error.exit_status if exit_status is None else exit_status
    if as_json:
        shown = {**error.to_dict(), "exit_status": int(status)}
        click.echo(to_json({"schema": ERROR_SCHEMA, "error": shown}))
        return
    for line in _message_lines(error.message, error.code):
        _say(line)
    for name, value in error.facts.items():
        for line in wrap(_plain(value), "    ", f"  {name}: ") or [f"  {name}:"]:
            _say(line)
    if error.next_step:
        for line in next_lines(error.next_step):
            _say(line)


def _message_lines(message: str, code: str) -> list[str]:
    """The sentence in lines of 80 columns. What a program said below it stays as it was said."""
    first, *rest = f"{message} [{code}]".split("\n")
    return [*wrap(first, "  ", "provision: "), *rest]


def next_lines(step: str) -> list[str]:
    """The next step in lines of 80 columns. A command in it is kept whole, so as to be copied:
    what stands between backquotes, or before the first comma of a step that begins with one.
    """
    import re

    first, *rest = step.split("\n")
    held = re.sub(
        r"`[^`]*`|^(provision|docker) [^,;(]*", lambda found: found[0].replace(" ", "\0"), first
    )
    return [*(line.replace("\0", " ") for line in wrap(held, "  ", "Next: ")), *rest]


def print_usage_error(error: click.ClickException, *, as_json: bool) -> None:
    """Print what click found wrong with the command line."""
    # click 8.2 has an error of its own for groups that are not lazy
    no_command = type(error).__name__ in {"NoArgsIsHelpError", NoCommandError.__name__}
    if no_command and not as_json:
        click.echo(getattr(error, "help", error.format_message()), err=True)
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "provision"
    next_step = f"{command} --help"
    message = "A command is missing." if no_command else error.format_message()
    if as_json:
        shown = {
            "code": "usage",
            "message": message,
            "facts": {},
            "next_step": next_step,
            "exit_status": int(Exit.USAGE),
        }
        click.echo(to_json({"schema": ERROR_SCHEMA, "error": shown}))
        return
    for line in (*_message_lines(message, "usage"), f"Next: {next_step}"):
        _say(line)


def _say(text: str) -> None:
    """A line on standard error; what could steer a terminal is shown, not sent."""
    shown = (char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)
    click.echo("".join(shown), err=True)


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} ({item})" for key, item in value.items())
    return str(value)
