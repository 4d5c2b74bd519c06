"""What a write would do: each wanted file held against the disk and the manifest.

Reads only. `plan` decides, `provisioner.render.journal` carries out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from provisioner.errors import FindingError
from provisioner.render.manifest import MANIFEST, Entry, encode_manifest, load_manifest
from provisioner.render.tree import State, Tree, explain, not_a_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from provisioner.render.fileset import FileSet, RenderedFile

ActionKind = Literal["create", "update", "unchanged", "prune", "forget", "conflict"]
Reason = Literal["", "edited", "foreign", "other-group"]
DifferenceKind = Literal["missing", "stale", "edited", "foreign", "other-group", "extra"]

_SHOWN = 10
_REASONS = {
    "edited": "edited by hand",
    "foreign": "not written by provision",
    "other-group": "owned by another command",
}


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One path: what to do, the hash expected on disk before (None: absent), the new file.

    `reason` says why it is a conflict, or what `force` overrode. kinds: create, update,
    unchanged (adopted when it was not listed), prune (ours, no longer wanted), forget (listed,
    no longer wanted, already gone), conflict.
    """

    path: str
    kind: ActionKind
    reason: Reason = ""
    old: str | None = None
    file: RenderedFile | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All actions sorted by path, and the manifest that is right after them."""

    root: Path
    actions: tuple[Action, ...]
    manifest: bytes | None
    manifest_old: bytes | None

    def of(self, *kinds: ActionKind) -> list[Action]:
        """Returns the actions of these kinds, sorted by path."""
        return [action for action in self.actions if action.kind in kinds]

    @property
    def conflicts(self) -> list[Action]:
        """The actions that need `force`."""
        return self.of("conflict")

    @property
    def writes(self) -> bool:
        """Whether anything on disk would change, the manifest included."""
        return self.manifest != self.manifest_old or bool(self.of("create", "update", "prune"))


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which the disk is not what a render would leave.

    kinds: missing; stale (ours, out of date); edited (by hand); foreign (in the place of a
    rendered file, not ours); other-group (the same, owned by another command); extra (ours, no
    longer rendered).
    """

    path: str
    kind: DifferenceKind


def plan(root: Path, fileset: FileSet, groups: Collection[str], *, force: bool = False) -> Plan:
    """Returns what would make the files of `groups` below `root` equal to `fileset`.

    Listed files of other groups are left alone. With `force` a conflict becomes the update or
    prune that it stands for. Raises OutsideError for a symbolic link, folder, device or
    unreadable file in the place of a wanted file, FindingError for a damaged manifest.
    """
    strays = fileset.groups() - set(groups)
    if strays:
        raise ValueError(f"files of groups that are not rendered: {sorted(strays)}")
    try:
        with Tree(root) as tree:
            manifest, raw = load_manifest(tree)
            actions = [
                _judge_wanted(_state(tree, file), file, manifest.files.get(file.path), groups)
                for file in fileset
            ]
            actions += [
                _judge_unwanted(_state(tree, path), path, entry)
                for path, entry in manifest.files.items()
                if entry.group in groups and path not in fileset
            ]
    except OSError as error:
        raise explain(error, root, "reading the files") from None
    if force:
        actions = [_forced(action) for action in actions]
    actions.sort(key=lambda action: action.path)
    files = dict(manifest.files)
    for action in actions:
        if action.file is not None:
            entry = Entry(group=action.file.group, sha256=action.file.sha256())
            files[action.path] = entry
        else:
            del files[action.path]
    # Nothing listed before and nothing to list: no manifest is made for nothing.
    wanted = encode_manifest(files) if files or raw is not None else None
    return Plan(root=root, actions=tuple(actions), manifest=wanted, manifest_old=raw)


