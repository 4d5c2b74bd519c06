"""The JSON Schema of matrix.yaml, made from the model (docs/matrix.schema.json is this text).

It refuses what the loader refuses of a document, as far as JSON Schema has words for it: beyond it
are references from one entry to another, orders, repeated entries and the calendar.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from provisioner.matrix.expectations import expectation
from provisioner.matrix.model import Matrix
from provisioner.matrix.yaml_reader import FORBIDDEN

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a whole matrix document."""
    schema = msgspec.json.schema(Matrix)
    top = schema["$defs"].pop("Matrix")
    definitions = {name: _clean(definition) for name, definition in sorted(schema["$defs"].items())}
    for name, fields in _AT_LEAST_ONE.items():
        for field in fields:
            definitions[name]["properties"][field]["minItems"] = 1
    for name, definition in definitions.items():
        if name != "Gpu" and "source" in definition.get("required", ()):
            definition["properties"]["source"]["minItems"] = 1
    for name, rules in _RULES.items():
        definitions[name]["allOf"] = rules
    return {
        "$schema": SCHEMA_ID,
        "title": "matrix.yaml of provision",
        **{key: value for key, value in _clean(top).items() if key != "title"},
        "$defs": definitions,
    }


_AT_LEAST_ONE = {
    "Defaults": ("python", "os", "driver_branches"),
    "PythonSupport": ("x86_64",),
    "Release": ("variants",),
}


def _where(condition: dict[str, Any], then: dict[str, Any], other: dict[str, Any]) -> list[Any]:
    """Where the fields are so, `then` holds of the others, else `other`."""
    return [
        {
            "if": {"properties": condition, "required": list(condition)},
            "then": {"properties": then},
            "else": {"properties": other},
        }
    ]


_RULES = {
    "Variant": [
        *_where(
            {"tag": {"const": "cpu"}},
            {"toolkit": {"type": "null"}, "arch_list": {"maxItems": 0}, "ptx": {"maxItems": 0}},
            {"toolkit": {"type": "string"}},
        ),
        {
            # A CUDA build that was seen has a list of machine code: only `published` may excuse it.
            "anyOf": [
                {"properties": {"tag": {"const": "cpu"}}},
                {
                    "properties": {"published": {"enum": ["expected", "unknown"]}},
                    "required": ["published"],
                },
                {"properties": {"arch_list": {"minItems": 1}}, "required": ["arch_list"]},
            ]
        },
    ],
    "CompileSupport": _where(
        {"supported": {"const": True}},
        {"python_max": {"type": "string"}},
        {"python_max": {"type": "null"}},
    ),
    "KnownBad": [
        {
            "if": {
                "properties": {"effect": {"enum": ["constrain", "add"]}},
                "required": ["effect"],
            },
            "then": {
                "properties": {"requirements": {"minItems": 1}},
                "required": ["requirements"],
            },
        }
    ],
}
"""What the loader wants of some fields because of others in the same entry."""


def schema_text() -> str:
    """The schema as it is printed and kept in docs/."""
    return json.dumps(matrix_schema(), indent=2, ensure_ascii=False) + "\n"


def _clean(node: Any) -> Any:
    """A part of the schema as strict as the loader, with words for what its patterns mean.

    A pattern that ends in `$` must not end before a line break; text without a pattern takes no
    control characters; numbers are counts of at most nine digits. Descriptions lose line breaks.
    """
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {key: _clean(value) for key, value in node.items()}
    if isinstance(node.get("pattern"), str):
        words = expectation(node["pattern"])
        if not words.startswith("text that matches"):
            cleaned["description"] = words
        cleaned["pattern"] = f"{node['pattern']}(?!\\n)"
    elif node.get("type") == "string":
        cleaned["pattern"] = f"^[^{FORBIDDEN}]*$(?!\\n)"
    elif node.get("type") == "integer":
        cleaned = {"minimum": 0, "maximum": 999_999_999, **cleaned}
    if isinstance(cleaned.get("description"), str):
        cleaned["description"] = " ".join(cleaned["description"].split())
    return cleaned
