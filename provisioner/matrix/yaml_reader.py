"""Strict YAML: bytes in, a tree of nodes with their places out, every trap refused.

Read from the parser's events, not from a finished object: so an alias is refused before it is
expanded, depth and size are bounded while reading, and each node knows its file, line and column.
Refused: anchors and aliases, merge keys, explicit tags, duplicate keys, several documents,
encodings other than UTF-8, and control characters (line breaks too) in any scalar.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import yaml

from provisioner.matrix.problems import DocumentPath, Problem, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 20
MAX_NODES = 400_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG_PREFIX = "tag:yaml.org,2002:"
# Controls, line separators, and the invisible characters that can make a reviewer see another text
# than the machine (Unicode category Cf). Written out: the category grows with each Python.
FORBIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
)
"""What no scalar may hold, as the inside of a character class of Python and of JSON Schema."""

_FORBIDDEN = re.compile(
    f"[{FORBIDDEN}"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0001\U000e0020-\U000e007f]"
)


class Scalar(msgspec.Struct):
    """One scalar: the text as written, and the tag YAML 1.1 gives it (`str` when quoted)."""

    text: str
    tag: str
    where: Where
    overlay: bool = False


class Sequence(msgspec.Struct):
    """A list."""

    items: list[Node]
    where: Where


class Mapping(msgspec.Struct):
    """A mapping; `keys` has the place of each key."""

    entries: dict[str, Node]
    keys: dict[str, Where]
    where: Where


class Refused(msgspec.Struct):
    """Stands where something was refused already, so that nothing is reported twice."""

    where: Where


Node: TypeAlias = "Scalar | Sequence | Mapping | Refused"


class _Stop(Exception):  # noqa: N818 - control flow inside this module
    """Nothing after this can be read."""


def read_tree(data: bytes, file: str) -> tuple[Node | None, list[Problem]]:
    """The node tree of a YAML document and what is wrong with it as YAML.

    The tree is None when nothing of it can be read. `file` names it in messages.
    """
    reader = _Reader(file)
    node: Node | None = None
    try:
        node = reader.document(_decode(data, reader))
    except _Stop:
        pass
    except yaml.YAMLError as error:
        reader.problems.append(_syntax(error, file))
    return node, reader.problems


def locate(root: Node, path: DocumentPath) -> Where:
    """The place of the deepest node on the path that exists."""
    node = root
    where = root.where
    for part in path:
        if isinstance(node, Mapping) and part in node.entries:
            where = node.keys[str(part)]
            node = node.entries[str(part)]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            where = node.where
        else:
            break
    return where


def control_character(text: str) -> str | None:
    """The name of the first character that no scalar may hold, or None."""
    found = _FORBIDDEN.search(text)
    return f"U+{ord(found[0]):04X}" if found else None


def _decode(data: bytes, reader: _Reader) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        reader.stop("encoding", "expected UTF-8, found UTF-16", Where(reader.file, 1, 1))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Where(
            reader.file,
            before.count(b"\n") + 1,
            error.start - (before.rfind(b"\n") + 1) + 1,
        )
        message = f"expected UTF-8, found the byte 0x{data[error.start]:02x}"
        reader.stop("encoding", message, place)
        raise AssertionError from error  # stop() always raises


def _syntax(error: yaml.YAMLError, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    text = f"{context}, {said}" if context else str(said)
    return Problem(
        kind="syntax",
        message=f"expected YAML, found a syntax error: {text}",
        where=Where(file, line, column),
    )


class _Reader:
    """Builds the tree from events; one per document."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.nodes = 0

    def stop(self, kind: str, message: str, where: Where, path: DocumentPath = ()) -> None:
        self.refuse(kind, message, where, path)
        raise _Stop

    def refuse(self, kind: str, message: str, where: Where, path: DocumentPath = ()) -> None:
        self.problems.append(Problem(kind=kind, message=message, path=path, where=where))

    def document(self, text: str) -> Node | None:
        events = iter(yaml.parse(text, Loader=_LOADER))
        node: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    message = "expected one document, found a second one"
                    self.stop("multiple-documents", message, self._where(event))
                node = self._node(next(events), events, ())
        if node is None or (isinstance(node, Scalar) and node.tag == "null" and not node.text):
            message = "expected a mapping, found an empty document"
            self.stop("empty", message, Where(self.file, 1, 1))
        return node

    def _where(self, event: Any) -> Where:
        mark = event.start_mark
        return Where(self.file, mark.line + 1, mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], path: DocumentPath) -> Node:
        where = self._where(event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.stop("too-large", f"more than {MAX_NODES:,} values", where, path)
        if len(path) > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            self.stop("too-deep", message, where, path)
        if isinstance(event, yaml.AliasEvent):
            message = f"expected a value, found the alias *{event.anchor}; write the value out"
            self.refuse("alias", message, where, path)
            return Refused(where)
        if event.anchor is not None:
            message = f"expected a value, found the anchor &{event.anchor}; take the anchor away"
            self.refuse("alias", message, where, path)
        if event.tag is not None:
            message = f"expected a value, found the tag {event.tag}; take the tag away"
            self.refuse("tag", message, where, path)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, where, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                items.append(self._node(event, events, (*path, len(items))))
            return Sequence(items, where)
        return self._mapping(events, where, path)

    def _scalar(self, event: Any, where: Where, path: DocumentPath) -> Node:
        text: str = event.value
        if (found := control_character(text)) is not None:
            message = f"expected one line of text, found the control character {found}"
            self.refuse("control-character", message, where, path)
            return Refused(where)
        return Scalar(text, "str" if event.style else _implicit_tag(text), where)

    def _mapping(self, events: Iterator[Any], where: Where, path: DocumentPath) -> Mapping:
        mapping = Mapping({}, {}, where)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key_node = self._node(event, events, (*path, "?"))
            key = self._key(key_node, path)
            inner = (*path, key if key is not None else "?")
            value = self._node(next(events), events, inner)
            if key is None:
                continue
            if key in mapping.entries:
                first = mapping.keys[key]
                message = (
                    f"expected each key once, found {key!r} again (first in line {first.line})"
                )
                self.refuse("duplicate-key", message, key_node.where, inner)
                continue
            mapping.entries[key] = value
            mapping.keys[key] = key_node.where
        return mapping

    def _key(self, node: Node, path: DocumentPath) -> str | None:
        """The text of a key, or None when it is none (and said so)."""
        if isinstance(node, Refused):
            return None
        if not isinstance(node, Scalar):
            message = "expected a name as key, found a list or a mapping"
            self.refuse("key-type", message, node.where, path)
            return None
        if node.tag == "merge":
            message = "expected a name as key, found the merge key <<; write the keys out"
            self.refuse("merge-key", message, node.where, path)
            return None
        if node.tag not in {"str", "value", "timestamp"}:
            message = f"expected a name as key, found {describe(node)}; quote it: '{node.text}'"
            self.refuse("key-type", message, node.where, (*path, node.text))
        return node.text


def _implicit_tag(text: str) -> str:
    """What YAML 1.1 makes of a plain scalar: str, int, float, bool, null, timestamp, ..."""
    for tag, pattern in _LOADER.yaml_implicit_resolvers.get(text[:1], ()):
        if pattern.match(text):
            return str(tag).removeprefix(_TAG_PREFIX)
    return "str"


def describe(node: Node) -> str:
    """What a node is, in words for a message: the number 2.1 (written 2.10)."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Refused):
        return "a refused value"
    shown = node.text if len(node.text) <= 60 else node.text[:57] + "..."
    if node.tag in {"int", "float"}:
        return f"the number {_number(node)}" + (
            f" (written {shown})" if str(_number(node)) != node.text else ""
        )
    if node.tag == "bool":
        truth = node.text.lower() in {"yes", "true", "on"}
        return f"the truth value {str(truth).lower()} (written {shown})"
    if node.tag == "null":
        return "nothing (null)"
    return f"the text {shown!r}"


def _number(node: Scalar) -> int | float | str:
    """The number that other YAML programs read from a plain scalar."""
    constructor = yaml.constructor.SafeConstructor()
    scalar = yaml.ScalarNode(f"{_TAG_PREFIX}{node.tag}", node.text)
    try:
        if node.tag == "int" and len(node.text) <= 40:
            return int(constructor.construct_yaml_int(scalar))
        if node.tag == "float":
            return float(constructor.construct_yaml_float(scalar))
    except (ValueError, OverflowError):
        return node.text
    return node.text
