"""File access below one output root that never follows a symbolic link.

Every folder is opened from its parent's descriptor with O_NOFOLLOW, so a link put anywhere
below the root, even while we work, can't lead a write outside. The root itself may be reached
through links. Paths are relative, `/` between segments, and already checked.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Literal

import msgspec

from provisioner.errors import OutsideError, ProvisionError, UsageError
from provisioner.render.sync import batch_size, sync_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_OPEN_FOLDERS = 64  # more than the deepest path, far fewer than any descriptor limit

Kind = Literal["absent", "file", "symlink", "folder", "special"]


class State(msgspec.Struct, frozen=True):
    """What lies at a path; `sha256` and `mode` (permission bits) are of a regular file."""

    kind: Kind
    sha256: str | None = None
    mode: int = 0


ABSENT = State("absent")


class Tree:
    """The files below `root`; use as a context manager. A missing root is an empty tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root_fd: int | None = None
        self._folders: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._root_fd = os.open(self.root, _FOLDER)
        except FileNotFoundError:
            self._root_fd = None
        except NotADirectoryError:
            raise UsageError(
                "output.not-a-folder",
                f"The output root {self.root} is not a folder.",
                facts={"root": str(self.root)},
                next_step="Name a folder with --out.",
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()
        if self._root_fd is not None:
            os.close(self._root_fd)
            self._root_fd = None

    def folder(self, path: str) -> int | None:
        """Returns a descriptor of the folder (`""` is the root), None when it is absent.

        The descriptor belongs to the tree and stays open for at least one further call.
        """
        if not path:
            return self._root_fd
        fd = self._folders.pop(path, None)
        if fd is None:
            up, _, name = path.rpartition("/")
            parent = self.folder(up)
            if parent is None:
                return None
            try:
                fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                raise self._not_a_folder(path, name, parent) from None
        self._folders[path] = fd  # last in the dict is most recently used
        if len(self._folders) > _OPEN_FOLDERS:
            oldest = next(iter(self._folders))
            os.close(self._folders.pop(oldest))
        return fd

    def make_folder(self, path: str) -> None:
        """Makes one folder unless it exists; its parent must exist."""
        up, _, name = path.rpartition("/")
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=self._required(up))
        self._required(path)

    def state(self, path: str) -> State:
        """Returns what lies at `path`, with the hash of a regular file."""
        status = self.stat(path)
        if status is None:
            return ABSENT
        if stat.S_ISREG(status.st_mode):
            digest = hashlib.sha256()
            for chunk in self._chunks(path):
                digest.update(chunk)
            return State("file", digest.hexdigest(), stat.S_IMODE(status.st_mode))
        return State(_kind(status.st_mode))

    def stat(self, path: str) -> os.stat_result | None:
        """Returns the status of `path` itself (links not followed), None when absent."""
        up, _, name = path.rpartition("/")
        parent = self.folder(up)
        if parent is None:
            return None
        try:
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, path: str, limit: int) -> bytes | None:
        """Returns at most `limit` bytes of a regular file, None when nothing is there.

        Raises OutsideError for anything else: a pipe that is never fed, a link, a folder.
        """
        status = self.stat(path)
        if status is None:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise not_a_file(self.root, path, _kind(status.st_mode))
        data = b""
        for chunk in self._chunks(path):
            data += chunk
            if len(data) >= limit:
                break
        return data[:limit]

    def write_new(self, folder: str, files: Iterable[tuple[str, bytes, int]]) -> None:
        """Writes new files (name, content, mode) into one folder and syncs each to the disk.

        A batch is written first and synced after, so that the disk sees its data together.
        """
        parent = self._required(folder)
        most = batch_size()
        batch: list[int] = []
        try:
            for name, content, mode in files:
                batch.append(os.open(name, _CREATE, mode, dir_fd=parent))
                _write(batch[-1], content)
                if len(batch) == most:
                    _sync_and_close(batch)
            _sync_and_close(batch)
        finally:
            _close(batch)

    def rename(self, source: str, target: str) -> None:
        """Renames a file over `target`, whose folder must exist."""
        (from_fd, from_name), (to_fd, to_name) = self._at(source), self._at(target)
        os.rename(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def link(self, source: str, target: str) -> None:
        """Gives a regular file a second name; FileExistsError when `target` is there."""
        (from_fd, from_name), (to_fd, to_name) = self._at(source), self._at(target)
        os.link(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Removes a file or link; no error when nothing is there."""
        up, _, name = path.rpartition("/")
        parent = self.folder(up)
        if parent is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)

    def remove_empty_folder(self, path: str) -> bool:
        """Removes the folder when it is empty; returns whether it is gone."""
        up, _, name = path.rpartition("/")
        parent = self.folder(up)
        if parent is None:
            return True
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
                return False
            raise
        finally:
            fd = self._folders.pop(path, None)
            if fd is not None:
                os.close(fd)
        return True

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names in a folder, none when it is absent."""
        fd = self.folder(folder)
        if fd is None:
            return []
        with os.scandir(fd) as entries:
            return sorted(entry.name for entry in entries)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Makes renames and removals in the folders durable; absent folders are fine."""
        most = batch_size()
        batch: list[int] = []
        try:
            for path in paths:
                fd = self.folder(path)
                if fd is not None:
                    batch.append(os.dup(fd))
                if len(batch) == most:
                    _sync_and_close(batch, folders=True)
            _sync_and_close(batch, folders=True)
        finally:
            _close(batch)

    def free_bytes(self) -> int | None:
        """Returns the bytes this user may still write below the root, None when unknown."""
        if self._root_fd is None:
            return None
        figures = os.fstatvfs(self._root_fd)
        return figures.f_bavail * figures.f_frsize

    def _required(self, folder: str) -> int:
        fd = self.folder(folder)
        if fd is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder or ".")
        return fd

    def _at(self, path: str) -> tuple[int, str]:
        up, _, name = path.rpartition("/")
        return self._required(up), name

    def _chunks(self, path: str) -> Iterator[bytes]:
        fd, name = self._at(path)
        file = os.open(name, _FILE, dir_fd=fd)
        try:
            while chunk := os.read(file, _CHUNK):
                yield chunk
        finally:
            os.close(file)

    def _not_a_folder(self, path: str, name: str, parent: int) -> OutsideError:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return symlink_error(self.root, path)
        return OutsideError(
            "output.not-a-folder",
            f"A folder is needed at {path} below {self.root}, but a file is there.",
            facts={"root": str(self.root), "path": path},
            next_step=f"Move {path} away, or name another root with --out.",
        )


def sha256_hex(content: bytes) -> str:
    """Returns the hex SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def _kind(mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "special"


def not_a_file(root: Path, path: str, kind: Kind) -> OutsideError:
    """Returns the error for what lies where a file of ours belongs and is none."""
    if kind == "symlink":
        return symlink_error(root, path)
    what = "a folder" if kind == "folder" else "a device, pipe or socket"
    return OutsideError(
        "output.not-a-file",
        f"{path} below {root} is {what}, but a file of ours belongs there.",
        facts={"root": str(root), "path": path},
        next_step=f"Move {path} away, or name another root with --out.",
    )


def symlink_error(root: Path, path: str) -> OutsideError:
    """Returns the error for a symbolic link where a file or folder of ours belongs."""
    return OutsideError(
        "output.symlink",
        f"{path} below {root} is a symbolic link; nothing is written or removed through it.",
        facts={"root": str(root), "path": path},
        next_step=f"Replace {path} by a real file or folder, or name another root with --out.",
    )


def explain(error: OSError, root: Path, doing: str) -> ProvisionError:
    """Returns the user's error for an OSError met while `doing` something below `root`.

    `doing` is a clause such as "writing 7 files (12,000 bytes)" or "reading docker/x"; the
    OSError's own file name is not used, being relative to some folder below the root.
    """
    code, next_step = {
        errno.ENOSPC: ("output.no-space", "Free space there, or name another root with --out."),
        errno.EDQUOT: ("output.no-space", "Free some of your quota, or name another --out."),
        errno.EROFS: ("output.read-only", "Name a writable root with --out."),
        errno.EACCES: ("output.denied", "Get the permission, or name another root with --out."),
        errno.EPERM: ("output.denied", "Get the permission, or name another root with --out."),
        errno.EXDEV: (
            "output.other-file-system",
            "A folder below the root lies on another file system: unmount it, or use --out.",
        ),
    }.get(error.errno or 0, ("output.failed", "Look at the disk and its file system."))
    reason = (error.strerror or type(error).__name__).lower()
    return OutsideError(
        code,
        f"The system refused {doing} below {root}: {reason}.",
        facts={"root": str(root), "errno": errno.errorcode.get(error.errno or 0, "unknown")},
        next_step=next_step,
    )


@contextlib.contextmanager
def fixed_umask() -> Iterator[None]:
    """Creates 644/755 files and 755 folders whatever the user's umask, while it is held.

    A changed umask, unlike a later chmod, leaves no window with other modes, keeps inherited
    set-group-ID bits and default ACLs, and works where chmod does not.
    """
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    # Starts the write-back without waiting, so that the later fsync finds it under way.
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_and_close(fds: list[int], *, folders: bool = False) -> None:
    sync_all(fds, folders=folders)
    _close(fds)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
