"""Runs in the interpreter of an environment and prints what it would import from, as JSON.

Standard library alone, Python 3.8 or newer. It imports no package.
"""
# ruff: noqa: PTH113, PTH118, PTH120, T201

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig


def on_path(name: str) -> list[str]:
    """Every folder of sys.path that would give the module `name`, in order."""
    found: list[str] = []
    for entry in filter(None, sys.path):
        folder = os.path.join(entry, name)
        present = os.path.isfile(os.path.join(folder, "__init__.py")) or os.path.isfile(
            folder + ".py"
        )
        if present and os.path.realpath(folder) not in map(os.path.realpath, found):
            found.append(folder)
    return found


def distributions() -> list[list[str]]:
    """Name, version and place of every distribution on sys.path."""
    from importlib import metadata

    found = []
    for dist in metadata.distributions():
        name = dist.metadata["Name"] if dist.metadata else None
        if name:
            found.append([name, dist.version, str(getattr(dist, "_path", ""))])
    return sorted(found)


def facts() -> dict[str, object]:
    """What decides about imports here."""
    paths = sysconfig.get_paths()
    user = site.getusersitepackages()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "path": [entry for entry in sys.path if entry],
        "stdlib": sorted({paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)}),
        "user_site": user,
        "user_site_enabled": bool(site.ENABLE_USER_SITE),
        "pythonpath": os.environ.get("PYTHONPATH", ""),
        "torch": on_path("torch"),
        "distributions": distributions(),
    }


print(json.dumps(facts()))
