"""Carries out a plan so that every file is whole, old or new, whatever ends the process.

Stage: all new files, the manifest among them, are written and synced in `.provision-stage/new`;
a full disk ends here. Commit: the synced journal gets its name; from then on the write counts.
Move: each old file gets a second name in `.provision-stage/old`, each new one is renamed over
it. Close: folders are synced, the journal is removed, then the staging folder.

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
from provisioner.render.manifest import MANIFEST
from provisioner.render.moves import (
    JOURNAL,
    NEW,
    OLD,
    PART,
    STAGE,
    UNDO,
    ChangedError,
    Journal,
    Step,
    backward,
    clear_stage,
    forward,
    load_journal,
    stage_number,
    staged_whole,
)
from provisioner.render.plan import ActionKind, Plan, conflict_error, plan
from provisioner.render.rootlock import LOCK, BusyError, held, locked
from provisioner.render.tree import Tree, explain, fixed_umask, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from provisioner.render.fileset import FileSet

WAIT_S = 10.0
"""How long a write waits for another process below the same root, in seconds."""

_SHOWN = 10


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What `recover` did: nothing to do; completed, undid or cleared an interrupted write;
    left it to the live process `pid` (busy); could not write below the root (blocked).

    `left` are paths of a completed or undone write that were edited since, and so left alone.
    """

    action: Literal["nothing", "completed", "undone", "cleared", "busy", "blocked"] = "nothing"
    left: tuple[str, ...] = ()
    pid: int | None = None
    message: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a write did, as sorted relative paths; `recovered` is what was found before it."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    recovered: Recovery


def write(
    root: Path,
    fileset: FileSet,
    groups: Collection[str],
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
) -> Outcome:
    """Makes the files of `groups` below `root` equal to `fileset` and returns what it did.

    Recovers first, then plans and applies as one turn that no other process interrupts. When
    nothing is to be written, nothing below the root is touched, not even for a lock. Raises
    FindingError on conflicts (unless `force`), OutsideError when the system refuses; the old
    files are then untouched.
    """
    return write_made(root, lambda: (fileset, groups), force=force, wait_s=wait_s)


def write_made(
    root: Path,
    make: Callable[[], tuple[FileSet, Collection[str]]],
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
) -> Outcome:
    """`write` for files that depend on what is below the root: `make` is asked again in the turn.

    Two processes that each add a cell must both find themselves in what lists all cells.
    """

    def planned() -> Plan:
        fileset, groups = make()
        return plan(root, fileset, groups, force=force)

    if not _stage_exists(root):
        first = planned()
        if first.conflicts:
            raise conflict_error(first)
        if not first.writes:
            return _outcome(first, Recovery())
    # Planned again in the turn: the first plan may have seen the middle of another write.
    return _carry_out(root, planned, wait_s)


def interrupted(root: Path) -> bool:
    """Whether a write below `root` was cut off and waits to be completed or undone."""
    if not _stage_exists(root):
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


def apply(root: Path, planned: Plan, *, wait_s: float = WAIT_S) -> Outcome:
    """Carries out a plan and returns what it did.

    Raises FindingError for a plan with conflicts, or when a file or the manifest is no longer
    what the plan saw; OutsideError when the system refuses. The old files are then untouched.
    """
    if planned.conflicts:
        raise conflict_error(planned)
    if not planned.writes and not _stage_exists(root):
        return _outcome(planned, Recovery())
    return _carry_out(root, lambda: planned, wait_s)


def recover(root: Path, *, wait_s: float = 0.0) -> Recovery:
    """Completes, undoes or clears what an interrupted write left; returns what it did.

    Costs two system calls when there is nothing. Does not raise because another process is
    still writing (`busy`) or because the root is not writable (`blocked`): a command that only
    reads goes on. Raises OutsideError when the debris can't be dealt with.
    """
    if not (_stage_exists(root) or os.path.lexists(root / LOCK)):
        return Recovery()
    try:
        with _turn(root, wait_s) as tree:
            return _recover_held(tree)
    except OutsideError as error:
        if not _stage_exists(root):
            return Recovery()  # a lock file alone holds nobody up
        if isinstance(error, BusyError):
            return Recovery(action="busy", pid=error.pid, message=error.message)
        if error.code in ("output.read-only", "output.denied"):
            return Recovery(action="blocked", message=error.message)
        raise


