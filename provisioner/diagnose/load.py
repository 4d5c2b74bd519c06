"""Reads the rules, the vocabulary and the fact patterns; keeps the compiled book for next time."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from provisioner import __version__
from provisioner.diagnose.model import Book, CauseClass, FactPattern, Pattern, Rule
from provisioner.matrix.cache import cache_directory, read_entry, write_entry

_ROOM = Path(__file__).resolve().parent
_CODE = ("literals.py", "load.py", "model.py")


def load_book(*, cache: bool = True) -> Book:
    """The shipped book. A compiled copy is kept by content, so that a warm start reads no YAML."""
    files = [
        _ROOM / "classes.yaml",
        _ROOM / "facts.yaml",
        *sorted((_ROOM / "rules").glob("*.yaml")),
    ]
    contents = [path.read_bytes() for path in files]
    directory = cache_directory() if cache else None
    key = _key(contents) if directory else None
    if directory and key and (payload := read_entry(directory, key)) is not None:
        try:
            return msgspec.msgpack.decode(payload, type=Book)
        except msgspec.MsgspecError:
            pass  # made by other code: made again
    book = _compile(contents)
    if directory and key:
        write_entry(directory, key, msgspec.msgpack.encode(book))
    return book


def _key(contents: list[bytes]) -> str | None:
    digest = hashlib.sha256(f"book {__version__}\n".encode())
    try:
        for name in _CODE:
            digest.update((_ROOM / name).read_bytes())
    except OSError:
        return None  # installed without sources: no way to tell whose cache it is
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:40]


def _compile(contents: list[bytes]) -> Book:
    from provisioner.diagnose.literals import literals

    classes = msgspec.convert(_yaml(contents[0]), dict[str, CauseClass])
    facts = msgspec.convert(_yaml(contents[1]), tuple[FactPattern, ...])
    rules: list[Rule] = []
    for content in contents[2:]:
        rules += msgspec.convert(_yaml(content), list[Rule])
    patterns = [
        Pattern(regex=regex, literals=literals(regex), owner=owner, order=order)
        for owner, rule in enumerate(rules)
        for order, regex in enumerate(rule.any)
    ]
    patterns += [
        Pattern(regex=regex, literals=literals(regex), owner=owner, order=order, fact=True)
        for owner, fact in enumerate(facts)
        for order, regex in enumerate(fact.any)
    ]
    return Book(rules=tuple(rules), classes=classes, facts=facts, patterns=tuple(patterns))


def _yaml(content: bytes) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(content, Loader=loader)  # noqa: S506 - a safe loader, whichever there is
