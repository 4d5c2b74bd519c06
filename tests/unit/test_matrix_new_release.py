"""A new torch release, on a new toolkit with a new driver, is an edit of the matrix alone."""

from pathlib import Path

import pytest
import yaml
from support.matrices import DATA

from provisioner.matrix.cell import Refusal, Request, Resolution
from provisioner.matrix.load import default_matrix_path, load_matrix
from provisioner.matrix.resolve import resolve

ADDITION = DATA / "release_2_16.yaml"


def edited(tmp_path: Path) -> Path:
    """The shipped matrix with the addition written into each section, as a person does it."""
    text = default_matrix_path().read_text(encoding="utf-8")
    addition = yaml.safe_load(ADDITION.read_text(encoding="utf-8"))
    for section, entries in addition.items():
        block = yaml.safe_dump(entries, sort_keys=False, width=1000)
        if isinstance(entries, dict):
            block = "".join(f"  {line}\n" for line in block.splitlines())
        lines = text.splitlines(keepends=True)
        start = lines.index(f"{section}:\n") + 1
        ends = (
            number for number in range(start, len(lines)) if lines[number][:1] not in {" ", "-"}
        )
        lines.insert(next(ends, len(lines)), block)
        text = "".join(lines)
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_edit_and_an_overlay_say_the_same(tmp_path: Path) -> None:
    by_edit = load_matrix(edited(tmp_path), cache=False).matrix
    by_overlay = load_matrix(None, [ADDITION], cache=False).matrix
    assert by_edit == by_overlay
    assert by_edit.releases[-1].torch == "2.16.0"
    assert by_edit.toolkits[-1].series == "13.6"


def test_the_shipped_matrix_does_not_have_it() -> None:
    answer = resolve(load_matrix(cache=False).matrix, Request(torch="2.16.0"))
    assert isinstance(answer, Refusal)
    assert answer.code == "torch.unknown"


@pytest.mark.parametrize("request_", [Request(torch="latest"), Request(cuda="13.6")])
def test_it_resolves_without_a_change_of_code(request_: Request) -> None:
    answer = resolve(load_matrix(None, [ADDITION], cache=False).matrix, request_)
    assert isinstance(answer, Resolution)
    assert answer.cell.name == "torch2.16.0-cu136-py312-ubuntu22.04"
    assert answer.cell.triton == "4.0.0"
    assert answer.cell.torchvision == "0.30.0"
    assert answer.cell.driver.run_floor == "580.65.06"
    assert answer.cell.driver.native == "640"
