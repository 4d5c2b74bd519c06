"""Lays an overlay document over a matrix, node by node, before anything is checked.

Merged as nodes, every value keeps the file and line it came from, so that a problem names the
overlay where the overlay is at fault. The rules are in docs/matrix.md.
"""

from __future__ import annotations

from msgspec import inspect

from provisioner.matrix.identity import IDENTITY, ORDERED, order_key
from provisioner.matrix.problems import DocumentPath, Problem
from provisioner.matrix.typed import type_of
from provisioner.matrix.yaml_reader import Mapping, Node, Scalar, Sequence


def merge(base: Node, overlay: Node, target: type) -> tuple[Node, list[Problem]]:
    """The overlay laid over the base (which is left as it is), and what cannot be merged."""
    merger = _Merger()
    return merger.merge(base, overlay, type_of(target), ()), merger.problems


class _Merger:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def merge(self, base: Node | None, top: Node, kind: inspect.Type, path: DocumentPath) -> Node:
        """Mappings and lists with identities are merged; anything else is replaced."""
        for member in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
            if isinstance(member, inspect.StructType) and isinstance(top, Mapping):
                fields = {field.encode_name: field.type for field in member.fields}
                return self._mapping(base, top, fields, path)
            if isinstance(member, inspect.DictType) and isinstance(top, Mapping):
                fields = dict.fromkeys(top.entries, member.value_type)
                return self._mapping(base, top, fields, path)
            if isinstance(member, inspect.VarTupleType):
                item = member.item_type
                if isinstance(item, inspect.StructType) and item.cls in IDENTITY:
                    return self._keyed(base, top, item, path)
        return _marked(top)

    def _mapping(
        self,
        base: Node | None,
        top: Mapping,
        fields: dict[str, inspect.Type],
        path: DocumentPath,
    ) -> Mapping:
        under = base if isinstance(base, Mapping) else Mapping({}, {}, top.where)
        merged = Mapping(dict(under.entries), dict(under.keys), top.where)
        for key, node in top.entries.items():
            kind = fields.get(key)
            below = under.entries.get(key)
            merged.keys[key] = top.keys[key]
            if kind is None:
                merged.entries[key] = node  # an unknown key: the type check names it
            else:
                merged.entries[key] = self.merge(below, node, kind, (*path, key))
        return merged

    def _keyed(
        self, base: Node | None, top: Node, item: inspect.StructType, path: DocumentPath
    ) -> Node:
        """A list whose entries have identities, given as a list or as a mapping by identity."""
        key = IDENTITY[item.cls]
        if isinstance(top, Mapping):
            changes = {
                name: self._named(name, node, top, key) for name, node in top.entries.items()
            }
        elif isinstance(top, Sequence):
            changes = self._by_identity(top, key, path)
        else:
            return top
        under = base.items if isinstance(base, Sequence) else []
        items: list[Node] = []
        for entry in under:
            identity = _identity(entry, key)
            if identity is None or identity not in changes:
                items.append(entry)
                continue
            change = changes.pop(identity)
            if change is not None:
                items.append(self.merge(entry, change, item, (*path, len(items))))
        added = False
        for identity, change in changes.items():
            if change is None:
                message = f"takes away {key} {identity}, which the matrix below does not have"
                where = top.keys[identity] if isinstance(top, Mapping) else top.where
                problem = Problem(kind="overlay", message=message, path=path, where=where)
                self.problems.append(problem)
            else:
                items.append(self.merge(None, change, item, (*path, len(items))))
                added = True
        if added and item.cls in ORDERED:
            items.sort(key=lambda node: order_key(item.cls, _identity(node, key) or ""))
        return Sequence(items, base.where if isinstance(base, Sequence) else top.where)

    def _by_identity(self, top: Sequence, key: str, path: DocumentPath) -> dict[str, Node | None]:
        changes: dict[str, Node | None] = {}
        for index, node in enumerate(top.items):
            identity = _identity(node, key)
            here = (*path, index)
            if identity is None:
                message = f"expected an entry with the key {key!r}, which says what it changes"
                self.problems.append(
                    Problem(kind="overlay", message=message, path=here, where=node.where)
                )
            elif identity in changes:
                message = f"expected each {key} once, found {identity} again"
                self.problems.append(
                    Problem(kind="duplicate-entry", message=message, path=here, where=node.where)
                )
            else:
                changes[identity] = node
        return changes

    def _named(self, name: str, node: Node, top: Mapping, key: str) -> Node | None:
        """The entry under a name, with its identity filled in; None when null takes it away."""
        if isinstance(node, Scalar) and node.tag == "null":
            return None
        if not isinstance(node, Mapping) or key in node.entries:
            return node
        where = top.keys[name]
        tag = "int" if key in {"branch", "major"} else "str"
        return Mapping(
            {key: Scalar(name, tag, where), **node.entries}, {key: where, **node.keys}, node.where
        )


def _identity(node: Node, key: str) -> str | None:
    if not isinstance(node, Mapping):
        return None
    value = node.entries.get(key)
    return value.text if isinstance(value, Scalar) else None


def _marked(node: Node) -> Node:
    """A null of an overlay is marked: it takes a key away where null is no value."""
    if isinstance(node, Scalar) and node.tag == "null":
        return Scalar(node.text, node.tag, node.where, overlay=True)
    return node
