"""`provision fleet plan` as people and scripts call it: what it is bound to, and its refusals."""

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.engine import PROJECT
from support.hosts import facts_of

from provisioner.cli.main import cli
from provisioner.errors import FindingError, OutsideError, ProvisionError, UsageError
from provisioner.fleet.binding import bind
from provisioner.fleet.collect import entry_of, read_survey, write_survey
from provisioner.fleet.plan import check_fresh, read_plan

CELL = "torch2.13.0-cpu-py311-debian12-basepy"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The facts of a Debian machine without a GPU."""
    return facts_of("debian12-bare", tmp_path_factory.mktemp("bare"))


@pytest.fixture
def fleet(tmp_path: Path, bare: dict[str, Any]) -> Path:
    """A fleet whose facts were read: four equal hosts, and one that did not answer."""
    told = {"stdout": json.dumps({**bare, "provision": False})}
    rows = [entry_of(f"gpu{n}", ("rack_a",), "runner_on_ok", told) for n in range(4)]
    rows.append(entry_of("gpu9", (), "runner_on_unreachable", {"msg": "No route to host"}))
    write_survey(tmp_path / "fleet" / "facts.jsonl", rows, dt.datetime.now(dt.timezone.utc))
    return tmp_path / "fleet"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one rendered and locked cell, to be changed."""
    for place in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / place / CELL, tmp_path / place / CELL)
    return tmp_path


def planned(fleet: Path, root: Path, *options: str) -> Any:
    words = ["fleet", "plan", "--fleet", str(fleet), "--out", str(root), "--cell", CELL, "--lab"]
    return CliRunner().invoke(cli, [*words, *options], standalone_mode=False)


def test_a_plan_says_who_goes_when_and_who_stays(fleet: Path, root: Path) -> None:
    done = planned(fleet, root, "--first", "2", "--json")
    assert done.return_value == 0, done.output
    told = json.loads(done.output)
    plan, name = read_plan(fleet / "plan.json")
    assert told["id"] == name
    assert [wave.hosts for wave in plan.waves] == [("gpu0",), ("gpu1", "gpu2"), ("gpu3",)]
    assert [(row.group, row.hosts) for row in plan.left_out] == [("unknown", ("gpu9",))]
    assert plan.reboots == 0
    text = planned(fleet, root).output
    assert "unreachable: No route to host" in text
    assert "wave 1 (canary): 1 host" in text


@pytest.mark.parametrize("changed", ["facts", "spec", "lock"])
def test_a_plan_gone_stale_is_refused(fleet: Path, root: Path, changed: str) -> None:
    planned(fleet, root)
    plan, _ = read_plan(fleet / "plan.json")
    facts = fleet / "facts.jsonl"
    check_fresh(plan, bind(root, CELL, None, read_survey(facts).sha256), 0)
    path = {
        "facts": facts,
        "spec": root / "docker" / CELL / "spec.json",
        "lock": next((root / "lockfiles" / CELL).glob("*.txt")),
    }[changed]
    old = b"gpu0" if changed == "facts" else b"a"
    path.write_bytes(path.read_bytes().replace(old, b"b" * len(old), 1))
    with pytest.raises(ProvisionError) as caught:
        check_fresh(plan, bind(root, CELL, None, read_survey(facts).sha256), 0)
    assert caught.value.code == "fleet.stale-plan"
    assert changed in caught.value.message


def test_what_cannot_be_planned_is_refused(fleet: Path, root: Path) -> None:
    def code(*options: str) -> tuple[str, type]:
        error = planned(fleet, root, *options).exception
        assert isinstance(error, ProvisionError), error
        return error.code, type(error)

    assert code("--cap", "rack_a") == ("fleet.bad-cap", UsageError)
    assert code("--cap", "rack_*=0") == ("fleet.bad-cap", UsageError)
    assert code("--canary", "nobody") == ("fleet.no-canary", UsageError)
    assert code("--fallback", CELL) == ("fleet.fallback-compiles", UsageError)
    (root / "lockfiles" / CELL / "lock.json").unlink()
    assert code() == ("fleet.not-locked", FindingError)
    (fleet / "facts.jsonl").write_bytes(b"{}\n")
    assert code() == ("fleet.bad-facts", OutsideError)
