"""Lines in a buffer of raw bytes: the one around a place, what surrounds it, how it is quoted."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, NamedTuple

from provisioner.diagnose.normalise import clean, is_escaped, strip_prefix, unescape
from provisioner.diagnose.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CHUNK = 1 << 20
AROUND = 32 << 10
"""Bytes before and after a place that count as its surroundings."""
LONG_LINE = 2 << 10
"""A line longer than this is looked at in pieces."""
_AFTER = 2 << 10
_QUOTE = 400
_ENDS = re.compile(rb"[\n\r]+")
_RETURN = re.compile(rb"\r")
_ESCAPED_END = re.compile(rb"(?<!\\)\\n")


class Place(NamedTuple):
    """A line, or a piece of one, in the buffer: where it begins and ends, its texts.

    `paragraph` is the line with the two after it, as one text: messages are wrapped.
    """

    begin: int
    end: int
    text: str
    paragraph: str
    escaped: bool


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a stream, then an empty piece. UTF-16 with its mark is turned into UTF-8."""
    chunk = stream.read(CHUNK)
    decoder = None
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while chunk:
        yield decoder.decode(chunk).encode() or b" " if decoder else chunk
        chunk = stream.read(CHUNK)
    yield b""


def place_at(buffer: bytes, start: int) -> Place:
    """The line around a place, or a piece of it. \\r and escaped line ends part pieces too."""
    earliest = max(0, start - LONG_LINE)
    begin = max(buffer.rfind(mark, earliest, start) for mark in (b"\n", b"\r")) + 1
    cut = begin == 0 and start > LONG_LINE
    if cut:
        begin = start - LONG_LINE // 3
    end = buffer.find(b"\n", start, start + LONG_LINE)
    end = min(start + LONG_LINE, len(buffer)) if end < 0 else end
    if cut and b" " in buffer[begin:start]:
        begin = buffer.index(b" ", begin, start) + 1  # half a word may be half a secret
    raw = buffer[begin:end]
    escaped = b"\\n" in raw and is_escaped(raw.decode(errors="replace"))
    left, right = 0, len(raw)
    for match in (_ESCAPED_END if escaped else _RETURN).finditer(raw):
        if match.end() <= start - begin:
            left = match.end()
        elif match.start() >= start - begin:
            right = match.start()
            break
    begin, end, raw = begin + left, begin + right, raw[left:right]
    text = _clean(raw, escaped=escaped)
    after = buffer[end : end + _AFTER]
    parts = (_ESCAPED_END.sub(b"\n", after) if escaped else after).split(b"\n", 4)[:4]
    rest = [found for part in parts if part and (found := _clean(part, escaped=escaped))]
    return Place(begin, end, text, " ".join([text, *rest[:2]]), escaped)


def context(buffer: bytes, place: Place, within: int) -> str:
    """The line with up to `within` lines and AROUND bytes before and after it, cleaned."""
    if not within:
        return place.text
    before = buffer[max(0, place.begin - AROUND) : place.begin]
    after = buffer[place.end : place.end + AROUND]
    if place.escaped:
        before, after = (_ESCAPED_END.sub(b"\n", side) for side in (before, after))
    lines = [*_ENDS.split(before)[:-1][-within:], *_ENDS.split(after)[1 : within + 1]]
    return "\n".join([place.text, *(clean(line.decode(errors="replace")) for line in lines)])


def quote(text: str, start: int) -> str:
    """The line as it is shown: without secrets, cut around the match."""
    shown = mask(text)
    if len(shown) <= _QUOTE:
        return shown
    begin = max(0, min(start, len(shown)) - _QUOTE // 4)
    return ("..." if begin else "") + shown[begin : begin + _QUOTE] + "..."


def _clean(raw: bytes, *, escaped: bool) -> str:
    text = raw.decode(errors="replace")
    return strip_prefix(clean(unescape(text) if escaped else text))
