"""What a controller stands on: the plan and its freshness, the inventory, its own identity."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

from provisioner.errors import FindingError, UsageError
from provisioner.fleet.binding import bind
from provisioner.fleet.history import PLAN, rollouts
from provisioner.fleet.ledger import LEDGER
from provisioner.fleet.plan import check_fresh, read_plan
from provisioner.fleet.store import read_whole, write_whole

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from pathlib import Path

    from provisioner.fleet.collect import Survey
    from provisioner.fleet.inventory import Listed
    from provisioner.fleet.plan import Plan

CONTROLLER = "controller"


def controller_of(fleet: Path) -> str:
    """What tells this controller from others: its machine, and a number kept with the fleet."""
    path = fleet / CONTROLLER
    if not path.exists():
        write_whole(path, secrets.token_hex(8).encode())
    kept = read_whole(path, "The controller's number", f"Delete {path}.")
    return f"{socket.gethostname()}:{kept.decode('ascii', 'replace').strip()[:32]}"


def fresh_plan(path: Path, root: Path, survey: Survey, now: dt.datetime) -> tuple[Plan, str]:
    """A plan and its name; raises FindingError where it is stale."""
    plan, name = read_plan(path)
    bound = bind(root, plan.cell, plan.policy.fallback, survey.sha256)
    check_fresh(plan, bound, (now - survey.collected_at).total_seconds())
    return plan, name


def begun_plan(folder: Path, root: Path) -> tuple[Plan, str]:
    """The plan of a rollout that was begun: cell and lock have to be the same still.

    Its facts are what the rollout itself changes, so they count no more.
    """
    plan, name = read_plan(folder / PLAN)
    bound = bind(root, plan.cell, plan.policy.fallback, plan.bound.facts)
    check_fresh(plan, bound, 0)
    return plan, name


def check_hosts(plan: Plan, listed: Listed) -> None:
    """Raises FindingError where a host of the plan is not in the inventory."""
    gone = sorted(set(plan.hosts) - set(listed.groups))
    if gone:
        raise FindingError(
            "fleet.other-inventory",
            f"{len(gone)} hosts of the plan are not in the inventory: {', '.join(gone[:5])}.",
            next_step="Name the inventory that the facts were read from, with -i.",
        )


def check_named(plan: Plan, hosts: Iterable[str]) -> None:
    """Raises UsageError for a host that is not in the plan."""
    for host in hosts:
        if host not in plan.hosts:
            raise UsageError("fleet.not-in-plan", f"{host} is not a host of this plan.")


def new_folder(fleet: Path, plan_file: Path, name: str) -> Path:
    """The folder of a new rollout, with a copy of its plan; raises FindingError if it was begun."""
    folder = fleet / name
    if (folder / LEDGER).exists():
        raise FindingError(
            "fleet.begun",
            f"The rollout {name} was begun already.",
            next_step=f"provision fleet resume {name} -i INVENTORY",
        )
    data = read_whole(plan_file, "The plan", "provision fleet plan --cell CELL")
    write_whole(folder / PLAN, data)
    return folder


def folder_named(fleet: Path, name: str | None) -> Path:
    """The folder of a rollout by its name, of the only one, or of the newest."""
    known = rollouts(fleet)
    if name is not None:
        found = [folder for folder in known if folder.name == name]
        if not found:
            there = ", ".join(f.name for f in known[:10]) or "none is there"
            raise UsageError(
                "fleet.no-rollout",
                f"There is no rollout {name} in {fleet}.",
                next_step=f"Name one of: {there}",
            )
        return found[0]
    if not known:
        raise UsageError(
            "fleet.no-rollout",
            f"No rollout was begun in {fleet}.",
            next_step="provision fleet rollout PLAN -i INVENTORY",
        )
    return max(known, key=lambda folder: (folder / LEDGER).stat().st_mtime)
