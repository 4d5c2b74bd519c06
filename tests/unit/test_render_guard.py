"""The first step of a rendered Dockerfile, run by sh: what stops a build before all else."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.rendering import rendered, resolved

CONDA_CELL: dict[str, Any] = {"torch": "2.0.1", "cuda": "11.8"}
EL_CELL: dict[str, Any] = {"torch": "2.6.0", "cuda": "12.4", "os": "el9"}
COMPAT_CELL: dict[str, Any] = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "gpu": ("A100",),
    "driver": "535.183.01",
}
MACHINE = os.uname().machine


@dataclass(frozen=True)
class Guard:
    """The step of one cell with its absolute paths moved below a folder; its locks are there."""

    folder: Path
    script: str
    arguments: frozenset[str]

    @classmethod
    def of(cls, folder: Path, cell: dict[str, Any]) -> "Guard":
        text = rendered(resolved(**cell))["docker/Dockerfile"]
        stage = text.partition(" AS lock\n")[2].partition("\nFROM ")[0]
        found = re.search(r"(?s)\nRUN (set -eu; .*?) > /locked\n", stage)
        assert found is not None
        script = found[1].replace("x86_64", MACHINE)
        for place in ("/lock/", "/usr/local/cuda/"):
            script = script.replace(place, f"{folder}{place}")
        (folder / "lock").mkdir()
        for name in re.findall(r"-s \S+/lock/(\S+) ", script):
            (folder / "lock" / name).write_text("locked\n", encoding="ascii")
        return cls(folder, script, frozenset(re.findall(r"(?m)^ARG (\w+)=", stage)))

    def run(self, **arguments: str) -> subprocess.CompletedProcess[str]:
        assert arguments.keys() <= self.arguments
        return subprocess.run(
            ["/bin/sh", "-c", self.script],
            env={"PATH": "/usr/bin:/bin", **dict.fromkeys(self.arguments, ""), **arguments},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


ADDRESSES = [
    *((CONDA_CELL, name) for name in ("PACKAGE_INDEX", "TORCH_INDEX", "CONDA_CHANNELS")),
    *((CONDA_CELL, name) for name in ("APT_MIRROR", "APT_SECURITY_MIRROR")),
    (EL_CELL, "DNF_MIRROR"),
]


@pytest.mark.parametrize(("cell", "argument"), ADDRESSES, ids=[name for _, name in ADDRESSES])
def test_no_argument_may_hold_a_password(
    cell: dict[str, Any], argument: str, tmp_path: Path
) -> None:
    guard = Guard.of(tmp_path, cell)
    clean = guard.run(**{argument: "https://mirror.example:8443/a/b_c~d"})
    assert (clean.returncode, clean.stderr) == (0, "")
    for spoilt in (
        "https://user:word@mirror.example/simple",
        "https://word@mirror.example/simple",
        "https://mirror.example/simple?token=word",
        "https://mirror.example/simple#word",
        "https://mirror.example/a b",
        "https://mirror.example/\nword",
        "https://mirror.example/$(word)",
    ):
        done = guard.run(**{argument: spoilt})
        assert done.returncode != 0, spoilt
        assert done.stderr == (
            f"{argument} is an address without user, password and query; "
            "passwords: --secret id=netrc\n"
        )


def test_every_address_among_the_arguments_of_a_dockerfile_is_guarded(tmp_path: Path) -> None:
    for number, cell in enumerate((CONDA_CELL, EL_CELL, COMPAT_CELL)):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = rendered(resolved(**cell))["docker/Dockerfile"]
        named = set(re.findall(r"(?m)^ARG (\w+)=", text))
        others = {"BASE_IMAGE", "BUILDER_IMAGE", "SOURCE_DATE_EPOCH"}
        assert Guard.of(folder, cell).arguments == named - others


def test_a_missing_lock_names_the_command(tmp_path: Path) -> None:
    guard = Guard.of(tmp_path, CONDA_CELL)
    (tmp_path / "lock" / "requirements.txt").write_text("", encoding="ascii")
    done = guard.run()
    assert done.returncode != 0
    assert "run 'provision lock torch2.0.1-cu118-py310-ubuntu22.04'" in done.stderr


@pytest.mark.parametrize("system", ["ubuntu22.04", "debian12"])
def test_a_compatibility_cell_wants_a_base_image_with_the_package(
    system: str, tmp_path: Path
) -> None:
    """Also on an OS for which NVIDIA has no image, where the default base can't have it."""
    guard = Guard.of(tmp_path, {**COMPAT_CELL, "os": system})
    done = guard.run()
    assert done.returncode != 0
    assert "rests on cuda-compat-13-0" in done.stderr
    assert "another BASE_IMAGE" in done.stderr
    library = tmp_path / "usr/local/cuda/compat/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert guard.run().returncode == 0
