"""Rollouts on real machines over ssh, with a small step: gates, drains, stops."""

import json
from collections.abc import Callable

import pytest
from support.fleets import CELL, Site

pytestmark = pytest.mark.images
HOSTS = [f"gpu{n}" for n in range(4)]


def test_a_fleet_comes_to_its_cell_and_nothing_is_left_behind(
    new_site: Callable[..., Site],
) -> None:
    site = new_site()
    site.boxes.inside("gpu3", "touch /opt/site/drained")  # somebody's own drain
    name = site.plan()
    done = site.call("rollout", site.plan_file, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["hosts"] == {"done": 4}
    for host in HOSTS:
        state = site.boxes.state(host)
        assert (state["state"], state["cell"]) == ("done", CELL)
        assert "rollout.lock" not in state["rest"]
        middle = [f"change {CELL}"]
        own = ["drain", *middle] if host == "gpu3" else ["drain", *middle, "undrain"]
        assert site.boxes.log(host) == own
    begun = [r["host"] for r in site.records(name) if r.get("state") == "started"]
    assert begun[:2] == ["gpu0", "gpu1"]
    assert site.call("rollout", site.plan_file).returncode == 1  # it was begun: resume it
    again = site.call("resume", name)
    assert again.returncode == 0, again.stderr
    assert [site.boxes.log(h).count(f"change {CELL}") for h in HOSTS] == [1] * 4
