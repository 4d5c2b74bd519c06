"""The programs that decide versions, behind one small interface: uv and pip-tools.

An engine gets requirements, bounds and the address of the loopback view, in an environment of its
own: no configuration file, no variable and no cache of this machine reaches it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from provisioner.errors import OutsideError
from provisioner.lock.inputs import normal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from provisioner.lock.model import Target

TIME_LIMIT_S = 1800
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an engine is asked. `folder` is a private, empty folder that it may fill."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    target: Target
    index_url: str
    folder: Path


class EngineError(Exception):
    """The engine found no answer; the text is its own explanation."""


class EngineDiedError(EngineError):
    """The engine was killed, or gave no answer in time: it says nothing about the question."""


class Engine(Protocol):
    """`compile` returns name -> version; raises EngineError when nothing satisfies the question.

    `watch` is given a function that ends the running program, and may be called from any thread.
    """

    name: str

    def compile(
        self, question: Question, watch: Callable[[Callable[[], None]], None]
    ) -> dict[str, str]: ...


class Uv:
    """uv needs no interpreter of the cell's Python: it is told version and platform."""

    name = "uv"

    def __init__(self, program: str) -> None:
        self.program = program

    def compile(
        self, question: Question, watch: Callable[[Callable[[], None]], None]
    ) -> dict[str, str]:
        """Returns the pins that `uv pip compile` finds."""
        target = question.target
        command = [
            self.program, "pip", "compile", *_files(question),
            "--python-version", target.python_full,
            "--python-platform", f"{target.arch}-unknown-linux-gnu",
            "--python", sys.executable,
            "--no-config", "--no-cache", "--no-header", "--no-annotate", "--no-progress",
            "--only-binary", ":all:", "--keyring-provider", "disabled", "--color", "never",
        ]  # fmt: skip
        extra = {
            "UV_DEFAULT_INDEX": question.index_url,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_RETRIES": "0",
        }
        return read_pins(run(command, question, extra, watch))


class PipTools:
    """pip-tools, run by an interpreter of the cell's Python so that conditions are judged by it.

    `library` is a folder with pip and pip-tools for that interpreter; null: its own are used.
    """

    name = "pip-tools"

    def __init__(self, python: str, library: Path | None) -> None:
        self.python, self.library = python, library

    def compile(
        self, question: Question, watch: Callable[[Callable[[], None]], None]
    ) -> dict[str, str]:
        """Returns the pins that `pip-compile` finds."""
        command = [
            *self._program(), "compile", *_files(question),
            "--output-file", "-", "--quiet", "--no-config", "--resolver", "backtracking",
            "--allow-unsafe", "--strip-extras", "--no-header", "--no-annotate",
            "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-options",
            "--no-emit-find-links", "--cache-dir", str(question.folder / "cache"),
        ]  # fmt: skip
        extra = {
            "PIP_INDEX_URL": question.index_url,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INPUT": "1",
            "PIP_RETRIES": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
        }
        return read_pins(run(command, question, extra, watch))

    def _program(self) -> list[str]:
        if self.library is None:
            return [self.python, "-I", "-m", "piptools"]
        start = (
            "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
            "runpy.run_module('piptools', run_name='__main__', alter_sys=True)"
        )
        # -S: not even the site-packages of that interpreter can mix in.
        return [self.python, "-I", "-S", "-c", start, str(self.library)]


def run(
    command: list[str],
    question: Question,
    extra: Mapping[str, str],
    watch: Callable[[Callable[[], None]], None],
) -> str:
    """Returns what the program printed; raises EngineError with its messages when it failed."""
    try:
        process = subprocess.Popen(
            command,
            cwd=question.folder,
            env={**clean_environment(question.folder), **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise OutsideError(
            "lock.engine-start",
            f"{command[0]} cannot be started: {error.strerror}.",
            facts={"program": command[0]},
            next_step="Check the program, or take the other engine (`--engine`).",
        ) from error
    watch(process.kill)
    try:
        out, told = process.communicate(timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise EngineDiedError(f"gave no answer within {TIME_LIMIT_S} s") from None
    finally:
        with contextlib.suppress(OSError):
            process.kill()
    if process.returncode < 0:
        raise EngineDiedError(f"was killed by {_signal(-process.returncode)}")
    if process.returncode != 0:
        raise EngineError(told.strip() or f"ended with status {process.returncode}")
    return out


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def clean_environment(folder: Path) -> dict[str, str]:
    """Returns an environment with nothing of this machine in it but the search path.

    Only the loopback is talked to, so neither proxies nor certificates nor credentials are handed
    on.
    """
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_CONFIG_DIRS": str(home),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONHASHSEED": "0",
    }


def read_pins(text: str) -> dict[str, str]:
    """Returns the pins of a compiled requirements file."""
    found = (_PIN.match(line) for line in text.splitlines())
    return {normal_name(pin.group(1)): pin.group(2) for pin in found if pin is not None}


def _files(question: Question) -> list[str]:
    requirements = question.folder / "requirements.in"
    constraints = question.folder / "constraints.txt"
    requirements.write_text("".join(f"{line}\n" for line in question.requirements), "utf-8")
    constraints.write_text("".join(f"{line}\n" for line in question.constraints), "utf-8")
    return [str(requirements), "--constraint", str(constraints)]
