"""The JSON Schema of matrix.yaml, made from the model (docs/matrix.schema.json is this text)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from provisioner.matrix.expectations import expectation
from provisioner.matrix.model import Matrix

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a whole matrix document."""
    schema = msgspec.json.schema(Matrix)
    top = schema["$defs"].pop("Matrix")
    definitions = {name: _clean(definition) for name, definition in sorted(schema["$defs"].items())}
    return {
        "$schema": SCHEMA_ID,
        "title": "matrix.yaml of provision",
        **{key: value for key, value in _clean(top).items() if key != "title"},
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as it is printed and kept in docs/."""
    return json.dumps(matrix_schema(), indent=2, ensure_ascii=False) + "\n"


def _clean(node: Any) -> Any:
    """Patterns get a description of what they mean; descriptions lose their line breaks."""
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {key: _clean(value) for key, value in node.items()}
    if isinstance(node.get("pattern"), str):
        words = expectation(node["pattern"])
        if not words.startswith("text that matches"):
            cleaned["description"] = words
    if isinstance(cleaned.get("description"), str):
        cleaned["description"] = " ".join(cleaned["description"].split())
    return cleaned
