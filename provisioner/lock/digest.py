"""What decides a lock, as plain values, and the digest over it. Imports the standard library alone.

An unchanged lock is recognised by these few lines (see quick.py), so nothing heavy may come in.
"""

from __future__ import annotations

import hashlib
import json

TYPE_CHECKING = False  # as typing has it; importing that would cost more than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RULES = 1
"""Raised when a change of this package can change the content of a lock; part of the digest."""


def plain_inputs(
    cell: Mapping[str, Any], choices: Mapping[str, Any], provided: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the fields of a LockInput but `target.glibc`, from the plain values of a Cell.

    `choices` and `provided` are those of a lock.json (see model.Lock). Raises KeyError or TypeError
    when a field is missing: another version of the tool wrote the cell.
    """
    as_of = choices["as_of"] or cell["as_of"]
    ptxas = cell["ptxas"]
    beside = {*cell["companions"], *([ptxas["package"]] if ptxas else [])}
    labelled = any("+" in pin for pin in cell["requirements"])
    return {
        "cell": cell["name"],
        "os": cell["os"],
        "target": {"python": cell["python"], "arch": cell["arch"]},
        "device": cell["device"],
        "cuda": cell["cuda"],
        "family": list(cell["requirements"]),
        "beside": sorted(beside),
        "user": sorted(set(cell["packages"]["pip"])),
        "constraints": sorted(set(cell["constraints"])),
        "torch_index": cell["variant"] if labelled else None,
        "as_of": None if as_of == "none" else as_of,
        "upgrades": dict(sorted(choices["upgrades"].items())),
        "own": sorted(choices["own"]),
        "single_source": choices["single_source"],
        "provided": dict(sorted(provided.items())),
    }


def digest(inputs: Mapping[str, Any]) -> str:
    """Returns the hex SHA-256 over the plain inputs.

    The glibc of an operating system is a fact about `os`, and so is not in it.
    """
    text = json.dumps({"rules": RULES, **inputs}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
