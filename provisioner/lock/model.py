"""What a pip lock is made of: the request for one, and the packages with hashes that answer it.

Plain values. `LockInput` is all that decides the content of a lock, so its digest tells whether a
lock is still right; nothing of the machine, the engine or the address of an index is in it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from provisioner.lock.digest import digest
from provisioner.matrix.model import (  # noqa: TC001 - types of fields
    Arch,
    Date,
    MinorVersion,
    Requirement,
    Tag,
)

LOCK_SCHEMA: Final = "provision.lock/1"

CellName = Annotated[str, Meta(pattern=r"^[a-z0-9][A-Za-z0-9._-]*$", max_length=200)]
PackageName = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=200)]
Pin = Annotated[str, Meta(pattern=r"^[a-z]+==[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\+[a-z0-9.]+)?$")]
"""An exact version of the torch family, with its label: torch==2.0.1+cu118."""

Kind = Literal["package-index", "torch-index", "own-index", "recorded", "conda"]
"""Where the bytes of a file come from.

`recorded` is the torch index, known from records; what `conda` owns pip leaves alone.
"""

_OLDEST_PATCH = {"3.8": 10, "3.9": 2, "3.10": 12, "3.11": 2, "3.12": 3}


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Target(_Struct, frozen=True, kw_only=True):
    """The platform of a lock: CPython `python` on Linux `arch` with at least glibc `glibc`."""

    python: MinorVersion
    arch: Arch
    glibc: MinorVersion

    @property
    def python_full(self) -> str:
        """The oldest patch release that a cell of this series may meet.

        Packages ask for things like >=3.9.2; what holds here holds on every system of the matrix.
        """
        return f"{self.python}.{_OLDEST_PATCH.get(self.python, 0)}"


class LockInput(_Struct, frozen=True, kw_only=True):
    """All that decides the content of the pip lock of one cell.

    `family` are the exact pins of the torch family, `beside` what the matrix adds, `user` the
    project's own packages, `constraints` bounds that ask for nothing. `torch_index` is the variant
    whose index serves the labelled pins (null: the package index). `as_of` is the last day whose
    files count (null: no limit), `upgrades` a later day for single names. `own` are names that
    come from an index of the user's. `provided` are distributions that conda owns: exact bounds
    for the resolver, no part of the lock.
    """

    cell: CellName
    os: str
    target: Target
    device: Literal["cuda", "cpu"]
    cuda: MinorVersion | None
    family: tuple[Pin, ...]
    beside: tuple[Requirement, ...] = ()
    user: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    torch_index: Tag | None = None
    as_of: Date | None
    upgrades: dict[PackageName, Date] = {}
    own: tuple[PackageName, ...] = ()
    single_source: bool = False
    provided: dict[PackageName, str] = {}

    def requirements(self) -> tuple[str, ...]:
        """Everything that is asked for, in the order family, matrix, user."""
        return self.family + self.beside + self.user

    def digest(self) -> str:
        """Returns the hex SHA-256 that a lock carries as `inputs`."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["target"]["glibc"]
        return digest(plain)


class LockedFile(_Struct, frozen=True, kw_only=True):
    """One file that may be installed. `where` names the sources of the hash, one each.

    `confirmed_by` counts them; a hash read from the index that also serves the file counts once.
    """

    filename: str
    sha256: str
    confirmed_by: int
    where: tuple[str, ...]


class LockedPackage(_Struct, frozen=True, kw_only=True):
    """One distribution at one version. `requires` are the names it pulls in on the target."""

    name: str
    version: str
    origin: Kind
    requires: tuple[str, ...]
    files: tuple[LockedFile, ...]


class Choices(_Struct, frozen=True, kw_only=True):
    """What a user may decide about a lock beyond its cell.

    `as_of` is a date or `none`; null leaves it to the cell. `own` are the names that come from an
    index of the user's; its address is not kept. `single_source` accepts a recorded hash that one
    project alone vouches for.
    """

    as_of: str | None = None
    upgrades: dict[str, str] = {}
    own: tuple[str, ...] = ()
    single_source: bool = False


class Lock(_Struct, frozen=True, kw_only=True):
    """The content of lock.json. `inputs` is the digest of the LockInput that it answers.

    `chosen` keeps what was said on the command line, so that a later run without those options
    means the same. `requirements` has the SHA-256 of each file that installers read.
    """

    schema: Literal["provision.lock/1"] = LOCK_SCHEMA
    cell: str
    inputs: str
    as_of: str | None
    provided: dict[str, str] = {}
    chosen: Choices
    platforms: tuple[Target, ...]
    requirements: dict[str, str] = {}
    packages: tuple[LockedPackage, ...]
    warnings: tuple[str, ...] = ()
