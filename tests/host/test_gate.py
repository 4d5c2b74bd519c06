"""The gate by table: each question asked once with the answer that refuses, once without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cells import cell_of, shipped
from support.hosts import facts_of

from provisioner.host.gate import judge, system_of
from provisioner.host.gate_driver import capabilities_of, wants_open
from provisioner.host.model import Finding, HostReport, Wish, read_report
from provisioner.matrix.hosts import host_facts
from provisioner.matrix.index import index_of

CUDA = "torch2.0.1-cu118-py310-ubuntu22.04"
GB = 10**9
DEBIAN = {"id": "debian", "version": "12", "name": "Debian GNU/Linux 12 (bookworm)"}
UBUNTU = {"id": "ubuntu", "version": "22.04", "name": "Ubuntu 22.04.5 LTS"}
GOOD: dict[str, Any] = {
    "schema": "provision.host-facts/1",
    "os": UBUNTU,
    "kernel": "5.15.0-163-generic",
    "arch": "x86_64",
    "glibc": "2.35",
    "pci": [{"address": "0000:17:00.0", "kind": "gpu", "model": "NVIDIA A100-SXM4-80GB"}],
    "driver": {"loaded": False, "packages": [], "other_sources": []},
    "gpus": [],
    "gpu_processes": [],
    "secure_boot": False,
    "held": [],
    "unattended_upgrades": {"installed": False, "enabled": False, "spared": []},
    "library_path": {"etc_environment": False},
    "disk": {"/": {"total": 900 * GB, "free": 500 * GB}, "/opt": {"total": 9, "free": 500 * GB}},
}


def findings(changed: dict[str, Any], wish: Wish | None = None, **cell: str) -> list[Finding]:
    """Findings of the good host with some facts changed, for a cell of the shipped matrix."""
    report = msgspec.convert({**GOOD, **changed}, HostReport)
    asked = {"torch": "2.0.1", "cuda": "11.8", **cell}
    found, _ = cell_of(**asked)
    return judge(report, found, index_of(shipped()), host_facts(), wish or Wish())


def gpu(model: str) -> dict[str, Any]:
    return {"pci": [{"address": "0000:17:00.0", "kind": "gpu", "model": model}]}


def driver(loaded: str | None, installed: str | None, **more: Any) -> dict[str, Any]:
    packages = [{"name": "nvidia-utils-535-server", "version": installed}] if installed else []
    return {"driver": {"loaded": loaded or False, "packages": packages, **more}}


def test_nothing_speaks_against_a_good_host() -> None:
    assert findings({}) == []


KEEP = Wish(keep_driver=True)
BLACKWELL = {"torch": "2.7.1", "cuda": "12.8"}
CASES: list[tuple[str, str, dict[str, Any], Wish, dict[str, str]]] = [
    # id, severity, facts that differ from the good host, wish, cell
    ("os.unlisted", "refuse", {"os": {"id": "arch", "version": "1"}}, Wish(), {}),
    ("os.unlisted", "refuse", {"os": None}, Wish(), {}),
    ("os.unmanaged", "refuse", {"os": {"id": "rocky", "version": "8.10"}}, Wish(), {}),
    ("os.other", "note", {"os": DEBIAN}, Wish(), {}),
    (
        "os.other",
        "refuse",
        {"os": DEBIAN},
        Wish(),
        {"python_from": "base", "os": "ubuntu22.04", "python": "3.10"},
    ),
    ("kernel.older", "warn", {"kernel": "5.4.0-42-generic"}, Wish(), {}),
    ("arch.other", "refuse", {"arch": "aarch64"}, Wish(), {}),
    ("arch.other", "refuse", {"arch": None}, Wish(), {}),
    ("glibc.older", "refuse", {"glibc": "2.12"}, Wish(), {}),
    ("glibc.older", "refuse", {"glibc": None}, Wish(), {}),
    ("disk.environment", "refuse", {"disk": {"/opt": {"total": 9, "free": GB}}}, Wish(), {}),
    ("disk.driver", "warn", {"disk": {"/": None}}, Wish(), {}),
    (
        "library-path.set",
        "warn",
        {"library_path": {"etc_environment": "/usr/local/cuda/lib64"}},
        Wish(),
        {},
    ),
    ("gpu.none", "refuse", {"pci": []}, Wish(), {}),
    ("gpu.none", "note", {"pci": []}, Wish(lab=True), {}),
    ("gpu.unknown", "warn", {"pci": None}, Wish(), {}),
    ("gpu.unlisted", "warn", gpu("Frobnicator 9000"), Wish(), {}),
    ("gpu.no-code", "refuse", gpu("Tesla B200"), Wish(), {}),
    ("driver.branch-too-new", "refuse", gpu("Tesla V100"), Wish(branch=590), {}),
    ("driver.branch-too-old", "refuse", gpu("B200"), Wish(branch=535), BLACKWELL),
    ("driver.modules", "refuse", gpu("B200"), Wish(branch=470), BLACKWELL),
    ("driver.modules", "refuse", gpu("V100"), Wish(branch=620), {}),
    ("driver.branch-unknown", "refuse", {}, Wish(branch=7), {}),
    ("driver.no-source", "refuse", {}, Wish(branch=550), {}),
    ("driver.not-loaded", "refuse", {}, KEEP, {}),
    ("driver.reboot-needed", "warn", driver("535.288.01", "535.309.01-0ubuntu1"), Wish(), {}),
    ("driver.reboot-needed", "refuse", driver("535.288.01", "535.309.01-0ubuntu1"), KEEP, {}),
    ("driver.below-run-floor", "warn", driver("440.33.01", None), Wish(), {}),
    ("driver.below-run-floor", "refuse", driver("440.33.01", None), KEEP, {}),
    ("driver.below-compile-floor", "refuse", driver("470.256.02", None), KEEP, {}),
    (
        "driver.run-file",
        "refuse",
        driver("580.95.05", None, other_sources=["/usr/bin/nvidia-uninstall"]),
        Wish(),
        {},
    ),
    (
        "driver.run-file",
        "warn",
        driver(None, None, other_sources=["/var/log/nvidia-installer.log"]),
        Wish(),
        {},
    ),
    (
        "driver.held",
        "refuse",
        {**driver("535.288.01", "535.288.01-0ubuntu1"), "held": ["nvidia-utils-535-server"]},
        Wish(),
        {},
    ),
    (
        "driver.held",
        "note",
        {**driver("535.288.01", "535.288.01-0ubuntu1"), "held": ["nvidia-utils-535-server"]},
        Wish(change_branch=True),
        {},
    ),
    (
        "driver.branch-installed",
        "refuse",
        driver("535.288.01", "535.288.01-0ubuntu1"),
        Wish(),
        {},
    ),
    ("driver.branch-ended", "refuse", {}, Wish(branch=535), {}),
    ("driver.branch-ended", "warn", {}, Wish(branch=535, ended_branch=True), {}),
    ("disk.driver", "refuse", {"disk": {"/": {"total": 9, "free": GB}}}, Wish(), {}),
    ("disk.toolkit", "refuse", {"disk": {"/": {"total": 9, "free": 3 * GB}}}, Wish(), {}),
    ("secure-boot.unsigned", "refuse", {"os": DEBIAN, "secure_boot": True}, Wish(), {}),
    ("secure-boot.unsigned", "warn", {"os": DEBIAN, "secure_boot": None}, Wish(), {}),
    ("gpu.busy", "refuse", {"gpu_processes": [{"pid": "4711"}]}, Wish(), {}),
    ("gpu.use-unknown", "warn", {"gpu_processes": None}, Wish(), {}),
    (
        "upgrades.unattended",
        "note",
        {"unattended_upgrades": {"installed": True, "enabled": True, "spared": ["linux-"]}},
        Wish(),
        {},
    ),
    (
        "toolkit.none",
        "refuse",
        {"os": {"id": "debian", "version": "13"}, "kernel": "6.12.1"},
        Wish(),
        {},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "severity", "facts", "wish", "cell"), CASES)
def test_one_finding(
    code: str, severity: str, facts: dict[str, Any], wish: Wish, cell: dict[str, str]
) -> None:
    found = {finding.id: finding for finding in findings(facts, wish, **cell)}
    assert code in found, list(found)
    assert found[code].severity == severity
    assert found[code].have
    assert found[code].need
    assert found[code].remedy


SPARED: list[tuple[str, dict[str, Any], Wish]] = [
    # Signed modules of the archive load under Secure Boot.
    ("secure-boot.unsigned", {"secure_boot": True}, Wish()),
    # A module from packages that runs shows that its key is enrolled.
    (
        "secure-boot.unsigned",
        {"os": DEBIAN, "secure_boot": True, **driver("580.95.05", "580.95.05-1")},
        Wish(),
    ),
    # Nothing is going to be changed.
    ("gpu.busy", {"gpu_processes": [{"pid": "4711"}]}, KEEP),
    (
        "gpu.busy",
        {"gpu_processes": [{"pid": "1"}], **driver("580.95.05", "580.95.05-0ubuntu1")},
        Wish(),
    ),
    ("toolkit.none", {"os": {"id": "debian", "version": "13"}}, Wish(toolkit=False)),
    ("disk.toolkit", {"disk": {"/": {"total": 9, "free": 3 * GB}}}, Wish(toolkit=False)),
    # What is installed has its room already.
    (
        "disk.driver",
        {"disk": {"/": {"total": 9, "free": 1}}, **driver("580.95.05", "580.95.05-0ubuntu1")},
        Wish(),
    ),
    (
        "disk.toolkit",
        {"disk": {"/": {"total": 9, "free": 1}}, "cuda_toolkits": ["/usr/local/cuda-11.8"]},
        Wish(),
    ),
    (
        "disk.toolkit",
        {"disk": {"/": {"total": 9, "free": 1}}, "nvcc": {"present": True, "version": "11.8.89"}},
        Wish(),
    ),
    ("disk.environment", {"disk": {"/opt": {"total": 9, "free": 1}}}, Wish(settled=True)),
    ("driver.branch-ended", {}, Wish()),
    (
        "driver.branch-installed",
        driver("535.288.01", "535.288.01-0ubuntu1"),
        Wish(change_branch=True),
    ),
    ("driver.branch-too-new", gpu("Tesla V100"), Wish()),
    (
        "driver.held",
        {**driver("580.95.05", "580.95.05-1"), "held": ["nvidia-utils-535-server"]},
        Wish(),
    ),
]


@pytest.mark.parametrize(("code", "facts", "wish"), SPARED)
def test_no_finding(code: str, facts: dict[str, Any], wish: Wish) -> None:
    assert code not in [finding.id for finding in findings(facts, wish)]


def test_refusals_come_first_and_findings_name_their_source() -> None:
    found = findings({"pci": [], "kernel": "5.4.0", "os": {"id": "rocky", "version": "8.10"}})
    order = [finding.severity for finding in found]
    assert order == sorted(order, key=["refuse", "warn", "note"].index)
    unmanaged = next(finding for finding in found if finding.id == "os.unmanaged")
    assert unmanaged.source
    assert "3.6" in unmanaged.reason


@pytest.mark.parametrize(
    ("model", "branch", "wanted"),
    [("Tesla V100", 580, False), ("A100", 580, False), ("B200", 580, True), ("A100", 620, True)],
)
def test_open_modules_only_where_they_are_demanded(model: str, branch: int, wanted: bool) -> None:
    index = index_of(shipped())
    report = msgspec.convert({**GOOD, **gpu(model)}, HostReport)
    known, _ = capabilities_of(report, index)
    fact = next(b for b in index.branches if b.branch == branch)
    assert wants_open(known, fact) is wanted


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"id": "rocky", "version": "9.6"}, "el9"),
        ({"id": "debian", "version": "12"}, "debian12"),
        ({"id": "ubuntu", "version": "24.04"}, "ubuntu24.04"),
        ({"id": "linuxmint", "version": "22.04"}, None),
    ],
)
def test_the_system_is_found_by_id_and_version(told: dict[str, str], wanted: str | None) -> None:
    report = msgspec.convert({**GOOD, "os": told}, HostReport)
    system = system_of(report, index_of(shipped()), host_facts())
    assert (system.id if system else None) == wanted


def test_recorded_hosts_pass_from_reader_to_gate(tmp_path: Path) -> None:
    """What the reader prints is what the gate reads, without a field getting lost."""
    raw = json.dumps(facts_of("ubuntu22.04-a100-535", tmp_path)).encode()
    cell, _ = cell_of(torch="2.0.1", cuda="11.8")
    found = judge(read_report(raw, "x"), cell, index_of(shipped()), host_facts(), Wish())
    assert {f.id for f in found} >= {
        "driver.held", "driver.reboot-needed", "gpu.busy", "library-path.set",
        "upgrades.unattended",
    }  # fmt: skip


# --- the command ---


def run(*arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "provisioner", "host", *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False)


def test_the_command_refuses_with_status_1_and_passes_with_0() -> None:
    good = json.dumps(GOOD).encode()
    passed = run("gate", "--cell", CUDA, "--facts", "-", "--json", given=good)
    assert passed.returncode == 0, passed.stderr
    answer = json.loads(passed.stdout)
    assert answer["schema"] == "provision.host-gate/1"
    assert answer["driver"] == {
        "branch": 580,
        "open": False,
        "gpu": True,
        "nvswitch": False,
    }
    assert answer["os"] == "ubuntu22.04"
    refused = run("gate", "--cell", CUDA, "--facts", "-", "--branch", "7", given=good)
    assert refused.returncode == 1
    assert b"driver.branch-unknown" in refused.stdout
    assert max(len(line) for line in refused.stdout.decode().splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "given", "status", "code"),
    [
        (("--cell", CUDA, "--facts", "-"), b"{}", 2, b"host.bad-facts"),
        (("--cell", CUDA, "--facts", "-"), b"\xff\x00", 2, b"host.bad-facts"),
        (("--cell", CUDA, "--facts", "/nonexistent/facts"), b"", 4, b"host.facts-unreadable"),
        (("--cell", "torch9", "--facts", "-"), b"{}", 2, b"cell.not-rendered"),
        (("--cell", "../../x", "--facts", "-"), b"{}", 2, b"cell.not-rendered"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], given: bytes, status: int, code: bytes
) -> None:
    done = run("gate", *arguments, given=given)
    assert done.returncode == status
    assert code in done.stderr
    assert b"Traceback" not in done.stderr


def test_this_host_is_read_for_people_and_for_programs() -> None:
    told = run("facts", "--json")
    assert told.returncode == 0
    assert json.loads(told.stdout)["schema"] == "provision.host-facts/1"
    shown = run("facts")
    assert shown.returncode == 0
    assert b"kernel: " in shown.stdout
