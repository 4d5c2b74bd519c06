"""The loader and the JSON Schema judge a document alike, as far as the schema has words for it."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matrices import SMALL, TextDates

from provisioner.errors import UsageError
from provisioner.matrix.cell import Request
from provisioner.matrix.listing import rows
from provisioner.matrix.load import _parse, default_matrix_path
from provisioner.matrix.model import Matrix
from provisioner.matrix.problems import DocumentError
from provisioner.matrix.resolve import resolve
from provisioner.matrix.schema import matrix_schema
from provisioner.matrix.show import look_up
from provisioner.matrix.typed import convert
from provisioner.matrix.yaml_reader import read_tree

VALIDATOR = jsonschema.Draft202012Validator(matrix_schema())
BASE = yaml.load(SMALL.read_text(encoding="utf-8"), Loader=TextDates)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document but the document itself."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    found = [path] if path else []
    for key, item in inner:
        found += places(item, (*path, key))
    return found


PLACES = places(BASE)


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


VALUES: list[Any] = [
    None, True, False, 0, 1, 12, -1, 10**9, 10**12, 11.8, [], {}, "", "cpu", "cu118", "2.0.1",
    "2.0.1\n", "2.0.1\nx", "11.8", "11.8\n", "2.10", "9" * 5000, "x" * 5000, "2023-13-45",
    "2026-11-30", "==2.0.0", "numpy<2", "a b", "tab\there", "bell\x07", "nel\x85", "shy\xad",
    "rtl\u202e", "zero\u200b", "\ufeff", "é", "ubuntu:22.04", "https://a.example/x", "../x",
    "$(id)", "{{ x }}", "yes", "null", "~", "A100\n", ["x"], ["2.0.1\n"], [1], {"a": 1},
    {"source": []},
]  # fmt: skip


def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """A value of the same type that is nearly right."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.sampled_from([0, -1, 10**9 - 1, 10**9, 10**12]))
    if isinstance(value, str):
        put = draw(st.sampled_from(["\n", "\u202e", "\x07", "\u2028", "x" * 4001, "9" * 40, " "]))
        return draw(st.sampled_from([value + put, put + value, ""]))
    return type(value)() if value else None


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The small matrix with one to three values changed, taken away, added or put elsewhere."""
    document = copy.deepcopy(BASE)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        path = draw(st.sampled_from(PLACES))
        try:
            parent = at(document, path[:-1])
            here = parent[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
        how = draw(st.sampled_from(["spoil", "spoil", "put", "take", "swap", "key"]))
        if how == "take":
            del parent[path[-1]]
        elif how == "put":
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        elif how == "swap":
            parent[path[-1]] = copy.deepcopy(at(BASE, draw(st.sampled_from(PLACES))))
        elif how == "spoil":
            parent[path[-1]] = spoilt(draw, here)
        elif isinstance(here, dict):
            name = draw(st.sampled_from(["colour", "note", "source", "a\n", "verified"]))
            here[name] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return document


def as_yaml(document: Any) -> bytes:
    return yaml.safe_dump(document, sort_keys=False, width=10**9, allow_unicode=True).encode()


def shape_problems(data: bytes) -> list[str]:
    """What the loader has against the document before it looks at what entries say together."""
    root, found = read_tree(data, "m.yaml")
    if root is not None:
        found += convert(root, Matrix)[1]
    return [problem.message for problem in found]


def whole_floats(value: Any) -> bool:
    """Whether a document has a 1.0: a whole number to JSON Schema, none to the loader."""
    if isinstance(value, dict):
        return any(map(whole_floats, value.values()))
    if isinstance(value, list):
        return any(map(whole_floats, value))
    return isinstance(value, float) and value.is_integer()


@settings(max_examples=120, deadline=None)
@given(documents())
def test_what_one_refuses_the_other_refuses(document: Any) -> None:
    data = as_yaml(document)
    errors = [f"{e.json_path}: {e.message[:200]}" for e in VALIDATOR.iter_errors(document)]
    problems = shape_problems(data)
    if problems and not whole_floats(document):
        assert errors, problems
    if errors and not problems:
        assert loaded(data) is None, errors


def loaded(data: bytes) -> Matrix | None:
    """The matrix of a document, None where it is refused; any other exception is a failure."""
    try:
        return _parse(("m.yaml",), [data])
    except DocumentError:
        return None


def test_a_name_is_read_by_one_rule() -> None:
    # where two patterns stood side by side, one reader took what the other refused
    document = copy.deepcopy(BASE)
    document["releases"][1]["index_platform"] = "linux.x86-64_v2"
    assert VALIDATOR.is_valid(document)
    assert loaded(as_yaml(document)) is not None


@pytest.mark.parametrize("path", [default_matrix_path(), SMALL], ids=["shipped", "small"])
def test_both_take_what_is_valid(path: Path) -> None:
    document = yaml.load(path.read_text(encoding="utf-8"), Loader=TextDates)
    assert VALIDATOR.is_valid(document)
    assert shape_problems(as_yaml(document)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("releases", 1, "torch"), "2.0.1\n"),
        (("releases", 1, "source"), []),
        (("releases", 1, "variants"), []),
        (("releases", 1, "variants", 1, "arch_list"), []),
        (("releases", 1, "variants", 2, "toolkit"), "11.8"),
        (("releases", 1, "compile", "python_max"), None),
        (("releases", 1, "python", "x86_64"), []),
        (("meta", "title"), "two\nlines"),
        (("meta", "title"), "hidden \u202e order"),
        (("meta", "warn_after_days"), -1),
        (("meta", "warn_after_days"), 10**12),
        (("defaults", "os"), []),
        (("gpus", 0, "name"), "A100\n"),
        (("releases", 1, "index_platform"), "-"),
    ],
)
def test_both_refuse(path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(BASE)
    at(document, path[:-1])[path[-1]] = value
    assert not VALIDATOR.is_valid(document)
    assert loaded(as_yaml(document)) is None


ASKED = [
    Request(),
    Request(torch="latest"),
    Request(torch="latest", compile=False, gpu=("A100",), driver="470.82"),
    Request(gpu=("9.0",), driver="535.104.05"),
    Request(gpu=("V100",), driver="300"),
    Request(flavour="devel", os="debian12", cuda="11.7"),
    Request(arch="aarch64", python="3.11"),
    Request(torch="2.0.1", cuda="cpu", python_from="base"),
    Request(ptxas="ptxas118", driver="470.82"),
    Request(torch="<2", driver="440.33"),
    Request(torch="5.0.0"),
]


@settings(max_examples=60, deadline=None)
@given(documents())
def test_whatever_loads_can_be_asked_anything(document: Any) -> None:
    matrix = loaded(as_yaml(document))
    if matrix is None:
        return
    for request in ASKED:
        with contextlib.suppress(UsageError):  # a word that this matrix does not know
            resolve(matrix, request)
    rows(matrix)
    for name in ("2.0.1", "11.8", "A100", "8.0", "driver:535", "ubuntu22.04", "nothing"):
        look_up(matrix, name)
