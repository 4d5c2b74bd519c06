"""A new torch release, on a new toolkit with a new driver, is an edit of the matrix alone."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import yaml
from support.matrices import DATA
from support.shell import without_variables

from provisioner.cli.main import run
from provisioner.matrix.cell import Refusal, Request, Resolution
from provisioner.matrix.load import default_matrix_path, load_matrix
from provisioner.matrix.resolve import resolve

ADDITION = DATA / "release_2_16.yaml"


def edited(tmp_path: Path, added: Path = ADDITION) -> Path:
    """The shipped matrix with the addition written into each section, as a person does it."""
    text = default_matrix_path().read_text(encoding="utf-8")
    addition = yaml.safe_load(added.read_text(encoding="utf-8"))
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


def manual() -> tuple[str, list[list[str]]]:
    """The release that docs/matrix.md adds, and the commands that it gives for it."""
    text = (DATA.parents[2] / "docs" / "matrix.md").read_text(encoding="utf-8")
    section = text[text.index("## Adding a release") : text.index("## Own builds")]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    document, commands = (textwrap.dedent(block) for block in blocks)
    return document, [shlex.split(line) for line in commands.splitlines()]


def test_the_release_of_the_manual_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_variables(monkeypatch)
    monkeypatch.chdir(tmp_path)
    document, commands = manual()
    Path("new.yaml").write_text(document, encoding="utf-8")
    assert run(commands[0][1:-2]) == 3, "the shipped matrix has this release: show another one"
    assert len(commands) == 4
    for command in commands:
        assert command[0] == "provision"
        assert run(command[1:]) == 0, capsys.readouterr().err
    for name, pin in (("cu132", "torch==2.15.1"), ("cpu", "torch==2.15.1+cpu")):
        folder = Path("lockfiles") / f"torch2.15.1-{name}-py311-ubuntu22.04"
        assert f"{pin}\n" in (folder / "requirements.in").read_text(encoding="ascii")


def test_the_release_of_the_manual_is_an_edit_of_the_matrix_too(tmp_path: Path) -> None:
    overlay = tmp_path / "new.yaml"
    overlay.write_text(manual()[0], encoding="utf-8")
    by_edit = load_matrix(edited(tmp_path, overlay), cache=False).matrix
    assert by_edit == load_matrix(None, [overlay], cache=False).matrix
    assert by_edit.releases[-1].torch == "2.15.1"
