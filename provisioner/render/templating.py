"""Fills the templates of this package. Only checked text gets through, and nothing is computed.

Jinja parses a template; what it found becomes a short program of four steps (text, value, for,
if), so that a template can't do more than that. The program is kept in the cache by the content
of its template: a warm start does not import Jinja, which takes as long as all the rest of a
render.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.matrix.cache import cache_directory, read_entry, write_entry
from provisioner.render.quote import Safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jinja2 import Environment, nodes

TEMPLATES = Path(__file__).resolve().parent / "templates"

_FORMAT = b"provision-template-1\n"
"""Changed whenever programs are made differently, so that old ones are not used."""

Program = list[Any]
"""Steps: [text, TEXT], [value, PATH], [for, NAME, PATH, PROGRAM], [if, PATH, PROGRAM, PROGRAM].

A PATH is a name, or a name and a key of the dictionary under that name.
"""


class TemplateError(Exception):
    """A template or what it was given is wrong: a bug of this program, not of its user."""


def fill(template: str, values: Mapping[str, Any]) -> bytes:
    """Returns the filled template as ASCII bytes.

    Raises TemplateError for an unknown name and for a value that is not `Safe`.
    """
    out: list[str] = []
    _run(_program(template), values, out)
    return "".join(out).encode("ascii")


def _run(program: Program, values: Mapping[str, Any], out: list[str]) -> None:
    for step in program:
        kind = step[0]
        if kind == "text":
            out.append(step[1])
        elif kind == "value":
            value = _look(values, step[1])
            if not isinstance(value, Safe):
                raise TemplateError(f"{'.'.join(step[1])} is {value!r}, which nothing checked")
            out.append(value)
        elif kind == "for":
            for item in _look(values, step[2]):
                _run(step[3], {**values, step[1]: item}, out)
        else:
            _run(step[2] if _look(values, step[1]) else step[3], values, out)


def _look(values: Mapping[str, Any], path: list[str]) -> Any:
    found: Any = values
    for name in path:
        if name not in found:
            raise TemplateError(f"a template names {'.'.join(path)}, which was not given")
        found = found[name]
    return found


@lru_cache(maxsize=32)
def _program(template: str) -> Program:
    source = (TEMPLATES / template).read_bytes()
    key = "template-" + hashlib.sha256(_FORMAT + source).hexdigest()
    directory = cache_directory()
    kept = read_entry(directory, key) if directory else None
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=list[Any])
    program = compile_template(source.decode("ascii"), template)
    if directory:
        write_entry(directory, key, msgspec.msgpack.encode(program))
    return program


def compile_template(source: str, name: str) -> Program:
    """Returns the program of a template; raises TemplateError for what may not be in one."""
    return _steps(environment().parse(source, name).body, name)


def environment() -> Environment:
    """Returns Jinja as our templates are written for it."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML; `quote` checks every value
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _steps(body: Iterable[nodes.Node], name: str) -> Program:
    from jinja2 import nodes

    program: Program = []
    for node in body:
        if isinstance(node, nodes.Output):
            for part in node.nodes:
                if isinstance(part, nodes.TemplateData):
                    program.append(["text", part.data])
                else:
                    program.append(["value", _path(part, name)])
        elif isinstance(node, nodes.For) and isinstance(node.target, nodes.Name):
            path = _path(node.iter, name)
            program.append(["for", node.target.name, path, _steps(node.body, name)])
        elif isinstance(node, nodes.If) and not node.elif_:
            program.append(_choice(node, name))
        else:
            raise _not_allowed(node, name)
    return program


def _choice(node: nodes.If, name: str) -> list[Any]:
    from jinja2 import nodes

    branches = [_steps(node.body, name), _steps(node.else_, name)]
    test = node.test
    if isinstance(test, nodes.Not):
        test, branches = test.node, branches[::-1]
    return ["if", _path(test, name), *branches]


def _path(node: nodes.Node, name: str) -> list[str]:
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        return [node.name]
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return [node.node.name, node.attr]
    raise _not_allowed(node, name)


def _not_allowed(node: nodes.Node, name: str) -> TemplateError:
    kind = type(node).__name__
    return TemplateError(f"{name}, line {node.lineno}: a template has no {kind} here")
