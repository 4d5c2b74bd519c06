"""Hashes of wheels that were read somewhere and written down, each with who says so."""

from __future__ import annotations

import functools
from importlib import resources

import msgspec

from provisioner.errors import RefusedError
from provisioner.lock.metadata import Metadata

ENOUGH = 2
"""Distinct projects that must agree before a recorded hash counts as confirmed."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RecordedFile(_Struct, frozen=True, kw_only=True):
    """`seen_in` has one entry for each distinct project that gives this hash."""

    filename: str
    sha256: str
    seen_in: tuple[str, ...]


class RecordedProject(_Struct, frozen=True, kw_only=True):
    """One version on one index. `requires` is there where its metadata cannot be read any more."""

    name: str
    version: str
    origin: str
    files: tuple[RecordedFile, ...]
    requires_python: str | None = None
    requires: tuple[str, ...] = ()

    def metadata(self) -> Metadata:
        """Returns the requirements in the form of a wheel's metadata."""
        return Metadata(requires=self.requires, requires_python=self.requires_python)


class Records(_Struct, frozen=True, kw_only=True):
    """The whole of recorded_wheels.json."""

    schema: str
    read_on: str
    how: str
    projects: tuple[RecordedProject, ...]

    def project(self, name: str, version: str) -> RecordedProject | None:
        """Returns what is recorded of a labelled version of the torch index, or None."""
        for project in self.projects:
            key = (project.name, project.version, project.origin)
            if key == (name, version, "torch-index"):
                return project
        return None

    def file(self, filename: str) -> RecordedFile | None:
        """Returns the record of a file by its name, or None."""
        return self._by_name().get(filename)

    def _by_name(self) -> dict[str, RecordedFile]:
        return _by_name(self)


@functools.lru_cache(maxsize=4)
def _by_name(records: Records) -> dict[str, RecordedFile]:
    return {file.filename: file for project in records.projects for file in project.files}


@functools.lru_cache(maxsize=1)
def load_records() -> Records:
    """Returns the records that the tool ships."""
    raw = (resources.files("provisioner.lock") / "data" / "recorded_wheels.json").read_bytes()
    return msgspec.json.decode(raw, type=Records)


def confirmed(wheels: list[RecordedFile], single_source: bool) -> list[RecordedFile]:
    """Returns the files whose hash may be locked; raises RefusedError when none may.

    `wheels` are those of one version that fit the target, the best first. A hash from one
    project alone is left out, unless the user accepts that.
    """
    good = [wheel for wheel in wheels if single_source or len(wheel.seen_in) >= ENOUGH]
    if good or not wheels:
        return good
    weakest = wheels[0]
    raise RefusedError(
        "lock.single-source",
        f"The hash of {weakest.filename} is known from {len(weakest.seen_in)} source alone "
        f"({', '.join(weakest.seen_in)}); {ENOUGH} that agree are needed.",
        facts={"file": weakest.filename, "have": len(weakest.seen_in), "need": ENOUGH},
        next_step="Lock where the torch index can be reached, name a mirror "
        "(`--mirror torch_index=URL`), "
        "or take it as it is with `--accept-single-source`; the lock then says so.",
    )
