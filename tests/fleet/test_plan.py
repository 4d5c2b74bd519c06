"""Plans: waves, caps, who is left out, freshness. Pure decisions, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cells import cell_of

from provisioner.errors import FindingError, ProvisionError, UsageError
from provisioner.fleet.plan import Bound, Plan, Policy, check_fresh, encode, read_plan, write_plan
from provisioner.fleet.planning import make_plan
from provisioner.fleet.survey import Standing
from provisioner.host.model import Wish

CELL, _ = cell_of(torch="2.0.1", cuda="11.8")
BOUND = Bound(facts="a" * 64, spec="b" * 64, lock="c" * 64)


def stand(number: int, **more: Any) -> Standing:
    told = {"groups": (), "group": "ready", "hardware": "A100", **more}
    return Standing(host=f"gpu{number:05}", **told)


def plan_of(
    standings: list[Standing], seconds: dict[str, float] | None = None, **policy: Any
) -> Plan:
    return make_plan(
        standings, CELL, BOUND, Wish(), Policy(**policy), {} if seconds is None else seconds
    )


def test_one_of_each_hardware_class_goes_first_then_batches_grow() -> None:
    hosts = [stand(n, hardware="A100" if n % 2 else "H100") for n in range(40)]
    plan = plan_of(hosts, first=4, growth=3, max_batch=20)
    assert plan.waves[0].kind == "canary"
    assert plan.waves[0].hosts == ("gpu00000", "gpu00001")
    assert [len(wave.hosts) for wave in plan.waves] == [2, 4, 12, 20, 2]
    moved = [host for wave in plan.waves for host in wave.hosts]
    assert sorted(moved) == sorted(s.host for s in hosts)


def test_labelled_canaries_go_first_and_a_label_without_host_is_refused() -> None:
    hosts = [stand(1), stand(2, groups=("canary",)), stand(3, groups=("early",))]
    assert plan_of(hosts).waves[0].hosts == ("gpu00002",)
    assert plan_of(hosts, canary=("early",)).waves[0].hosts == ("gpu00003",)
    with pytest.raises(UsageError, match="late"):
        plan_of(hosts, canary=("late",))


def test_a_cap_holds_in_every_wave_and_nobody_is_forgotten() -> None:
    hosts = [
        stand(n, groups=(f"rack_{n % 5}", "power_a" if n % 3 else "power_b")) for n in range(200)
    ]
    plan = plan_of(hosts, first=50, caps={"rack_*": 2, "power_b": 3})
    groups = {s.host: s.groups for s in hosts}
    for wave in plan.waves:
        named = [group for host in wave.hosts for group in groups[host]]
        assert all(named.count(f"rack_{n}") <= 2 for n in range(5))
        assert named.count("power_b") <= 3
    assert sum(len(wave.hosts) for wave in plan.waves) == 200
    assert len(plan.hosts) == 200


def test_who_is_left_out_is_named_with_the_reason() -> None:
    first = plan_of([stand(1)])
    hosts = [
        stand(1, done=True, digest=first.digest),
        stand(2, done=True, digest="other"),
        stand(3, group="never", reasons=("glibc.older: have 2.1, need 2.17",)),
        stand(4, group="driver", reasons=("no driver is loaded",)),
    ]
    plan = plan_of(hosts)
    assert {row.group: row.hosts for row in plan.left_out} == {
        "done": ("gpu00001",),
        "never": ("gpu00003",),
    }
    assert plan.hosts["gpu00004"].reboot
    assert plan.hosts["gpu00004"].changes[0] == "driver none -> branch 580"
    careful = plan_of(hosts, reboot=False)
    assert "gpu00004" not in careful.hosts
    assert [r.hosts for r in careful.left_out if r.group == "reboot"] == [("gpu00004",)]


def test_time_is_estimated_from_measurements_alone() -> None:
    hosts = [stand(n) for n in range(12)]
    assert plan_of(hosts).seconds is None
    plan = plan_of(hosts, {"A100": 100.0}, first=20, forks=5, soak_s=7)
    assert [wave.seconds for wave in plan.waves] == [107.0, 307.0]
    assert plan.seconds == 414.0
    hosts.append(stand(99, hardware="new"))
    assert plan_of(hosts, {"A100": 100.0}).seconds is None


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    hosts = [stand(n, groups=(f"rack_{n % 3}",)) for n in range(30)]
    one = encode(plan_of(hosts, caps={"rack_*": 2}))
    assert one == encode(plan_of(hosts[::-1], caps={"rack_*": 2}))
    path = tmp_path / "plan.json"
    name = write_plan(path, plan_of(hosts, caps={"rack_*": 2}))
    assert read_plan(path) == (plan_of(hosts, caps={"rack_*": 2}), name)


@pytest.mark.parametrize("field", ["facts", "spec", "lock"])
def test_a_plan_whose_ground_changed_is_refused(field: str) -> None:
    plan = plan_of([stand(1)])
    check_fresh(plan, BOUND, 0)
    told = {"facts": "a" * 64, "spec": "b" * 64, "lock": "c" * 64, field: "d" * 64}
    with pytest.raises(FindingError, match=field):
        check_fresh(plan, Bound(**told), 0)


def test_old_facts_are_refused() -> None:
    plan = plan_of([stand(1)], max_facts_age_s=3600)
    with pytest.raises(FindingError, match=r"2\.0 h old"):
        check_fresh(plan, BOUND, 7200)


def edited(plan: Plan, **changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(plan)), **changes}).encode()


def test_a_plan_that_was_damaged_or_made_up_is_refused(tmp_path: Path) -> None:
    plan = plan_of([stand(1), stand(2)])
    path = tmp_path / "plan.json"
    hosts = json.loads(encode(plan))["hosts"]
    twice = [{"kind": "batch", "hosts": ["gpu00001", "gpu00001"], "seconds": None}]
    evil = {"--limit=all;x": hosts["gpu00001"]}
    for data in (
        b"{}",
        encode(plan)[:-40],
        edited(plan, waves=twice),
        edited(plan, hosts={}),
        edited(plan, cell="../../etc"),
        edited(plan, hosts=evil, waves=[{"kind": "batch", "hosts": list(evil), "seconds": None}]),
    ):
        path.write_bytes(data)
        with pytest.raises(ProvisionError) as caught:
            read_plan(path)
        assert caught.value.code in {"fleet.bad-plan", "fleet.bad-name"}


def test_the_work_of_a_plan_grows_with_its_hosts() -> None:
    """Counted, not timed: every host is looked at a fixed number of times."""
    looked = 0

    class Counting(dict[str, float]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looked
            looked += 1
            return super().get(key, default)

    for count in (1000, 2000):
        looked = 0
        hosts = [stand(n, groups=(f"rack_{n % 100}",)) for n in range(count)]
        plan_of(hosts, Counting(), caps={"rack_*": 4})
        assert looked == count
