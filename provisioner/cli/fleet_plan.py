"""`provision fleet plan`: waves, changes and estimates, as a file to be reviewed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.fleet_options import FACTS, PATH, fleet_option, judge_of, wish_options
from provisioner.cli.options import common_options, matrix_options
from provisioner.errors import Exit, FindingError, UsageError

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.fleet.plan import Plan, Policy
    from provisioner.host.model import Wish

PLAN_RUN_SCHEMA = "provision.fleet-plan-run/1"


@click.command("plan")
@click.option("--cell", required=True, metavar="CELL", help="The rendered and locked cell.")
@click.option("--out", "root", type=PATH, default=Path(), help="The folder of docker/.")
@click.option("--write", type=PATH, help="The file of the plan [default: FLEET/plan.json].")
@click.option("--canary", multiple=True, metavar="GROUP", help="Its hosts go first; repeatable.")
@click.option("--first", type=click.IntRange(1), help="Hosts of the first batch [default: 5].")
@click.option("--growth", type=click.FloatRange(1, 100), help="Each batch by this larger [2].")
@click.option("--max-batch", type=click.IntRange(1), help="Hosts of a batch at most [100].")
@click.option("--max-failed", type=click.FloatRange(0, 1), help="Share that may fail [0].")
@click.option("--max-unreachable", type=click.IntRange(0), help="Hosts that may be gone [0].")
@click.option("--max-slowdown", type=click.FloatRange(1), help="Against its class [1.5].")
@click.option("--cap", multiple=True, metavar="GROUPS=N", help="At most N of each such group.")
@click.option("--soak", type=click.IntRange(0), help="Seconds to wait after each wave [0].")
@click.option("--host-timeout", type=click.IntRange(1), help="Seconds for one task [7200].")
@click.option("--facts-age", type=click.IntRange(1), help="Seconds that facts hold [86400].")
@click.option("--fallback", metavar="CELL", help="Eager-only cell for hosts that cannot compile.")
@click.option("--no-reboot", is_flag=True, help="Leave out hosts that would have to restart.")
@click.option("--no-reports", is_flag=True, help="The site's own step leaves no compile report.")
@click.option("--forks", type=click.IntRange(1, 1000), help="Hosts at the same time [10].")
@wish_options
@fleet_option
@matrix_options
@common_options
def command(settings: Settings, out: Output, wish: Wish, fleet: Path, **options: Any) -> int:
    """Plan the move of a fleet to a cell, from the facts that were read; changes no host.

    \b
    provision fleet plan --cell CELL --cap 'rack_*=2' --max-failed 0.02
    """
    from provisioner.cli.host import cell_named
    from provisioner.fleet.binding import bind
    from provisioner.fleet.collect import read_survey
    from provisioner.fleet.history import measured_seconds
    from provisioner.fleet.plan import write_plan
    from provisioner.fleet.planning import make_plan
    from provisioner.fleet.survey import judge_all

    root = options["root"]
    cell = cell_named(root, options["cell"])
    policy = _policy(root, options)
    survey = read_survey(fleet / FACTS)
    bound = bind(root, cell.name, policy.fallback, survey.sha256)
    if bound.lock is None:
        raise FindingError(
            "fleet.not-locked",
            f"{cell.name} has no lock: its hosts would not be equal.",
            next_step=f"provision lock {cell.name}",
        )
    standings = judge_all(survey.entries, judge_of(cell, settings, wish))
    plan = make_plan(standings, cell, bound, wish, policy, measured_seconds(fleet))
    path = options["write"] or fleet / "plan.json"
    name = write_plan(path, plan)
    if out.json:
        out.result({"schema": PLAN_RUN_SCHEMA, "id": name, "file": str(path), "plan": plan})
    else:
        _print(plan, name, path, out)
    return int(Exit.DONE if plan.hosts else Exit.FINDING)


def _policy(root: Path, options: dict[str, Any]) -> Policy:
    from provisioner.cli.host import cell_named
    from provisioner.fleet.plan import Policy

    fallback = options["fallback"]
    if fallback is not None and cell_named(root, fallback).compile:
        raise UsageError(
            "fleet.fallback-compiles",
            f"{fallback} is not declared eager-only: it may fail in the same way.",
            next_step="Name a cell that ends in -eager, made with --no-compile.",
        )
    given = {
        "first": options["first"],
        "growth": options["growth"],
        "max_batch": options["max_batch"],
        "max_failed": options["max_failed"],
        "max_unreachable": options["max_unreachable"],
        "max_slowdown": options["max_slowdown"],
        "soak_s": options["soak"],
        "host_timeout_s": options["host_timeout"],
        "max_facts_age_s": options["facts_age"],
        "forks": options["forks"],
    }
    return Policy(
        canary=tuple(options["canary"]),
        caps=dict(_cap(text) for text in options["cap"]),
        on_compile_failure="fallback" if fallback else "stop",
        fallback=fallback,
        reboot=not options["no_reboot"],
        reports=not options["no_reports"],
        **{name: value for name, value in given.items() if value is not None},
    )


def _cap(text: str) -> tuple[str, int]:
    pattern, _, number = text.rpartition("=")
    if not pattern or not number.isascii() or not number.isdigit() or int(number) < 1:
        raise UsageError(
            "fleet.bad-cap",
            f"{text!r} is no cap: it needs a pattern of group names and a number from 1.",
            next_step="For example: --cap 'rack_*=2'",
        )
    return pattern, int(number)


def _print(plan: Plan, name: str, path: Path, out: Output) -> None:
    from provisioner.cli.output import counted, printable, wrap

    for number, wave in enumerate(plan.waves, 1):
        drivers = sum(plan.hosts[host].reboot for host in wave.hosts)
        line = f"wave {number} ({wave.kind}): {counted(len(wave.hosts), 'host')}"
        line += f", {counted(drivers, 'restart')}" if drivers else ""
        line += f", about {wave.seconds / 60:.0f} min" if wave.seconds is not None else ""
        out.line(line)
    for row in plan.left_out:
        out.line(f"left out ({row.group}): {counted(len(row.hosts), 'host')}")
        for reason in row.reasons:
            for text in wrap(printable(reason), "      ", "    - "):
                out.line(text)
    time = "unknown: nothing was measured yet" if plan.seconds is None else ""
    out.line(
        f"{counted(len(plan.hosts), 'host')} to {plan.cell} in {counted(len(plan.waves), 'wave')}, "
        f"{counted(plan.reboots, 'restart')}"
    )
    out.line(f"Time: {time or f'about {(plan.seconds or 0) / 60:.0f} min'}")
    out.line(f"Plan {name}: {path}")
