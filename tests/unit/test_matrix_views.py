"""What `list` and `show` say, how old a matrix is, and what counts as evidence."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine import PROJECT
from support.matrices import SMALL

from provisioner.cli.matrix_list import page
from provisioner.cli.matrix_show import plain_page
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
    assert highest(last.evidence) == last.level == "built"
    # a build that a filter takes away takes its cells with it
    last = rows(small, evidence=evidence, cuda="11.8")[-1]
    assert ([entry.level for entry in last.evidence], last.level) == (["locked"], "locked")
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
        ("11.8", "toolkit", "unverified", []),
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


@pytest.mark.parametrize(
    ("name", "unverified", "marked"),
    [
        ("R200", ["all", "driver_from"], ["R200 ?", "615.71.09 ?", "(all of this entry)"]),
        ("RTX 4060", ["driver_from"], ["525.78.01 ?"]),
        ("RTX A4500", ["all"], ["RTX A4500 ?"]),
        ("L4", [], ["525.105.17\n"]),
        ("11.6", ["host_compiler.glibc_breaks_from", "ptx_isa"], ["7.6 ?", "2.41 ?"]),
        ("13.5", ["forward_compat_from"], ["none known ?"]),
        ("ubuntu22.04", ["python", "gcc", "glibc", "kernel"], ["11 ?", "2.35 ?"]),
        ("driver:580", [], []),
    ],
)
def test_show_marks_each_fact_that_is_not_confirmed(
    name: str, unverified: list[str], marked: list[str], shipped: Matrix
) -> None:
    found = look_up(shipped, name)
    assert isinstance(found, Found)
    assert sorted(found.object["unverified"]) == sorted(unverified)
    lines = plain_page(found.object)
    text = "\n".join(lines)
    assert all(mark in text for mark in marked), text
    assert all(len(line) <= 80 or "https://" in line for line in lines)
    assert ("?: not confirmed at first hand" in text) == bool(
        unverified or found.object.get("torch_unverified")
    )


def test_show_tells_builds_apart_that_nobody_saw(shipped: Matrix) -> None:
    found = look_up(shipped, "A100")
    assert isinstance(found, Found)
    assert found.object["torch"][-1] == "2.15.0+cu132"
    assert "2.15.0+cu134" in found.object["torch_unverified"]  # never seen on an index
    assert "2.7.1+cu118" in found.object["torch_unverified"]  # a list of code taken over
    toolkit = look_up(shipped, "11.8")
    assert isinstance(toolkit, Found)
    assert "2.7.1+cu118" in toolkit.object["torch"]


def test_the_list_marks_what_is_not_confirmed(shipped: Matrix) -> None:
    last = rows(shipped)[-1]
    assert last.unverified == ("cu130", "cu134", "cpu")
    assert "torchaudio" in last.unconfirmed
    assert rows(shipped, torch="2.7.1")[0].unverified == ("cu118",)
    lines = page(rows(shipped))
    assert any("cu134?" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_the_shipped_cells_have_the_level_that_their_files_prove(shipped: Matrix) -> None:
    found, refused = read_evidence(PROJECT / "evidence", PROJECT / "lockfiles")
    assert refused == []
    shipped_cells = {path.parent.name for path in PROJECT.glob("docker/*/spec.json")}
    assert shipped_cells <= set(found)
    for cell in shipped_cells:
        folder = PROJECT / "lockfiles" / cell
        whole = (folder / "lock.json").exists()
        assert (found[cell].level != "documented") == whole, cell
        if found[cell].report is None:
            assert found[cell].level in {"documented", "locked"}
    assert found["torch2.0.1-cu118-py310-ubuntu22.04"].level != "documented"
    in_rows = {
        e.cell: e.level for row in rows(shipped, evidence=found.values()) for e in row.evidence
    }
    assert in_rows == {cell: entry.level for cell, entry in found.items()}


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
    of_2_1 = {"level": "built", "report": {"torch": "2.1.0+cu121"}}
    put(evidence, "a", "1.json", {"cell": "a", "level": "built", "report": {}})
    put(evidence, "a", "2.json", {"cell": "a", "level": "verified on CPU", "report": good})
    put(evidence, "b", "1.json", {"cell": "b", "level": "verified on GPU", "report": good})
    put(evidence, "c", "1.json", {"cell": "d", "level": "built", "report": {}})
    put(evidence, "e", "1.json", {"cell": "e", "level": "splendid", "report": {}})
    put(evidence, "f", "1.json", "{")
    put(evidence, "torch2.0.1-h", "1.json", {**of_2_1, "cell": "torch2.0.1-h"})
    put(evidence, "own--torch2.1.0-i", "1.json", {**of_2_1, "cell": "own--torch2.1.0-i"})
    for name in ("requirements.in", "requirements.txt", "lock.json"):
        put(locks, "b", name, "x")
        put(locks, "half", name, "x")
    put(locks, "half", "environment.yml", "x")
    put(locks, "g", "requirements.in", "torch==2.0.1")
    found, refused = read_evidence(evidence, locks)
    assert {cell: entry.level for cell, entry in found.items()} == {
        "a": "verified on CPU",
        "b": "locked",
        "g": "documented",
        "half": "documented",
        "own--torch2.1.0-i": "built",
    }
    put(locks, "half", "conda-linux-64.lock", "x")
    assert read_evidence(None, locks)[0]["half"].level == "locked"
    assert any("is a report about torch 2.1.0" in r for r in refused)
    assert found["a"].report == str(evidence / "a" / "2.json")
    assert len(refused) == 5
    assert any(
        "claims 'verified on GPU', its report proves 'verified on CPU'" in r for r in refused
    )


def test_no_evidence_at_all(tmp_path: Path) -> None:
    assert read_evidence(None, None) == ({}, [])
    assert read_evidence(tmp_path / "none", tmp_path / "none") == ({}, [])
