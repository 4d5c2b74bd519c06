"""Installs the pip half of a lock into a prefix: by hash, without dependencies, never over conda.

Engines: the environment's own pip, or uv where it is installed (it links nothing to its cache, so
that no file of an environment is shared with another).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence  # noqa: TC003 - part of signatures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from provisioner.conda.channel import redacted
from provisioner.env.inventory import Inventory, normalized
from provisioner.errors import FindingError, OutsideError

Engine = Literal["pip", "uv"]

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
_UNSAFE = (
    "PIP_BREAK_SYSTEM_PACKAGES", "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_FORCE_REINSTALL",
    "PIP_IGNORE_INSTALLED", "PIP_NO_BINARY", "PIP_NO_DEPS", "PIP_PREFIX", "PIP_PYTHON",
    "PIP_REQUIREMENT", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_UPGRADE",
    "PIP_USER", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "UV_CONSTRAINT", "UV_LINK_MODE",
    "UV_OVERRIDE", "UV_SYSTEM_PYTHON", "VIRTUAL_ENV",
)  # fmt: skip
_MISMATCH = ("DO NOT MATCH", "Hash mismatch", "hash mismatch")
_TIMEOUT_S = 6 * 3600


class Pin(NamedTuple):
    """One requirement of a lock with all of its lines."""

    name: str
    version: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PipPart:
    """One requirements file and the index for it (None: the client's own settings)."""

    file: Path
    index_url: str | None = None

    def pins(self) -> list[Pin]:
        """Returns the requirements of the file; raises FindingError for anything else in it."""
        return read_pins(self.file.read_text(encoding="utf-8"), self.file.name)


@dataclass(frozen=True, kw_only=True)
class PipOptions:
    """How to install. `wheels` is a folder to take everything from, without the network."""

    engine: Engine = "pip"
    wheels: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


def choose_engine(wanted: Literal["auto", "pip", "uv"]) -> Engine:
    """Returns the engine to use; raises OutsideError when uv is asked for and not installed."""
    if wanted == "pip":
        return "pip"
    if _uv() is not None:
        return "uv"
    if wanted == "uv":
        raise OutsideError(
            "env.no-uv",
            "uv is not installed.",
            next_step="Install it (pip install 'provisioner[uv]'), or use --engine pip.",
        )
    return "pip"


def read_pins(text: str, name: str) -> list[Pin]:
    """Returns the pins of a requirements file; raises FindingError where one has no hash.

    A line that is no pin (an index, an option, another file) is refused: a lock has none.
    """
    pins: list[Pin] = []
    for block in _blocks(text):
        match = _PIN.match(block)
        if match is None or "--hash=sha256:" not in block:
            raise FindingError(
                "env.lock-line",
                f"{name} holds a line that is no pin with a hash: {block.splitlines()[0][:100]!r}.",
                next_step="Lock again (`provision lock CELL`).",
            )
        pins.append(Pin(normalized(match["name"]), match["version"], block))
    return pins


def _blocks(text: str) -> Iterator[str]:
    block: list[str] = []
    for line in text.splitlines():
        if not block and (not line.strip() or line.lstrip().startswith("#")):
            continue
        block.append(line.rstrip())
        if not line.rstrip().endswith("\\"):
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def install(
    python: Path, parts: Sequence[PipPart], inventory: Inventory, options: PipOptions
) -> int:
    """Installs all parts, the torch family's index first; returns how many were installed.

    What conda owns is left out, after pip itself has said that it finds it satisfied. Raises
    FindingError `env.pip-over-conda` when a lock wants another version than conda has, or
    `env.wheel-hash`; OutsideError `env.pip-failed`.
    """
    owned = inventory.of_conda()
    pins = [(part, pin) for part in parts for pin in part.pins()]
    refuse_overwrites([pin for _, pin in pins], owned)
    kept = [pin for _, pin in pins if pin.name in owned]
    if kept:
        _prove_satisfied(python, kept, options)
    installed = 0
    for part in parts:
        wanted = [pin for pin in part.pins() if pin.name not in owned]
        if wanted:
            with _requirements(wanted) as file:
                _run(_command(python, part, file, options), part, options)
            installed += len(wanted)
    return installed


def refuse_overwrites(pins: Sequence[Pin], owned: Mapping[str, str]) -> None:
    """Raises FindingError when a pin would replace a distribution that conda owns. Pure."""
    clashes = [
        f"{pin.name} {pin.version} (conda has {owned[pin.name]})"
        for pin in pins
        if pin.name in owned and pin.version != owned[pin.name]
    ]
    if clashes:
        raise FindingError(
            "env.pip-over-conda",
            f"The pip lock would replace what conda owns: {', '.join(clashes)}.",
            facts={"clashes": clashes},
            next_step="Lock both halves again (`provision lock CELL`): what conda owns bounds pip.",
        )


def _prove_satisfied(python: Path, kept: Sequence[Pin], options: PipOptions) -> None:
    """Asks pip, without an index, what it would install of what conda owns: it must be nothing."""
    with tempfile.TemporaryDirectory(prefix="provision-pip-") as folder:
        report = Path(folder, "report.json")
        file = Path(folder, "owned.txt")
        file.write_text("".join(f"{pin.text}\n" for pin in kept), encoding="utf-8")
        command = [*_pip(python), "install", "--dry-run", "--no-deps", "--require-hashes"]
        command += ["--no-index", "--quiet", "--report", str(report), "--requirement", str(file)]
        done = _call(command, _environment(options.environ))
        told = json.loads(report.read_bytes()) if report.is_file() else {"install": []}
        names = [entry["metadata"]["name"] for entry in told["install"]]
    if done.returncode != 0 or names:
        raise FindingError(
            "env.pip-over-conda",
            f"pip would not leave what conda owns alone: {', '.join(names) or _last(done.stderr)}.",
            facts={"owned": [f"{pin.name} {pin.version}" for pin in kept]},
            next_step="Lock both halves again (`provision lock CELL`).",
        )


@contextlib.contextmanager
def _requirements(pins: Sequence[Pin]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="provision-pip-") as folder:
        file = Path(folder, "requirements.txt")
        file.write_text("".join(f"{pin.text}\n" for pin in pins), encoding="utf-8")
        yield file


def _command(python: Path, part: PipPart, file: Path, options: PipOptions) -> list[str]:
    index: list[str] = []
    if options.wheels is not None:
        index = ["--no-index", "--find-links", str(options.wheels)]
    elif part.index_url is not None:
        index = ["--index-url", part.index_url]
    if options.engine == "uv":
        command = [str(_uv()), "pip", "install", "--python", str(python), "--no-progress"]
        # Copied, not linked: an edit in one environment must not reach the cache and the others.
        command += [
            "--no-config",
            "--no-deps",
            "--no-build",
            "--require-hashes",
            "--link-mode=copy",
        ]
        return [*command, *index, "--requirement", str(file)]
    command = [*_pip(python), "install", "--no-input", "--no-deps", "--no-build-isolation"]
    command += ["--require-hashes", "--only-binary", ":all:", "--no-warn-script-location"]
    return [*command, *index, "--requirement", str(file)]


def _pip(python: Path) -> list[str]:
    return [str(python), "-I", "-m", "pip", "--disable-pip-version-check"]


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's settings for indexes, proxies and certificates; none that moves the target."""
    kept = {name: value for name, value in environ.items() if name not in _UNSAFE}
    return kept | {"PYTHONNOUSERSITE": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def _uv_environment(environ: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """uv reads no settings of pip, so the index and the certificates of pip are handed to it."""
    from provisioner.lock.defaults import package_index, pip_setting

    kept = _environment(environ)
    named = {"--index-url", "--no-index"} & set(command)
    if named:
        for variable in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
            kept.pop(variable, None)
    elif "UV_DEFAULT_INDEX" not in kept and "UV_INDEX_URL" not in kept:
        kept["UV_DEFAULT_INDEX"] = package_index(None, environ)
    certificates = environ.get("PIP_CERT") or pip_setting("cert", environ)
    if certificates and "SSL_CERT_FILE" not in kept:
        kept["SSL_CERT_FILE"] = certificates
    return kept


def _run(command: list[str], part: PipPart, options: PipOptions) -> None:
    environ = _environment(options.environ)
    if options.engine == "uv":
        environ = _uv_environment(options.environ, command)
    done = _call(command, environ)
    if done.returncode == 0:
        return
    said = redacted(done.stderr.strip() or done.stdout.strip(), options.environ)
    if any(mark in said for mark in _MISMATCH):
        raise FindingError(
            "env.wheel-hash",
            f"A file for {part.file.name} is not what was locked: its hash differs.",
            facts={"engine": options.engine, "said": said[-1500:]},
            next_step="Do not install it. Check the index, or lock again if it changed by right.",
        )
    raise OutsideError(
        "env.pip-failed",
        f"{options.engine} could not install {part.file.name}: {_last(said)}",
        facts={"engine": options.engine, "index": part.index_url, "said": said[-1500:]},
        next_step="Check that the index answers and has these files.",
    )


def checker(python: Path, *, own: bool) -> list[str]:
    """Returns the command for `pip check`: the environment's own pip, else uv, else ours."""
    if own:
        return [str(python), "-I", "-B", "-m", "pip", "--disable-pip-version-check", "check"]
    uv = _uv()
    if uv is not None:
        return [uv, "pip", "check", "--no-config", "--python", str(python)]
    ours = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check"]
    return [*ours, "--python", str(python), "check"]


def _call(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
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
    except subprocess.TimeoutExpired:
        raise OutsideError("env.pip-failed", "The installation did not end in 6 hours.") from None
    except OSError as error:
        raise OutsideError(
            "env.pip-failed", f"{command[0]} cannot be started: {error.strerror}."
        ) from None


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""
