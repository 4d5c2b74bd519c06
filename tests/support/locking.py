"""Locks made for tests: a small cell, local indexes, a real engine."""

import contextlib
import os
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from provisioner.errors import OutsideError
from provisioner.lock.client import Client
from provisioner.lock.compile import LockResult, Means, make_lock
from provisioner.lock.engines import Engine, PipTools, Uv
from provisioner.lock.find import find_python, find_uv
from provisioner.lock.inputs import lock_input
from provisioner.lock.model import Choices, LockInput, Target
from provisioner.lock.recorded import Records
from provisioner.lock.sources import Addresses
from provisioner.matrix.cell import Request, Resolution
from provisioner.matrix.load import load_matrix
from provisioner.matrix.model import Arch, Matrix
from provisioner.matrix.resolve import resolve
from support.simpleindex import Index

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The Python of this test run: pip-tools runs on it without anything to fetch."""


def machine() -> Arch:
    """This machine's type, as a lock names it."""
    return "aarch64" if os.uname().machine == "aarch64" else "x86_64"


NO_RECORDS = Records(
    schema="provision.recorded-wheels/1", read_on="2026-01-01", how="", projects=()
)

CPU_CELL = LockInput(
    cell="torch2.0.1-cpu-test",
    os="debian12",
    target=Target(python=HERE, arch=machine(), glibc="2.36"),
    device="cpu",
    cuda=None,
    family=("torch==2.0.1+cpu",),
    torch_index="cpu",
    as_of="2023-07-07",
)
"""torch from the torch index, nothing else."""

GPU_CELL = msgspec.structs.replace(
    CPU_CELL,
    cell="torch2.0.1-cu117-test",
    device="cuda",
    cuda="11.7",
    family=("torch==2.0.1",),
    torch_index=None,
)
"""torch from the package index, nothing else."""


@lru_cache(maxsize=1)
def shipped_matrix() -> Matrix:
    """The matrix of this checkout."""
    return load_matrix(cache=False).matrix


def cell_input(**asked: Any) -> LockInput:
    """What decides the lock of a cell of the shipped matrix, on the Python of its base image."""
    found = resolve(shipped_matrix(), Request(python_from="base", **asked))
    assert isinstance(found, Resolution), found
    glibc = {system.id: system.glibc for system in shipped_matrix().operating_systems}
    return lock_input(msgspec.to_builtins(found.cell), Choices(), glibc[found.cell.os])


def uv() -> Engine:
    """uv, which is a development dependency of this project."""
    program = find_uv()
    assert program is not None
    return Uv(program)


def pip_tools() -> Engine:
    """pip-tools on the interpreter of this test run."""
    return PipTools(sys.executable, None)


@dataclass
class Indexes:
    """The two indexes of a test, empty unless it puts something there."""

    package: Index = field(default_factory=Index)
    torch: Index = field(default_factory=Index)


def locked(
    cell: LockInput, indexes: Indexes, engine: Engine | None = None, **how: Any
) -> LockResult:
    """The lock of a cell from indexes that serve already; `how` sets fields of Means."""
    own: dict[str, str] = how.pop("own", {})
    timeout_s: float = how.pop("timeout_s", 5.0)
    means = Means(
        engine=engine or uv(),
        client=Client(environ=dict(os.environ), timeout_s=timeout_s, attempts=2),
        addresses=Addresses(package=indexes.package.url, torch=indexes.torch.url or None, own=own),
        **{"records": NO_RECORDS, **how},
    )
    return make_lock(cell, Choices(), means)


def pins(result: LockResult) -> dict[str, str]:
    """Name -> version of a lock."""
    return {package.name: package.version for package in result.lock.packages}


def files(result: LockResult, name: str) -> list[str]:
    """The file names of one package of a lock."""
    found = next(package for package in result.lock.packages if package.name == name)
    return [file.filename for file in found.files]


def python(series: str) -> str | None:
    """An interpreter of a series that starts: named by variable, on the path, or of pyenv."""
    target = Target(python=series, arch=machine(), glibc="2.17")
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for named in (None, *sorted(map(str, pyenv.glob(f"versions/{series}.*/bin/python")))):
        with contextlib.suppress(OutsideError):
            return find_python(target, named, os.environ)
    return None
