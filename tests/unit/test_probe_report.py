"""The report: its contract, its schema, its text for people, its file, its exit status."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from probe_facts import Seen, compiler, cpu_cell, cuda_cell, folder
from support.pythons import interpreter

from provisioner.errors import Exit, FindingError, OutsideError
from provisioner.verify import probe, report

PROBE = Path(probe.__file__)
ROOT = Path(__file__).resolve().parents[2]
STAGES = probe.STAGES


def reported(seen: Seen) -> dict[str, Any]:
    """The report of the probe on some facts, as it is written to a file."""
    if seen["found"] is None:
        results = probe.judge_everything(seen, probe.Options(), None)
    else:
        results = [pair for stage in STAGES for pair in probe.judge_stage(seen, stage)]
    document: dict[str, Any] = json.loads(json.dumps(probe.build_report(seen, results)))
    return document


def no_compiler(**changes: Any) -> Seen:
    """A CPU cell without a C++ compiler and with a cache that only warns."""
    return cpu_cell(cxx=compiler(problem="missing"), user_cache=folder(noexec=True), **changes)


def without_torch() -> Seen:
    """What is known where the first facts end it all."""
    seen = cpu_cell(found=None, version="", dists=[], look={}, children={}, files={})
    return seen | {"cxx": None, "headers": None, "constant": None}


def test_the_reports_contract() -> None:
    document = reported(cuda_cell())
    assert list(document) == [
        "schema",
        "verdict",
        "torch",
        "cuda",
        "device",
        "checks",
        "artefacts",
        "speed",
        "details",
    ]
    assert (document["schema"], document["verdict"]) == ("provision.report/1", "verified")
    assert (document["torch"], document["cuda"], document["device"]) == (
        "2.11.0+cu130",
        "13.0",
        "cuda",
    )
    assert [check["id"] for check in document["checks"]] == [c.id for c in probe.CHECKS]
    assert set(document["checks"][0]) == {"id", "status", "seconds", "detail", "remedy"}
    assert document["artefacts"] == {"isa_probe_so": 1, "kernel_so": 1}


def test_details_tell_what_decided_and_what_was_skipped() -> None:
    details = reported(no_compiler(promised="cuda", cc=compiler()))["details"]
    assert details["exit_code"] == 10
    assert details["verified"] is False
    assert [reason.split(":")[0] for reason in details["reasons"]] == ["cxx"]
    assert [warning.split(":")[0] for warning in details["warnings"]] == ["user-cache"]
    skipped = {entry["check"] for entry in details["skipped"]}
    assert {"cubin", "launched", "cuda"} <= skipped
    assert re.fullmatch("[0-9a-f]{64}", details["probe_sha256"])


@pytest.mark.parametrize("seen", [cpu_cell(), cuda_cell(), no_compiler(), without_torch()])
def test_every_report_fits_the_model_and_the_schema(seen: Seen) -> None:
    document = reported(seen)
    jsonschema.validate(document, report.json_schema())
    model = report.parse_report(json.dumps(document).encode(), "here")
    assert model.verdict == document["verdict"]
    declared = {field.name for field in msgspec.structs.fields(report.Details)}
    assert declared == set(document["details"])


def test_the_schema_file_is_what_the_model_says() -> None:
    assert report.SCHEMA_FILE.read_text(encoding="utf-8") == report.schema_text(), (
        "run: python -m provisioner.verify.report > provisioner/verify/report.schema.json"
    )
    assert report.REPORT_SCHEMA == probe.SCHEMA


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "provision.report/2"},
        {"verdict": "passed"},
        {"surprise": 1},
        {"checks": [{"id": "cxx"}]},
        {"details": {}},
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    raw = json.dumps(reported(cpu_cell()) | change).encode()
    with pytest.raises(FindingError, match=r"report\.json is no verification report") as caught:
        report.parse_report(raw, "report.json")
    assert caught.value.code == "report.invalid"


def test_details_of_a_newer_probe_are_let_through() -> None:
    document = reported(cpu_cell())
    document["details"]["something_new"] = {"a": 1}
    assert report.parse_report(json.dumps(document).encode(), "here").details.verified


def test_a_report_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    probe.write_report(reported(no_compiler()), str(path))
    assert [check.id for check in report.load_report(path).failures()] == ["cxx"]
    with pytest.raises(OutsideError) as caught:
        report.load_report(tmp_path / "none.json")
    assert caught.value.code == "report.unreadable"


@pytest.mark.parametrize(
    ("code", "verdict", "status"),
    [
        (0, "verified", Exit.DONE),
        (0, "cpu-verified-cuda-deferred", Exit.DONE),
        (3, "eager-as-declared", Exit.DONE),
        (3, "failed", Exit.FINDING),
        (3, "unjudged", Exit.FINDING),
        (4, "failed", Exit.FINDING),
        (5, "failed", Exit.FINDING),
        (10, "failed", Exit.FINDING),
        (11, "failed", Exit.FINDING),
        (12, "failed", Exit.FINDING),
        (13, "failed", Exit.FINDING),
        (20, "failed", Exit.FINDING),
        (21, "unjudged", Exit.OUTSIDE),
    ],
)
def test_exit_codes_of_the_probe_in_the_tools_table(code: int, verdict: str, status: Exit) -> None:
    document = reported(cpu_cell()) | {"verdict": verdict}
    document["details"]["exit_code"] = code
    assert report.exit_status(report.parse_report(json.dumps(document).encode(), "x")) == status


def test_people_read_the_deciding_check_and_its_remedy_first() -> None:
    env = {"TORCHDYNAMO_SUPPRESS_ERRORS": "1"}
    lines = probe.summarise(reported(no_compiler(env=env))).splitlines()
    assert lines[0].startswith("FAILED cxx: No C++ compiler")
    assert any(line.startswith("  remedy: Install a working C++ compiler") for line in lines)
    assert any("user-cache (warn)" in line for line in lines)
    assert sum(line.startswith("FAILED") for line in lines) == 1
    assert max(map(len, lines)) <= 80


def test_people_read_warnings_of_a_verified_cell() -> None:
    lines = probe.summarise(reported(cpu_cell(user_cache=folder(noexec=True)))).splitlines()
    assert lines[0].startswith("warning user-cache: ")
    assert "verdict: verified (exit code 0)" in lines
    assert max(map(len, lines)) <= 80


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        probe.write_report({"bad": object()}, str(path))
    assert path.read_text() == "old"
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(probe.UsageError, match="cannot write"):
        probe.write_report({}, str(target))
    assert list(target.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "report.json"]


def run_probe(python: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the probe with an interpreter that sees no torch."""
    return subprocess.run(
        [python, "-I", str(PROBE), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]} | env,
        check=False,
    )


