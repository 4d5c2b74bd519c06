"""What a distribution asks for, read from the index without fetching the distribution.

First the metadata file that the index offers beside the wheel (PEP 658), then a few byte ranges of
the wheel itself, and only where a server knows neither, the whole file. Nothing of a package runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zipfile
from email.parser import HeaderParser
from typing import IO, TYPE_CHECKING

import msgspec

from provisioner.errors import OutsideError
from provisioner.lock.inputs import normal_name
from provisioner.lock.licenses import License, of_metadata
from provisioner.lock.ranges import RangeFile, RangesUnknownError, as_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.lock.client import Client
    from provisioner.lock.pages import IndexFile

MAX_METADATA = 8 * 1024 * 1024
_DAMAGE = (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError)


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a lock needs of a distribution's metadata; `requires` are PEP 508 texts."""

    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    extras: tuple[str, ...] = ()
    license: License | None = None

    def text(self, name: str, version: str) -> str:
        """Returns a METADATA file with what a resolver asks for and nothing else."""
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        if self.requires_python:
            lines.append(f"Requires-Python: {self.requires_python}")
        lines += [f"Requires-Dist: {requirement}" for requirement in self.requires]
        lines += [f"Provides-Extra: {extra}" for extra in self.extras]
        return "\n".join(lines) + "\n"


def parse_metadata(raw: bytes) -> Metadata:
    """Returns the fields of a METADATA file."""
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n")
    fields = HeaderParser().parsestr(text.partition("\n\n")[0])

    def values(name: str) -> tuple[str, ...]:
        return tuple(" ".join(str(value).split()) for value in fields.get_all(name, []))

    def first(name: str) -> str | None:
        return next(iter(values(name)), None)

    return Metadata(
        requires=values("Requires-Dist"),
        requires_python=first("Requires-Python"),
        extras=values("Provides-Extra"),
        license=of_metadata(first("License-Expression"), first("License"), values("Classifier")),
    )


def read_metadata(client: Client, file: IndexFile, what: str) -> Metadata:
    """Returns the metadata of one wheel; raises OutsideError."""
    if file.metadata and (raw := _beside(client, file, what)) is not None:
        return parse_metadata(raw)
    try:
        try:
            raw = _of_wheel(as_binary(RangeFile(client, file, what)), file)
        except RangesUnknownError:
            with whole_file(client, file, what) as archive:
                raw = _of_wheel(archive, file)
        return parse_metadata(raw)
    except _DAMAGE as error:
        raise OutsideError(
            "index.damaged-file",
            f"{file.filename} on the {what} cannot be read: {error}.",
            facts={"file": file.filename},
            next_step="Tell the operator of the index, or take another version of the package.",
        ) from error


@contextlib.contextmanager
def whole_file(client: Client, file: IndexFile, what: str) -> Iterator[IO[bytes]]:
    """Yields the whole file, checked against the hash of its index page; raises OutsideError."""
    seen = hashlib.sha256()
    with tempfile.TemporaryFile() as copy:
        for piece in client.stream(file.url, what):
            seen.update(piece)
            copy.write(piece)
        if file.sha256 not in (None, seen.hexdigest()):
            raise OutsideError(
                "index.file-hash",
                f"{file.filename} on the {what} is not the file that its index page promises.",
                facts={"file": file.filename, "expected": file.sha256, "found": seen.hexdigest()},
                next_step="Do not lock from this index before its operator has explained this.",
            )
        copy.seek(0)
        yield copy


def _beside(client: Client, file: IndexFile, what: str) -> bytes | None:
    answer = client.get(f"{file.url}.metadata", what)
    if answer.status != 200:
        return None
    found = hashlib.sha256(answer.body).hexdigest()
    if file.metadata_sha256 not in (None, found):
        raise OutsideError(
            "index.metadata-hash",
            f"The metadata of {file.filename} on the {what} is not what its index page promises.",
            facts={"file": file.filename, "expected": file.metadata_sha256, "found": found},
            next_step="Do not lock from this index before its operator has explained this.",
        )
    return answer.body


def _of_wheel(archive: IO[bytes], file: IndexFile) -> bytes:
    project = normal_name(file.filename.partition("-")[0])
    with zipfile.ZipFile(archive) as wheel:
        found = [
            entry
            for entry in wheel.infolist()
            if entry.filename.endswith(".dist-info/METADATA")
            and entry.filename.count("/") == 1
            and normal_name(entry.filename.partition("-")[0]) == project
        ]
        if len(found) != 1 or found[0].file_size > MAX_METADATA:
            raise zipfile.BadZipFile(f"it has {len(found)} usable METADATA files")
        return wheel.read(found[0])
