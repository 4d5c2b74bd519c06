"""Which engine there is on this machine, and an interpreter of the cell's Python for pip-tools."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError, UsageError
from provisioner.lock.engines import Engine, PipTools, Uv
from provisioner.lock.toolset import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from provisioner.lock.client import Client
    from provisioner.lock.model import Target

CHOICES = ("auto", "uv", "pip-tools")
_ASK = (
    "import platform, sys; "
    "print('%d.%d' % sys.version_info[:2], sys.implementation.name, platform.machine())"
)


def find_engine(
    choice: str, target: Target, lock_python: str | None, client: Client, package_index: str
) -> Engine:
    """Returns the engine that was chosen, ready to run; raises OutsideError when it is missing.

    `auto` takes uv where it is installed and pip-tools otherwise.
    """
    if choice not in CHOICES:
        raise UsageError(
            "lock.bad-engine",
            f"There is no engine {ascii(choice)[:40]}; there are {', '.join(CHOICES)}.",
        )
    program = find_uv() if choice in ("auto", "uv") else None
    if program is not None:
        return Uv(program)
    if choice == "uv":
        raise OutsideError(
            "lock.no-uv",
            "uv is not installed here.",
            next_step="Install it (`pip install 'provisioner[uv]'`), or take `--engine pip-tools`.",
        )
    python = find_python(target, lock_python, os.environ)
    if python == sys.executable and sys.prefix != sys.base_prefix:
        # Our own virtual environment holds pip-tools: it is a dependency of this tool.
        return PipTools(python, None)
    return PipTools(python, library(target, client, package_index))


def find_uv() -> str | None:
    """Returns the path of uv: the one installed beside this tool, else the one on the path."""
    beside = Path(sys.executable).parent / "uv"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("uv")


def find_python(target: Target, lock_python: str | None, environ: Mapping[str, str]) -> str:
    """Returns an interpreter of the target's Python that runs; raises OutsideError without one.

    `lock_python` is the user's word and has to fit. Otherwise PROVISION_PYTHON_39 (for 3.9), the
    interpreter of this tool, and python3.9 on the path are tried. A found name proves nothing (a
    version manager leaves names that do not run), so each is asked who it is.
    """
    if target.arch != platform.machine():
        raise OutsideError(
            "lock.engine-machine",
            f"pip-tools judges conditions by the machine it runs on ({platform.machine()}); this "
            f"cell is for {target.arch}.",
            next_step="Take `--engine uv`, which needs no such machine, or lock on one.",
        )
    tried: dict[str, str] = {}
    for place, path in _places(target, lock_python, environ):
        told = _who(path)
        if told == f"{target.python} cpython {target.arch}":
            return path
        tried[place] = told
    number = target.python.replace(".", "")
    raise OutsideError(
        "lock.no-python",
        f"pip-tools has to run on Python {target.python}, and none was found here "
        f"({'; '.join(f'{place}: {told}' for place, told in tried.items())}).",
        facts={"python": target.python, "tried": tried},
        next_step=f"Install Python {target.python}, name one with `--lock-python PATH` or "
        f"PROVISION_PYTHON_{number}, or take `--engine uv`, which needs none.",
    )


def _places(
    target: Target, lock_python: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    if lock_python:
        yield "--lock-python", lock_python
        return
    variable = f"PROVISION_PYTHON_{target.python.replace('.', '')}"
    if environ.get(variable):
        yield variable, environ[variable]
        return
    if target.python == f"{sys.version_info[0]}.{sys.version_info[1]}":
        yield "the Python of this tool", sys.executable
    name = f"python{target.python}"
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        yield name, ""
        return
    yield f"{name} on the path", found


def _who(path: str) -> str:
    if not path:
        return "not on the path"
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", _ASK],
            capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({getattr(error, 'strerror', None) or 'no answer'})"
    return done.stdout.strip() if done.returncode == 0 else "does not run"
