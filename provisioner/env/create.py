"""Builds the environment of a cell from its locks, proves it, and only then switches to it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping  # noqa: TC003 - types of fields
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from provisioner.cells import not_rendered
from provisioner.conda import prefix as prefixes
from provisioner.conda.explicit import RECORD
from provisioner.conda.install import InstallOptions, install_conda
from provisioner.conda.worker import OURS
from provisioner.env import pip, versions
from provisioner.env.check import SPEC, CheckOptions, check_env
from provisioner.env.expected import Expected, read_expected
from provisioner.env.finding import error_of
from provisioner.env.importing import guard_findings
from provisioner.env.inventory import read_inventory
from provisioner.errors import FindingError, OutsideError, UsageError
from provisioner.shell import out_option

REQUIREMENTS = "requirements.txt"
REQUIREMENTS_TORCH = "requirements-torch.txt"
_PACKAGE_MIRROR = "PROVISION_MIRROR_PACKAGE_INDEX"
_TORCH_MIRROR = "PROVISION_MIRROR_TORCH_INDEX"
_ID_LENGTH = 12
_VENV_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class CreateOptions:
    """How to build. `root` holds docker/ and lockfiles/; `python` is the base for a venv.

    `torch_index` replaces the cell's own index, `wheels` is a folder of files that stands for both
    indexes; mirrors come from the environment (PROVISION_MIRROR_*). `replace` takes over a folder
    that is not ours. `progress` is called with an event and its facts.
    """

    root: Path
    python: Path | None = None
    engine: Literal["auto", "pip", "uv"] = "auto"
    torch_index: str | None = None
    wheels: Path | None = None
    offline: bool = False
    replace: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    progress: Callable[[str, Mapping[str, Any]], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Created:
    """What `create_env` did. `prefix` is the version's own path, `link` what users call it."""

    cell: str
    link: Path
    prefix: Path
    changed: bool
    previous: Path | None


@dataclass(frozen=True, kw_only=True)
class _Locks:
    """The locks of a cell on disk, and the digest of all that decides the environment."""

    expected: Expected
    spec: Path
    conda: Path | None
    parts: tuple[pip.PipPart, ...]

    def files(self) -> list[Path]:
        conda = [] if self.conda is None else [self.conda]
        return [self.spec, *conda, *(part.file for part in self.parts)]

    def identity(self, python: Path | None) -> str:
        """Returns the name of the version that these locks make."""
        found = hashlib.sha256()
        for path in self.files()[1:]:  # the spec says how the cell was asked for, too
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        found.update(f"{self.expected.name}\0{python or ''}".encode())
        return found.hexdigest()[:_ID_LENGTH]


def create_env(cell: str, link: Path, options: CreateOptions) -> Created:
    """Builds the environment of a cell and makes `link` lead to it; the one before is kept.

    Nothing is done when the current one is from the same locks and passes the check. Raises
    OutsideError (`env.lock-missing`, `env.busy`, `env.pip-failed`, `conda.*`), FindingError
    (`env.lock-guard`, `env.check-failed`, `env.wheel-hash`, `conda.archive-hash`) or UsageError
    (`env.prefix-*`, `env.not-ours`); the environment before is untouched then.
    """
    locks = read_locks(cell, options)
    _guard(locks)
    python = None if locks.conda is not None else base_python(locks.expected, options)
    found = versions.Versions(link)
    identity = locks.identity(python)
    prefixes.check_prefix(found.folder / f"{identity}-99")
    if found.foreign() and not options.replace:
        raise versions.not_ours(found)
    with versions.held(found):
        for made in (found.current, found.previous):
            if made is not None and _serves(made, identity, options):
                changed = made != found.current
                if changed:
                    versions.switch(found, made)
                return Created(
                    cell=cell, link=link, prefix=made, changed=changed, previous=found.previous
                )
        new = found.fresh(identity)
        prefixes.remove(new)
        _build(new, locks, python, options)
        versions.switch(found, new, replace=options.replace)
        versions.prune(found)
    return Created(cell=cell, link=link, prefix=new, changed=True, previous=found.previous)


def _serves(made: Path, identity: str, options: CreateOptions) -> bool:
    """Whether a version is from these locks, and still as it was built."""
    if made.name.partition("-")[0] != identity or not prefixes.is_whole(made):
        return False
    _say(options, "checking", prefix=str(made))
    return not check_env(made, CheckOptions(environ=_clean(options.environ)))


def read_locks(cell: str, options: CreateOptions) -> _Locks:
    """Returns the locks of a cell; raises UsageError `cell.not-rendered`, OutsideError
    `env.lock-missing`.
    """
    spec = options.root / "docker" / cell / "spec.json"
    folder = options.root / "lockfiles" / cell
    if not spec.is_file():
        raise not_rendered(options.root, cell)
    expected = read_expected(spec)
    if expected.arch != os.uname().machine:
        raise UsageError(
            "env.other-machine",
            f"The cell is for {expected.arch}, this machine is {os.uname().machine}.",
        )
    package_index = options.environ.get(_PACKAGE_MIRROR)
    torch = folder / REQUIREMENTS_TORCH
    parts = [pip.PipPart(file=folder / REQUIREMENTS, index_url=package_index)]
    if torch.is_file():
        parts.insert(0, pip.PipPart(file=torch, index_url=torch_index(expected, options)))
    conda = folder / RECORD if expected.python_from == "conda" else None
    locks = _Locks(expected=expected, spec=spec, conda=conda, parts=tuple(parts))
    missing = [path for path in locks.files() if not path.is_file()]
    if missing:
        raise OutsideError(
            "env.lock-missing",
            f"{missing[0].relative_to(options.root)} is missing: the cell was not locked.",
            facts={"missing": [str(path.relative_to(options.root)) for path in missing]},
            next_step=f"provision lock {cell}{out_option(options.root)}",
        )
    return locks


