"""What differs between two locks of a cell, in both halves: versions, hashes, sources. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from provisioner.lock.halves import Halves

Kind = Literal["added", "removed", "changed"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A package in one lock: its source (an origin, or the address of a conda channel), hashes."""

    version: str
    source: str
    sha256: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One package that differs; `fields` names what does: version, source, sha256."""

    half: Literal["conda", "pip"]
    name: str
    kind: Kind
    fields: tuple[str, ...]
    old: Side | None
    new: Side | None


def differences(old: Halves, new: Halves) -> list[Difference]:
    """Returns every package that differs, conda's half first, each half sorted by name."""
    found: list[Difference] = []
    for half, was, now in (
        ("conda", _conda(old), _conda(new)),
        ("pip", _pip(old), _pip(new)),
    ):
        for name in sorted(was.keys() | now.keys()):
            before, after = was.get(name), now.get(name)
            if before != after:
                found.append(_difference(half, name, before, after))  # type: ignore[arg-type]
    return found


def _difference(
    half: Literal["conda", "pip"], name: str, old: Side | None, new: Side | None
) -> Difference:
    fields: tuple[str, ...] = ()
    kind: Kind = "added" if old is None else "removed"
    if old is not None and new is not None:
        kind = "changed"
        names = ("version", "source", "sha256")
        fields = tuple(field for field in names if getattr(old, field) != getattr(new, field))
    return Difference(half=half, name=name, kind=kind, fields=fields, old=old, new=new)


def _conda(halves: Halves) -> dict[str, Side]:
    if halves.conda is None:
        return {}
    return {
        package.name: Side(
            version=package.version,
            source=package.url.rsplit("/", 2)[0],
            sha256=(package.sha256,),
        )
        for package in halves.conda.packages
    }


def _pip(halves: Halves) -> dict[str, Side]:
    return {
        package.name: Side(
            version=package.version,
            source=package.origin,
            sha256=tuple(sorted(file.sha256 for file in package.files)),
        )
        for package in halves.lock.packages
    }


def lines_of(found: list[Difference]) -> list[str]:
    """Returns the differences for people: a heading for each half, added, removed, changed."""
    lines: list[str] = []
    for half in ("conda", "pip"):
        mine = [each for each in found if each.half == half]
        if mine:
            lines.append(f"{half}: {len(mine)} differ{'s' if len(mine) == 1 else ''}")
        for kind in ("added", "removed", "changed"):
            lines += [f"  {_line(each)}" for each in mine if each.kind == kind]
    return lines


def _line(each: Difference) -> str:
    if each.old is None or each.new is None:
        side = each.new or each.old
        assert side is not None  # noqa: S101 - one of two is there
        return f"{'+' if each.kind == 'added' else '-'} {each.name} {side.version}"
    parts = []
    if "version" in each.fields:
        parts.append(f"{each.old.version} -> {each.new.version}")
    if "source" in each.fields:
        parts.append(f"from {each.old.source} -> {each.new.source}")
    if each.fields == ("sha256",):
        parts.append(
            f"{each.old.version}: sha256 {_short(each.old.sha256)} -> {_short(each.new.sha256)}"
        )
    return f"~ {each.name} {', '.join(parts)}"


def _short(values: tuple[str, ...]) -> str:
    return "+".join(value[:12] for value in values)
