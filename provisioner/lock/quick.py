"""Answers `provision lock CELL` and `provision lock --check` where nothing changed, at once.

The usual case, and one that CI asks often: it costs a few file reads and no import beyond the
standard library. Whatever is not plainly unchanged is left to the command itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

from provisioner.lock.digest import digest, plain_inputs

TYPE_CHECKING = False  # as typing has it; importing that would cost a tenth of the whole answer
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def answer(arguments: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """Returns 0 after saying that the locks are right, or None when the command has to look.

    `arguments` are those after `lock`. Known here: CELL, --check and --out DIR. A PROVISION_*
    variable may select a cell, so it is left to the command as well.
    """
    if any(name.startswith("PROVISION_") for name in environ):
        return None
    asked = _parse(arguments)
    if asked is None:
        return None
    root, cell, check = asked
    cells = [cell] if cell is not None else _locked(root)
    if not cells or not all(unchanged(root, name) for name in cells):
        return None
    if check:
        sys.stdout.write(f"{len(cells)} lock{'' if len(cells) == 1 else 's'}, all right.\n")
    else:
        sys.stdout.write(f"The lock of {cells[0]} answers its cell; nothing to do.\n")
    return 0


def unchanged(root: str, cell: str) -> bool:
    """Returns whether lock, cell and requirements files below `root` fit together, for certain."""
    if not cell or cell.startswith((".", "-")) or set(cell) - _NAME:
        return False
    folder = os.path.join(root, "lockfiles", cell)  # noqa: PTH118 - pathlib costs 10 ms
    lock = _json(os.path.join(folder, "lock.json"))  # noqa: PTH118
    spec = _json(os.path.join(root, "docker", cell, "spec.json"))  # noqa: PTH118
    try:
        if spec["cell"]["python_from"] != "base":
            from provisioner.lock.remembered import known

            if not known(root, cell):
                return False  # conda's half has digests of its own: the command looks at them
        inputs = plain_inputs(spec["cell"], lock["chosen"], lock["provided"])
        if lock["cell"] != cell or inputs["cell"] != cell or lock["inputs"] != digest(inputs):
            return False
        if not _as_written(root, cell):
            return False
        wanted = lock["requirements"].items()
        return bool(wanted) and all(_sha256(folder, name) == value for name, value in wanted)
    except (KeyError, TypeError, AttributeError):
        return False


def _as_written(root: str, cell: str) -> bool:
    """Whether lock.json has the bytes that the manifest has of it: it was not edited."""
    folder = f"lockfiles/{cell}"
    manifest = _json(os.path.join(root, ".provision-manifest.json"))  # noqa: PTH118
    entry = manifest["files"].get(f"{folder}/lock.json")
    return bool(entry) and _sha256(os.path.join(root, folder), "lock.json") == entry["sha256"]  # noqa: PTH118


def _parse(arguments: Sequence[str]) -> tuple[str, str | None, bool] | None:
    root, cell, check = ".", None, False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--check":
            check = True
        elif word == "--out" and rest:
            root = rest.pop(0)
        elif word.startswith("-") or cell is not None:
            return None
        else:
            cell = word
    return (root, cell, check) if check or cell is not None else None


def _locked(root: str) -> list[str]:
    try:
        with os.scandir(os.path.join(root, "lockfiles")) as entries:  # noqa: PTH118
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    return [
        name
        for name in names
        if os.path.exists(os.path.join(root, "lockfiles", name, "lock.json"))  # noqa: PTH110, PTH118
    ]


def _json(path: str) -> Any:
    try:
        if not os.path.isfile(path):  # noqa: PTH113 - a pipe would be waited for
            return {}
        with open(path, "rb") as file:  # noqa: PTH123
            return json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}


def _sha256(folder: str, name: str) -> str | None:
    if set(name) - _NAME:
        return None
    path = os.path.join(folder, name)  # noqa: PTH118
    try:
        if not os.path.isfile(path):  # noqa: PTH113
            return None
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
