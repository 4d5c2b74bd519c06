"""Where a rollout stands, from its plan and its ledger. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.fleet.ledger import Progress
    from provisioner.fleet.plan import Plan

STATES = ("done", "started", "failed", "lost", "unreachable", "set_aside", "pending")
"""In the order in which people are told of them."""


def counts_of(plan: Plan, progress: Progress) -> dict[str, int]:
    """State -> how many hosts of the plan are in it; states without a host are left out."""
    counted: Counter[str] = Counter(
        progress.hosts[host].state if host in progress.hosts else "pending" for host in plan.hosts
    )
    return {state: counted[state] for state in STATES if counted[state]}
