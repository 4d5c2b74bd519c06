"""Words of the command lines that messages give to be copied."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def shell_word(text: str) -> str:
    """One word of a command line to copy, quoted where a shell needs it."""
    if text.isprintable():
        return shlex.quote(text)
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    escaped = (
        char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in os.fsencode(char))
        for char in plain
    )
    return f"$'{''.join(escaped)}'"


def out_option(root: Path) -> str:
    """The end of a command line that works on `root`: nothing where that is this folder."""
    return "" if str(root) == "." else f" --out {shell_word(str(root))}"
