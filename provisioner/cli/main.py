"""The command line as a whole: finds a command, runs it, turns every failure into one message.

Commands are imported when they are called, never for `--help` or completion of their names.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import click

from provisioner import __version__
from provisioner.cli.lazy import LazyGroup
from provisioner.cli.output import print_error, print_usage_error
from provisioner.errors import Exit, OutsideError, ProvisionError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "resolve": ("provisioner.cli.resolve:command", "Find the cell for a request and say why."),
    "render": ("provisioner.cli.render:command", "Write the files of a cell."),
    "lock": ("provisioner.cli.lock:command", "Pin the packages of a cell with hashes."),
    "build": ("provisioner.cli.build:command", "Build and verify the image of a cell."),
    "verify": ("provisioner.cli.verify:command", "Prove that torch.compile works somewhere."),
    "cache": ("provisioner.cli.cache:group", "Find and remove damaged compile-cache entries."),
    "sbom": ("provisioner.cli.sbom:command", "Print the bill of materials of a locked cell."),
    "bundle": ("provisioner.cli.bundle:command", "Gather all of a cell for a place without net."),
    "env": ("provisioner.cli.env:group", "Create, check, roll back environments on this machine."),
    "host": ("provisioner.cli.host:group", "Read a GPU host; hold it against a cell."),
    "fleet": ("provisioner.cli.fleet:group", "Move many hosts to a cell, in waves."),
    "doctor": ("provisioner.cli.doctor:command", "Find what keeps torch.compile from working."),
    "diff": ("provisioner.cli.facts_diff:command", "Compare two hosts by what can break."),
    "diagnose": ("provisioner.cli.diagnose:command", "Find the root causes in logs."),
    "matrix": ("provisioner.cli.matrix:group", "Show, check and audit what the tool knows."),
}
"""Name -> where the command is, and its line in the help."""

INTERRUPTED = 130
BROKEN_PIPE = 141
# What the system refuses, as opposed to what our own code got wrong.
_SYSTEM = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EPERM,
        errno.EROFS,
    }
)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit status: 0 done, 1 a check found a problem, 2 usage, 3 refused by the matrix, "
    "4 something outside failed, 5 a bug of provision.",
)
@click.version_option(__version__, "-V", "--version", message="provision %(version)s")
def cli() -> None:
    """Reproducible PyTorch environments on NVIDIA GPUs, with torch.compile proved to work."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit status; every failure is one message."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(list(arguments), as_json)
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return status


def output_failed(error: OSError) -> int:
    """The output itself could not be written: its reader went away, or its disk is full."""
    return _broken_pipe() if isinstance(error, BrokenPipeError) else _output_lost(error)


def _run(arguments: list[str], as_json: bool) -> int:
    try:
        result = cli.main(arguments, prog_name="provision", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        print_usage_error(error, as_json=as_json)
        return int(Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("provision: interrupted", err=True)
        return INTERRUPTED
    except SystemExit as stop:
        # click leaves this way when the reader of its output went away
        raise BrokenPipeError from stop
    except BrokenPipeError:
        raise
    except ProvisionError as error:
        print_error(error, as_json=as_json)
        return int(error.exit_status)
    except OSError as error:
        if error.errno == errno.ENOENT and _folder_is_gone():
            print_error(_NO_FOLDER, as_json=as_json)
            return int(Exit.OUTSIDE)
        if _while_printing(error):
            raise  # `run` says that the output is lost
        if error.errno not in _SYSTEM:
            return _bug(error, arguments, as_json=as_json)
        print_error(_system_error(error), as_json=as_json)
        return int(Exit.OUTSIDE)
    except Exception as error:  # noqa: BLE001 - the last line of defence against tracebacks
        return _bug(error, arguments, as_json=as_json)
    return result if isinstance(result, int) else int(Exit.DONE)


def _while_printing(error: OSError) -> bool:
    """Whether it was our own output that could not be written, not a file."""
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame
        if code.f_globals.get("__name__") == "click.utils" and code.f_code.co_name == "echo":
            return True
        place = place.tb_next
    return False


_NO_FOLDER = OutsideError(
    "system.no-folder",
    "The current folder was deleted.",
    next_step="Change to a folder that is there (`cd .` is enough where it was made again).",
)


def _folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() does no more
    except FileNotFoundError:
        return True
    return False


def _system_error(error: OSError) -> OutsideError:
    reason = error.strerror or str(error)
    name = errno.errorcode.get(error.errno or 0, "error").lower()
    place = f"{error.filename}: " if error.filename else ""
    return OutsideError(f"system.{name}", f"{place}{reason}.")


def _bug(error: Exception, arguments: list[str], *, as_json: bool) -> int:
    """One line and a file with the trace; the trace on the screen with PROVISION_DEBUG=1."""
    import traceback

    if os.environ.get("PROVISION_DEBUG") == "1":
        traceback.print_exception(error)
    words = [word for word in arguments[:2] if not word.startswith("-")]
    place = _write_trace("".join(traceback.format_exception(error)), " ".join(words))
    found = ProvisionError(
        "provision.bug",
        f"This is a bug of provision: {type(error).__name__}: {str(error)[:300]}",
        facts={"trace": place},
        next_step="Report it with the trace file. PROVISION_DEBUG=1 shows the trace here.",
    )
    print_error(found, as_json=as_json, exit_status=Exit.BUG)
    return int(Exit.BUG)


def _write_trace(trace: str, command: str) -> str:
    """The file that holds the trace, or why there is none."""
    import platform
    import tempfile

    head = f"provision {__version__}, Python {platform.python_version()}, command {command}\n\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix="provision-trace-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(head + trace)
    except OSError as error:
        return f"not written: {error.strerror or error}"
    return name


def _broken_pipe() -> int:
    """The reader went away (`| head`): nothing more to say, and nothing to say at exit either."""
    _discard_output()
    return BROKEN_PIPE


def _output_lost(error: OSError) -> int:
    _discard_output()
    print_error(
        OutsideError(
            "output.lost",
            f"The output could not be written: {error.strerror or error}.",
            next_step="Make room where standard output goes, and run the command again.",
        ),
        as_json=False,
    )
    return int(Exit.OUTSIDE)


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
