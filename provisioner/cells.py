"""Cells that were rendered below a folder, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def rendered_cells(root: Path) -> list[str]:
    """The names of the rendered cells below `root`, sorted: the folders that hold a spec.json."""
    return sorted(path.parent.name for path in root.glob("docker/*/spec.json"))


def not_rendered(root: Path, name: str, command: str | None = None) -> UsageError:
    """The error for a cell that nobody rendered below `root`, with the name that was meant.

    `command` is what would render it, where that is known.
    """
    import difflib

    known = rendered_cells(root)
    close = difflib.get_close_matches(name, [k for k in known if k != name], n=1)
    if command is not None:
        next_step = command
    elif close:
        next_step = f"Did you mean {close[0]}?"
    elif known:
        next_step = "Render it: provision render, with the options of the cell."
    else:
        next_step = "Name the folder of docker/ and lockfiles/, or render a cell first."
    return UsageError(
        "cell.not-rendered",
        f"There is no rendered cell {name!r} below {root.resolve()}.",
        facts={"cells": known} if known else {},
        next_step=next_step,
    )
