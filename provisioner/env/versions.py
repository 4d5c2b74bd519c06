"""Environments beside each other under one name, and the switch between them.

A prefix is baked into the files of an environment, so it can't be moved. `DIR` is therefore a link
to `DIR.d/<version>`; a new version is built at its own path and the link is renamed over the old
one. The version before stays for `provision env rollback`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator  # noqa: TC003 - part of public signatures
from dataclasses import dataclass
from pathlib import Path

from provisioner.conda import prefix as prefixes
from provisioner.errors import OutsideError, UsageError

_PREVIOUS = "previous"
_LOCK = "lock"
_TAKEN_OVER = "taken-over"
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@dataclass(frozen=True)
class Versions:
    """The versions of an environment; `link` is the path that users know."""

    link: Path

    @property
    def folder(self) -> Path:
        """Where the versions lie."""
        return self.link.with_name(self.link.name + ".d")

    @property
    def current(self) -> Path | None:
        """The version that the link leads to; None without one, or for a folder of somebody's."""
        return self._target(self.link)

    @property
    def previous(self) -> Path | None:
        """The version before the last switch; None without one."""
        return self._target(self.folder / _PREVIOUS)

    def _target(self, link: Path) -> Path | None:
        try:
            target = link.parent / link.readlink()
        except OSError:
            return None
        inside = Path(os.path.normpath(target))
        if inside.parent != self.folder or not os.path.lexists(inside):
            return None
        return inside if inside.name.startswith(_TAKEN_OVER) or inside.is_dir() else None

    def fresh(self, identity: str) -> Path:
        """Returns a path for a new version; not that of one that is in use."""
        names = [identity, *(f"{identity}-{number}" for number in range(2, 1000))]
        for name in names:
            path = self.folder / name
            if path not in (self.current, self.previous):
                return path
        raise UsageError("env.versions", f"{self.folder} is full.")

    def foreign(self) -> bool:
        """Returns whether something that is not ours lies where the link belongs."""
        if not os.path.lexists(self.link):
            return False
        if self.link.is_symlink():
            return self.current is None
        return not self.link.is_dir() or any(self.link.iterdir())


@contextlib.contextmanager
def held(versions: Versions) -> Iterator[None]:
    """Keeps others from changing the versions meanwhile; raises OutsideError `env.busy`."""
    try:
        versions.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(versions.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OutsideError(
            "env.not-writable",
            f"{versions.folder} cannot be made or written: {error.strerror}.",
            next_step="Choose a --prefix in a folder that you may write.",
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutsideError(
                "env.busy",
                f"Another provision is at work on {versions.link}.",
                next_step="Wait for it, then try again.",
            ) from None
        yield
    finally:
        os.close(descriptor)


def switch(versions: Versions, new: Path, *, replace: bool = False) -> None:
    """Makes the link lead to a version, in one step; the one before becomes `previous`.

    A folder that is not ours is only taken over with `replace`: it is kept as the version before.
    """
    if versions.foreign():
        if not replace:
            raise not_ours(versions)
        _take_over(versions, new)
        return
    before = versions.current
    if before is not None and before != new:
        _point(versions.folder / _PREVIOUS, Path(before.name))
    if versions.link.is_dir() and not versions.link.is_symlink():
        versions.link.rmdir()  # empty: `foreign` would have said so
    _point(versions.link, Path(versions.folder.name, new.name))


def rollback(versions: Versions) -> Path:
    """Makes the link lead to the version before; returns it. Raises OutsideError `env.no-previous`.

    The version that is left becomes the one before, so that doing it again undoes it.
    """
    previous = versions.previous
    if previous is None:
        raise OutsideError(
            "env.no-previous",
            f"There is no earlier environment to go back to from {versions.link}.",
            facts={"versions": str(versions.folder)},
        )
    if previous.name.startswith(_TAKEN_OVER) and versions.link.is_symlink():
        current = versions.current
        _exchange(previous, versions.link)
        previous.unlink()
        if current is not None:
            _point(versions.folder / _PREVIOUS, Path(current.name))
        return versions.link
    if previous.name.startswith(_TAKEN_OVER) or prefixes.is_whole(previous):
        switch(versions, previous, replace=True)
        return previous
    raise OutsideError(
        "env.previous-broken",
        f"The earlier environment {previous} is not whole.",
        next_step="Create the environment anew: provision env create CELL --prefix DIR.",
    )


def prune(versions: Versions) -> None:
    """Removes every version but the current one and the one before it.

    What was taken over from somebody stays until they remove it.
    """
    kept = {versions.current, versions.previous}
    for path in versions.folder.iterdir():
        ours = path.is_dir() and not path.is_symlink() and not path.name.startswith(_TAKEN_OVER)
        if ours and path not in kept:
            prefixes.remove(path)


def _take_over(versions: Versions, new: Path) -> None:
    numbers = (f"{_TAKEN_OVER}-{number}" for number in range(1, 1000))
    place = next(
        versions.folder / name for name in numbers if not os.path.lexists(versions.folder / name)
    )
    # The new link is made where the old folder is to go, then both change places at once.
    place.symlink_to(Path(versions.folder.name, new.name))
    try:
        _exchange(place, versions.link)
    except OutsideError:
        place.unlink()
        raise
    _point(versions.folder / _PREVIOUS, Path(place.name))


def not_ours(versions: Versions) -> UsageError:
    """Returns the error for something in the way that is not to be taken over."""
    return UsageError(
        "env.not-ours",
        f"{versions.link} exists and was not made by `provision env create`.",
        facts={"prefix": str(versions.link)},
        next_step="Choose another --prefix, or replace it with --replace: it is kept beside the "
        "new one, and `provision env rollback` brings it back.",
    )


def _point(link: Path, target: Path) -> None:
    """Makes a link in one step, over an older link if there is one."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
    _sync(link.parent)


def _exchange(one: Path, other: Path) -> None:
    """Lets two paths change places in one step; raises OutsideError where that is not possible."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if call is not None and call(*arguments) == 0:
        _sync(one.parent)
        _sync(other.parent)
        return
    number = ctypes.get_errno() if call is not None else errno.ENOSYS
    raise OutsideError(
        "env.cannot-take-over",
        f"{other} cannot be replaced in one step here: {os.strerror(number)}.",
        next_step=f"Move it away yourself, then run the command again: mv {other} {other}.old",
    )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
