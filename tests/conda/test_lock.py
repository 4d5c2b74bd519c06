"""conda-lock's own command line with our solver: what is locked, and what a failure looks like."""

import datetime as dt
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cells import cell_of, shipped
from support.conda_channel import SNAPSHOT
from support.conda_server import ChannelServer

from provisioner.conda import condalock, explicit
from provisioner.conda.lock import CondaLockOptions, file_names, lock_conda, why_stale
from provisioner.errors import OutsideError, ProvisionError, UsageError

TODAY = dt.date(2026, 12, 1)
CELL, SYSTEM = cell_of(cuda="11.8")
FOLDER = f"lockfiles/{CELL.name}"
ENVIRONMENT = b"""channels:
  - "conda-forge"
  - nodefaults
dependencies:
  - "python=3.10.*"
  - "pip"
  - "setuptools<70"
  - "numpy<2"
  - "numpy>=1.22"
  - "scipy"
"""


class Locking:
    """Locks the cell in the snapshot's world."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def options(self, environment: bytes = ENVIRONMENT, **fields: Any) -> CondaLockOptions:
        return CondaLockOptions(
            environment=environment, system=SYSTEM, **{"environ": self.environ, **fields}
        )

    def __call__(self, environment: bytes = ENVIRONMENT, **fields: Any) -> dict[str, bytes]:
        locked = lock_conda(CELL, shipped().origins, self.options(environment, **fields)).files
        assert set(locked) == {f"{FOLDER}/{name}" for name in file_names(CELL)}
        return {path.rpartition("/")[2]: data for path, data in locked.items()}

    def failing(self, environment: bytes = ENVIRONMENT, **fields: Any) -> ProvisionError:
        with pytest.raises(ProvisionError) as caught:
            self(environment, **fields)
        return caught.value


@pytest.fixture
def locking(solving: dict[str, str]) -> Locking:
    return Locking(solving)


@pytest.fixture(scope="module")
def locked(solving: dict[str, str]) -> dict[str, bytes]:
    """A lock of the cell, made once."""
    return Locking(solving)()


def packages(files: dict[str, bytes]) -> dict[str, str]:
    lock = explicit.parse_conda_lock(files["conda-lock.yml"], "linux-64")
    return {package.name: package.version for package in lock.packages}


def test_a_lock_has_real_addresses_two_hashes_and_nothing_of_this_machine(
    locked: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = yaml.safe_load(locked["conda-lock.yml"])
    assert document["metadata"]["channels"] == [{"url": "conda-forge", "used_env_vars": []}]
    assert document["metadata"]["sources"] == ["environment.yml"]
    assert document["metadata"]["platforms"] == ["linux-64"]
    for package in document["package"]:
        assert package["url"].startswith("https://conda.anaconda.org/conda-forge/")
        assert re.fullmatch("[0-9a-f]{64}", package["hash"]["sha256"])
    found = packages(locked)
    assert found["python"].startswith("3.10.")
    # Both lines for numpy hold; conda-lock by itself forgets the first.
    assert found["numpy"].startswith("1.26.")
    listed = explicit.differences(
        locked["conda-linux-64.lock"],
        explicit.parse_conda_lock(locked["conda-lock.yml"], "linux-64"),
    )
    assert listed == []
    whole = b"".join(locked.values())
    for trace in (b"file://", str(SNAPSHOT).encode(), b"/tmp", b"/home", str(Path.home()).encode()):
        assert trace not in whole
    assert b'__cuda: "11.8"' in locked["virtual-packages.yml"]


def test_the_same_inputs_give_the_same_bytes_from_a_mirror_too(
    locked: dict[str, bytes], clean_environ: dict[str, str], snapshot_server: ChannelServer
) -> None:
    environ = clean_environ | {"PROVISION_MIRROR_CONDA": snapshot_server.url, "LANG": "C"}
    assert Locking(environ)() == locked
    assert snapshot_server.asked


def test_an_unchanged_lock_costs_no_solver(
    locked: dict[str, bytes], locking: Locking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condalock, "run", None)  # would fail if it were called
    assert locking(previous=locked) == locked
    assert why_stale(CELL, locking.options(previous=locked)) == []


def test_conda_lock_itself_finds_it_up_to_date(
    locked: dict[str, bytes], solving: dict[str, str], tmp_path: Path
) -> None:
    for name, data in locked.items():
        (tmp_path / name).write_bytes(data)
    one_line = ENVIRONMENT.replace(b'  - "numpy>=1.22"\n', b"")
    one_line = one_line.replace(b"numpy<2", b"numpy <2,>=1.22")
    (tmp_path / "environment.yml").write_bytes(one_line)
    with condalock.launcher() as conda:
        done = subprocess.run(
            [sys.executable, "-m", "conda_lock", "lock", "--conda", conda, "--check-input-hash",
             "-f", "environment.yml", "--virtual-package-spec", "virtual-packages.yml",
             "-p", "linux-64"],
            cwd=tmp_path, env=solving, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Spec hash already locked" in done.stderr
    assert (tmp_path / "conda-lock.yml").read_bytes() == locked["conda-lock.yml"]


def test_two_platforms_in_one_call(solving: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_bytes(ENVIRONMENT)
    with condalock.launcher() as conda:
        done = subprocess.run(
            [sys.executable, "-m", "conda_lock", "lock", "--conda", conda, "-f", "environment.yml",
             "-p", "linux-64", "-p", "linux-aarch64", "--lockfile", "conda-lock.yml"],
            cwd=tmp_path, env=solving, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "conda-lock.yml").read_bytes()
    for platform in ("linux-64", "linux-aarch64"):
        lock = explicit.parse_conda_lock(data, platform)
        python = next(package for package in lock.packages if package.name == "python")
        assert f"/{platform}/python-3.10." in python.url


def test_specs_that_clash_are_told_in_one_message(locking: Locking) -> None:
    error = locking.failing(ENVIRONMENT.replace(b'"scipy"', b'"scipy>=1.17"'))
    assert error.code == "conda.unsatisfiable"
    assert error.facts["clash"] == ["python 3.10.*", "scipy >=1.17"]
    shown = f"{error.message}{error.facts}"
    assert "Traceback" not in shown
    assert "Command:" not in shown


def test_a_channel_that_cannot_be_reached_is_told_as_that(clean_environ: dict[str, str]) -> None:
    locking = Locking(clean_environ | {"PROVISION_MIRROR_CONDA": "http://127.0.0.1:9"})
    error = locking.failing()
    assert isinstance(error, OutsideError)
    assert error.code == "conda.channel-unreachable"


def test_settings_of_this_machines_conda_do_not_count(
    locking: Locking, locked: dict[str, bytes]
) -> None:
    noise = {"CONDA_OVERRIDE_GLIBC": "2.12", "CONDA_FLAGS": "--bogus", "CONDA_SUBDIR": "osx-64"}
    locking.environ = locking.environ | noise
    assert locking() == locked


def test_what_environment_yml_does_not_name_is_not_upgraded_alone(
    locking: Locking, locked: dict[str, bytes]
) -> None:
    error = locking.failing(previous=locked, upgrades={"libzlib": TODAY})
    assert isinstance(error, UsageError)
    assert error.code == "conda.upgrade-unknown"
    assert "scipy" in error.facts["named"]


def test_only_what_is_upgraded_moves(locking: Locking, locked: dict[str, bytes]) -> None:
    older = explicit.parse_conda_lock(locked["conda-lock.yml"], "linux-64").version_of("scipy")
    record = re.sub(
        rb"(?s)- name: scipy\n.*?(?=- name: |\Z)", _older_scipy(), locked["conda-lock.yml"]
    )
    previous = locked | {"conda-lock.yml": record}
    listed = locked["conda-linux-64.lock"].splitlines(keepends=True)
    scipy = [line for line in listed if b"/scipy-" in line]
    replaced = [_explicit_scipy(), b""]
    listed = [replaced[scipy.index(line)] if line in scipy else line for line in listed]
    previous["conda-linux-64.lock"] = b"".join(listed)
    assert why_stale(CELL, locking.options(previous=previous)) == []
    moved = locking(previous=previous, upgrades={"scipy": TODAY})
    assert packages(previous)["scipy"] == "1.14.1"
    assert packages(moved)["scipy"] == older
    changed = {n for n, v in packages(moved).items() if packages(previous)[n] != v}
    assert changed == {"scipy"}
    upgraded = locking.options(previous=moved, upgrades={"scipy": TODAY})
    assert why_stale(CELL, upgraded) == []
    assert why_stale(CELL, locking.options(previous=moved)) != []


def _older_scipy() -> bytes:
    url, sha256, md5 = _scipy()
    return f"""- name: scipy
  version: 1.14.1
  manager: conda
  platform: linux-64
  dependencies:
    python: '>=3.10,<3.11.0a0'
  url: {url}
  hash:
    md5: {md5}
    sha256: {sha256}
  category: main
  optional: false
