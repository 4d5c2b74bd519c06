"""What an interrupted write left below a root: told, completed, undone or cleared.

A process that finds a staging folder without a live owner completes it when there is a journal,
undoes it when completing fails, and only clears it when there is none. Every step may be
repeated, so recovery itself may be killed too.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal

import msgspec

from provisioner.errors import FindingError, OutsideError, ProvisionError
from provisioner.render.moves import (
    JOURNAL,
    STAGE,
    UNDO,
    backward,
    clear_stage,
    forward,
    load_journal,
    staged_whole,
)
from provisioner.render.rootlock import LOCK, BusyError, held, locked
from provisioner.render.tree import Tree, explain, fixed_umask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What `recover` did: nothing to do; completed, undid or cleared an interrupted write;
    left it to the live process `pid` (busy); could not write below the root (blocked).

    `left` are paths of a completed or undone write that were edited since, and so left alone.
    """

    action: Literal["nothing", "completed", "undone", "cleared", "busy", "blocked"] = "nothing"
    left: tuple[str, ...] = ()
    pid: int | None = None
    message: str = ""


def interrupted(root: Path) -> bool:
    """Whether a write below `root` was cut off and waits to be completed or undone."""
    if not stage_exists(root):
        return False
    try:
        return not held(root)
    except OSError as error:
        raise explain(error, root, "looking for other writers") from None


def refuse_interrupted(root: Path) -> None:
    """Raises FindingError where a write was cut off: what only reads does not deal with it."""
    if interrupted(root):
        raise FindingError(
            "output.interrupted",
            f"A write below {root.resolve()} was cut off: some files may be old and some new.",
            facts={"root": str(root)},
            next_step="`provision render` with the options of that write, or --again, completes "
            "or undoes it.",
        )


def recover(root: Path, *, wait_s: float = 0.0) -> Recovery:
    """Completes, undoes or clears what an interrupted write left; returns what it did.

    Costs two system calls when there is nothing. Does not raise because another process is
    still writing (`busy`) or because the root is not writable (`blocked`): a command that only
    reads goes on. Raises OutsideError when the debris can't be dealt with.
    """
    if not (stage_exists(root) or os.path.lexists(root / LOCK)):
        return Recovery()
    try:
        with turn(root, wait_s) as tree:
            return recover_held(tree)
    except OutsideError as error:
        if not stage_exists(root):
            return Recovery()  # a lock file alone holds nobody up
        if isinstance(error, BusyError):
            return Recovery(action="busy", pid=error.pid, message=error.message)
        if error.code in ("output.read-only", "output.denied"):
            return Recovery(action="blocked", message=error.message)
        raise


@contextlib.contextmanager
def turn(root: Path, wait_s: float) -> Iterator[Tree]:
    """Holds the root's files, with no other writer and a known umask."""
    try:
        with fixed_umask(), locked(root, wait_s=wait_s), Tree(root) as tree:
            yield tree
    except OSError as error:
        raise explain(error, root, "writing") from None


def recover_held(tree: Tree) -> Recovery:
    """`recover` inside a turn: raises OutsideError for debris that can't be dealt with."""
    kind = tree.state(STAGE).kind
    if kind == "absent":
        return Recovery()
    if kind != "folder":
        raise OutsideError(
            "output.stage-not-ours",
            f"{STAGE} below {tree.root} is a {kind}, not a staging folder of ours.",
            facts={"root": str(tree.root), "kind": kind},
            next_step=f"Move {tree.root / STAGE} away.",
        )
    if tree.stat(UNDO) is not None:
        load_journal(tree, UNDO)  # one that can't be used is told as such
    elif tree.stat(JOURNAL) is not None:
        journal = load_journal(tree, JOURNAL)
        # Completing may meet what stopped the write; then everything goes back.
        with contextlib.suppress(OSError, OutsideError):
            if staged_whole(tree, journal):
                left = forward(tree, journal, strict=False)
                clear_stage(tree)
                return Recovery(action="completed", left=tuple(left))
    return undo(tree)


def undo(tree: Tree) -> Recovery:
    """Goes back to the old files when there is a journal, then removes the staging folder.

    The journal is renamed first: a recovery after a kill must not go forward again.
    """
    left: list[str] = []
    try:
        if tree.stat(JOURNAL) is not None:
            tree.rename(JOURNAL, UNDO)
            tree.sync_folders([STAGE])
        undone = tree.stat(UNDO) is not None
        if undone:
            left = backward(tree, load_journal(tree, UNDO))
        clear_stage(tree)
    except (OSError, ProvisionError) as error:
        reason = error.message if isinstance(error, ProvisionError) else str(error.strerror)
        raise OutsideError(
            "output.recovery-failed",
            f"An interrupted write below {tree.root} could be neither completed nor undone: "
            f"{reason}. Every file is whole, some are old and some new.",
            facts={"root": str(tree.root), "stage": str(tree.root / STAGE)},
            next_step="Remove the cause; the next provision command tries again.",
        ) from None
    return Recovery(action="undone" if undone else "cleared", left=tuple(left))


def stage_exists(root: Path) -> bool:
    """Whether a write is under way below `root`, or was cut off."""
    return os.path.lexists(root / STAGE)
