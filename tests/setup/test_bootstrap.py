"""tools/bootstrap.sh on a small project: real environments, a package index on loopback."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import PROJECT
from support.tinywheel import make_wheel
from support.wheelhouse import serve_wheels

SCRIPT = PROJECT / "tools" / "bootstrap.sh"
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1"
"""
BACKEND = """\
import zipfile


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.writestr("small.pth", "")
        info = "small-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n")
        tags = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\n{tags}")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


class Project:
    """A copy of the script beside a lock of one wheel, and the index that pip is told to use."""

    def __init__(self, root: Path, index: str, wheels: Path) -> None:
        self.root = root
        self.index = index
        self.wheels = wheels
        for folder in ("tools", "requirements"):
            (root / folder).mkdir(parents=True)
        shutil.copy(SCRIPT, root / "tools")
        (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        (root / "backend.py").write_text(BACKEND, encoding="utf-8")
        self.lock()

    def lock(self, version: str = "1.0", sha256: str = "") -> None:
        """Write both locks for this version of the one package, with its hash or a wrong one."""
        wheel = make_wheel(self.wheels, version=version)
        right = hashlib.sha256(wheel.read_bytes()).hexdigest()
        line = f"tiny-thing=={version} --hash=sha256:{sha256 or right}\n"
        for name in ("run", "dev"):
            (self.root / "requirements" / f"{name}.txt").write_text(line, encoding="utf-8")

    def bootstrap(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the script as a user whose pip settings name the index."""
        settings = {"PIP_INDEX_URL": self.index, "NO_PROXY": "127.0.0.1", "PYTHON": sys.executable}
        return subprocess.run(
            ["sh", str(self.root / "tools" / "bootstrap.sh"), *arguments],
            env={**os.environ, "PIP_CONFIG_FILE": os.devnull, **settings, **environ},
            capture_output=True,
            text=True,
        )

    def imports(self) -> bool:
        """Tell whether the environment holds the locked package."""
        python = self.root / ".venv" / "bin" / "python"
        return subprocess.run([str(python), "-c", "import tiny_thing"]).returncode == 0


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A small project whose lock can be installed from an index on 127.0.0.1."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(wheels, version=version)
    with serve_wheels(wheels) as index:
        yield Project(tmp_path / "project", index, wheels)


def test_it_installs_by_the_users_pip_settings_and_by_hash_alone(project: Project) -> None:
    first = project.bootstrap("dev")
    assert first.returncode == 0, first.stderr
    assert "installing the dev set, 1 pinned packages" in first.stderr
    assert project.imports()
    for name in ("dev", "run"):
        again = project.bootstrap(name)
        assert (again.returncode, again.stderr) == (0, "")

    project.lock(version="2.0", sha256="0" * 64)
    wrong = project.bootstrap()
    assert wrong.returncode == 1
    assert "DO NOT MATCH THE HASHES" in wrong.stderr
    assert "the whole log is .venv/bootstrap.log" in wrong.stderr
    assert project.bootstrap().returncode == 1, "a failed install must not count as done"

    run_lock = project.root / "requirements" / "run.txt"
    run_lock.write_text("tiny-thing==2.0\n", encoding="utf-8")
    assert "Hashes are required" in project.bootstrap().stderr

    project.lock(version="2.0")
    mended = project.bootstrap()
    assert mended.returncode == 0, mended.stderr
    assert project.imports()


def test_a_moved_folder_gets_a_new_environment(project: Project) -> None:
    assert project.bootstrap().returncode == 0
    project.root = project.root.rename(project.root.with_name("moved"))
    again = project.bootstrap()
    assert again.returncode == 0, again.stderr
    assert "making it anew" in again.stderr
    assert project.imports()


def stand_in(folder: Path, name: str, version: str, status: int) -> None:
    """Write an interpreter that tells its version and answers the script's question."""
    script = f"#!/bin/sh\ncase $2 in *python_version*) echo {version} ;; *) exit {status} ;; esac\n"
    (folder / name).write_text(script, encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("interpreters", "said"),
    [
        ({}, "Found: none."),
        ({"python3": ("3.9.2", 2)}, "Found: python3 (3.9.2)."),
        (
            {"python3.12": ("3.12.3", 3), "python3": ("3.14.0", 2)},
            "(3.12.3, lacks venv/ensurepip: install python3.12-venv), python3 (3.14.0).",
        ),
    ],
)
def test_one_message_when_no_python_fits(
    project: Project, tmp_path: Path, interpreters: dict[str, tuple[str, int]], said: str
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in ("sh", "dirname", "cat", "cksum", "grep", "sed"):
        found = shutil.which(program)
        assert found is not None
        (bare / program).symlink_to(found)
    for name, (version, status) in interpreters.items():
        stand_in(bare, name, version, status)
    done = project.bootstrap(PATH=str(bare), PYTHON="")
    assert done.returncode == 1
    assert said in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (project.root / ".venv").exists()


def test_an_unknown_set_is_wrong_use(project: Project) -> None:
    done = project.bootstrap("all")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: tools/bootstrap.sh")
