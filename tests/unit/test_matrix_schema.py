"""The JSON Schema is the model's, is kept in docs/, and the matrix fits it."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.matrices import SMALL, TextDates

from provisioner.matrix.load import default_matrix_path
from provisioner.matrix.schema import matrix_schema, schema_text

KEPT = Path(__file__).resolve().parents[2] / "docs" / "matrix.schema.json"


def document(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=TextDates)


def test_the_kept_schema_is_in_step_with_the_model() -> None:
    assert KEPT.read_text(encoding="utf-8") == schema_text(), (
        "write it again: provision matrix schema > docs/matrix.schema.json"
    )


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(matrix_schema())


@pytest.mark.parametrize("path", [default_matrix_path(), SMALL], ids=["shipped", "small"])
def test_a_valid_matrix_fits_the_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(matrix_schema()).validate(document(path))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.update(colour="blue"), []),
        (lambda d: d["meta"].pop("title"), ["meta"]),
        (lambda d: d["defaults"].update(cuda=11.8), ["defaults", "cuda"]),
        (lambda d: d["releases"][1].update(torch="2.0.1+cu118"), ["releases", 1, "torch"]),
        (lambda d: d["gpus"][0].update(kind="toaster"), ["gpus", 0, "kind"]),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(change: Any, where: list[Any]) -> None:
    changed = document(SMALL)
    change(changed)
    errors = list(jsonschema.Draft202012Validator(matrix_schema()).iter_errors(changed))
    assert [list(error.absolute_path) for error in errors] == [where]
