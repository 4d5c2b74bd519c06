"""Wheels of a few hundred bytes, for tests of indexes and installers."""

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str = "Tiny_Thing", version: str = "1.0+cpu") -> Path:
    """Write a wheel that pip can install, holding one module; returns its path.

    The same arguments give the same bytes: the date in the archive is a fixed one.
    """
    info = f"{name}-{version}.dist-info"
    files = {
        "tiny_thing.py": "VALUE = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},{_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return target


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
