"""Runs the probe with an interpreter of this machine, and reads back what it reports.

The interpreter may be older than ours and lack everything but torch: the probe is one file that is
handed to it. The environment is left as it is, since a variable that turns torch.compile off is
one of the things to find.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from provisioner.errors import OutsideError
from provisioner.verify.report import Report, load_report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBE: Final = Path(__file__).with_name("probe.py")
_GRACE_S = 120.0
_USAGE = 2
_LAST_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be judged. `expect` is the promise of a cell (see spec.promise), None for none.

    `timeout_s` bounds each of the two processes that compile, in seconds; None: the probe's own.
    """

    device: str = "auto"
    expect: Mapping[str, object] | None = None
    strict_cache: bool = False
    speed: bool = False
    timeout_s: float | None = None

    def options(self, expect: str | None) -> list[str]:
        """Returns the options of probe.py; `expect` is where the promise lies, as it sees it."""
        words = ["--device", self.device]
        words += ["--expect", expect] if expect is not None else []
        words += ["--strict-cache"] if self.strict_cache else []
        words += ["--speed"] if self.speed else []
        words += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s is not None else []
        return words


def verify_interpreter(python: Path, question: Question) -> Report:
    """Returns the report of the probe run by `python`.

    Raises OutsideError where that is no interpreter, or where it brings no report.
    """
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise OutsideError(
            "verify.no-python",
            f"There is no Python to verify at {python}.",
            facts={"python": str(python)},
            next_step="Name the environment with --prefix, or an interpreter with --python.",
        )
    with tempfile.TemporaryDirectory(prefix="provision-verify-") as folder:
        report = Path(folder) / "report.json"
        expect = None
        if question.expect is not None:
            expect = Path(folder) / "expect.json"
            expect.write_bytes(msgspec.json.encode(question.expect))
        command = [str(python), str(PROBE), "--report", str(report)]
        command += question.options(None if expect is None else str(expect))
        status, said = _run(command, question)
        if status == _USAGE or not report.is_file():
            raise OutsideError(
                "verify.no-report",
                f"{python} ran the probe and left no report (exit status {status}):\n{said}",
                facts={"python": str(python), "exit_status": status},
                next_step="Run that interpreter by hand: it may be no Python 3.8 or newer.",
            )
        return load_report(report)


def _run(command: Sequence[str], question: Question) -> tuple[int, str]:
    """The exit status and the last lines of what the probe said."""
    # The probe ends its own children; this is for one that hangs itself.
    limit = None if question.timeout_s is None else 3 * question.timeout_s + _GRACE_S
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OutsideError(
            "verify.timeout",
            f"The verification did not end within {limit:g} s.",
            next_step="Give it more with --timeout, or look at what the machine is busy with.",
        ) from None
    except OSError as error:
        raise OutsideError(
            "verify.no-python",
            f"{command[0]} cannot be started: {error.strerror}.",
            facts={"python": command[0]},
            next_step="Name an interpreter of this machine with --python.",
        ) from None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return done.returncode, "\n".join(lines[-_LAST_LINES:])
