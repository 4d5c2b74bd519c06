"""What `list` and `show` say, how old a matrix is, and what counts as evidence."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.matrices import SMALL

from provisioner.errors import UsageError
from provisioner.matrix.age import age_days, age_warning
from provisioner.matrix.cell import Refusal
from provisioner.matrix.evidence import LEVELS, Evidence, highest, proved, read_evidence
from provisioner.matrix.listing import rows
from provisioner.matrix.load import load_matrix
from provisioner.matrix.model import Matrix
from provisioner.matrix.show import Found, look_up


@pytest.fixture(scope="module")
def small() -> Matrix:
    return load_matrix(SMALL, cache=False).matrix


@pytest.fixture(scope="module")
def shipped() -> Matrix:
    return load_matrix(cache=False).matrix


FILTERS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, [("1.13.1", "cu117 cpu"), ("2.0.1", "cu117 cu118 cpu")]),
    ({"torch": "2.0.1"}, [("2.0.1", "cu117 cu118 cpu")]),
    ({"torch": "<2"}, [("1.13.1", "cu117 cpu")]),
    ({"cuda": "11.8"}, [("2.0.1", "cu118")]),
    ({"cuda": "cu117"}, [("1.13.1", "cu117"), ("2.0.1", "cu117")]),
    ({"cuda": "cpu", "torch": ">=2"}, [("2.0.1", "cpu")]),
    ({"gpus": ["9.0"]}, [("2.0.1", "cu118")]),
    ({"gpus": ["V100", "9.0"]}, [("2.0.1", "cu118")]),
    ({"torch": ">=3"}, []),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_the_list_and_its_filters(
    filters: dict[str, Any], expected: list[tuple[str, str]], small: Matrix
) -> None:
    found = rows(small, **filters)
    assert [(row.torch, " ".join(row.variants)) for row in found] == expected


@pytest.mark.parametrize("filters", [{"torch": ">=2.x"}, {"gpus": ["Voodoo 2"]}])
def test_a_filter_that_makes_no_sense(filters: dict[str, Any], small: Matrix) -> None:
    with pytest.raises(UsageError):
        rows(small, **filters)


def test_a_row_has_the_evidence_of_its_own_cells(small: Matrix) -> None:
    evidence = [
        Evidence(cell="torch2.0.1-cu118-py310-ubuntu22.04", level="locked"),
        Evidence(cell="mine--torch2.0.1-cpu-py310-ubuntu22.04", level="built", report="r"),
        Evidence(cell="torch2.0.10-cpu-py310-ubuntu22.04", level="verified on CPU", report="r"),
    ]
    last = rows(small, evidence=evidence)[-1]
    assert [entry.level for entry in last.evidence] == ["locked", "built"]
    assert highest(last.evidence) == "built"
    assert highest([]) == "documented"


def test_show_a_release_has_what_scripts_are_promised(shipped: Matrix) -> None:
    found = look_up(shipped, "2.0.1")
    assert isinstance(found, Found)
    promised = {
        "torch": "2.0.1",
        "torchvision": "0.15.2",
        "torchaudio": "2.0.2",
        "triton": "2.0.0",
        "python": ["3.8", "3.9", "3.10", "3.11"],
        "compile_python_max": "3.10",
        "variants": ["cu117", "cu118", "cpu"],
    }
    assert promised.items() <= found.object.items()
    assert [build["tag"] for build in found.object["builds"]] == promised["variants"]


def test_show_marks_what_nobody_confirmed(shipped: Matrix) -> None:
    found = look_up(shipped, "2.15.0")
    assert isinstance(found, Found)
    assert "cu134 (published: unknown)" in found.object["unverified"]
    assert "torchaudio" in found.object["unverified"]


@pytest.mark.parametrize(
    ("name", "kind", "key", "value"),
    [
        ("2.0.1+cu118", "torch", "torch", "2.0.1"),
        ("11.8", "toolkit", "run_floor", "450.80.02"),
        ("11.8.0", "toolkit", "series", "11.8"),
        ("A100", "gpu", "capability", "8.0"),
        ("V100", "gpu", "name", "Tesla V100"),
        ("8.0", "gpu", "family", "ampere"),
        ("gpu:9.0", "gpu", "torch", ["2.0.1+cu118"]),
        ("driver:535", "driver", "kind", "lts"),
        ("driver:535.104.05", "driver", "branch", 535),
        ("535", "driver", "branch", 535),
        ("ubuntu22.04", "os", "glibc", "2.35"),
    ],
)
def test_show_finds_other_things(
    name: str, kind: str, key: str, value: object, small: Matrix
) -> None:
    found = look_up(small, name)
    assert isinstance(found, Found)
    assert (found.kind, found.object[key]) == (kind, value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("2.3.9", ["2.3.1", "2.3.0", "2.4.0"]),
        ("9.9.9", ["2.15.0", "2.14.1", "2.14.0"]),
        ("1.0.0", ["1.13.0", "1.13.1", "2.0.0"]),
        ("H10", ["H100"]),
        ("driver:536", ["driver:535"]),
        ("gpu:2.0.1", []),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    name: str, nearest: list[str], shipped: Matrix
) -> None:
    refusal = look_up(shipped, name)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "matrix.unknown-name"
    assert [near.name for near in refusal.nearest][: len(nearest)] == nearest
    for near in refusal.nearest:
        assert isinstance(look_up(shipped, near.options[0]), Found)


def test_age_is_counted_from_the_matrix_and_told_when_it_matters(small: Matrix) -> None:
    meta = small.meta  # as of 2026-11-30, warns after 90 days
    assert age_days(meta, "2026-12-10") == 10
    assert age_days(meta, "2020-01-01") == 0
    assert age_warning(meta, "2027-02-28") is None
    told = age_warning(meta, "2027-03-01")
    assert told is not None
    assert "91 days old (as of 2026-11-30)" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("report", "level"),
    [
        ({"verdict": "verified", "device": "cuda"}, "verified on GPU"),
        ({"verdict": "verified", "device": "cpu"}, "verified on CPU"),
        ({"verdict": "cpu-verified-cuda-deferred", "device": "cpu"}, "verified on CPU"),
        ({"verdict": "failed", "device": "cuda"}, "built"),
        ({"verdict": "eager-as-declared", "device": "cpu"}, "built"),
        ({}, "built"),
    ],
)
def test_a_report_proves_no_more_than_it_says(report: dict[str, str], level: str) -> None:
    assert proved(report) == level
    assert level in LEVELS


def put(folder: Path, cell: str, name: str, content: object) -> None:
    (folder / cell).mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / cell / name).write_text(text, encoding="utf-8")


def test_the_highest_evidence_counts_and_a_false_claim_does_not(tmp_path: Path) -> None:
    evidence, locks = tmp_path / "evidence", tmp_path / "lockfiles"
    good = {"verdict": "verified", "device": "cpu"}
    put(evidence, "a", "1.json", {"cell": "a", "level": "built", "report": {}})
    put(evidence, "a", "2.json", {"cell": "a", "level": "verified on CPU", "report": good})
    put(evidence, "b", "1.json", {"cell": "b", "level": "verified on GPU", "report": good})
    put(evidence, "c", "1.json", {"cell": "d", "level": "built", "report": {}})
    put(evidence, "e", "1.json", {"cell": "e", "level": "splendid", "report": {}})
    put(evidence, "f", "1.json", "{")
    put(locks, "b", "requirements.txt", "torch==2.0.1")
    put(locks, "g", "requirements.in", "torch==2.0.1")
    found, refused = read_evidence(evidence, locks)
    assert {cell: entry.level for cell, entry in found.items()} == {
        "a": "verified on CPU",
        "b": "locked",
    }
    assert found["a"].report == str(evidence / "a" / "2.json")
    assert len(refused) == 4
    assert any(
        "claims 'verified on GPU', its report proves 'verified on CPU'" in r for r in refused
    )


def test_no_evidence_at_all(tmp_path: Path) -> None:
    assert read_evidence(None, None) == ({}, [])
    assert read_evidence(tmp_path / "none", tmp_path / "none") == ({}, [])
