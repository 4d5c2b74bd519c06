"""What the user's own pip is set to: package index and certificates, with no host named here.

The only module that looks into pip. Its internals are not a stable interface, so each use has a
second way through pip's command line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError
from provisioner.lock.credentials import bare

if TYPE_CHECKING:
    from collections.abc import Mapping

_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_SETTING = re.compile(r"^([a-z.-]+)='(.*)'$", re.MULTILINE)
_NAMED = re.compile(r"^[A-Za-z0-9._-]+=")
_DEFAULT = re.compile(r"\(default:? (https?://[^\s)]+)\)")


def package_index(given: str | None, environ: Mapping[str, str]) -> str:
    """Returns the address of the package index, without a slash at its end; raises OutsideError.

    The order: `given` (option, PROVISION_* or provision.yaml), the environment of pip and uv, pip's
    configuration files, pip's built-in default. It may hold a user and password: never show it.
    """
    found = given or _from_environment(environ) or pip_setting("index-url") or _built_in()
    if found is None or not found.startswith(("http://", "https://")):
        told = "pip does not tell one" if found is None else f"{bare(found)} is not an HTTP address"
        raise OutsideError(
            "index.no-default",
            f"The package index of this machine is not known: {told}.",
            next_step="Name it: `--mirror package_index=URL`.",
        )
    return found.rstrip("/")


def pip_setting(key: str) -> str | None:
    """Returns one value of pip's configuration files (`global` or `install`), or None."""
    try:
        from pip._internal.configuration import Configuration
        from pip._internal.exceptions import ConfigurationError

        configuration = Configuration(isolated=False)
        configuration.load()
    except Exception:  # noqa: BLE001 - internals of another project; the command line is left
        told = dict(_SETTING.findall(_pip("config", "list") or ""))
        return told.get(f"install.{key}") or told.get(f"global.{key}")

    def value(name: str) -> str | None:
        try:
            return str(configuration.get_value(name))
        except ConfigurationError:
            return None

    return value(f"install.{key}") or value(f"global.{key}")


def _from_environment(environ: Mapping[str, str]) -> str | None:
    for variable in _INDEX_VARIABLES:
        value = environ.get(variable, "").strip()
        if value:
            return _NAMED.sub("", value)  # uv takes NAME=URL too
    return None


def _built_in() -> str | None:
    try:
        from pip._internal.models.index import PyPI

        return str(PyPI.simple_url)
    except Exception:  # noqa: BLE001 - as above
        told = _pip("download", "--help")
        found = _DEFAULT.search(" ".join((told or "").split()))
        return found.group(1) if found else None


def _pip(*arguments: str) -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout if done.returncode == 0 else None
