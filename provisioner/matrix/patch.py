"""Writes a proposal down: as an overlay document, or as a unified diff of a matrix file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import yaml

from provisioner.matrix import model
from provisioner.matrix.identity import IDENTITY, order_key
from provisioner.matrix.yaml_reader import Mapping, Node, Scalar, Sequence, read_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECTIONS: dict[str, type] = {
    "releases": model.Release,
    "tritons": model.Triton,
    "toolkits": model.Toolkit,
}


def overlay_text(overlays: Iterable[dict[str, Any]], head: str) -> str:
    """One overlay document with the entries of several proposals; `head` is its comment."""
    merged: dict[str, list[dict[str, Any]]] = {}
    for overlay in overlays:
        for section, entries in overlay.items():
            into = merged.setdefault(section, [])
            key = IDENTITY[_SECTIONS[section]]
            into += [entry for entry in entries if entry[key] not in {e[key] for e in into}]
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return comment + _dump(merged)


def unified_diff(text: str, overlays: Iterable[dict[str, Any]], name: str) -> str:
    """The change of a matrix text that adds the entries at their places, as `diff -u` writes it."""
    changed = text
    for overlay in overlays:
        for section, entries in overlay.items():
            for entry in entries:
                changed = insert(changed, section, entry)
    return "".join(
        difflib.unified_diff(
            text.splitlines(keepends=True),
            changed.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
        )
    )


def insert(text: str, section: str, entry: dict[str, Any]) -> str:
    """A matrix text with one more entry in a section, in order; unchanged if it is there."""
    root, _ = read_tree(text.encode(), "matrix")
    kind = _SECTIONS[section]
    key = IDENTITY[kind]
    listed = root.entries.get(section) if isinstance(root, Mapping) else None
    if not isinstance(root, Mapping) or not isinstance(listed, Sequence) or not listed.items:
        raise ValueError(f"the matrix has no list {section}")
    lines = text.splitlines(keepends=True)
    place = _section_end(root, section, lines)
    wanted = order_key(kind, str(entry[key]))
    for item in listed.items:
        identity = _text(item, key)
        if identity == str(entry[key]):
            return text
        if order_key(kind, identity) > wanted:
            place = item.where.line - 1
            break
    # The dash of an entry stands two columns before its first key.
    indent = " " * (listed.items[0].where.column - 3)
    added = [indent + line for line in _dump([entry]).splitlines(keepends=True)]
    return "".join([*lines[:place], *added, *lines[place:]])


def _section_end(root: Mapping, section: str, lines: list[str]) -> int:
    """The number of lines up to the end of a section, without the comment before the next one."""
    start = root.keys[section].line
    after = [where.line - 1 for where in root.keys.values() if where.line > start]
    end = min(after, default=len(lines))
    while not lines[end - 1].strip() or lines[end - 1].startswith("#"):
        end -= 1
    return end


def _text(node: Node, key: str) -> str:
    value = node.entries.get(key) if isinstance(node, Mapping) else None
    return value.text if isinstance(value, Scalar) else ""


def _dump(value: Any) -> str:
    """YAML as matrix.yaml has it: block style, innermost lists and mappings in one line."""
    return yaml.dump(
        value,
        Dumper=yaml.SafeDumper,
        default_flow_style=None,
        sort_keys=False,
        width=110,
        allow_unicode=True,
    )
