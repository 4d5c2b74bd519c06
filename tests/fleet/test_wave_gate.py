"""Gates, and what Ansible's events amount to. Pure decisions."""

import datetime as dt
from typing import Any

import pytest
from support.cells import cell_of

from provisioner.fleet.events import DONE, FAIL, NOT_PROVED, TAKE, Watch
from provisioner.fleet.gate import Measured, failed_too_many, gate_reasons, measured_of
from provisioner.fleet.ledger import HostProgress, Progress
from provisioner.fleet.plan import Bound, Plan, Policy
from provisioner.fleet.planning import make_plan
from provisioner.fleet.survey import Standing
from provisioner.host.model import Wish

AT = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)
CELL, _ = cell_of(torch="2.0.1", cuda="11.8")
GOOD = Measured(verdict="verified", compiled_ms={"mlp": 1.0})


def plan_of(**policy: Any) -> Plan:
    """One canary, h0, then a batch of h1 to h10."""
    hosts = [Standing(host=f"h{n}", groups=(), group="ready", hardware="A100") for n in range(11)]
    bound = Bound(facts="a" * 64, spec="b" * 64, lock="c" * 64)
    return make_plan(hosts, CELL, bound, Wish(), Policy(first=10, **policy), {})


def progress_of(plan: Plan, **states: str) -> Progress:
    """Every host done, but for some."""
    told = {host: HostProgress(state="done") for host in plan.hosts}
    told.update({host: HostProgress(state=state) for host, state in states.items()})  # type: ignore[arg-type]
    return Progress(hosts=told)


def reasons(plan: Plan, wave: int = 1, slow: float = 1.0, **states: str) -> list[str]:
    reports = dict.fromkeys(plan.hosts, GOOD)
    reports["h3"] = Measured(verdict="verified", compiled_ms={"mlp": slow})
    return gate_reasons(plan, wave, progress_of(plan, **states), reports)


def test_all_done_and_proved_the_gate_is_open() -> None:
    assert reasons(plan_of()) == []
    assert reasons(plan_of(), wave=0) == []


@pytest.mark.parametrize("state", ["failed", "lost", "started", "pending", "unreachable"])
def test_whatever_is_not_done_is_counted(state: str) -> None:
    assert len(reasons(plan_of(), h4=state)) == 1
    assert "h4" in reasons(plan_of(), h4=state)[0]


def test_a_share_of_a_wave_may_fail_and_no_more() -> None:
    plan = plan_of(max_failed=0.2)
    assert reasons(plan, h1="failed", h2="lost") == []
    assert (
        "3 of 10 hosts of wave 2 failed, 20% may"
        in reasons(plan, h1="failed", h2="failed", h3="failed")[0]
    )
    # One more than that is found before the wave ends, too.
    assert failed_too_many(plan, 1, progress_of(plan, h1="failed", h2="pending")) == []
    assert failed_too_many(plan, 1, progress_of(plan, h1="failed", h2="failed", h4="lost"))


def test_a_canary_may_never_fail() -> None:
    assert reasons(plan_of(max_failed=1.0), wave=0, h0="failed")
    assert reasons(plan_of(max_unreachable=9), wave=0, h0="unreachable") == ["no canary is done"]


def test_unreachable_hosts_are_set_aside_within_a_limit() -> None:
    plan = plan_of(max_unreachable=2)
    assert reasons(plan, h1="unreachable", h2="unreachable") == []
    assert (
        "3 hosts cannot be reached, 2 may"
        in reasons(plan, h1="unreachable", h2="unreachable", h3="unreachable")[0]
    )
    assert reasons(plan_of(), h1="set_aside", h2="set_aside") == []


def test_a_host_slower_than_its_class_closes_the_gate() -> None:
    assert reasons(plan_of(max_slowdown=1.5), slow=1.4) == []
    found = reasons(plan_of(max_slowdown=1.5), slow=1.6)
    assert "h3" in found[0]
    assert "slower than 1.5 times" in found[0]


