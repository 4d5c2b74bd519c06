"""What a host needs to build environments itself: this package as one wheel, the rest as a lock.

A host gets `provision env`, not the whole tool: the wheel is made from the files that run here,
and the lock (requirements.txt beside this module) names the few packages that command imports.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from provisioner import __version__
from provisioner.atomic import write_whole
from provisioner.errors import OutsideError

LOCK: Final = Path(__file__).with_name("requirements.txt")
TOOL_SCHEMA: Final = "provision.host-tool/1"
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")
"""Series of Python that the tool runs on; pyproject.toml says the same."""

_PACKAGE = Path(__file__).resolve().parents[1]
_ENDINGS = frozenset({".j2", ".json", ".py", ".txt", ".typed", ".yaml"})
# The data of a wheel that a host has no use for.
_LEFT_OUT = ("data/evidence/", "data/playbooks/")
_INFO = f"provisioner-{__version__}.dist-info"


class Tool(NamedTuple):
    """The two files, and the digest of all that is in them (hex, shortened)."""

    wheel: Path
    lock: Path
    digest: str


def write_tool(folder: Path | None = None) -> Tool:
    """Writes the wheel and the lock below `folder`/DIGEST; the same content gives the same bytes.

    Without a folder they lie in the user's cache. Raises OutsideError `host.tool-unwritable`.
    """
    files = package_files()
    lock = LOCK.read_bytes()
    found = hashlib.sha256(lock)
    for name, content in sorted(files.items()):
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    digest = found.hexdigest()[:12]
    place = (folder or _cache()) / digest
    tool = Tool(place / f"provisioner-{__version__}-py3-none-any.whl", place / LOCK.name, digest)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not tool.lock.is_file():  # it is written last
            write_whole(tool.wheel, _wheel(files))
            write_whole(tool.lock, lock)
    except OSError as error:
        raise OutsideError(
            "host.tool-unwritable",
            f"The tool for hosts cannot be written to {place}: {error.strerror}.",
            next_step="Name a folder that you may write with --out.",
        ) from None
    return tool


def package_files() -> dict[str, bytes]:
    """Returns what the wheel holds, by its path in there."""
    from provisioner.matrix.load import default_matrix_path

    files: dict[str, bytes] = {}
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE).as_posix()
        wanted = path.suffix in _ENDINGS and not name.startswith(_LEFT_OUT)
        if wanted and "__pycache__" not in path.parts and path.is_file():
            files[f"provisioner/{name}"] = path.read_bytes()
    files["provisioner/data/matrix.yaml"] = default_matrix_path().read_bytes()
    return files


def _wheel(files: dict[str, bytes]) -> bytes:
    """A wheel without dependencies: the lock beside it says what else is installed."""
    metadata = f"Metadata-Version: 2.1\nName: provisioner\nVersion: {__version__}\n"
    inside = files | {
        f"{_INFO}/METADATA": metadata.encode(),
        f"{_INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: provision\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{_INFO}/entry_points.txt": b"[console_scripts]\nprovision = provisioner.__main__:main\n",
    }
    lines = [
        f"{name},sha256={_record_hash(content)},{len(content)}\n"
        for name, content in sorted(inside.items())
    ]
    record = f"{_INFO}/RECORD"
    inside[record] = "".join([*lines, f"{record},,\n"]).encode()
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as wheel:
            for name, content in inside.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o644 << 16
                wheel.writestr(entry, content)
        stream.seek(0)
        return stream.read()


def _record_hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(base) / "provision" / "host-tool"
