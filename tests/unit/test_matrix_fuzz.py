"""Whatever is done to a matrix: it loads, or it is refused with places. Never another exception."""

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.matrices import SMALL

from provisioner.errors import ProvisionError
from provisioner.matrix.load import load_matrix
from provisioner.matrix.problems import DocumentError

TEXT = SMALL.read_text(encoding="utf-8")
LINES = TEXT.splitlines(keepends=True)
NASTY = [
    "!!python/object/apply:os.system [id]",
    "*a",
    "&a x",
    "<<: {a: b}",
    "2.10",
    "yes",
    "null",
    "~",
    "=",
    "1:30",
    "0o17",
    ".nan",
    ".inf",
    "1e400",
    "0b",
    "2023-13-45",
    "2023-01-01T25:00:00",
    "{{ lookup('pipe', 'id') }}",
    "$(id)",
    "`id`",
    "../../etc/passwd",
    "'",
    '"',
    "\\",
    "|",
    ">",
    "- - - -",
    "? ? ?",
    "[[[[",
    "{{{{",
    "%YAML 1.2",
    "---",
    "...",
    "\t",
    "\x7f",
    "\u0085",
    "\u202e",
    "9" * 5000,
    "x" * 5000,
    "\U0001f680",
]
FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def failure(path: Path, overlays: tuple[Path, ...] = ()) -> ProvisionError | None:
    """The expected failure of a load, if any; every other exception fails the test."""
    try:
        load_matrix(path, overlays, cache=False)
    except ProvisionError as error:
        return error
    return None


def judge(error: ProvisionError | None) -> None:
    assert error is None or error.code.startswith("matrix.")
    if isinstance(error, DocumentError):
        assert error.problems
        assert all(problem.where is not None for problem in error.problems)
        assert all("\n" not in problem.message for problem in error.problems)


def judge_bytes(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    judge(failure(path))


@FUZZ
@given(
    line=st.integers(0, len(LINES) - 1),
    column=st.integers(0, 100),
    length=st.integers(0, 30),
    put=st.sampled_from(NASTY) | st.text(max_size=12),
)
def test_a_part_of_a_line_replaced(
    line: int, column: int, length: int, put: str, tmp_path: Path
) -> None:
    before = LINES[line]
    column = min(column, len(before))
    changed = [*LINES]
    changed[line] = before[:column] + put + before[column + length :]
    judge_bytes("".join(changed).encode("utf-8", "surrogatepass"), tmp_path / "m.yaml")


@FUZZ
@given(data=st.data())
def test_lines_moved_and_lost(data: st.DataObject, tmp_path: Path) -> None:
    changed = [*LINES]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        taken = changed.pop(place)
        if data.draw(st.booleans()):
            changed.insert(data.draw(st.integers(0, len(changed))), taken)
    judge_bytes("".join(changed).encode(), tmp_path / "m.yaml")


@FUZZ
@given(place=st.integers(0, len(TEXT) - 1), put=st.binary(max_size=6))
def test_bytes_put_in(place: int, put: bytes, tmp_path: Path) -> None:
    raw = TEXT.encode()
    judge_bytes(raw[:place] + put + raw[place:], tmp_path / "m.yaml")


@FUZZ
@given(text=st.text(alphabet=string.printable + "\u00e9\u202e\x00\x85", max_size=80))
def test_any_text_as_overlay(text: str, tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    overlay.write_text(text, encoding="utf-8")
    judge(failure(SMALL, (overlay,)))


@pytest.mark.parametrize("nasty", NASTY)
def test_every_scalar_of_an_overlay(nasty: str, tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    for form in (f"meta: {{title: {nasty}}}", f"gpus:\n- {nasty}", f"releases:\n  {nasty}: x"):
        overlay.write_text(form, encoding="utf-8")
        judge(failure(SMALL, (overlay,)))
