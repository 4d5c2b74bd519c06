"""Runs conda-lock's own command line, and turns what it says into one error.

Its own messages carry the solver's answer twice and a traceback, so they are never shown whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping  # noqa: TC003 - part of public signatures
from dataclasses import dataclass, field
from pathlib import Path

from provisioner.conda import shim
from provisioner.conda.channel import redacted
from provisioner.errors import Exit, FindingError, OutsideError, ProvisionError, UsageError

_KINDS = {Exit.FINDING: FindingError, Exit.USAGE: UsageError, Exit.OUTSIDE: OutsideError}
_DROPPED = frozenset({"CONDA_FLAGS", "PYTHONPATH", "PYTHONHOME", "RUNNER_TEMP"})
_TIMEOUT_S = 1800


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call of conda-lock in a folder that holds environment.yml and virtual-packages.yml."""

    folder: Path
    platform: str
    update: tuple[str, ...] = ()
    conda_exe: Path | None = None
    environ: Mapping[str, str] = field(repr=False)


LICENSES = "licenses.json"


def run(call: Run) -> None:
    """Writes conda-lock.yml and conda-PLATFORM.lock into the folder.

    Our own solver adds licenses.json: name -> license of the solution, as the channel has it.
    Raises what the solver found (see `rattler.solve`), or OutsideError `conda.lock-failed`.
    """
    report = call.folder / "report.json"
    with _solver(call) as conda:
        command = [sys.executable, "-m", "conda_lock", "lock", "--conda", str(conda)]
        command += ["--no-mamba", "--file", "environment.yml"]
        command += ["--virtual-package-spec", "virtual-packages.yml"]
        command += ["--lockfile", "conda-lock.yml", "--kind", "lock", "--kind", "explicit"]
        command += ["--platform", call.platform]
        for name in call.update:
            command += ["--update", name]
        try:
            done = subprocess.run(
                command,
                cwd=call.folder,
                env=_environment(call, report),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OutsideError(
                "conda.lock-timeout", f"conda-lock did not end within {_TIMEOUT_S} s."
            ) from None
    if done.returncode == 0:
        return
    raise _reported(report) or _failed(done.stderr, call)


def _environment(call: Run, report: Path) -> dict[str, str]:
    """The user's network settings; nothing that changes what conda-lock asks or where it works.

    conda-lock itself sets what the solver has to know of the target.
    """
    kept = {name: value for name, value in call.environ.items() if name not in _DROPPED}
    told = {shim.REPORT_VARIABLE: report, shim.LICENSES_VARIABLE: call.folder / LICENSES}
    places = {name: str(path) for name, path in told.items()}
    return kept | places | {"PYTHONSAFEPATH": "1", "NO_COLOR": "1"}


@contextlib.contextmanager
def _solver(call: Run) -> Iterator[Path]:
    """The executable for --conda: what the user named, else a launcher of ours."""
    if call.conda_exe is not None:
        yield checked_executable(call.conda_exe)
        return
    with launcher() as path:
        yield path


def checked_executable(path: Path) -> Path:
    """Returns the absolute path of a program; raises UsageError when it is none.

    conda-lock would go looking for another, or download one.
    """
    found = shutil.which(path)
    if found is None:
        raise UsageError(
            "conda.no-executable",
            f"There is no program {path} to solve with.",
            facts={"conda_exe": str(path)},
            next_step="Name micromamba, mamba or conda by its path, or leave --conda-exe out: "
            "provision brings its own solver.",
        )
    return Path(found).absolute()


@contextlib.contextmanager
def launcher() -> Iterator[Path]:
    """Gives the path of a program `conda` that is `shim.py` under this interpreter."""
    from provisioner.matrix.cache import cache_directory

    line = f'exec {shlex.quote(sys.executable)} -m provisioner.conda.shim "$@"'
    for base in (None, cache_directory()):
        if base is not None:
            base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="provision-conda-", dir=base) as folder:
            path = Path(folder, "conda")
            path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
            path.chmod(0o700)
            if os.access(path, os.X_OK):
                yield path
                return
    raise OutsideError(
        "conda.noexec",
        "Neither the temporary folder nor the cache folder lets a program run.",
        next_step="Point TMPDIR at a folder that is not mounted noexec.",
    )


def _reported(report: Path) -> ProvisionError | None:
    """The error that our solver told, with its code and facts."""
    try:
        error = json.loads(report.read_bytes())["error"]
        kind = _KINDS.get(error["exit_status"], ProvisionError)
        return kind(
            error["code"], error["message"], facts=error["facts"], next_step=error["next_step"]
        )
    except (OSError, ValueError, KeyError):
        return None


def _failed(stderr: str, call: Run) -> OutsideError:
    solver = str(call.conda_exe or "provision's own")
    return OutsideError(
        "conda.lock-failed",
        f"conda-lock found no lock for {call.platform}.",
        facts={"solver": solver, "said": redacted(spoken(stderr), call.environ)},
        next_step="Without --conda-exe, provision's own solver says which specs clash."
        if call.conda_exe
        else None,
    )


def spoken(stderr: str) -> str:
    """Returns the solver's message in what conda-lock wrote: no command, JSON or traceback."""
    lines = stderr.splitlines()
    begins = [n for n, line in enumerate(lines) if line.startswith("Could not lock the env")]
    if begins:
        rest = lines[begins[-1] + 1 :]
        ends = [n for n, line in enumerate(rest) if line.startswith("    Command:")]
        return "\n".join(rest[: ends[0]] if ends else rest[:20]).strip()[:2000]
    errors = [line for line in lines if "Error" in line]
    return (errors or [line for line in lines if line.strip()] or [""])[-1][:500]
