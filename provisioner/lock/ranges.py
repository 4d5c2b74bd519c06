"""A remote file that `zipfile` can read: the parts that are asked for come by HTTP range."""

from __future__ import annotations

import io
import re
from typing import IO, TYPE_CHECKING, cast

from provisioner.errors import OutsideError
from provisioner.lock.credentials import bare

if TYPE_CHECKING:
    from provisioner.lock.client import Client
    from provisioner.lock.pages import IndexFile

TAIL = 96 * 1024
BLOCK = 32 * 1024
AHEAD = 192 * 1024
"""Of the table: what describes the distribution is written last, so it lies right before it."""

MAX_READ = 64 * 1024 * 1024
_CONTENT_RANGE = re.compile(r"^bytes ([0-9]+)-([0-9]+)/([0-9]+)$")


class RangesUnknownError(Exception):
    """The server does not serve parts of a file."""


class RangeFile(io.RawIOBase):
    """Read-only and seekable. The tail, where an archive keeps its table, is fetched at once."""

    def __init__(self, client: Client, file: IndexFile, what: str) -> None:
        super().__init__()
        self._client, self._file, self._what = client, file, what
        self._position = 0
        self._parts: list[tuple[int, bytes]] = []
        self._size = file.size or self._ask_size()
        self._fetch(max(0, self._size - TAIL), self._size)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._position + size)
        if end - self._position > MAX_READ:
            raise RangesUnknownError
        data = self._between(self._position, end)
        self._position += len(data)
        return data

    def _between(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        for begin, part in self._parts:
            if begin <= start and end <= begin + len(part):
                return part[start - begin : end - begin]
        begin, part = self._parts[-1]
        if start < begin < end:  # a table that begins before the tail
            self._fetch(max(0, start - AHEAD), begin)
            first, before = self._parts.pop(0)
            self._parts[-1] = (first, before + part)
        else:
            # What lies behind a wanted place is wanted next, up to what is there already.
            self._fetch(start, min(self._size, max(end, start + BLOCK)))
        return self._between(start, end)

    def _fetch(self, start: int, end: int) -> None:
        begin, body, total = self._request(start, end)
        if begin != start or len(body) != end - start or total != self._size:
            raise OutsideError(
                "index.range",
                f"The {self._what} sends another part of {self._file.filename} than was asked for.",
                facts={"address": bare(self._file.url), "asked": f"{start}-{end - 1}"},
                next_step="Name a mirror, or try again later.",
            )
        self._parts.insert(0, (begin, body))

    def _ask_size(self) -> int:
        return self._request(0, 1)[2]

    def _request(self, start: int, end: int) -> tuple[int, bytes, int]:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        answer = self._client.get(self._file.url, self._what, headers)
        found = _CONTENT_RANGE.match(answer.headers.get("content-range", ""))
        if answer.status != 206 or found is None:
            raise RangesUnknownError
        return int(found.group(1)), answer.body, int(found.group(3))


def as_binary(file: RangeFile) -> IO[bytes]:
    """Returns the same object under the type that `zipfile` asks for."""
    return cast("IO[bytes]", file)
