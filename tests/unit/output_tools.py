"""What the tests of rendered output share: small file sets, snapshots, children to kill."""

from __future__ import annotations

import os
import stat
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.errors import ProvisionError
from provisioner.render.fileset import FileSet
from provisioner.render.moves import STAGE
from provisioner.render.rootlock import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

CHILD_FAILED = 99


def files_of(content: dict[str, str], group: str = "g") -> FileSet:
    """A set with one group; a path that ends in .sh is executable."""
    fileset = FileSet()
    for path, text in content.items():
        mode = 0o755 if path.endswith(".sh") else 0o644
        fileset.add(path, text, group=group, mode=mode)
    return fileset


def snapshot(root: Path) -> dict[str, tuple[bytes, int] | None]:
    """Every path below root with bytes and mode (folders: None), but stage and lock."""
    found: dict[str, tuple[bytes, int] | None] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != STAGE]
        for name in folders:
            found[str(Path(folder, name).relative_to(root))] = None
        for name in names:
            if name == LOCK:
                continue
            path = Path(folder, name)
            found[str(path.relative_to(root))] = (
                path.read_bytes(),
                stat.S_IMODE(path.lstat().st_mode),
            )
    return found


def failure(work: Callable[[], object]) -> ProvisionError | None:
    """The error of ours that `work` raised, None when it went well."""
    try:
        work()
    except ProvisionError as error:
        return error
    return None


def names(folder: Path) -> list[str]:
    """The sorted names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def debris(root: Path) -> list[str]:
    """The names at the root that no finished command leaves."""
    return [name for name in (STAGE, LOCK) if os.path.lexists(root / name)]


def child(work: Callable[[], Any]) -> int:
    """Starts a process that runs `work` and ends with 0, or with 99 and its traceback."""
    pid = os.fork()
    if pid:
        return pid
    status = CHILD_FAILED
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else CHILD_FAILED
    except BaseException:  # noqa: BLE001  a child must not run on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(pid: int) -> int:
    """The exit status of a child; minus the signal when one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


SYSCALLS = frozenset(
    {"open", "close", "write", "pwrite", "ftruncate", "fsync", "flock"}
    | {"rename", "link", "unlink", "mkdir", "rmdir"}
)


def calls_of(work: Callable[[], object], names: frozenset[str] = SYSCALLS) -> list[str]:
    """The names of the system calls of `work`, in order."""
    seen: list[str] = []

    def note(frame: object, event: str, call: Any) -> None:
        if event == "c_call" and call.__name__ in names and _is_system_call(call):
            seen.append(call.__name__)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def _is_system_call(call: Any) -> bool:
    return getattr(call, "__module__", None) in ("posix", "fcntl")


class AtCall:
    """Runs `then` just before the nth system call of these names, by default all that matter.

    A profile function sees each call into the operating system without replacing it.
    """

    def __init__(
        self, number: int, then: Callable[[], None], names: frozenset[str] = SYSCALLS
    ) -> None:
        self.names = names
        self.left = number
        self.then = then
        self.fired = False

    def __enter__(self) -> Self:
        sys.setprofile(self.seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def seen(self, frame: object, event: str, call: Any) -> None:
        if event != "c_call" or call.__name__ not in self.names:
            return
        if not _is_system_call(call):
            return
        self.left -= 1
        if self.left == 0:
            self.fired = True
            self.then()