@pytest.mark.parametrize("minor", range(8, 16))
def test_runs_on_each_python_that_is_here(minor: int, tmp_path: Path) -> None:
    """Without torch the parent does all its own work and says that torch is missing."""
    python = interpreter(f"python3.{minor}")
    if python is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    path = tmp_path / "report.json"
    done = run_probe(python, "--report", str(path), "--expect", '{"torch": "2.0.1"}')
    assert done.returncode == 20, done.stderr
    assert done.stdout.startswith("FAILED torch: torch is not installed")
    assert report.load_report(path).details.python.startswith(f"3.{minor}.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expect", "{"], "is not JSON"),
        (["--report", "/no/such/folder/report.json"], "no such folder"),
        (["--expect", '{"a":' + "[" * 40_000], "is not JSON"),
        (["--report", "/proc/report.json"], "cannot write"),
        (["--report", "/tmp"], "is a folder"),
        (["--timeout", "0"], "--timeout takes"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what(arguments: list[str], words: str) -> None:
    done = run_probe(sys.executable, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_probe_is_cheap_and_brings_no_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import provisioner.verify.probe; "
        "print(time.perf_counter() - start, sorted(m for m in sys.modules if m in "
        "('torch', 'json', 'subprocess', 'msgspec', 'argparse')))"
    )
    best = 9.0
    for _ in range(5):  # the first one may have to compile the file
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
        )
        seconds, _, modules = done.stdout.strip().partition(" ")
        assert modules == "[]"
        best = min(best, float(seconds))
    assert best < 0.030


def test_python_ceilings_are_those_of_the_matrix() -> None:
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    ceilings = {r["torch"]: r["compile"]["python_max"] for r in matrix["releases"]}
    for version, ceiling in ceilings.items():
        newest = probe.newest_python(version)
        assert (f"{newest[0]}.{newest[1]}" if newest else None) == ceiling, version
