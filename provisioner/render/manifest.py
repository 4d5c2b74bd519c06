"""The manifest at an output root: which files are ours, their hashes and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import FindingError, UsageError
from provisioner.render.fileset import check_group, check_visible

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.render.tree import Tree

MANIFEST = ".provision-manifest.json"
SCHEMA = 1
_LIMIT = 64 << 20
_HEX = frozenset("0123456789abcdef")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of ours: the group that owns it and the hex SHA-256 that we wrote."""

    group: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All files of ours below one root, by relative path."""

    schema: int = SCHEMA
    files: dict[str, Entry] = {}


def load_manifest(tree: Tree) -> tuple[Manifest, bytes | None]:
    """Returns the checked manifest of the root and its bytes (None when there is none).

    Every path is checked like a rendered one: a manifest may come from anywhere, and its
    paths decide what is deleted.
    """
    status = tree.stat(MANIFEST)
    if status is None:
        return Manifest(), None
    state = tree.state(MANIFEST)
    if state.kind != "file":
        raise _damaged(tree.root, f"it is a {state.kind}, not a file")
    raw = tree.read(MANIFEST, _LIMIT) or b""
    return parse_manifest(raw, tree.root), raw


def parse_manifest(raw: bytes, root: Path) -> Manifest:
    """Returns the manifest in `raw`; raises FindingError when it is damaged or too new."""
    try:
        schema = msgspec.json.decode(raw, type=_OnlySchema).schema
        if schema != SCHEMA:
            raise FindingError(
                "output.manifest-schema",
                f"{MANIFEST} below {root} has schema {schema}; this version reads {SCHEMA}.",
                facts={"root": str(root), "schema": schema, "known": SCHEMA},
                next_step="Use the provision version that wrote it, or newer.",
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
        for path, entry in manifest.files.items():
            check_visible(path)
            check_group(entry.group)
            if not _may_own(entry.group, path):
                raise _damaged(root, f"{entry.group} cannot own {path}")
            if len(entry.sha256) != 64 or not set(entry.sha256) <= _HEX:
                raise _damaged(root, f"the hash of {path} is no SHA-256")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _damaged(root, str(error)) from None
    except UsageError as error:
        raise _damaged(root, error.message) from None
    return manifest


def _may_own(group: str, path: str) -> bool:
    """Whether a group may have a path: a cell and its lock own what bears their name alone.

    A manifest is a file of the project like others; one that was tampered with must not make a
    render prune what is not ours.
    """
    kind, _, name = group.partition("/" if group.startswith("cell/") else ":")
    if kind == "cell":
        own = (f"docker/{name}/", f"lockfiles/{name}/")
        return path.startswith(own) or path == f"playbooks/vars/{name}.yml"
    return kind != "lock" or path.startswith(f"lockfiles/{name}/")


def encode_manifest(files: dict[str, Entry]) -> bytes:
    """Returns the stable bytes of a manifest: sorted, one line per file, ASCII."""
    lines = [
        f'    "{path}": {{"group": "{entry.group}", "sha256": "{entry.sha256}"}}'
        for path, entry in sorted(files.items())
    ]
    body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n  "schema": {SCHEMA},\n  "files": {body}\n}}\n'.encode("ascii")


class _OnlySchema(msgspec.Struct, frozen=True):
    """Read first: a newer schema may have fields that this version does not know."""

    schema: int


def _damaged(root: Path, reason: str) -> FindingError:
    return FindingError(
        "output.manifest-damaged",
        f"{MANIFEST} below {root} can't be used: {reason}.",
        facts={"root": str(root), "reason": reason},
        next_step=f"Restore {MANIFEST} from version control, or delete it and render again: "
        "files whose bytes are right are adopted.",
    )
