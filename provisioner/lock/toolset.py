"""pip and pip-tools for an interpreter that has neither: pinned wheels in a folder of the cache.

The wheels are pure Python, so unpacking them is installing them; no virtual environment and no
ensurepip (which Debian splits off) is needed. Each is checked against the hash that we ship.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import OutsideError
from provisioner.lock.pages import ACCEPT, PageError, parse_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.lock.client import Client
    from provisioner.lock.model import Target


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pinned wheel."""

    project: str
    filename: str
    sha256: str


class WheelSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The wheels for Pythons from `python_from` on, up to the next set."""

    python_from: str
    wheels: tuple[Wheel, ...]


class _Sets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    sets: tuple[WheelSet, ...]


def wheel_set(python: str) -> WheelSet | None:
    """Returns the newest set that a Python series can run, or None when it is too old."""
    raw = (resources.files("provisioner.lock") / "data" / "pip_tools.json").read_bytes()
    fitting = [
        each
        for each in msgspec.json.decode(raw, type=_Sets).sets
        if _number(each.python_from) <= _number(python)
    ]
    return max(fitting, key=lambda each: _number(each.python_from), default=None)


def library(target: Target, client: Client, package_index: str) -> Path:
    """Returns a folder with pip-tools for this Python, made when it is not there yet.

    Raises OutsideError when the index does not give the pinned wheels.
    """
    wheels = wheel_set(target.python)
    if wheels is None:
        raise OutsideError(
            "lock.engine-python",
            f"pip-tools does not run on Python {target.python} any more.",
            next_step="Take `--engine uv`.",
        )
    name = hashlib.sha256(msgspec.json.encode(wheels)).hexdigest()[:16]
    folder = cache_folder(os.environ) / f"pip-tools-py{target.python}-{name}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _install(wheels, folder, client, package_index)
    except OSError as error:
        raise OutsideError(
            "lock.cache",
            f"pip-tools cannot be put into the cache at {folder.parent}: {error.strerror}.",
            facts={"folder": str(folder.parent)},
            next_step="Free some space or set XDG_CACHE_HOME, or take `--engine uv`.",
        ) from error
    return folder


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns where this package keeps what can be made again."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(base) / "provision" / "lock"


def _install(wheels: WheelSet, folder: Path, client: Client, package_index: str) -> None:
    stage = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        for wheel in wheels.wheels:
            with zipfile.ZipFile(io.BytesIO(_fetch(wheel, client, package_index))) as archive:
                archive.extractall(stage)
        stage.chmod(0o755)
        try:
            stage.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same wheels
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _fetch(wheel: Wheel, client: Client, package_index: str) -> bytes:
    what = "package index"
    page = client.get(f"{package_index}/{wheel.project}/", what, {"Accept": ACCEPT})
    try:
        files = parse_page(page.body, page.headers.get("content-type", ""), page.url)
    except PageError:
        files = []
    for file in files:
        if file.filename == wheel.filename:
            body = client.get(file.url, what).body
            if hashlib.sha256(body).hexdigest() == wheel.sha256:
                return body
            raise OutsideError(
                "index.file-hash",
                f"{wheel.filename} on the package index is not the file that was pinned.",
                facts={"file": wheel.filename, "expected": wheel.sha256},
                next_step="Do not lock from this index before its operator has explained this.",
            )
    raise OutsideError(
        "lock.no-pip-tools",
        f"The package index has no {wheel.filename}, which pip-tools needs here.",
        next_step="Take `--engine uv`, or an index with this file.",
    )


def _number(series: str) -> tuple[int, ...]:
    return tuple(int(part) for part in series.split("."))
