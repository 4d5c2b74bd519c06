"""Two hosts compared: what differs, and how dangerous it is."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.hosts import facts_of

from doctor.conditions import GOOD, changed_facts, dist
from provisioner.cli.main import cli
from provisioner.host.compare import LEVELS, compare


def levels(changed: dict[str, Any]) -> dict[str, str]:
    return {item.path: item.level for item in compare(GOOD, changed_facts(changed))}


def test_a_host_does_not_differ_from_itself() -> None:
    assert compare(GOOD, copy.deepcopy(GOOD)) == []


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("driver.loaded", "breaks", {"driver.loaded": "580.95.05"}),
    ("driver.modules", "breaks", {"driver.modules": "open"}),
    ("glibc", "breaks", {"glibc": "2.39"}),
    ("secure_boot", "breaks", {"secure_boot": True}),
    ("environment.torch.version", "breaks", {"environment.torch.version": "2.1.0+cu118"}),
    ("environment.python.version", "breaks", {"environment.python.version": "3.11.2"}),
    (
        "environment.variables.TORCHDYNAMO_DISABLE",
        "breaks",
        {"environment.variables.TORCHDYNAMO_DISABLE": "1"},
    ),
    (
        "environment.compilers.cxx.problem",
        "breaks",
        {"environment.compilers.cxx.problem": "fails"},
    ),
    ("environment.cache.noexec", "breaks", {"environment.cache.noexec": True}),
    ("kernel", "may-break", {"kernel": "5.15.0-91-generic"}),
    ("held", "may-break", {"held": ["libc6"]}),
    ("unattended_upgrades.enabled", "may-break", {"unattended_upgrades.enabled": True}),
    ("environment.cpu.flags", "may-break", {"environment.cpu.flags": ["avx", "avx2"]}),
    ("persistenced", "other", {"persistenced": False}),
    ("glibc", "unknown", {"glibc": None}),
]


@pytest.mark.parametrize(("path", "level", "changed"), CASES, ids=lambda c: str(c)[:40])
def test_a_difference_has_the_level_of_what_it_can_break(
    path: str, level: str, changed: dict[str, Any]
) -> None:
    assert levels(changed) == {path: level}


def test_what_changes_by_itself_is_no_difference() -> None:
    changed = {
        "environment.cache.free": 1,
        "environment.traced_by": 7,
        "unreadable": ["x"],
        "gpu_processes": [{"pid": "1"}],
        "disk": {"/": {"total": 5, "free": 1}},
    }
    other = changed_facts({**changed, "disk": {"/": {"total": 5, "free": 2}}})
    assert compare(changed_facts(changed), other) == []


def test_packages_are_compared_by_name_whatever_their_order() -> None:
    rows = GOOD["environment"]["distributions"]
    assert levels({"environment.distributions": list(reversed(rows))}) == {}
    without = [row for row in rows if row["name"] != "setuptools"]
    changed = {"environment.distributions": [*without, dist("mkl", "2024.1")]}
    assert levels(changed) == {
        "environment.distributions[mkl]": "may-break",
        "environment.distributions[setuptools]": "may-break",
    }
    newer = [dict(row, version="9") if row["name"] == "numpy" else row for row in rows]
    assert levels({"environment.distributions": newer}) == {
        "environment.distributions[numpy].version": "breaks"
    }


def test_one_gpu_less_is_seen_among_equal_ones() -> None:
    row = {"name": "NVIDIA A100", "compute_cap": "8.0", "uuid": "GPU-1", "index": "0"}
    four = changed_facts({"gpus": [dict(row, uuid=f"GPU-{n}") for n in range(4)]})
    three = changed_facts({"gpus": [dict(row, uuid=f"GPU-{n}") for n in range(5, 8)]})
    assert [item.path for item in compare(four, three)] == ["gpus[NVIDIA A100#4]"]


def test_the_most_dangerous_comes_first() -> None:
    changed = {"persistenced": False, "kernel": "6.8", "driver.loaded": "580.95.05", "glibc": None}
    found = [item.level for item in compare(GOOD, changed_facts(changed))]
    assert found == list(LEVELS)


def test_an_older_reader_tells_less_and_that_is_unknown() -> None:
    older = {key: value for key, value in GOOD.items() if key != "environment"}
    (only,) = compare(older, GOOD)
    assert (only.path, only.level) == ("environment", "unknown")


def test_the_command_ranks_and_gates(tmp_path: Path) -> None:
    for name in ("debian12-bare", "ubuntu22.04-a100-535"):
        folder = tmp_path / name
        folder.mkdir()
        (tmp_path / f"{name}.json").write_text(json.dumps(facts_of(name, folder)))
    a, b = (str(tmp_path / f"{name}.json") for name in ("debian12-bare", "ubuntu22.04-a100-535"))
    done = CliRunner().invoke(cli, ["diff", a, b], standalone_mode=False)
    assert done.return_value == 1
    assert all(len(line) <= 80 for line in done.output.splitlines())
    assert "BREAKS    driver.loaded: no -> 535.288.01" in done.output
    assert CliRunner().invoke(cli, ["diff", a, a], standalone_mode=False).return_value == 0
    told = json.loads(CliRunner().invoke(cli, ["diff", a, b, "--json"]).output)
    assert told["schema"] == "provision.facts-diff/1"
    assert told["counts"]["breaks"] == sum(d["level"] == "breaks" for d in told["differences"])
