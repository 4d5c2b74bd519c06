"""What a render wants on disk: a validated set of relative paths and their bytes.

Pure values; nothing here touches the file system. A path that passes `check_path` is safe to
join to an output root, to print, and to put on a command line.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RESERVED_PREFIX = ".provision-"
"""The manifest, the lock and the staging folder start with this, so nothing rendered may."""

MODES = (0o644, 0o755)
MAX_SEGMENT = 200
MAX_PATH = 800
MAX_DEPTH = 16

_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+@-")


class RenderedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: a checked relative path, its bytes, the group that owns it, and its mode."""

    path: str
    content: bytes
    group: str
    mode: int = 0o644

    def sha256(self) -> str:
        """Returns the hex SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


def check_path(path: str) -> str:
    """Returns `path` unchanged when it is a safe relative POSIX path, else raises UsageError.

    Safe: 1 to 16 segments of `A-Z a-z 0-9 . _ + @ -`, none empty, none `.` or `..`, none
    starting with `-` or ending with `.`, at most 200 characters each and 800 together, and
    not one of the names this package keeps for itself (`.provision-*` at the root).
    """
    reason = _why_unsafe(path)
    if reason is None:
        return path
    raise UsageError(
        "output.bad-path",
        f"The output path {_shown(path)} is refused: {reason}.",
        facts={"path": _shown(path), "reason": reason},
        next_step="Use a relative path of letters, digits and . _ + @ - with / between folders.",
    )


def check_visible(path: str) -> str:
    """Returns `path` like check_path, and refuses hidden folders and files as well.

    For paths that come back from disk (manifest, journal): nothing there may lead into `.git`.
    """
    if any(segment.startswith(".") for segment in check_path(path).split("/")):
        raise UsageError(
            "output.bad-path",
            f"The output path {_shown(path)} is refused: hidden files are never ours.",
            facts={"path": _shown(path)},
        )
    return path


def check_group(group: str) -> str:
    """Returns `group` unchanged when it is printable ASCII without blanks, else raises."""
    if group and len(group) <= MAX_SEGMENT and set(group) <= _ALLOWED | set(":/"):
        return group
    raise UsageError(
        "output.bad-group",
        f"The output group {_shown(group)} is refused: it must be 1 to {MAX_SEGMENT} letters, "
        "digits and . _ + @ - : /.",
        facts={"group": _shown(group)},
    )


class FileSet:
    """An ordered collection of rendered files, without collisions.

    Iteration is sorted by path whatever the order of `add`. Two paths collide when they are
    equal but for the case of letters, or when one names a file where the other needs a folder:
    such a set could not be checked out on every machine.
    """

    def __init__(self, files: Iterable[RenderedFile] = ()) -> None:
        self._files: dict[str, RenderedFile] = {}
        self._file_names: dict[str, str] = {}
        self._folder_names: dict[str, str] = {}
        for file in files:
            self._insert(file)

    def add(
        self, path: str, content: bytes | str, *, group: str, mode: int = 0o644
    ) -> RenderedFile:
        """Adds one file (text becomes UTF-8) and returns it; raises UsageError on a bad path
        or a collision."""
        data = content.encode("utf-8") if isinstance(content, str) else content
        file = RenderedFile(path=path, content=data, group=group, mode=mode)
        self._insert(file)
        return file

    def update(self, other: FileSet) -> None:
        """Adds every file of `other`."""
        for file in other:
            self._insert(file)

    def get(self, path: str) -> RenderedFile | None:
        """Returns the file at `path`, or None."""
        return self._files.get(path)

    def groups(self) -> frozenset[str]:
        """Returns the groups that own at least one file of the set."""
        return frozenset(file.group for file in self._files.values())

    def size(self) -> int:
        """Returns the sum of all contents in bytes."""
        return sum(len(file.content) for file in self._files.values())

    def digest(self) -> str:
        """Returns a hex SHA-256 over all paths, modes and contents, independent of order."""
        total = hashlib.sha256()
        for file in self:
            total.update(f"{file.path}\0{file.mode:o}\0{file.sha256()}\n".encode("ascii"))
        return total.hexdigest()

    def __iter__(self) -> Iterator[RenderedFile]:
        return iter([self._files[path] for path in sorted(self._files)])

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def _insert(self, file: RenderedFile) -> None:
        check_path(file.path)
        check_group(file.group)
        if file.mode not in MODES:
            raise UsageError(
                "output.bad-mode",
                f"The mode {file.mode:o} of {file.path} is refused: only 644 and 755 are written.",
                facts={"path": file.path},
            )
        folders = _folders(file.path)
        self._refuse_collision(file.path, folders)
        self._files[file.path] = file
        self._file_names[file.path.lower()] = file.path
        for folder in folders:
            self._folder_names[folder.lower()] = folder

    def _refuse_collision(self, path: str, folders: list[str]) -> None:
        rival = self._file_names.get(path.lower()) or self._folder_names.get(path.lower())
        for folder in folders:
            spelled = self._folder_names.get(folder.lower(), folder)
            rival = rival or self._file_names.get(folder.lower())
            rival = rival or (spelled if spelled != folder else None)
        if rival is not None:
            raise UsageError(
                "output.path-collision",
                f"The output path {path} collides with {rival}: two files may not share a name, "
                "differ only in the case of letters, or stand where the other needs a folder.",
                facts={"path": path, "rival": rival},
            )


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _why_unsafe(path: str) -> str | None:
    if not path:
        return "it is empty"
    if len(path) > MAX_PATH:
        return f"it has {len(path)} characters, more than {MAX_PATH}"
    if path.startswith("/"):
        return "it is absolute"
    if path.lower().startswith(RESERVED_PREFIX):
        return f"names that start with {RESERVED_PREFIX} are kept for the tool itself"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        return f"it is {len(parts)} levels deep, more than {MAX_DEPTH}"
    for part in parts:
        reason = _why_unsafe_segment(part)
        if reason is not None:
            return reason
    return None


def _why_unsafe_segment(part: str) -> str | None:
    if not part:
        return "it has an empty segment"
    if part in (".", ".."):
        return f"it has a segment {part}"
    if len(part) > MAX_SEGMENT:
        return f"a segment has {len(part)} characters, more than {MAX_SEGMENT}"
    strange = sorted(set(part) - _ALLOWED)
    if strange:
        return f"it has the character {strange[0]!a}"
    if part.startswith("-"):
        return "a segment starts with -"
    if part.endswith("."):
        return "a segment ends with a dot"
    return None


def _shown(text: str) -> str:
    """ASCII, bounded: a refused name may hold anything, terminal escapes included."""
    return ascii(text) if len(text) <= 120 else ascii(text[:120]) + "..."
