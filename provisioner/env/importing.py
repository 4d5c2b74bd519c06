"""What an environment imports, and from where: one torch of the right variant, nothing foreign."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence  # noqa: TC003 - part of public signatures
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.env.finding import Finding
from provisioner.env.inventory import normalized
from provisioner.errors import OutsideError
from provisioner.lock import installed

if TYPE_CHECKING:
    from provisioner.env.expected import Expected

_INSIDE = Path(__file__).with_name("inside.py")
_TORCH = (
    "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.__file__]))"
)
_TIMEOUT_S = 300
_REBUILD = "Build the environment anew beside it: provision env create CELL --prefix DIR."


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What `inside.py` told."""

    prefix: str
    base_prefix: str
    path: tuple[str, ...]
    stdlib: tuple[str, ...]
    user_site: str
    pythonpath: str
    torch: tuple[str, ...]
    distributions: tuple[tuple[str, str, str], ...]
    python: str = ""
    user_site_enabled: bool = field(default=False)


def ask(python: Path, environ: Mapping[str, str]) -> Imports:
    """Returns what an interpreter would import from, started as a user would start it.

    Raises OutsideError `env.python-broken`.
    """
    done = _run([str(python), "-B", "-c", _INSIDE.read_text(encoding="utf-8")], environ)
    if done.returncode != 0:
        raise OutsideError(
            "env.python-broken",
            f"{python} does not run: {_last(done.stderr) or f'status {done.returncode}'}.",
            next_step=_REBUILD,
        )
    told: dict[str, Any] = json.loads(done.stdout)
    told["distributions"] = tuple(tuple(entry) for entry in told["distributions"])
    for key in ("path", "stdlib", "torch"):
        told[key] = tuple(told[key])
    return Imports(**told)


def foreign_findings(imports: Imports) -> list[Finding]:
    """Returns a finding for every folder on sys.path that is not of this environment. Pure."""
    prefix = Path(os.path.realpath(imports.prefix))
    library = [Path(os.path.realpath(folder)) for folder in imports.stdlib]
    return [
        _foreign(entry, imports)
        for entry in imports.path
        if not _is_own(Path(os.path.realpath(entry)), prefix, library)
    ]


def _is_own(place: Path, prefix: Path, library: Sequence[Path]) -> bool:
    if place.is_relative_to(prefix):
        return True
    for folder in library:
        # The standard library of the Python below a virtual environment, not its packages.
        if place.is_relative_to(folder):
            return not place.name.endswith("-packages")
        if place.parent == folder.parent and place.suffix == ".zip":
            return True
    return False


def _foreign(entry: str, imports: Imports) -> Finding:
    if os.path.realpath(entry) == os.path.realpath(imports.user_site):
        why, step = "it is the user's own site folder", "Set PYTHONNOUSERSITE=1, or remove it."
    elif entry in imports.pythonpath.split(os.pathsep):
        why, step = "PYTHONPATH names it", "Unset PYTHONPATH."
    else:
        why, step = "something in the environment adds it", _REBUILD
    return Finding(
        code="env.foreign-path",
        message=f"{entry} is on sys.path, outside the environment: {why}.",
        paths=(entry,),
        next_step=step,
    )


def torch_findings(imports: Imports, cell: Expected | None) -> list[Finding]:
    """Returns what is wrong with torch and its family, without importing them. Pure."""
    places = list(imports.torch)
    named = [entry for entry in imports.distributions if normalized(entry[0]) == "torch"]
    found: list[Finding] = []
    if not places and cell is not None:
        found.append(_torch("env.torch-missing", "No torch can be imported.", ()))
    if len(places) > 1 or len(named) > 1:
        shown = places if len(places) > 1 else [entry[2] for entry in named]
        found.append(
            _torch(
                "env.torch-twice",
                f"There is more than one torch: {', '.join(shown)}.",
                tuple(shown),
            )
        )
    if cell is not None:
        every = [(name, version) for name, version, _ in imports.distributions]
        told = {finding.code for finding in found}
        found += [each for each in guard_findings(cell, every) if each.code not in told]
    return found


def guard_findings(cell: Expected, distributions: Iterable[tuple[str, str]]) -> list[Finding]:
    """Returns what may not be among these distributions, locked or installed. Pure."""
    plain: dict[str, Any] = msgspec.to_builtins(cell)
    found = installed.problems(plain, distributions)
    return [_torch(f"env.{problem.code}", problem.message, ()) for problem in found]


def import_findings(
    python: Path, cell: Expected | None, environ: Mapping[str, str], places: Sequence[str]
) -> list[Finding]:
    """Returns what an import of torch brings to light; nothing is imported where there is none."""
    if not places:
        return []
    done = _run([str(python), "-B", "-c", _TORCH], environ)
    if done.returncode != 0:
        text = f"torch cannot be imported: {_last(done.stderr) or f'status {done.returncode}'}."
        return [_torch("env.torch-broken", text, tuple(places))]
    version, cuda, _ = json.loads(done.stdout.strip().splitlines()[-1])
    if cell is None:
        return []
    if version != cell.local_version:
        text = f"torch says it is {version}; the cell needs {cell.local_version}."
        return [_torch("env.torch-variant", text, tuple(places))]
    if (cuda is None) != (cell.device == "cpu"):
        text = f"torch {version} was built {'without' if cuda is None else 'with'} CUDA."
        return [_torch("env.torch-variant", text, tuple(places))]
    return []


def _torch(code: str, message: str, paths: tuple[str, ...]) -> Finding:
    return Finding(code=code, message=message, paths=paths, next_step=_REBUILD)


def _run(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd="/",
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise OutsideError(
            "env.python-broken",
            f"{command[0]} cannot be started: {error.strerror}.",
            next_step=_REBUILD,
        ) from None
    except subprocess.TimeoutExpired:
        raise OutsideError(
            "env.python-broken", f"{command[0]} did not answer within {_TIMEOUT_S} s."
        ) from None


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""
