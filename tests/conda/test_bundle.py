"""Environments from a bundle alone, in a network namespace that has no route to anywhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import conda_channel as cc
from support.cells import cell_of
from support.contentwheel import content_wheel, torch_wheel
from support.needs import skip_or_fail
from support.rendering import facts, resolved
from support.wheelhouse import serve_wheels

from provisioner.bundle.fetch import Finder
from provisioner.bundle.gather import Gathered, GatherPlan, gather
from provisioner.errors import FindingError
from provisioner.lock.client import Client
from provisioner.lock.halves import read_cell
from provisioner.lock.model import Choices, Lock, LockedFile, LockedPackage, Target
from provisioner.lock.sources import Addresses
from provisioner.lock.writer import complete, lock_files
from provisioner.render.context import CellContext

TORCH = "2.0.1+cu118"
PYTHON = Path(getattr(sys, "_base_executable", sys.executable))


@dataclass
class Site:
    """A locked cell on one side, a machine without a network on the other."""

    root: Path
    environ: dict[str, str]
    index: str
    folder: Path

    def gather(self) -> Gathered:
        addresses = Addresses(package=self.index, torch=self.index)
        finder = Finder(Client(environ=self.environ), addresses, self.environ)
        context = CellContext(resolved(torch="2.0.1", cuda="11.8"), facts())  # for images alone
        locked = read_cell(self.root, "cell")
        return gather(
            GatherPlan(root=self.root, locked=locked, context=context, finder=finder), self.folder
        )

    def create(self, prefix: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """`env create` with the bundle, an empty cache, and no route."""
        home = prefix.parent / "home"
        environ = {k: v for k, v in self.environ.items() if not k.startswith("PROVISION_")}
        environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        command = [sys.executable, "-m", "provisioner", "env", "create", "cell", "--json"]
        command += [f"--prefix={prefix}", f"--bundle={self.folder}", *words]
        return subprocess.run(
            ["unshare", "--net", *command], env=environ, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def no_route() -> None:
    """A network namespace can be made, and nothing is reached from it."""
    probe = ["unshare", "--net", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        skip_or_fail("system", "this user may not make a network namespace (unshare -n)")


def lock_of(wheels: list[Path], provided: dict[str, str]) -> Lock:
    packages = []
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        file = LockedFile(filename=wheel.name, sha256=digest, confirmed_by=1, where=("index",))
        origin: Any = "torch-index" if name == "torch" else "package-index"
        packages.append(
            LockedPackage(name=name, version=version, origin=origin, requires=(), files=(file,))
        )
    machine: Any = os.uname().machine
    target = Target(python=cc.SERIES, arch=machine, glibc="2.17")
    return complete(
        Lock(
            cell="cell", inputs="0" * 64, as_of=None, chosen=Choices(), provided=provided,
            platforms=(target,), packages=tuple(packages),
        )
    )  # fmt: skip


def conda_record(archives: list[Path]) -> str:
    entries = []
    for path in archives:
        record = cc.record_of(path)
        url = f"https://conda.anaconda.org/conda-forge/{path.parent.name}/{path.name}"
        entries.append(
            f"- name: {record['name']}\n  version: '{record['version']}'\n  manager: conda\n"
            f"  platform: {cc.SUBDIR}\n  dependencies: {{}}\n  url: {url}\n  hash:\n"
            f"    md5: {record['md5']}\n    sha256: {record['sha256']}\n"
        )
    return "version: 1\npackage:\n" + "".join(entries)


@pytest.fixture(params=["base", "conda"])
def site(
    request: pytest.FixtureRequest,
    no_route: None,
    installing: dict[str, str],
    archives: list[Path],
    tmp_path: Path,
) -> Iterator[Site]:
    root = tmp_path / "root"
    cell, _ = cell_of(torch="2.0.1", cuda="11.8", python_from=request.param)
    plain: dict[str, Any] = msgspec.to_builtins(cell)
    plain |= {"python": cc.SERIES, "torchvision": None, "torchaudio": None, "name": "cell"}
    plain |= {"arch": os.uname().machine, "requirements": [f"torch=={TORCH}"]}
    (root / "docker" / "cell").mkdir(parents=True)
    spec = {"schema": "provision.spec/1", "made_by": "x", "mirrors": {}, "request": {}}
    (root / "docker" / "cell" / "spec.json").write_text(json.dumps(spec | {"cell": plain}))
    wheels = [
        content_wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b"VALUE = 1\n"}),
        torch_wheel(tmp_path / "wheels", TORCH, "11.8"),
    ]
    lock = lock_of(wheels, {"numpy": "1.26.4"} if request.param == "conda" else {})
    for file in lock_files(lock):
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    if request.param == "conda":
        (root / "lockfiles" / "cell" / "conda-lock.yml").write_text(conda_record(archives))
    with serve_wheels(tmp_path / "wheels") as index:
        yield Site(root, installing, index, tmp_path / "a bundle")


def python_says(prefix: Path, code: str) -> str:
    done = subprocess.run(
        [prefix / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_an_environment_comes_from_the_bundle_and_nowhere_else(site: Site, tmp_path: Path) -> None:
    conda = (site.root / "lockfiles" / "cell" / "conda-lock.yml").is_file()
    site.gather()
    shutil.rmtree(site.root)  # the bundle has the locks, too
    prefix = tmp_path / "site" / "torch"
    words = [] if conda else [f"--python={PYTHON}"]
    done = site.create(prefix, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["changed"] is True
    code = "import torch, tiny; print(torch.__version__, tiny.VALUE)"
    assert python_says(prefix, code) == f"{TORCH} 1"
    if conda:
        assert python_says(prefix, "import numpy; print(numpy.__version__)") == "1.26.4"
    again = site.create(prefix, *words)
    assert json.loads(again.stdout)["changed"] is False


@pytest.mark.parametrize("site", ["conda"], indirect=True)
def test_a_channel_that_serves_something_else_gets_nothing_into_the_bundle(
    site: Site, channel: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "channel"
    shutil.copytree(channel, copy)
    victim = next(copy.rglob("numpy-*"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    site.environ = site.environ | {"PROVISION_CONDA_CHANNEL_MAP": f"conda-forge=file://{copy}"}
    with pytest.raises(FindingError) as caught:
        site.gather()
    assert caught.value.code == "bundle.wrong-hash"
    assert not list(site.folder.rglob("numpy-*"))
