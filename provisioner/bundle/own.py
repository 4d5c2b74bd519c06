"""The tool itself for a machine without a network: its wheel, its pins, its playbooks."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from provisioner.errors import OutsideError

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTRIBUTION = "provisioner"
_PACKAGE = Path(__file__).resolve().parent.parent
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WRITTEN_BY_INSTALLERS = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
_TIMEOUT_S = 600


def shipped(name: str) -> Path:
    """Returns a file or folder that comes with the tool: package data of a wheel, else the top of
    the repository. Raises OutsideError.
    """
    for path in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if path.exists():
            return path
    raise OutsideError(
        "bundle.tool-incomplete",
        f"The installed provision has no {name}.",
        next_step="Install it again, from a wheel or a checkout.",
    )


def playbook_files() -> dict[str, bytes]:
    """Returns path below the bundle -> content of the playbooks, without variables of cells."""
    root = shipped("playbooks")
    found = {}
    for place, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        below = Path(place).relative_to(root)
        if below.parts[:1] == ("vars",):
            continue
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".pyc"):
                found[f"playbooks/{(below / name).as_posix()}"] = Path(place, name).read_bytes()
    return found


def own_wheel() -> tuple[str, bytes]:
    """Returns file name and content of the tool's own wheel; the same code gives the same bytes.

    A checkout is built with hatchling; what was installed from a wheel becomes that wheel again.
    Raises OutsideError `bundle.own-wheel`.
    """
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    source = _checkout(distribution)
    return _packed(distribution) if source is None else _built(source)


def _checkout(distribution: importlib.metadata.Distribution) -> Path | None:
    """The folder of an editable installation."""
    told = distribution.read_text("direct_url.json")
    origin: Mapping[str, dict[str, object]] = json.loads(told) if told else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(str(origin["url"])).path))


def _built(source: Path) -> tuple[str, bytes]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "SOURCE_DATE_EPOCH": "1580601600"}
    with tempfile.TemporaryDirectory(prefix="provision-wheel-") as folder:
        command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "wheel"]
        command += ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
        done = subprocess.run(
            [*command, str(source)],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        made = sorted(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(made) != 1:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise OutsideError(
                "bundle.own-wheel",
                f"The wheel of provision could not be built: {lines[-1][:300] if lines else '?'}",
                next_step="Install hatchling beside it (tools/bootstrap.sh does), or leave the "
                "tool out with --no-tool.",
            )
        return made[0].name, made[0].read_bytes()


def _packed(distribution: importlib.metadata.Distribution) -> tuple[str, bytes]:
    """A wheel from the files that one was installed as."""
    wheel_text = distribution.read_text("WHEEL") or ""
    tag = next(
        (line.split(": ")[1] for line in wheel_text.splitlines() if line.startswith("Tag: ")), None
    )
    files: dict[str, bytes] = {}
    info = ""
    for file in distribution.files or ():
        path = file.as_posix()
        if path.startswith("..") or path.endswith(".pyc"):
            continue  # scripts and caches, made on the machine
        top, _, name = path.partition("/")
        if top.endswith(".dist-info"):
            info = top
            if name in _WRITTEN_BY_INSTALLERS:
                continue
        files[path] = Path(str(file.locate())).read_bytes()
    if tag is None or not info:
        raise OutsideError(
            "bundle.own-wheel",
            "The installed provision does not say which files it has.",
            next_step="Install it from a wheel or a checkout, or leave the tool out (--no-tool).",
        )
    return f"{info.removesuffix('.dist-info')}-{tag}.whl", _zipped(files, f"{info}/RECORD")


def _zipped(files: Mapping[str, bytes], record: str) -> bytes:
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow((path, f"sha256={digest}", len(data)))
    writer.writerow((record, "", ""))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in [*sorted(files.items()), (record, rows.getvalue().encode())]:
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return out.getvalue()
