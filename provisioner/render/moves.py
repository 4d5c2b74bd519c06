"""The repeatable moves of a journalled write: forward to the new files, backward to the old.

Where each step stands is read off the staging folder alone: a file still in `new/` was not
moved, a file in `old/` has been. Nothing is replaced or removed whose bytes are neither what
the plan saw nor what the write put there.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import OutsideError, UsageError
from provisioner.render.fileset import check_visible
from provisioner.render.manifest import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.render.tree import State, Tree

STAGE = ".provision-stage"
NEW = f"{STAGE}/new"
OLD = f"{STAGE}/old"
PART = f"{STAGE}/journal.part"
JOURNAL = f"{STAGE}/journal"
UNDO = f"{STAGE}/undo"
SCHEMA = 1

_LIMIT = 64 << 20
# No hard links on this file system, or not to a file of another user: the old file is copied.
_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One path: the hash before (None: absent) and after (None: removed).

    `number` names its files in `new/` and `old/`.
    """

    path: str
    number: int
    old: str | None
    new: str | None


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All steps of one write in order, and the folders it has to make, parents first.

    `stage` is the inode number of the staging folder that it was written for.
    """

    schema: int = SCHEMA
    stage: int
    made: tuple[str, ...]
    steps: tuple[Step, ...]


class ChangedError(Exception):
    """Files are no longer what the plan saw."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(", ".join(paths))
        self.paths = paths


def load_journal(tree: Tree, path: str) -> Journal:
    """Returns the checked journal at `path`; raises OutsideError when it is damaged.

    It counts in the folder that it was written in alone (a renamed one too): what came along with
    a copy, an archive or a checkout must not move or remove files where it arrived.
    """
    try:
        journal = msgspec.json.decode(tree.read(path, _LIMIT) or b"", type=Journal)
        if journal.schema != SCHEMA:
            raise _damaged(tree.root, f"its schema is {journal.schema}, not {SCHEMA}")
        for step in journal.steps:
            if step.path != MANIFEST:
                check_visible(step.path)
        for folder in journal.made:
            check_visible(folder)
        if journal.stage != stage_number(tree):
            raise _elsewhere(tree.root)
    except msgspec.MsgspecError as error:
        raise _damaged(tree.root, str(error)) from None
    except UsageError as error:
        raise _damaged(tree.root, error.message) from None
    return journal


def stage_number(tree: Tree) -> int:
    """Returns what tells this staging folder from a copy of it: its inode number."""
    status = tree.stat(STAGE)
    return 0 if status is None else status.st_ino


def staged_whole(tree: Tree, journal: Journal) -> bool:
    """Returns whether every file still in `new/` has the bytes that the journal names."""
    return all(
        tree.state(_staged(step)).sha256 in (None, step.new)
        for step in journal.steps
        if step.new is not None
    )


def forward(tree: Tree, journal: Journal, *, strict: bool) -> list[str]:
    """Moves everything to the new state and syncs it; returns the paths left alone.

    A path is left alone when its bytes are not what the plan saw; `strict` raises ChangedError
    for that instead.
    """
    left = [step.path for step in journal.steps if step.new is None and not _retire(tree, step)]
    for folder in journal.made:
        tree.make_folder(folder)
    left += [
        step.path for step in journal.steps if step.new is not None and not _replace(tree, step)
    ]
    if left and strict:
        raise ChangedError(left)
    _sync(tree, journal)
    for folder in _folders([step.path for step in journal.steps if step.new is None]):
        tree.remove_empty_folder(folder)
    return left


def backward(tree: Tree, journal: Journal) -> list[str]:
    """Moves everything back to the old state and syncs it; returns the paths left alone."""
    left = [step.path for step in reversed(journal.steps) if not _restore(tree, step)]
    for folder in reversed(journal.made):
        tree.remove_empty_folder(folder)
    _sync(tree, journal)
    return left


