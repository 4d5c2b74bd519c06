"""Rollouts on real machines over ssh, with a small step: gates, drains, stops, kills."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fleets import CELL, Boxes, Site, site_of, wait_for

pytestmark = pytest.mark.images
HOSTS = [f"gpu{n}" for n in range(4)]
CHANGE = f"change {CELL}"
UNTOUCHED = {"state": None, "cell": None, "digest": None, "previous": None, "reason": None}


def untouched(boxes: Boxes, host: str) -> bool:
    """Whether a rollout left nothing at all on a machine."""
    state = boxes.state(host)
    return {key: state[key] for key in UNTOUCHED} == UNTOUCHED and boxes.log(host) == []


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """How the machines stand after a rollout that nothing disturbed; the first test fills it."""
    return {}


def test_a_fleet_comes_to_its_cell_and_nothing_is_left_behind(
    new_site: Callable[..., Site], undisturbed: dict[str, Any]
) -> None:
    site = new_site()
    site.boxes.inside("gpu3", "touch /opt/site/drained")  # somebody's own drain
    name = site.plan("--first", "3")
    begun = time.monotonic()
    done = site.call("rollout", site.plan_file, "--json")
    undisturbed["seconds"] = time.monotonic() - begun
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["hosts"] == {"done": 4}
    for host in HOSTS:
        state = site.boxes.state(host)
        undisturbed[host] = state
        assert (state["state"], state["cell"]) == ("done", CELL)
        assert "rollout.lock" not in state["rest"]
        own = ["drain", CHANGE] if host == "gpu3" else ["drain", CHANGE, "undrain"]
        assert site.boxes.log(host) == own
    states = [(r["host"], r["state"]) for r in site.records(name) if r["kind"] == "host"]
    assert states[:2] == [("gpu0", "started"), ("gpu0", "done")]  # the canary alone
    assert site.call("rollout", site.plan_file).returncode == 1  # it was begun: resume it
    again = site.call("resume", name)
    assert again.returncode == 0, again.stderr
    assert [site.boxes.log(host).count(CHANGE) for host in HOSTS] == [1] * 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_kill_9_at_any_moment_resume_ends_as_an_undisturbed_run(
    new_site: Callable[..., Site], undisturbed: dict[str, Any], seed: int
) -> None:
    if "gpu0" not in undisturbed:
        pytest.skip("the undisturbed run to compare with was not made")
    site = new_site()
    site.boxes.inside("gpu3", "touch /opt/site/drained")
    name = site.plan("--first", "3")
    first = site.start("rollout", site.plan_file)
    # From the first words of the ledger to just before the end.
    wait_for(lambda: site.records(name))
    time.sleep(random.Random(seed).uniform(0, undisturbed["seconds"] * 0.9))
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = site.states(name)
    again = site.call("resume", name)
    assert again.returncode == 0, again.stdout + again.stderr
    for host in HOSTS:
        assert site.boxes.state(host) == undisturbed[host]
        changes = site.boxes.log(host).count(CHANGE)
        if before.get(host) == "done":
            assert changes == 1  # not again
        assert 1 <= changes <= 2
    assert set(site.states(name).values()) == {"done"}
    assert set(site.states(name)) == set(HOSTS)


def test_a_failing_canary_stops_the_rest_and_mended_it_goes_on(
    new_site: Callable[..., Site],
) -> None:
    site = new_site()
    site.boxes.inside("gpu0", "echo 'no space left' > /opt/site/fails")
    name = site.plan("--first", "3")
    done = site.call("rollout", site.plan_file, "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["outcome"] == "stopped"
    assert told["hosts"] == {"failed": 1, "pending": 3}
    assert "gpu0" in told["reasons"][0]
    assert all(untouched(site.boxes, host) for host in HOSTS[1:])
    failed = site.boxes.state("gpu0")
    assert (failed["state"], failed["reason"]) == ("failed", "Change the host as the site does")
    assert site.boxes.log("gpu0") == ["drain", CHANGE]  # half changed: it stays drained
    assert [r["reason"] for r in site.records(name) if r.get("state") == "failed"] == [
        "no space left"
    ]
    # Nothing was mended: it stops again, at once and without touching anything.
    assert site.call("resume", name).returncode == 1
    assert site.boxes.log("gpu0") == ["drain", CHANGE]
    assert all(untouched(site.boxes, host) for host in HOSTS[1:])
    site.boxes.inside("gpu0", "rm /opt/site/fails")
    mended = site.call("resume", name, "--retry", "--json")
    assert json.loads(mended.stdout)["hosts"] == {"done": 4}, mended.stderr
    # The drain of the first attempt was ours, and is not taken for somebody else's.
    assert site.boxes.log("gpu0") == ["drain", CHANGE, "drain", CHANGE, "undrain"]


def test_a_failing_drain_leaves_the_host_as_it_was_and_a_share_may_fail(
    new_site: Callable[..., Site],
) -> None:
    site = new_site()
    site.boxes.inside("gpu1", "touch /opt/site/drain-fails")
    site.boxes.inside("gpu2", f"echo {CELL} > /opt/site/cannot-compile")
    eager = "torch1.13.1-cu117-py310-ubuntu22.04"
    name = site.plan("--first", "3", "--max-failed", "0.34", "--fallback", eager)
    done = site.call("rollout", site.plan_file, "--json")
    assert json.loads(done.stdout)["hosts"] == {"done": 3, "failed": 1}, done.stderr
    assert done.returncode == 1
    state = site.boxes.state("gpu1")
    assert CHANGE not in site.boxes.log("gpu1")
    assert (state["state"], "drained\n" in state["rest"]) == ("none", False)
    assert "rollout.lock" not in state["rest"]
    # What cannot compile came to the eager-only cell.
    assert site.boxes.state("gpu2")["cell"] == eager
    assert site.boxes.state("gpu3")["cell"] == CELL
    failed = [r for r in site.records(name) if r.get("state") == "failed"]
    assert [(r["host"], r.get("compile_failed", False)) for r in failed] == [
        ("gpu1", False),
        ("gpu2", True),
    ]


def test_a_host_killed_in_the_middle_is_lost_and_done_again_later(
    new_site: Callable[..., Site],
) -> None:
    site = new_site()
    site.boxes.inside("gpu2", "echo 30 > /opt/site/slow")
    name = site.plan("--first", "2")
    running = site.start("rollout", site.plan_file)
    wait_for(lambda: CHANGE in site.boxes.log("gpu2"))
    site.boxes.engine.docker("kill", site.boxes.container("gpu2"))
    told, _ = running.communicate(timeout=120)
    assert running.returncode == 1, told
    assert site.states(name) == {"gpu0": "done", "gpu1": "done", "gpu2": "lost"}
    assert untouched(site.boxes, "gpu3")
    site.boxes.engine.docker("start", site.boxes.container("gpu2"))
    assert "rollout.lock" in site.boxes.state("gpu2")["rest"]
    site.boxes.inside("gpu2", "rm /opt/site/slow")
    done = site.call("resume", name, "--json")
    assert json.loads(done.stdout)["hosts"] == {"done": 4}, done.stderr
    assert site.boxes.state("gpu2")["state"] == "done"
    assert site.boxes.log("gpu2")[-1] == "undrain"


def test_two_controllers_do_not_work_on_one_host(
    new_site: Callable[..., Site], boxes: Boxes, facts: Path, tmp_path: Path
) -> None:
    site = new_site()
    site.boxes.inside("gpu0", "echo 15 > /opt/site/slow")
    name = site.plan("--first", "3")
    first = site.start("rollout", site.plan_file)
    wait_for(lambda: CHANGE in site.boxes.log("gpu0"))
    same = site.call("resume", name, "--json")
    assert same.returncode == 4
    assert json.loads(same.stdout)["error"]["code"] == "fleet.held"
    # Another machine's controller, with a folder of its own: the host itself refuses it.
    (tmp_path / "other").mkdir()
    other = site_of(boxes, tmp_path / "other", facts)
    theirs = other.plan("--first", "2")
    refused = other.call("rollout", other.plan_file, "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["hosts"] == {"failed": 1, "pending": 3}
    (reason,) = [r["reason"] for r in other.records(theirs) if r.get("state") == "failed"]
    assert "The host is held by" in reason
    # Asked to stop, the first one finishes what it began, and begins no other host.
    os.kill(first.pid, signal.SIGINT)
    told, _ = first.communicate(timeout=120)
    assert first.returncode == 130, told
    assert site.states(name) == {"gpu0": "done"}
    assert site.boxes.log("gpu0") == ["drain", CHANGE, "undrain"]
    assert all(untouched(site.boxes, host) for host in HOSTS[1:])
