"""Carries out a plan so that every file is whole, old or new, whatever ends the process.

Stage: all new files, the manifest among them, are written and synced in `.provision-stage/new`;
a full disk ends here. Commit: the synced journal gets its name; from then on the write counts.
Move: each old file gets a second name in `.provision-stage/old`, each new one is renamed over
it. Close: folders are synced, the journal is removed, then the staging folder.

What a killed process leaves is dealt with in `provisioner.render.recovery`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import FindingError
from provisioner.render.manifest import MANIFEST
from provisioner.render.moves import (
    JOURNAL,
    NEW,
    OLD,
    PART,
    STAGE,
    ChangedError,
    Journal,
    Step,
    clear_stage,
    forward,
    stage_number,
)
from provisioner.render.plan import ActionKind, Plan, conflict_error, plan
from provisioner.render.recovery import Recovery, recover_held, stage_exists, turn, undo
from provisioner.render.tree import explain, fixed_umask, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from provisioner.render.fileset import FileSet
    from provisioner.render.tree import Tree

WAIT_S = 10.0
"""How long a write waits for another process below the same root, in seconds."""

_SHOWN = 10


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

    if not stage_exists(root):
        first = planned()
        if first.conflicts:
            raise conflict_error(first)
        if not first.writes:
            return _outcome(first, Recovery())
    # Planned again in the turn: the first plan may have seen the middle of another write.
    return _carry_out(root, planned, wait_s)


def apply(root: Path, planned: Plan, *, wait_s: float = WAIT_S) -> Outcome:
    """Carries out a plan and returns what it did.

    Raises FindingError for a plan with conflicts, or when a file or the manifest is no longer
    what the plan saw; OutsideError when the system refuses. The old files are then untouched.
    """
    if planned.conflicts:
        raise conflict_error(planned)
    if not planned.writes and not stage_exists(root):
        return _outcome(planned, Recovery())
    return _carry_out(root, lambda: planned, wait_s)


def _carry_out(root: Path, planned: Callable[[], Plan], wait_s: float) -> Outcome:
    made = _make_root(root)
    try:
        with turn(root, wait_s) as tree:
            recovery = recover_held(tree)
            final = planned()
            _apply_held(tree, final)
            return _outcome(final, recovery)
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


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
        undo(tree)
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


def _changed(root: Path, paths: list[str]) -> FindingError:
    names = ", ".join(paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return FindingError(
        "output.changed-meanwhile",
        f"Below {root}, {names}{more} changed while this was writing; nothing was changed.",
        facts={"root": str(root), "paths": paths},
        next_step="Run this again.",
    )


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
