"""Holds a node tree against a msgspec type: plain values out, every mismatch named with its place.

msgspec alone stops at the first mismatch and knows no lines; people who edit a document want all
of them. YAML's own guesses are undone here: where text is expected, a plain 2.10 is refused with
the advice to quote it, and a plain date is taken as the text that was written.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from provisioner.matrix.expectations import expectation
from provisioner.matrix.problems import DocumentPath, Problem
from provisioner.matrix.yaml_reader import Mapping, Node, Refused, Scalar, Sequence, describe

T = TypeVar("T")
_TRUTH = {"true": True, "false": False}
_COUNTING = re.compile(r"0|[1-9][0-9]{0,8}")
_ABSENT = object()


def type_of(target: type) -> inspect.Type:
    """What msgspec knows about a type."""
    return inspect.type_info(target)


def convert(root: Node, target: type[T]) -> tuple[T | None, list[Problem]]:
    """The typed object, or None with every problem of the tree that is not told already."""
    checker = _Checker()
    value = checker.check(root, type_of(target), ())
    if checker.problems or checker.incomplete:
        return None, checker.problems
    try:
        return msgspec.convert(value, target), []
    except msgspec.ValidationError as error:
        # Two readers of one type: what only the second refuses is refused all the same.
        return None, [Problem(kind="value", message=str(error), where=root.where)]


def admits(kind: inspect.Type, other: type[inspect.Type]) -> bool:
    """Whether a type, or a member of a union, is of the given msgspec kind."""
    return any(isinstance(member, other) for member in _members(kind))


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


class _Checker:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.incomplete = False

    def refuse(self, kind: str, message: str, node: Node, path: DocumentPath) -> Any:
        self.problems.append(Problem(kind=kind, message=message, path=path, where=node.where))
        return _ABSENT

    def check(self, node: Node, kind: inspect.Type, path: DocumentPath) -> Any:
        """The plain value of a node, or _ABSENT when it was refused."""
        members = _members(kind)
        if isinstance(node, Refused):
            self.incomplete = True
            return _ABSENT
        if isinstance(node, Scalar):
            return self._scalar(node, members, path)
        for member in members:
            if isinstance(node, Sequence) and isinstance(member, inspect.VarTupleType):
                return self._sequence(node, member, path)
            if isinstance(node, Mapping) and isinstance(member, inspect.StructType):
                return self._struct(node, member, path)
            if isinstance(node, Mapping) and isinstance(member, inspect.DictType):
                return self._dict(node, member, path)
        return self._wrong(node, members, path)

    def _wrong(self, node: Node, members: tuple[inspect.Type, ...], path: DocumentPath) -> Any:
        message = f"expected {_expected(members)}, found {describe(node)}"
        return self.refuse("wrong-type", message, node, path)

    def _sequence(self, node: Sequence, kind: inspect.VarTupleType, path: DocumentPath) -> Any:
        values = [
            self.check(item, kind.item_type, (*path, index))
            for index, item in enumerate(node.items)
        ]
        return [value for value in values if value is not _ABSENT]

    def _dict(self, node: Mapping, kind: inspect.DictType, path: DocumentPath) -> Any:
        found: dict[str, Any] = {}
        for key, item in node.entries.items():
            if _removed(item, kind.value_type):
                continue
            name = Scalar(key, "str", node.keys[key])
            self.check(name, kind.key_type, (*path, key))
            found[key] = self.check(item, kind.value_type, (*path, key))
        return found

    def _struct(self, node: Mapping, kind: inspect.StructType, path: DocumentPath) -> Any:
        found: dict[str, Any] = {}
        fields = {field.encode_name: field for field in kind.fields}
        for key, item in node.entries.items():
            field = fields.get(key)
            if field is None:
                message = f"unknown key {key!r}{_did_you_mean(key, list(fields))}"
                name = Scalar(key, "str", node.keys[key])
                self.refuse("unknown-key", message, name, (*path, key))
            elif not _removed(item, field.type):
                found[key] = self.check(item, field.type, (*path, key))
        for key, field in fields.items():
            if field.required and key not in found:
                message = (
                    f"expected the key {key!r} ({_expected(_members(field.type))}), found none"
                )
                self.refuse("missing-key", message, node, (*path, key))
        return found

    def _scalar(self, node: Scalar, members: tuple[inspect.Type, ...], path: DocumentPath) -> Any:
        if node.tag == "null" and any(isinstance(member, inspect.NoneType) for member in members):
            return None
        if node.tag == "bool" and any(isinstance(member, inspect.BoolType) for member in members):
            if node.text not in _TRUTH:
                message = f"expected true or false, found {describe(node)}"
                return self.refuse("wrong-type", message, node, path)
            return _TRUTH[node.text]
        literals = [v for m in members if isinstance(m, inspect.LiteralType) for v in m.values]
        numbers = [m for m in members if isinstance(m, inspect.IntType)]
        if node.tag == "int" and (numbers or any(isinstance(v, int) for v in literals)):
            return self._count(node, literals if not numbers else [], members, path)
        strings = [m for m in members if isinstance(m, inspect.StrType)]
        if strings or any(isinstance(value, str) for value in literals):
            return self._text(node, strings, literals, path)
        return self._wrong(node, members, path)

    def _count(
        self,
        node: Scalar,
        allowed: list[Any],
        members: tuple[inspect.Type, ...],
        path: DocumentPath,
    ) -> Any:
        if not _COUNTING.fullmatch(node.text):
            message = (
                f"expected a whole number in plain decimal digits, found {describe(node)}; "
                "YAML has other meanings for a leading 0, for _ and for :"
            )
            return self.refuse("plain-number", message, node, path)
        number = int(node.text)
        if allowed and number not in allowed:
            return self._wrong(node, members, path)
        bounds = [(m.ge or 0, m.le) for m in members if isinstance(m, inspect.IntType)]
        if bounds and not any(
            low <= number and (top is None or number <= top) for low, top in bounds
        ):
            message = f"expected {' or '.join(map(_range, bounds))}, found {number}"
            return self.refuse("value", message, node, path)
        return number

    def _text(
        self,
        node: Scalar,
        strings: list[inspect.StrType],
        literals: list[Any],
        path: DocumentPath,
    ) -> Any:
        expected = _expected((*strings, *([inspect.LiteralType(tuple(literals))] * bool(literals))))
        if node.tag not in {"str", "timestamp", "value", "merge"}:
            if node.tag in {"int", "float"}:
                message = (
                    f"expected {expected}; quote it: YAML reads {node.text} as {_plainly(node)}"
                )
                return self.refuse("unquoted-number", message, node, path)
            hint = f"; quote it: '{node.text}'" if node.tag == "bool" else ""
            message = f"expected {expected}, found {describe(node)}{hint}"
            return self.refuse("wrong-type", message, node, path)
        text = node.text
        if text in literals or any(_fits(text, kind) for kind in strings):
            return text
        if literals and not strings:
            choices = [str(value) for value in literals]
            message = f"expected {expected}, found {text!r}{_did_you_mean(text, choices)}"
            return self.refuse("choice", message, node, path)
        longest = max(kind.max_length or 0 for kind in strings)
        if longest and len(text) > longest:
            message = f"expected at most {longest} characters, found {len(text)}"
            return self.refuse("too-long", message, node, path)
        return self.refuse("value", f"expected {expected}, found {describe(node)}", node, path)


def _range(bounds: tuple[int, int | None]) -> str:
    low, top = bounds
    return f"a number from {low} on" if top is None else f"a number from {low} to {top}"


def _removed(node: Node, kind: inspect.Type) -> bool:
    """Whether an overlay's null takes this key away (where null is no value of its own)."""
    return (
        isinstance(node, Scalar)
        and node.overlay
        and node.tag == "null"
        and not admits(kind, inspect.NoneType)
    )


def _plainly(node: Scalar) -> str:
    return describe(node).partition(" (written")[0]


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _fits(text: str, kind: inspect.StrType) -> bool:
    if kind.max_length is not None and len(text) > kind.max_length:
        return False
    return kind.pattern is None or _pattern(kind.pattern).fullmatch(text) is not None


def _did_you_mean(text: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(text, choices, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(sorted(choices))}" if len(choices) <= 12 else ""


def _expected(members: tuple[inspect.Type, ...]) -> str:
    return " or ".join(dict.fromkeys(_name(member) for member in members))


def _name(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.StrType):
        return expectation(kind.pattern)
    if isinstance(kind, inspect.LiteralType):
        return (
            "one of " + ", ".join(str(value) for value in kind.values)
            if len(kind.values) > 1
            else repr(kind.values[0])
        )
    if isinstance(kind, inspect.VarTupleType):
        return f"a list (each {_expected(_members(kind.item_type))})"
    names: dict[type[inspect.Type], str] = {
        inspect.StructType: "a mapping",
        inspect.DictType: "a mapping",
        inspect.IntType: "a whole number",
        inspect.BoolType: "true or false",
        inspect.NoneType: "null",
    }
    return names[type(kind)]