def clear_stage(tree: Tree) -> None:
    """Removes the staging folder, its journal first: without one the rest means nothing.

    Raises OSError only while the journal is still there; what else can't be removed is left to
    the next recovery.
    """
    tree.unlink(UNDO if tree.stat(JOURNAL) is None else JOURNAL)  # never both
    with contextlib.suppress(OSError):
        for folder in (NEW, OLD, STAGE):
            for name in tree.names(folder):
                if f"{folder}/{name}" not in (NEW, OLD):
                    tree.unlink(f"{folder}/{name}")
            tree.remove_empty_folder(folder)


def _replace(tree: Tree, step: Step) -> bool:
    """Renames the staged file over its target; returns False when the target is not ours."""
    if tree.stat(_staged(step)) is None:
        return True
    state = tree.state(step.path)
    if not _is(state, step.old):
        return _is(state, step.new)
    if step.old is not None:
        _keep(tree, step)
    tree.rename(_staged(step), step.path)
    return True


def _retire(tree: Tree, step: Step) -> bool:
    """Moves a pruned file into `old/`; returns False when its bytes are not ours."""
    state = tree.state(step.path)
    if state.kind == "absent":
        return True
    if not _is(state, step.old):
        return False
    tree.rename(step.path, _kept(step))
    return True


def _keep(tree: Tree, step: Step) -> None:
    """Gives the old file a second name in `old/`, or copies it there."""
    try:
        tree.link(step.path, _kept(step))
    except FileExistsError:
        return  # from an attempt that was killed between link and rename
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        part = f"{step.number}.part"
        tree.unlink(f"{OLD}/{part}")
        content = tree.read(step.path, _LIMIT) or b""
        tree.write_new(OLD, [(part, content, tree.state(step.path).mode)])
        tree.rename(f"{OLD}/{part}", _kept(step))


def _restore(tree: Tree, step: Step) -> bool:
    """Takes one step back; returns False when the path was edited since."""
    kept = tree.stat(_kept(step)) is not None
    state = tree.state(step.path)
    if step.new is None:
        if not kept:
            return True
        if state.kind != "absent":
            return False
        _remake_folders(tree, step.path)
        tree.rename(_kept(step), step.path)
        return True
    if tree.stat(_staged(step)) is not None:
        return True
    if not _is(state, step.new):
        return _is(state, step.old)
    if step.old is None:
        tree.unlink(step.path)
    elif kept:
        tree.rename(_kept(step), step.path)
    return True


def _remake_folders(tree: Tree, path: str) -> None:
    parts = path.split("/")
    for end in range(1, len(parts)):
        tree.make_folder("/".join(parts[:end]))


def _sync(tree: Tree, journal: Journal) -> None:
    parents = {step.path.rpartition("/")[0] for step in journal.steps}
    parents |= {folder.rpartition("/")[0] for folder in journal.made}
    tree.sync_folders(sorted(parents))


def _folders(paths: list[str]) -> list[str]:
    """All folders above the paths, deepest first."""
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")
        found |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    return sorted(found, reverse=True)


def _is(state: State, expected: str | None) -> bool:
    if expected is None:
        return state.kind == "absent"
    return state.kind == "file" and state.sha256 == expected


def _staged(step: Step) -> str:
    return f"{NEW}/{step.number}"


def _kept(step: Step) -> str:
    return f"{OLD}/{step.number}"


def _damaged(root: Path, reason: str) -> OutsideError:
    return OutsideError(
        "output.journal-damaged",
        f"The journal in {STAGE} below {root} can't be used: {reason}.",
        facts={"root": str(root), "reason": reason},
        next_step=f"Remove {root / STAGE}, then compare with `provision render "
        "--check`; each file there is whole.",
    )


def _elsewhere(root: Path) -> OutsideError:
    return OutsideError(
        "output.journal-elsewhere",
        f"The journal in {STAGE} below {root} was written in another folder and came along with "
        "a copy of it; it is not carried out here.",
        facts={"root": str(root)},
        next_step=f"Remove {root / STAGE}, then compare with `provision render "
        "--check`; each file there is whole.",
    )