def test_a_host_without_a_report_that_proves_it_closes_the_gate() -> None:
    plan = plan_of()
    progress = progress_of(plan)
    assert "h0 (none)" in gate_reasons(plan, 0, progress, {})[0]
    deferred = {"h0": Measured(verdict="cpu-verified-cuda-deferred")}
    assert "cuda-deferred" in gate_reasons(plan, 0, progress, deferred)[0]
    assert gate_reasons(plan_of(reports=False), 0, progress, {}) == []
    progress.hosts["h0"].unchanged = True  # it was done, and judged, before this rollout
    assert gate_reasons(plan, 0, progress, {}) == []


def test_a_compile_failure_waits_for_its_fallback() -> None:
    plan = plan_of(on_compile_failure="fallback", fallback="eager")
    host = HostProgress(state="failed", compile_failed=True, cell=CELL.name)
    progress = Progress(hosts={"h0": host})
    assert failed_too_many(plan, 0, progress) == []
    host.cell = "eager"
    assert failed_too_many(plan, 0, progress)


def test_a_report_tells_verdict_and_times() -> None:
    speed = {"mlp": {"compiled_ms": {"median": 2.5}}, "odd": {"compiled_ms": {"median": None}}}
    found = measured_of({"verdict": "verified", "speed": speed})
    assert found == Measured(verdict="verified", compiled_ms={"mlp": 2.5})
    assert measured_of({"speed": []}) == Measured(verdict="unknown")


def event(kind: str, host: str, task: str, **result: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "task": task, "res": result}}


def watched(*events: dict[str, Any]) -> list[tuple[str, str, str]]:
    ticks = iter(range(100))
    watch = Watch(0, ["a", "b"], "cell", lambda: AT, lambda: next(ticks))
    found = [record for told in events for record in watch.records(told)]
    found += watch.left("Ansible ended")
    return [(record.host, record.state, record.reason) for record in found]


def test_events_become_records() -> None:
    begun = event("runner_on_ok", "a", TAKE, already=False, state={"cell": "old"})
    assert watched(begun, event("runner_on_ok", "a", DONE)) == [
        ("a", "started", ""),
        ("a", "done", ""),
    ]
    there = event("runner_on_ok", "a", TAKE, already=True, state={})
    assert watched(there) == [("a", "done", "")]
    failed = event("runner_on_failed", "a", "Install", msg="non-zero return code", stderr="no disk")
    assert watched(begun, failed, event("runner_on_failed", "a", FAIL, msg="Install")) == [
        ("a", "started", ""),
        ("a", "failed", "no disk"),
    ]
    # The first failure is the reason, also where what followed it failed as well.
    assert watched(begun, failed)[1] == ("a", "failed", "no disk")
    assert watched(event("runner_on_failed", "a", TAKE, msg="held"))[0][1] == "failed"


def test_a_host_that_is_gone_is_unreachable_before_it_was_begun_and_lost_after() -> None:
    begun = event("runner_on_ok", "a", TAKE, already=False, state={})
    gone = event("runner_on_unreachable", "a", "Change", msg="timed out")
    assert watched(gone) == [("a", "unreachable", "timed out")]
    assert watched(begun, gone)[1] == ("a", "lost", "timed out")
    assert watched(begun)[1] == ("a", "lost", "Ansible ended")


def test_others_and_what_comes_after_the_end_count_for_nothing() -> None:
    begun = event("runner_on_ok", "a", TAKE, already=False, state={})
    done = event("runner_on_ok", "a", DONE)
    late = event("runner_on_unreachable", "a", "Let go of the host", msg="gone")
    assert [state for _, state, _ in watched(begun, done, late)] == ["started", "done"]
    assert watched(event("runner_on_ok", "localhost", TAKE, state={})) == []


def test_a_reason_is_one_line_without_secrets() -> None:
    begun = event("runner_on_ok", "a", TAKE, already=False, state={})
    bad = event("runner_on_failed", "a", NOT_PROVED, msg=["no\nway", "https://u:pw@mirror/x"])
    ended = event("runner_on_failed", "a", FAIL)
    reason = watched(begun, bad, ended)[1][2]
    assert reason == "no way https://***@mirror/x"