def _guard(locks: _Locks) -> None:
    """Raises FindingError `env.lock-guard` for a lock that may not be installed for its cell.

    Before anything is fetched: a lock can have been edited, or made by something else.
    """
    pins = [(pin.name, pin.version) for part in locks.parts for pin in part.pins()]
    findings = guard_findings(locks.expected, pins)
    if findings:
        raise FindingError(
            "env.lock-guard",
            f"The lock of {locks.expected.name} does not go with its cell: "
            + " ".join(finding.message for finding in findings[:3]),
            facts={"findings": [finding.to_dict() for finding in findings]},
            next_step=f"Lock it again: provision lock {locks.expected.name} --refresh --force",
        )


def torch_index(expected: Expected, options: CreateOptions) -> str | None:
    """Returns the index of the torch family: as asked, of the mirror, else of the cell."""
    if options.torch_index is not None:
        return options.torch_index
    mirror = options.environ.get(_TORCH_MIRROR)
    return f"{mirror.rstrip('/')}/{expected.variant}" if mirror else expected.index_url


def base_python(expected: Expected, options: CreateOptions) -> Path:
    """Returns the interpreter of the cell's series for a virtual environment.

    Raises OutsideError `env.no-python`.
    """
    name = f"python{expected.python}"
    candidates = [options.python] if options.python else [Path("/usr/bin") / name]
    on_path = shutil.which(name, path=options.environ.get("PATH"))
    if options.python is None and on_path is not None:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if _series(candidate) == expected.python:
            return candidate
    raise OutsideError(
        "env.no-python",
        f"The cell needs Python {expected.python} of this system"
        + (f"; {options.python} is another." if options.python else f": no {name} runs here."),
        facts={"tried": [str(candidate) for candidate in candidates]},
        next_step=f"Install {name} with its venv module, or name one with --python PATH.",
    )


def _series(python: Path) -> str | None:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _build(new: Path, locks: _Locks, python: Path | None, options: CreateOptions) -> None:
    """Builds and proves a version at its own path; on failure it is gone again."""
    try:
        if locks.conda is not None:
            _say(options, "conda", lock=str(locks.conda))
            install_conda(
                locks.conda,
                new,
                InstallOptions(
                    offline=options.offline,
                    keep_open=True,
                    environ=options.environ,
                    progress=options.progress,
                ),
            )
        elif python is not None:
            prefixes.claim(new, {})
            _say(options, "venv", python=str(python))
            # uv installs from outside; pip has to be inside.
            _make_venv(python, new, with_pip=pip.choose_engine(options.engine) == "pip")
        _install_pip(new, locks, options)
        _keep_locks(new, locks)
        _prove(new, locks, options)
        prefixes.finish(new, {"cell": locks.expected.name})
    except BaseException:
        prefixes.remove(new)
        raise


def _prove(new: Path, locks: _Locks, options: CreateOptions) -> None:
    _say(options, "checking", prefix=str(new))
    findings = check_env(new, CheckOptions(environ=_clean(options.environ), building=True))
    if findings:
        raise error_of(findings, f"The new environment of {locks.expected.name}")


def _make_venv(python: Path, prefix: Path, *, with_pip: bool) -> None:
    done = subprocess.run(
        [str(python), "-I", "-m", "venv", *([] if with_pip else ["--without-pip"]), str(prefix)],
        cwd="/",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_VENV_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise OutsideError(
            "env.venv-failed",
            f"{python} could not make a virtual environment: {lines[-1] if lines else '?'}",
            next_step="Install the venv module of this Python (Debian: python3-venv).",
        )


def _install_pip(new: Path, locks: _Locks, options: CreateOptions) -> None:
    engine = pip.choose_engine(options.engine)
    for part in locks.parts:
        _say(options, "pip", engine=engine, lock=part.file.name)
    pip.install(
        new / "bin" / "python",
        locks.parts,
        read_inventory(new),
        pip.PipOptions(engine=engine, wheels=options.wheels, environ=options.environ),
    )


def _keep_locks(new: Path, locks: _Locks) -> None:
    """What it was built from stays in it, for the check and for whoever finds it."""
    for path in locks.files():
        shutil.copyfile(path, new / (SPEC if path == locks.spec else f"{OURS}/{path.name}"))


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what this command's own user has set for Python."""
    return {k: v for k, v in environ.items() if not k.startswith("PYTHON")} | {
        "PYTHONNOUSERSITE": "1"
    }


def _say(options: CreateOptions, event: str, **facts: Any) -> None:
    if options.progress is not None:
        options.progress(event, facts)
