"""A wheel's metadata by HTTP range: the right bytes, in few requests."""

import hashlib
import io
import os
import zipfile

import pytest
from support.simpleindex import Index

from provisioner.lock.client import Client
from provisioner.lock.metadata import read_metadata
from provisioner.lock.pages import IndexFile
from provisioner.lock.ranges import AHEAD, TAIL

NAME = "wide-1.0-py3-none-any.whl"


def wheel(files: int, last: int) -> bytes:
    """A wheel with so many files before its metadata, and so many bytes after it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("wide/data", os.urandom(400_000))
        for number in range(files):
            archive.writestr(f"wide/a_module_with_a_long_name_{number:06}.py", b"")
        archive.writestr("wide-1.0.dist-info/METADATA", "Name: wide\nRequires-Dist: six\n\n")
        archive.writestr("wide-1.0.dist-info/LICENSE", os.urandom(last))
    return out.getvalue()


@pytest.mark.parametrize(
    ("files", "last", "requests"),
    [(10, 100, 1), (2000, 100, 2), (2000, AHEAD + 10_000, 3), (10, TAIL, 2)],
    ids=["all in the tail", "a long table", "a long table and license", "a long license"],
)
def test_metadata_is_read_in_few_parts(files: int, last: int, requests: int) -> None:
    index = Index(beside=False)
    with index.serve():
        entry = index.add("wide", "1.0")
        entry.body = wheel(files, last)
        file = IndexFile(
            filename=NAME,
            url=f"{index.url}/wide/{NAME}",
            sha256=hashlib.sha256(entry.body).hexdigest(),
            size=len(entry.body),
        )
        client = Client(environ=dict(os.environ), timeout_s=5, attempts=1)
        assert read_metadata(client, file, "package index").requires == ("six",)
        assert len(index.asked) == requests
