"""The only way for a value into a rendered file: each function checks one kind of value.

A checked value is a `Safe` string, and the templates print nothing else. What does not fit is
refused, never repaired: a pin with a newline in it is an attack or a mistake, and both must stop.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import msgspec

from provisioner.errors import UsageError
from provisioner.matrix import model

if TYPE_CHECKING:
    from collections.abc import Iterable


class Safe(str):
    """Text that a function of this module has checked for the place where it will stand."""

    __slots__ = ()


def _pattern(kind: Any) -> str:
    """The pattern of an annotated string type of the matrix model."""
    if get_origin(kind) is not Annotated:
        raise TypeError(f"{kind} has no pattern")
    meta = next(part for part in get_args(kind) if isinstance(part, msgspec.Meta))
    return str(meta.pattern)


_CLAUSE = r"(==|~=|!=|<=|>=|<|>) ?[0-9][0-9A-Za-z.*]*(\+[a-z0-9.]+)?"
_CLAUSES = rf"{_CLAUSE}(, ?{_CLAUSE})*"
_CONDA_CLAUSE = r"(==|~=|!=|<=|>=|=|<|>)[0-9][0-9A-Za-z.*]*"
_MARKER = r" ?; ?[A-Za-z0-9_ .<>=!\"'()-]+"
_SEGMENT = r"[A-Za-z0-9_+][A-Za-z0-9._+-]*"

_KINDS: dict[str, tuple[str, str]] = {
    "name": (r"[A-Za-z0-9][A-Za-z0-9._+-]*", "made of letters, digits and . _ + -"),
    "requirement": (
        rf"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?( ?{_CLAUSES})?({_MARKER})?",
        "a package by name and version, without address, path or option",
    ),
    "conda": (
        rf"[A-Za-z0-9_][A-Za-z0-9._-]*({_CONDA_CLAUSE}(,{_CONDA_CLAUSE})*)?",
        "a conda package by name and version",
    ),
    "package": (
        r"(?![^=]*\.\+)[a-z0-9]([a-z0-9+._-]*[a-z0-9+])?(=[0-9A-Za-z][0-9A-Za-z.+~:-]*)?",
        "the name of an operating-system package",
    ),
    "gate": (r"driver>=[0-9]+(,driver<[0-9]+)?", "a condition on the driver branch"),
    "image": (_pattern(model.ImageRef), "an image reference"),
    "url": (_pattern(model.Url), "an http(s) address without user, password, query or fragment"),
    "path": (rf"/?{_SEGMENT}(/{_SEGMENT})*", "a path without .. and blanks"),
}


@cache
def _compiled(kind: str) -> re.Pattern[str]:
    return re.compile(_KINDS[kind][0])


def checked(kind: str, value: str, field: str) -> Safe:
    """Returns `value` when it is a whole, clean value of that kind; raises UsageError.

    Kinds: name, requirement, conda, package, gate, image, url, path. `field` says in the message
    where the value stood.
    """
    # fullmatch: the patterns of the model end with $, which lets a last newline pass.
    if _compiled(kind).fullmatch(value):
        return Safe(value)
    shown = ascii(value if len(value) <= 120 else value[:120] + "...")
    raise UsageError(
        "render.unsafe-value",
        f"{field} cannot be rendered: {shown} is not {_KINDS[kind][1]}.",
        facts={"field": field, "value": shown},
        next_step="Correct it in the request, in provision.yaml or in the matrix.",
    )


def all_checked(kind: str, values: Iterable[str], field: str) -> tuple[Safe, ...]:
    """Returns every value, checked by `checked`."""
    return tuple(checked(kind, value, field) for value in values)


def comment(text: str) -> Safe:
    """Returns one printable ASCII line for the rest of a comment; other characters become ?."""
    return Safe("".join(char if " " <= char <= "~" else "?" for char in text))


_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(=[0-9A-Za-z.*=_-]+)?")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def yaml_scalar(value: Safe) -> Safe:
    """Returns a checked value as a YAML scalar that every reader takes for the same string."""
    if _PLAIN_YAML.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return Safe(_ascii_json(str(value)))


_NOT_IN_LABELS = re.compile(r"['$`]")


def label_json(value: Any) -> Safe:
    """Returns compact JSON in single quotes for a Dockerfile LABEL.

    Quotes, $ and ` become JSON escapes, so the Dockerfile neither ends the string nor expands
    anything in it; every reader of the JSON gets the original text back.
    """
    escaped = _NOT_IN_LABELS.sub(lambda found: f"\\u{ord(found[0]):04x}", _ascii_json(value))
    return Safe(f"'{escaped}'")


def _ascii_json(value: Any) -> str:
    text = msgspec.json.encode(value, order="sorted").decode("utf-8")
    return text if text.isascii() else re.sub(r"[^\x00-\x7e]", _unicode_escape, text)


def _unicode_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
