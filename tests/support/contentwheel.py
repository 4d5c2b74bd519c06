"""Wheels with the content that a test gives them, with the same bytes for the same content."""

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.conda_channel import dist_info


def content_wheel(
    folder: Path,
    name: str,
    version: str,
    body: Mapping[str, bytes],
    requires: Iterable[str] = (),
) -> Path:
    """Write a pure wheel with these files; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = dist_info(name, version, body, "", requires, installer=None)
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, file in files.items():
            wheel.writestr(zipfile.ZipInfo(inside.lstrip("/")), file.data)
    return path


def torch_wheel(folder: Path, version: str, cuda: str | None, metadata: str | None = None) -> Path:
    """Write what stands for torch: `version` is what it says of itself, `metadata` its wheel's."""
    body = {
        "torch/__init__.py": f"from . import version\n__version__ = {version!r}\n".encode(),
        "torch/version.py": f"cuda = {cuda!r}\n".encode(),
        "torch/lib/libtorch.so": b"\x7fELF" + bytes(2000),
    }
    return content_wheel(folder, "torch", metadata or version, body)


def pin(wheel: Path) -> str:
    """Return the wheel as a line of a lock."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
