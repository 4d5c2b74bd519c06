"""What earlier rollouts of a fleet took: the only source of estimates."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from provisioner.errors import ProvisionError
from provisioner.fleet.ledger import LEDGER, read_ledger, replay
from provisioner.fleet.plan import read_plan

if TYPE_CHECKING:
    from pathlib import Path

PLAN = "plan.json"
"""The copy of the plan in the folder of its rollout."""


def rollouts(fleet: Path) -> list[Path]:
    """The folders of the rollouts of a fleet, by name."""
    return sorted(path.parent for path in fleet.glob(f"*/{LEDGER}"))


def measured_seconds(fleet: Path) -> dict[str, float]:
    """The median of the seconds per host by hardware class, over all rollouts of the fleet.

    A host that was done already took no time worth counting. A ledger that cannot be read counts
    for nothing here.
    """
    taken: dict[str, list[float]] = {}
    for folder in rollouts(fleet):
        try:
            plan, _ = read_plan(folder / PLAN)
            progress = replay(read_ledger(folder))
        except ProvisionError:
            continue
        for name, host in progress.hosts.items():
            done = host.state == "done" and not host.unchanged
            if done and host.seconds is not None and name in plan.hosts:
                taken.setdefault(plan.hosts[name].hardware, []).append(host.seconds)
    return {hardware: round(median(times), 1) for hardware, times in sorted(taken.items())}
