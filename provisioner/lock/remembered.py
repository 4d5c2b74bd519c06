"""What the command found unchanged, remembered by content: for cells whose Python is conda's.

Whether conda's half answers its cell takes the matrix and YAML to tell. The answer depends on
nothing but the bytes of a few files, so it is kept under their hash, for this user alone, and the
same question costs a few file reads. Imports nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from provisioner import __version__

_KEEP = 64
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def known(root: str, cell: str) -> bool:
    """Whether these very files were found unchanged before, by this user."""
    path = _path(root, cell)
    try:
        about = os.lstat(path) if path else None
    except OSError:
        return False
    # A file that another user may have put there says nothing.
    return about is not None and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def remember(root: str, cell: str) -> None:
    """Keep that these files fit together; silent where nothing can be kept."""
    path = _path(root, cell)
    if path is None:
        return
    folder = os.path.dirname(path)  # noqa: PTH120
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        names = [name for name in os.listdir(folder) if name.startswith("unchanged-")]  # noqa: PTH208
        paths = [os.path.join(folder, name) for name in names]  # noqa: PTH118
        for old in sorted(paths, key=lambda one: os.lstat(one).st_mtime)[:-_KEEP]:
            os.unlink(old)  # noqa: PTH108


def _path(root: str, cell: str) -> str | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.path.expanduser("~")  # noqa: PTH111
        if not home.startswith("/") or home == "/":
            return None
        base = os.path.join(home, ".cache")  # noqa: PTH118
    digest = _digest(root, cell)
    return digest and os.path.join(base, "provision", f"unchanged-{digest}")  # noqa: PTH118


def _digest(root: str, cell: str) -> str | None:
    """The hash of all that the answer depends on; None where something is missing or no file."""
    folder = os.path.join(root, "lockfiles", cell)  # noqa: PTH118
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
        paths = [os.path.join(folder, name) for name in names]  # noqa: PTH118
        paths += [os.path.join(root, "docker", cell, "spec.json"), _matrix()]  # noqa: PTH118
        whole = hashlib.sha256(f"provision {__version__} {cell}\n".encode())
        for path in paths:
            if not os.path.isfile(path):  # noqa: PTH113
                return None
            with open(path, "rb") as file:  # noqa: PTH123
                content = hashlib.sha256(file.read()).hexdigest()
            whole.update(f"{os.path.basename(path)} {content}\n".encode())  # noqa: PTH119
    except OSError:
        return None
    return whole.hexdigest()


def _matrix() -> str:
    """The shipped matrix, as `matrix.load` finds it."""
    inside = os.path.join(_PACKAGE, "data", "matrix.yaml")  # noqa: PTH118
    beside = os.path.join(os.path.dirname(_PACKAGE), "matrix.yaml")  # noqa: PTH118, PTH120
    return inside if os.path.isfile(inside) else beside  # noqa: PTH113
