"""A real environment with torch for the CPU, kept in .cache/venvs, and runs of the probe in it."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine import PROJECT
from support.needs import UnavailableError
from support.wheelhouse import TORCH_CPU, fetch_torch_cpu

from provisioner.verify import probe

VENVS = PROJECT / ".cache" / "venvs"
PROBE = Path(probe.__file__)
# Variables that would change what a run of the probe finds.
CLEARED = (*probe.WATCHED, *probe.WATCHED_NAMES, "PYTHON", "ATEN_")
KEPT = ("HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH")


def make_environment() -> Path:
    """Return the interpreter of a venv with torch 2.13.0 for the CPU and numpy.

    Made once and kept; its name carries a hash of what is in it. Raises UnavailableError.
    """
    python = _python_311()
    wheel = fetch_torch_cpu(PROJECT / ".cache" / "wheelhouse")
    content = f"{wheel.name} numpy {Path(python).resolve()}"
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    folder = VENVS / f"torch{TORCH_CPU}-cpu-{key}"
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(python, folder, [str(wheel), "numpy"])
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _python_311() -> str:
    """The wheel at hand is for Python 3.11; compiling needs that interpreter's headers."""
    script = "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_path('include'))"
    for candidate in (sys.executable, "python3.11", "/usr/bin/python3.11"):
        try:
            done = subprocess.run(
                [candidate, "-c", script], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        version, _, include = done.stdout.strip().rpartition(" ")
        if version == "(3, 11)" and Path(include, "Python.h").is_file():
            return candidate
    raise UnavailableError("no Python 3.11 with its headers (Python.h) is on this machine")


def _install(python: str, folder: Path, requirements: list[str]) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={folder}"]
    for command in (
        [python, "-m", "venv", "--without-pip", str(folder)],
        [*pip, "install", "--quiet", "--no-cache-dir", "--no-compile", *requirements],
    ):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            last = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise UnavailableError(f"a venv with torch {TORCH_CPU} cannot be made: {last}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of the probe ended with."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    def check(self, name: str) -> dict[str, Any]:
        """The record of one check."""
        return next(check for check in self.report["checks"] if check["id"] == name)

    @property
    def decided(self) -> str:
        """The id of the check that decided, empty where none failed."""
        failed = [check["id"] for check in self.report["checks"] if check["status"] == "fail"]
        return failed[0] if failed else ""


@dataclass(frozen=True, kw_only=True)
class TorchEnv:
    """An interpreter with torch, and how to run the probe with it."""

    python: Path
    scratch: Path
    site: Path = field(init=False)
    include: Path = field(init=False)

    def __post_init__(self) -> None:
        script = "import sysconfig as s; print(s.get_path('purelib'), s.get_path('include'))"
        done = subprocess.run(
            [str(self.python), "-c", script], capture_output=True, text=True, check=True
        )
        site, include = done.stdout.split()
        object.__setattr__(self, "site", Path(site))
        object.__setattr__(self, "include", Path(include))

    def probe(
        self,
        *options: str,
        env: Mapping[str, str | None] | None = None,
        inside: tuple[str, ...] = (),
    ) -> Outcome:
        """Run the probe on the CPU; `inside` is a command that runs it, `env` changes variables."""
        report = self.scratch / f"report-{len(list(self.scratch.iterdir()))}.json"
        command = [*inside, str(self.python), str(PROBE), "--device", "cpu"]
        done = subprocess.run(
            [*command, "--report", str(report), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=_environment(env or {}),
            check=False,
        )
        assert report.is_file(), done.stderr
        return Outcome(
            code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            report=json.loads(report.read_text(encoding="utf-8")),
        )

    def start_up(self, name: str, code: str) -> dict[str, str | None]:
        """Variables that make every Python of the probe run `code` first, with `phase` set.

        `phase` is "cold" or "warm" in a child and empty in the parent.
        """
        folder = self.scratch / name
        folder.mkdir()
        head = (
            "words = open('/proc/self/cmdline').read().split(chr(0))\n"
            "phase = words[words.index('_child') + 1] if '_child' in words else ''\n"
        )
        (folder / "sitecustomize.py").write_text(head + code)
        return {"PYTHONPATH": str(folder)}


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(CLEARED)
    }
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def mounted(options: str, folder: Path, *command: str) -> tuple[str, ...]:
    """A command prefix: in a mount namespace of its own, with a tmpfs over `folder`."""
    script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    return ("unshare", "-Urm", "sh", "-c", script, "sh", options, str(folder), *command)


def without_namespaces() -> str | None:
    """Why no namespaces can be made here, None where they can."""
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() or None if done.returncode else None
