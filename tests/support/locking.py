"""Locks made for tests: a small cell, local indexes, a real engine."""

import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec

from provisioner.lock.client import Client
from provisioner.lock.compile import LockResult, Means, make_lock
from provisioner.lock.engines import Engine, PipTools, Uv
from provisioner.lock.find import find_uv
from provisioner.lock.model import Choices, LockInput, Target
from provisioner.lock.recorded import Records
from provisioner.lock.sources import Addresses
from support.simpleindex import Index

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The Python of this test run: pip-tools runs on it without anything to fetch."""

NO_RECORDS = Records(
    schema="provision.recorded-wheels/1", read_on="2026-01-01", how="", projects=()
)

CPU_CELL = LockInput(
    cell="torch2.0.1-cpu-test",
    os="debian12",
    target=Target(python=HERE, arch=os.uname().machine, glibc="2.36"),
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
    """An interpreter of a series for tests that need it: variable, path, or the usual places."""
    number = series.replace(".", "")
    return os.environ.get(f"PROVISION_PYTHON_{number}") or shutil.which(f"python{series}")