def _carry_out(root: Path, planned: Callable[[], Plan], wait_s: float) -> Outcome:
    made = _make_root(root)
    try:
        with _turn(root, wait_s) as tree:
            recovery = _recover_held(tree)
            final = planned()
            _apply_held(tree, final)
            return _outcome(final, recovery)
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def _turn(root: Path, wait_s: float) -> Iterator[Tree]:
    """The root's files, with no other writer and a known umask."""
    try:
        with fixed_umask(), locked(root, wait_s=wait_s), Tree(root) as tree:
            yield tree
    except OSError as error:
        raise explain(error, root, "writing") from None


def _apply_held(tree: Tree, planned: Plan) -> None:
    if planned.conflicts:
        raise conflict_error(planned)
    if not planned.writes:
        return
    journal, files = _lay_out(tree, planned)
    size = sum(len(content) for _, content, _ in files)
    free = tree.free_bytes()
    try:
        _stage(tree, journal, files)
        forward(tree, journal, strict=True)
        clear_stage(tree)
    except BaseException as error:
        _undo(tree)
        if isinstance(error, ChangedError):
            raise _changed(tree.root, error.paths) from None
        if isinstance(error, OSError):
            number = f"{len(files)} file{'' if len(files) == 1 else 's'}"
            doing = f"writing {number} of {size:,} bytes"
            explained = explain(error, tree.root, doing)
            explained.facts |= {"needed_bytes": size, "free_bytes": free}
            raise explained from None
        raise


def _lay_out(tree: Tree, planned: Plan) -> tuple[Journal, list[tuple[str, bytes, int]]]:
    """The journal of a plan, and the files to stage as (name, content, mode)."""
    steps: list[Step] = []
    files: list[tuple[str, bytes, int]] = []
    for action in planned.of("create", "update", "prune"):
        new = None
        if action.file is not None:
            new = action.file.sha256()
            files.append((str(len(steps)), action.file.content, action.file.mode))
        steps.append(Step(path=action.path, number=len(steps), old=action.old, new=new))
    if planned.manifest is not None and planned.manifest != planned.manifest_old:
        old = None if planned.manifest_old is None else sha256_hex(planned.manifest_old)
        new = sha256_hex(planned.manifest)
        files.append((str(len(steps)), planned.manifest, 0o644))
        steps.append(Step(path=MANIFEST, number=len(steps), old=old, new=new))
    folders = {
        "/".join(parts[:end])
        for parts in (step.path.split("/") for step in steps if step.new is not None)
        for end in range(1, len(parts))
    }
    made = tuple(folder for folder in sorted(folders) if tree.folder(folder) is None)
    return Journal(stage=0, made=made, steps=tuple(steps)), files


def _stage(tree: Tree, journal: Journal, files: list[tuple[str, bytes, int]]) -> None:
    """Makes the new files and then the journal durable; its rename is the commit."""
    for folder in (STAGE, NEW, OLD):
        tree.make_folder(folder)
    tree.write_new(NEW, files)
    tree.sync_folders([NEW])
    journal = msgspec.structs.replace(journal, stage=stage_number(tree))
    name = PART.rpartition("/")[2]
    tree.write_new(STAGE, [(name, msgspec.json.encode(journal), 0o644)])
    tree.rename(PART, JOURNAL)
    tree.sync_folders([STAGE, ""])


def _recover_held(tree: Tree) -> Recovery:
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
    return _undo(tree)


def _undo(tree: Tree) -> Recovery:
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


def _changed(root: Path, paths: list[str]) -> FindingError:
    names = ", ".join(paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return FindingError(
        "output.changed-meanwhile",
        f"Below {root}, {names}{more} changed while this was writing; nothing was changed.",
        facts={"root": str(root), "paths": paths},
        next_step="Run this again.",
    )


def _stage_exists(root: Path) -> bool:
    return os.path.lexists(root / STAGE)


def _make_root(root: Path) -> list[Path]:
    """Makes the root and its missing parents; returns what was made, deepest first."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        with fixed_umask():
            root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, root, "making the folder") from None
    return missing


def _outcome(planned: Plan, recovery: Recovery) -> Outcome:
    def paths(*kinds: ActionKind) -> tuple[str, ...]:
        return tuple(action.path for action in planned.of(*kinds))

    return Outcome(
        created=paths("create"),
        updated=paths("update"),
        pruned=paths("prune"),
        unchanged=paths("unchanged"),
        recovered=recovery,
    )
