"""The proof that an environment is what its locks say: `provision env check PREFIX`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping  # noqa: TC003 - type of a field
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.conda import prefix as prefixes
from provisioner.conda.worker import OURS
from provisioner.env import importing, ownership, pip
from provisioner.env.finding import Finding
from provisioner.env.inventory import Inventory, read_inventory
from provisioner.errors import OutsideError

if TYPE_CHECKING:
    from provisioner.env.expected import Expected

SPEC = f"{OURS}/spec.json"
_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What to hold an environment against.

    `cell` defaults to the spec that `provision env create` left in the prefix. `environ` is what
    its Python is started with: a PYTHONPATH or user site in it is a finding. `building` accepts a
    prefix that is not finished yet.
    """

    cell: Expected | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    building: bool = False


def check_env(prefix: Path, options: CheckOptions | None = None) -> list[Finding]:
    """Returns everything that is wrong with an environment; empty when it is proved.

    Holds: no path has two owners; RECORD and conda-meta hashes are right; `pip check` is clean;
    exactly one torch can be imported, of the cell's variant; nothing outside is on sys.path.
    Raises OutsideError where there is no environment to look at.
    """
    options = options or CheckOptions()
    prefix = Path(os.path.realpath(prefix))
    inventory = read_inventory(prefix)
    cell = options.cell or cell_of(prefix)
    python = prefix / "bin" / "python"
    found: list[Finding] = []
    found += [] if options.building else _unfinished(prefix)
    found += ownership.owner_findings(inventory)
    found += ownership.integrity_findings(inventory)
    found += ownership.pth_findings(inventory)
    try:
        imports = importing.ask(python, options.environ)
    except OutsideError as error:
        # With files missing the interpreter may well not start: that is one more finding.
        return [*found, Finding(code=error.code, message=error.message, next_step=error.next_step)]
    found += importing.foreign_findings(imports)
    found += importing.torch_findings(imports, cell)
    found += importing.import_findings(python, cell, options.environ, imports.torch)
    found += pip_findings(python, inventory, options.environ)
    return found


def cell_of(prefix: Path) -> Expected | None:
    """Returns the cell that an environment was created for, from the spec inside it."""
    path = prefix / SPEC
    if not path.is_file():
        return None
    from provisioner.env.expected import read_expected

    return read_expected(path)


def _unfinished(prefix: Path) -> list[Finding]:
    marker = prefixes.read_marker(prefix)
    if marker is None or prefixes.is_whole(prefix):
        return []
    if marker.get("state") != "whole":
        message = "The environment was never finished: its creation was interrupted."
    else:
        message = f"The environment was made for {marker.get('prefix')} and moved from there."
    return [
        Finding(
            code="env.unfinished",
            message=message,
            next_step="Create it again: provision env create CELL --prefix DIR.",
        )
    ]


def pip_findings(python: Path, inventory: Inventory, environ: Mapping[str, str]) -> list[Finding]:
    """Returns what `pip check` says of the environment, alone with itself."""
    own = any(dist.name == "pip" for dist in inventory.distributions)
    try:
        done = subprocess.run(
            pip.checker(python, own=own),
            cwd="/",
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding(code="env.pip-check", message=f"pip check did not run: {error}.")]
    if done.returncode == 0:
        return []
    said = done.stdout if done.stdout.strip() else done.stderr
    shown = [line.strip() for line in said.splitlines() if line.strip()][-5:]
    return [
        Finding(
            code="env.pip-check",
            message="pip check: " + "; ".join(shown),
            next_step="Lock again, then create the environment anew.",
        )
    ]
