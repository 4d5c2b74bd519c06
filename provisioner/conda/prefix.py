"""What a prefix says about itself: `building` from its first moment on, `whole` as the last word.

Nothing that was interrupted is ever taken for whole: the marker changes after all else is on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from provisioner.atomic import write_whole
from provisioner.conda.worker import MAX_PREFIX, OURS
from provisioner.errors import OutsideError, UsageError

SCHEMA = "provision.prefix/1"
MARKER = f"{OURS}/prefix.json"


def check_prefix(prefix: Path) -> None:
    """Raises UsageError for a path that no environment can have."""
    length = len(os.fsencode(prefix))
    if not prefix.is_absolute() or ".." in prefix.parts:
        raise UsageError(
            "env.prefix-relative", f"A prefix is an absolute path without `..`, not {prefix}."
        )
    if length > MAX_PREFIX:
        raise UsageError(
            "env.prefix-too-long",
            f"The prefix has {length} bytes; at most {MAX_PREFIX} fit into the programs of conda "
            "packages, which hold a placeholder of that length.",
            facts={"prefix": str(prefix), "bytes": length, "most": MAX_PREFIX},
            next_step="Use a shorter path.",
        )
    if any(ord(letter) < 32 for letter in str(prefix)):
        raise UsageError("env.prefix-control", "A prefix holds no line break or control character.")


def claim(prefix: Path, facts: dict[str, Any]) -> None:
    """Makes an empty prefix that says `building` from its first moment on.

    What an interrupted run left there is removed; anything else in the way raises OutsideError.
    """
    marker = read_marker(prefix)
    if marker is not None and marker.get("state") == "building":
        remove(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for left in prefix.parent.glob(".provision-new-*"):
        if (read_marker(left) or {}).get("prefix") == str(prefix):
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=".provision-new-", dir=prefix.parent))
    try:
        made.chmod(0o755)
        (made / OURS).mkdir()
        write_marker(made, {**facts, "state": "building", "prefix": str(prefix)})
        made.rename(prefix)  # takes the place of an empty folder, of nothing else
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise OutsideError(
            "env.prefix-taken",
            f"{prefix} cannot be made: {error.strerror or error}.",
            facts={"prefix": str(prefix)},
            next_step="Name a folder that does not exist yet, or is empty.",
        ) from None


def remove(prefix: Path) -> None:
    """Removes a prefix. From the first moment on it says that it is none any more."""
    with contextlib.suppress(OSError):
        marker = read_marker(prefix) or {}
        write_marker(prefix, {**marker, "state": "building"})
    shutil.rmtree(prefix, ignore_errors=True)


def finish(prefix: Path, facts: dict[str, Any] | None = None) -> None:
    """Says `whole`, after everything else has reached the disk."""
    descriptor = os.open(prefix, os.O_RDONLY)
    try:
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None, use_errno=True).syncfs(descriptor)
    finally:
        os.close(descriptor)
    write_marker(prefix, {**(read_marker(prefix) or {}), **(facts or {}), "state": "whole"})


def is_whole(prefix: Path) -> bool:
    """Returns whether a prefix of ours was finished, at the path where it now is."""
    marker = read_marker(prefix)
    if marker is None or marker.get("state") != "whole":
        return False
    return os.path.realpath(str(marker.get("prefix"))) == os.path.realpath(prefix)


def read_marker(prefix: Path) -> dict[str, Any] | None:
    """Returns what a prefix says about itself; None when it is not one of ours."""
    try:
        marker = json.loads((prefix / MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and marker.get("schema") == SCHEMA else None


def write_marker(prefix: Path, facts: dict[str, Any]) -> None:
    """Replaces the marker of a prefix in one step."""
    text = json.dumps({**facts, "schema": SCHEMA}, indent=2, sort_keys=True)
    write_whole(prefix / MARKER, text.encode() + b"\n")
