"""`provision fleet`: facts, plan, rollout, status of many hosts."""

from __future__ import annotations

import click

from provisioner.cli.lazy import LazyGroup

COMMANDS = {
    "facts": ("provisioner.cli.fleet_facts:command", "Read hosts; say which can take a cell."),
    "plan": ("provisioner.cli.fleet_plan:command", "Plan waves; write a file to review."),
    "rollout": ("provisioner.cli.fleet_rollout:rollout", "Carry out a plan, wave by wave."),
    "resume": ("provisioner.cli.fleet_rollout:resume", "Go on with a rollout from its ledger."),
}


@click.group("fleet", cls=LazyGroup, lazy=COMMANDS)
def group() -> None:
    """Move many hosts to a cell: facts, plan, rollout in waves, status."""