""".encode()


def _explicit_scipy() -> bytes:
    url, sha256, md5 = _scipy()
    return f"{url}#{md5}\n# sha256 {sha256}  linux-64/{url.rpartition('/')[2]}\n".encode()


def _scipy() -> tuple[str, str, str]:
    repodata = yaml.safe_load((SNAPSHOT / "linux-64" / "repodata.json").read_bytes())
    name, record = next(
        (name, record)
        for name, record in repodata["packages.conda"].items()
        if name.startswith("scipy-1.14.1-py310")
    )
    url = f"https://conda.anaconda.org/conda-forge/linux-64/{name}"
    return url, record["sha256"], record["md5"]


def test_another_executable_may_solve(
    locked: dict[str, bytes], locking: Locking, tmp_path: Path
) -> None:
    with condalock.launcher() as conda:
        other = tmp_path / "my conda"
        shutil.copy(conda, other)
    assert locking(conda_exe=other) == locked
    error = locking.failing(conda_exe=tmp_path / "absent")
    assert error.code == "conda.no-executable"


def test_another_executable_that_fails_is_quoted_without_a_trace(
    locking: Locking, tmp_path: Path
) -> None:
    other = tmp_path / "conda"
    other.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo conda 24.1.0 && exit\n'
        'echo \'{"message": "nothing provides numpy"}\'; exit 1\n'
    )
    other.chmod(0o755)
    error = locking.failing(conda_exe=other)
    assert (error.code, error.facts["said"]) == ("conda.lock-failed", "nothing provides numpy")
    assert error.facts["solver"] == str(other)


def test_what_conda_lock_says_is_cut_to_the_solvers_message() -> None:
    said = (
        "Locking dependencies for ['linux-64']...\n"
        "Could not lock the environment for platform linux-64\n"
        "first line\nsecond line\n    Command: ['/x/conda', 'create']\n    STDOUT:\n{}\n"
        "Traceback (most recent call last):\n  File x\nCalledProcessError: no\n"
    )
    assert condalock.spoken(said) == "first line\nsecond line"
    assert condalock.spoken("Traceback\n  x\nValueError: bad\n") == "ValueError: bad"
    assert condalock.spoken("") == ""


def test_python_of_another_series_and_torch_of_conda_are_refused(locking: Locking) -> None:
    error = locking.failing(ENVIRONMENT.replace(b"3.10.*", b"3.11.*"))
    assert error.code == "conda.wrong-python"
    assert "3.11" in error.message
