"""What the user's own pip is set to: package index and certificates, with no host named here.

The only module that looks into pip, for its built-in index; that is no stable interface, so pip's
command line is the second way.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError
from provisioner.lock.credentials import bare

if TYPE_CHECKING:
    from collections.abc import Mapping

_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_NAMED = re.compile(r"^[A-Za-z0-9._-]+=")
_DEFAULT = re.compile(r"\(default:? (https?://[^\s)]+)\)")


def package_index(given: str | None, environ: Mapping[str, str]) -> str:
    """Returns the address of the package index, without a slash at its end; raises OutsideError.

    The order: `given` (option, PROVISION_* or provision.yaml), the environment of pip and uv, pip's
    configuration files, pip's built-in default. It may hold a user and password: never show it.
    """
    found = (
        given or _from_environment(environ) or pip_setting("index-url", environ) or built_in_index()
    )
    if found is None or not found.startswith(("http://", "https://")):
        told = "pip does not tell one" if found is None else f"{bare(found)} is not an HTTP address"
        raise OutsideError(
            "index.no-default",
            f"The package index of this machine is not known: {told}.",
            next_step="Name it: `--mirror package_index=URL`.",
        )
    return found.rstrip("/")


def pip_setting(key: str, environ: Mapping[str, str]) -> str | None:
    """Returns one value of pip's configuration files, or None.

    Read here and not by pip: importing its configuration takes longer than all else before a lock.
    """
    found: dict[str, str] = {}
    for path in _configuration_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain about that file
        for section in ("global", "install"):
            if value := parser.get(section, key, fallback="").strip():
                found[section] = value
    return found.get("install") or found.get("global")


def _configuration_files(environ: Mapping[str, str]) -> list[Path]:
    """Where pip's user guide says that its settings are on Linux; later ones win."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or "~").expanduser()
    shared = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    own = environ.get("XDG_CONFIG_HOME") or home / ".config"
    paths = [Path(folder, "pip", "pip.conf") for folder in shared.split(os.pathsep)]
    paths += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", Path(own, "pip", "pip.conf")]
    paths.append(Path(sys.prefix, "pip.conf"))
    return [*paths, Path(named)] if named else paths


def _from_environment(environ: Mapping[str, str]) -> str | None:
    for variable in _INDEX_VARIABLES:
        value = environ.get(variable, "").strip()
        if value:
            return _NAMED.sub("", value)  # uv takes NAME=URL too
    return None


def built_in_index() -> str | None:
    """Returns the index that pip asks when nobody tells it otherwise."""
    try:
        from pip._internal.models.index import PyPI

        return str(PyPI.simple_url)
    except Exception:  # noqa: BLE001 - internals of another project; its command line is left
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--help"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        found = _DEFAULT.search(" ".join(done.stdout.split()))
        return found.group(1) if found else None
