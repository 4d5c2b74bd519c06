"""Unified diff text between the disk and a render, safe to print and bounded in size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.render.plan import Action, plan
from provisioner.render.tree import Tree, explain

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from provisioner.render.fileset import FileSet

FILE_LIMIT = 256 << 10
"""A file of more bytes than this, old or new, is named but not compared."""

TEXT_LIMIT = 4 << 20
"""After this many characters the remaining files are only counted."""

_CONTROL = frozenset(range(32)) - {9, 10} | {127}


def diff(root: Path, fileset: FileSet, groups: Collection[str]) -> str:
    """Returns what a forced render would change below `root`, as a unified diff (`""`: nothing).

    Binary files (control characters or not UTF-8) and files over 256 KiB get one line without
    their content, so that nothing on disk can send escape sequences to a terminal.
    """
    parts: list[str] = []
    size = 0
    actions = plan(root, fileset, groups).of("create", "update", "prune", "conflict")
    try:
        with Tree(root) as tree:
            for index, action in enumerate(actions):
                if size > TEXT_LIMIT:
                    more = len(actions) - index
                    parts.append(f"{more} more {'file differs' if more == 1 else 'files differ'}\n")
                    break
                old = tree.read(action.path, FILE_LIMIT + 1)
                parts.append(_one(action, old))
                size += len(parts[-1])
    except OSError as error:
        raise explain(error, root, "reading the files") from None
    return "".join(parts)


def _one(action: Action, old: bytes | None) -> str:
    new = action.file.content if action.file is not None else None
    names = (
        "/dev/null" if old is None else f"a/{action.path}",
        "/dev/null" if new is None else f"b/{action.path}",
    )
    if old == new:
        return f"Mode of {action.path} differs\n"
    if max(len(old or b""), len(new or b"")) > FILE_LIMIT:
        return f"Large files {names[0]} and {names[1]} differ\n"
    texts = [_text(data or b"") for data in (old, new)]
    if texts[0] is None or texts[1] is None:
        return f"Binary files {names[0]} and {names[1]} differ\n"
    return _unified(texts[0], texts[1], names)


def _text(data: bytes) -> list[str] | None:
    """The lines with their ends, None when the data is no printable text."""
    if not _CONTROL.isdisjoint(data.replace(b"\r\n", b"\n")):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    # C1 control characters are escape sequences to some terminals.
    if any("\x80" <= char <= "\x9f" for char in text):
        return None
    lines = text.split("\n")
    ended = [line + "\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def _unified(old: list[str], new: list[str], names: tuple[str, str]) -> str:
    import difflib

    lines = list(difflib.unified_diff(old, new, *names))
    if not lines:  # an empty file comes or goes
        lines = [f"--- {names[0]}\n", f"+++ {names[1]}\n"]
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
