"""Reports in evidence/ judged the code and lock that are here, and claim what they prove."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.engine import PROJECT

from provisioner.matrix.evidence import proved, read_evidence
from provisioner.verify.report import parse_report

EVIDENCE = PROJECT / "evidence"
FILES = [
    path
    for path in sorted(EVIDENCE.glob("*/*.json"))
    if json.loads(path.read_bytes()).get("schema") != "provision.ptxas-evidence/1"
]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_there_is_evidence_from_both_devices() -> None:
    assert {document(path)["report"]["device"] for path in FILES} == {"cpu", "cuda"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_evidence_is_not_stale(path: Path) -> None:
    """After a change of the probe or of a lock: make acceptance, tools/gpu_evidence.sh on a GPU."""
    found = document(path)
    report = parse_report(json.dumps(found["report"]).encode(), str(path))
    code = sha256(PROJECT / "provisioner" / "verify" / "probe.py")
    assert found["code"] == code == report.details.probe_sha256, "judged by another probe.py"
    if "cell" in found:
        lock = PROJECT / "lockfiles" / found["cell"] / "lock.json"
        assert found["lock"] == sha256(lock), "judged another lock"
        assert report.details.expect["name"] == found["cell"]
        assert found["level"] == proved(found["report"])


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_no_place_of_a_machine_is_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"{PROJECT}/" not in text
    assert "/root/" not in text


def test_all_of_it_can_be_read() -> None:
    _, refused = read_evidence(EVIDENCE, PROJECT / "lockfiles")
    assert refused == []