def check(root: Path, fileset: FileSet, groups: Collection[str]) -> list[Difference]:
    """Returns the differences between the disk and a render, sorted by path; none is good."""
    planned = plan(root, fileset, groups)
    found = [
        Difference(path=action.path, kind=_difference_kind(action))
        for action in planned.of("create", "update", "prune", "conflict")
    ]
    if not found and planned.writes:
        kind: DifferenceKind = "missing" if planned.manifest_old is None else "stale"
        found.append(Difference(path=MANIFEST, kind=kind))
    return found


def touched(root: Path, groups: Collection[str]) -> list[Difference]:
    """Returns the listed files of `groups` below `root` that are no longer as they were written.

    Only `edited` and `missing`: whether a render of today would give other bytes is for `check`.
    """
    found: list[Difference] = []
    try:
        with Tree(root) as tree:
            manifest, _ = load_manifest(tree)
            for path, entry in sorted(manifest.files.items()):
                if entry.group not in groups:
                    continue
                state = _state(tree, path)
                if state.kind == "absent":
                    found.append(Difference(path=path, kind="missing"))
                elif state.sha256 != entry.sha256:
                    found.append(Difference(path=path, kind="edited"))
    except OSError as error:
        raise explain(error, root, "reading the files") from None
    return found


def conflict_error(planned: Plan) -> FindingError:
    """Returns the error that lists the plan's conflicts, at most ten of them by name."""
    conflicts = planned.conflicts
    names = [f"{action.path} ({_REASONS[action.reason]})" for action in conflicts[:_SHOWN]]
    more = len(conflicts) - len(names)
    tail = f" and {more} more" if more else ""
    noun = "file is" if len(conflicts) == 1 else "files are"
    return FindingError(
        "output.conflict",
        f"{len(conflicts)} {noun} in the way below {planned.root}, nothing was written: "
        f"{', '.join(names)}{tail}.",
        facts={
            "root": str(planned.root),
            "conflicts": {action.path: action.reason for action in conflicts},
        },
        next_step="Keep what you need of them elsewhere, then run this again with --force to "
        "replace them.",
    )


def _state(tree: Tree, wanted: RenderedFile | str) -> State:
    path = wanted if isinstance(wanted, str) else wanted.path
    try:
        state = tree.state(path)
    except OSError as error:
        raise explain(error, tree.root, f"reading {path}") from None
    if state.kind in ("symlink", "folder", "special"):
        raise not_a_file(tree.root, path, state.kind)
    return state


def _judge_wanted(
    state: State, file: RenderedFile, entry: Entry | None, groups: Collection[str]
) -> Action:
    if state.kind == "absent":
        return Action(path=file.path, kind="create", file=file)
    kind: ActionKind = "update"
    reason: Reason = ""
    if state.sha256 == file.sha256():
        # Only a missing execute bit breaks a file; the rest is the checkout's umask.
        if not (file.mode & 0o100 and not state.mode & 0o100):
            kind = "unchanged"
    elif entry is None:
        kind, reason = "conflict", "foreign"
    elif entry.sha256 != state.sha256:
        kind, reason = "conflict", "edited"
    elif entry.group not in groups:
        kind, reason = "conflict", "other-group"
    return Action(path=file.path, kind=kind, reason=reason, old=state.sha256, file=file)


def _judge_unwanted(state: State, path: str, entry: Entry) -> Action:
    if state.kind == "absent":
        return Action(path=path, kind="forget")
    if state.sha256 == entry.sha256:
        return Action(path=path, kind="prune", old=state.sha256)
    return Action(path=path, kind="conflict", reason="edited", old=state.sha256)


def _forced(action: Action) -> Action:
    if action.kind != "conflict":
        return action
    kind: ActionKind = "prune" if action.file is None else "update"
    return msgspec.structs.replace(action, kind=kind)


def _difference_kind(action: Action) -> DifferenceKind:
    if action.kind == "conflict":
        return action.reason or "edited"
    kinds: dict[ActionKind, DifferenceKind] = {
        "create": "missing",
        "update": "stale",
        "prune": "extra",
    }
    return kinds[action.kind]
