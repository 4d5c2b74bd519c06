"""Digests of what a plan is bound to: facts, the rendered cell, its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.fleet.plan import Bound
from provisioner.fleet.store import read_whole, sha256

if TYPE_CHECKING:
    from pathlib import Path


def spec_digest(root: Path, cell: str) -> str:
    """The sha256 of a rendered cell's spec.json."""
    path = root / "docker" / cell / "spec.json"
    return sha256(read_whole(path, "The cell", "Render it, or name its folder with --out."))


def lock_digest(root: Path, cell: str) -> str | None:
    """One digest over all files of a cell's lock; None where there is no lock."""
    folder = root / "lockfiles" / cell
    if not (folder / "lock.json").is_file():
        return None
    lines = [
        f"{sha256(read_whole(path, 'The lock', f'provision lock {cell}'))}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]
    return sha256("".join(lines).encode())


def bind(root: Path, cell: str, fallback: str | None, facts: str) -> Bound:
    """What a plan for the cell is bound to now."""
    return Bound(
        facts=facts,
        spec=spec_digest(root, cell),
        lock=lock_digest(root, cell),
        fallback_spec=spec_digest(root, fallback) if fallback else None,
        fallback_lock=lock_digest(root, fallback) if fallback else None,
    )
