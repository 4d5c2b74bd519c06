"""Every way in which a matrix document can be wrong is refused with its code, path and line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.matrices import DATA, SMALL, line_of, replaced

from provisioner.errors import UsageError
from provisioner.matrix.load import MAX_BYTES, default_matrix_path, load_matrix
from provisioner.matrix.problems import MAX_REPORTED, DocumentError
from provisioner.matrix.yaml_reader import MAX_NODES

TABLE = yaml.safe_load((DATA / "bad.yaml").read_text(encoding="utf-8"))
CASES = [
    pytest.param(case, id=f"{group}-{number}-{case['kind']}")
    for group, cases in TABLE.items()
    for number, case in enumerate(cases)
]


def refused(path: Path) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        load_matrix(path, cache=False)
    return caught.value


def test_the_small_matrix_is_valid() -> None:
    assert [release.torch for release in load_matrix(SMALL, cache=False).matrix.releases] == [
        "1.13.1",
        "2.0.1",
    ]


def test_the_shipped_matrix_is_valid() -> None:
    loaded = load_matrix(cache=False)
    assert len(loaded.matrix.releases) >= 30
    assert loaded.paths == (str(default_matrix_path()),)


@pytest.mark.parametrize("case", CASES)
def test_a_bad_document_is_named_with_code_path_and_line(
    case: dict[str, Any], tmp_path: Path
) -> None:
    text = replaced(SMALL.read_text(encoding="utf-8"), case["find"], case["put"])
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    error = refused(path)
    told = [problem.to_dict("matrix") for problem in error.problems]
    wanted = {
        "code": f"matrix.{case['kind']}",
        "path": case["path"],
        "file": str(path),
        "line": line_of(text, case["at"]),
    }
    matching = [entry for entry in told if wanted.items() <= entry.items()]
    assert matching, (wanted, told)
    assert case["says"] in matching[0]["message"]
    assert error.exit_status == 2
    assert f"{path}:{wanted['line']}:" in error.message


def test_the_table_has_the_kinds_that_people_meet() -> None:
    kinds = {case["kind"] for cases in TABLE.values() for case in cases}
    assert len(CASES) >= 80
    assert len(kinds) >= 18


def test_many_problems_are_told_at_once_and_counted(tmp_path: Path) -> None:
    text = SMALL.read_text(encoding="utf-8").replace("source: [notes]", "source: [nots]")
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    error = refused(path)
    assert len(error.problems) == MAX_REPORTED
    assert error.total > MAX_REPORTED
    assert f"and {error.total - MAX_REPORTED} more" in error.message
    lines = [problem.where.line for problem in error.problems if problem.where]
    assert lines == sorted(lines)


def test_problems_of_yaml_and_of_types_come_together(tmp_path: Path) -> None:
    text = SMALL.read_text(encoding="utf-8")
    text = replaced(text, "  gcc: 11\n", "  gcc: 11\n  gcc: 12\n")
    text = replaced(text, "flavour: slim", "flavour: slimm")
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    assert [problem.kind for problem in refused(path).problems] == ["duplicate-key", "choice"]


BYTES = [
    ("encoding", b"\xff\xfes\x00", 1, "UTF-16"),
    ("encoding", b"a: 1\nb: \xe9\n", 2, "0xe9"),
    ("empty", b"", 1, "empty"),
    ("empty", b"# nothing\n", 1, "empty"),
    ("empty", b"---\n...\n", 1, "empty"),
    ("syntax", b"a: \x00\n", 1, "syntax error"),
    ("syntax", b"a: [1, 2\n", 2, "syntax error"),
    ("wrong-type", b"just words\n", 1, "expected a mapping"),
    ("wrong-type", b"- a\n- b\n", 1, "found a list"),
    ("wrong-type", b"12\n", 1, "the number 12"),
]


@pytest.mark.parametrize(("kind", "data", "line", "says"), BYTES)
def test_bytes_that_are_no_document(
    kind: str, data: bytes, line: int, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes(data)
    problem = refused(path).problems[0]
    assert (problem.kind, problem.where and problem.where.line) == (kind, line)
    assert says in problem.message


def test_a_byte_order_mark_and_dates_without_quotes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.read_bytes())
    release = load_matrix(path, cache=False).matrix.releases[1]
    assert release.released == "2023-05-08"  # written without quotes in small.yaml


def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    error = refused(path)
    assert error.code == "matrix.alias"
    assert 100 < error.total < 200  # 99 aliases, 12 anchors and what is unknown here


def test_a_document_with_too_many_values_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text("a: [" + "[]," * (MAX_NODES + 5) + "]", encoding="utf-8")
    assert refused(path).problems[0].kind == "too-large"


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_matrix(tmp_path / name, cache=False)
    assert caught.value.code == "matrix.unreadable"


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(UsageError) as caught:
        load_matrix(path, cache=False)
    assert caught.value.code == "matrix.too-large"
    with pytest.raises(UsageError) as caught:
        load_matrix(Path("/dev/zero"), cache=False)
    assert caught.value.code == "matrix.unreadable"
    assert "is a device, not a file" in caught.value.message


def test_another_file_by_mistake_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets.yaml"
    path.write_text("password: hunter2\nhunter3: x\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_matrix(path, cache=False)
    assert caught.value.code == "matrix.not-a-matrix"
    assert "hunter" not in str(caught.value.to_dict())
