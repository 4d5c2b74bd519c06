"""Every file of a few cells against what is expected, byte for byte.

After a wanted change: PROVISION_UPDATE_GOLDEN=1 pytest tests/golden, and read the difference.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from support.rendering import rendered, resolved

EXPECTED = Path(__file__).parent / "expected"
NOT_COMPARED = ("docker/probe.py", "docker/guard.py", "docker/conda-install.py", "docker/spec.json")
"""The programs are copies; the spec tells the decisions in words that have tests of their own."""

MIRRORS = {
    "package_index": "https://mirror.example/index/simple",
    "torch_index": "https://mirror.example/whl",
    "apt": "http://mirror.example/debian",
    "apt_security": "http://mirror.example/debian-security",
    "conda": "https://mirror.example/conda",
    "image_registry": "https://registry.example:5000/hub",
}
CASES: dict[str, dict[str, Any]] = {
    "default-cuda-11.8": {"cuda": "11.8"},
    "package-index-on-base-python": {
        "torch": "2.0.1", "cuda": "11.7", "python_from": "base", "os": "debian11",
    },
    "cpu": {"torch": "2.13.0", "cuda": "cpu", "python_from": "base", "os": "debian12"},
    "eager-by-nature": {"torch": "1.13.1", "cuda": "11.7"},
    "devel-on-el9": {"torch": "2.6.0", "cuda": "12.4", "os": "el9", "flavour": "devel"},
    "aarch64": {"torch": "2.11.0", "cuda": "13.0", "arch": "aarch64"},
    "forward-compatibility": {
        "torch": "2.13.0", "cuda": "13.0", "gpu": ("A100",), "driver": "535.183.01",
    },
    "other-ptxas": {"torch": "2.0.1", "cuda": "11.8", "ptxas": "ptxas118"},
    "own-packages-behind-mirrors": {
        "torch": "2.6.0", "cuda": "12.4", "os": "debian12", "python_from": "base",
        "name": "vision", "without": ("torchaudio",), "mirrors": MIRRORS,
        "packages": {
            "pip": ("timm>=1,<2", "tomli==2.0.1; python_version < '3.11'"),
            "apt": ("libgl1", "ffmpeg=7:5.1.6-0+deb12u1"),
        },
    },
    "own-conda-packages": {
        "torch": "2.7.1", "cuda": "11.8", "name": "mesh", "gpu": ("A100",),
        "packages": {"conda": ("scipy>=1.10,<2", "gmsh"), "pip": ("trimesh",)},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_files_of_a_cell_are_the_expected_ones(case: str) -> None:
    asked = dict(CASES[case])
    mirrors = asked.pop("mirrors", None)
    files = rendered(resolved(mirrors, **asked), mirrors)
    shown = {path: text for path, text in files.items() if path not in NOT_COMPARED}
    folder = EXPECTED / case
    if os.environ.get("PROVISION_UPDATE_GOLDEN") == "1":
        for path, text in shown.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="ascii", newline="\n")
    there = {
        str(path.relative_to(folder)): path.read_bytes().decode("ascii")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert shown == there


def test_no_expected_file_is_left_over() -> None:
    assert {folder.name for folder in EXPECTED.iterdir()} == set(CASES)
