"""What `provision verify --compare` calls worse."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from probe_facts import compiler, cpu_cell, cuda_cell

from provisioner.cli.main import run
from provisioner.verify import probe
from provisioner.verify.compare import VERDICTS, compare
from provisioner.verify.report import Report, parse_report

STAGES = probe.STAGES


def document(seen: dict[str, Any]) -> dict[str, Any]:
    """A report of the probe on some facts."""
    results = [pair for stage in STAGES for pair in probe.judge_stage(seen, stage)]
    made: dict[str, Any] = json.loads(json.dumps(probe.build_report(seen, results)))
    return made


def report(made: dict[str, Any]) -> Report:
    return parse_report(json.dumps(made).encode(), "test")


def worse(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [item.what for item in compare(report(old), report(new)) if item.kind == "worse"]


@pytest.fixture
def good() -> dict[str, Any]:
    made = document(cpu_cell())
    assert made["verdict"] == "verified"
    made["details"]["timing"] |= {"cold": {"wall_s": 20.0}, "warm": {"wall_s": 5.0}}
    made["speed"] = {"resnet18": {"speedup": 2.0}}
    return made


def test_the_same_report_twice_is_no_difference(good: dict[str, Any]) -> None:
    assert compare(report(good), report(good)) == []


def test_a_failed_verification_is_named_by_what_decided_it(good: dict[str, Any]) -> None:
    bad = document(cpu_cell(cxx=compiler(problem="missing")))
    assert worse(good, bad) == ["verdict", "check cxx"]
    assert worse(bad, good) == []
    assert "better" in {item.kind for item in compare(report(bad), report(good))}


def test_every_verdict_has_its_rank(good: dict[str, Any]) -> None:
    for low, high in itertools.pairwise(VERDICTS):
        old, new = ({**copy.deepcopy(good), "verdict": verdict} for verdict in (high, low))
        assert "verdict" in worse(old, new)
        assert "verdict" not in worse(new, old)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"timing": {"cold": {"wall_s": 30.0}}}, "cold compile"),
        ({"timing": {"warm": {"wall_s": 9.0}}}, "warm compile"),
        ({"speed": {"resnet18": {"speedup": 1.5}}}, "speed-up of resnet18"),
        ({"speed": {}}, "speed-up of resnet18"),
        ({"warn": "user-cache"}, "check user-cache"),
        ({"drop": "numerics"}, "check numerics"),
    ],
)
def test_what_is_worse_in_a_report_that_still_passes(
    good: dict[str, Any], change: dict[str, Any], what: str
) -> None:
    new = copy.deepcopy(good)
    new["details"]["timing"] |= change.get("timing", {})
    new["speed"] = change.get("speed", new["speed"])
    for check in new["checks"]:
        if check["id"] == change.get("warn"):
            check["status"] = "warn"
    new["checks"] = [check for check in new["checks"] if check["id"] != change.get("drop")]
    assert worse(good, new) == [what]


def test_two_runs_of_one_machine_may_differ_a_little(good: dict[str, Any]) -> None:
    new = copy.deepcopy(good)
    new["details"]["timing"] |= {"cold": {"wall_s": 24.0}, "warm": {"wall_s": 6.9}}
    new["speed"] = {"resnet18": {"speedup": 1.9}}
    assert worse(good, new) == []


def test_another_device_makes_other_checks_and_that_is_not_worse(good: dict[str, Any]) -> None:
    gpu = document(cuda_cell())
    found = {item.what: item.kind for item in compare(report(good), report(gpu))}
    assert found["device"] == "other"
    assert "worse" not in found.values()


def test_the_command_is_a_gate(
    good: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(good), encoding="utf-8")
    new.write_text(json.dumps(document(cpu_cell(cxx=compiler(problem="missing")))), "utf-8")
    assert run(["verify", "--compare", str(old), str(old)]) == 0
    assert "Nothing became worse" in capsys.readouterr().out
    assert run(["verify", "--compare", str(old), str(new)]) == 1
    told = capsys.readouterr().out
    assert "WORSE verdict: verified -> failed" in told
    assert max(map(len, told.splitlines()[:-1])) <= 80
    assert run(["verify", "--compare", str(old), str(new), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "provision.verify-compare/1"
    assert shown["worse"] == 2
    assert run(["verify", "--compare", str(old), str(tmp_path / "none")]) == 2
