"""`provision fleet rollout` and `resume`: a plan, carried out wave by wave."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.fleet_options import FACTS, PATH, fleet_option, inventory_options
from provisioner.cli.options import common_options
from provisioner.errors import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from provisioner.cli.output import Output
    from provisioner.fleet.ledger import Progress, Record
    from provisioner.fleet.plan import Plan
    from provisioner.fleet.rollout import Stop

ROLLOUT_SCHEMA = "provision.fleet-rollout/1"
INTERRUPTED = 130
_WAIT_S = 60.0


@click.command("rollout")
@click.argument("plan_file", metavar="PLAN", type=PATH)
@click.option("--out", "root", type=PATH, default=Path(), help="The folder of docker/.")
@inventory_options
@fleet_option
@common_options
def rollout(out: Output, fleet: Path, plan_file: Path, root: Path, **options: Any) -> int:
    """Carry out a plan that was reviewed.

    The first Ctrl-C waits for the hosts that were begun, the second one does not. Exit status 0
    when every host of the plan is done, 1 when a gate stopped it or a host was left behind.

    \b
    provision fleet rollout fleet/plan.json -i hosts.yml
    """
    import datetime as dt

    from provisioner.fleet.collect import read_survey
    from provisioner.fleet.ground import fresh_plan, new_folder

    now = dt.datetime.now(dt.timezone.utc)
    plan, name = fresh_plan(plan_file, root, read_survey(fleet / FACTS), now)
    return carry_out(
        out, fleet, root, plan, name, lambda: new_folder(fleet, plan_file, name), options
    )


@click.command("resume")
@click.argument("name", metavar="[ROLLOUT]", required=False)
@click.option("--out", "root", type=PATH, default=Path(), help="The folder of docker/.")
@click.option("--retry", is_flag=True, help="Try hosts again that failed or were unreachable.")
@click.option("--set-aside", multiple=True, metavar="HOST", help="Leave it out from now on.")
@click.option("--take-over", is_flag=True, help="This fleet folder came from another controller.")
@inventory_options
@fleet_option
@common_options
def resume(
    out: Output, fleet: Path, name: str | None, root: Path, retry: bool, **options: Any
) -> int:
    """Go on with a rollout that was stopped, interrupted or whose controller died.

    Without ROLLOUT the newest one. Hosts that are done are left alone; hosts that were being
    changed are done again.
    """
    from provisioner.fleet.ground import begun_plan, check_named, folder_named

    folder = folder_named(fleet, name)
    plan, found = begun_plan(folder, root)
    check_named(plan, options["set_aside"])
    options["retry"] = retry
    return carry_out(out, fleet, root, plan, found, lambda: folder, options)


def carry_out(
    out: Output,
    fleet: Path,
    root: Path,
    plan: Plan,
    name: str,
    folder_of: Any,
    options: dict[str, Any],
) -> int:
    """Runs a plan from where its ledger stands; returns the exit status."""
    from provisioner.fleet.engine import CHILDREN, playbooks
    from provisioner.fleet.ground import check_hosts, controller_of
    from provisioner.fleet.history import rollouts
    from provisioner.fleet.inventory import read_inventory
    from provisioner.fleet.ledger import opened
    from provisioner.fleet.rollout import Rollout, Setting, Stop

    sources, vault = options["inventory"], options["vault_password_file"]
    if not sources:
        raise UsageError(
            "fleet.no-inventory", "No inventory was named.", next_step="Name one with -i."
        )
    check_hosts(plan, read_inventory(sources, vault))
    setting = Setting(
        root=root,
        playbook=playbooks(root) / "rollout.yml",
        sources=sources,
        controller=controller_of(fleet),
        supersedes=tuple(f.name for f in rollouts(fleet) if f.name != name),
        take_over=options.get("take_over", False),
        vault_password_file=vault,
    )
    stop = Stop()
    with opened(folder_of(), CHILDREN, _WAIT_S) as ledger, _signals(stop, out):
        work = Rollout(plan, name, ledger, setting, stop, _teller(out, plan))
        end = work.run(retry=options.get("retry", False), set_aside=options.get("set_aside", ()))
        return _told(out, plan, name, ledger.progress, end.outcome, end.reasons)


@contextlib.contextmanager
def _signals(stop: Stop, out: Output) -> Iterator[None]:
    def asked(*_: object) -> None:
        stop.ask()
        if stop.asked == 1:
            _quietly(out, "Stopping: hosts that were begun are finished. Once more stops at once.")

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _quietly(out: Output, text: str) -> None:
    """Tells something; a terminal that went away is no reason to leave hosts half done."""
    from provisioner.cli.output import printable

    with contextlib.suppress(OSError):
        out.note(printable(text))


def _teller(out: Output, plan: Plan) -> Any:
    """What is told of each record that comes into the ledger."""
    from provisioner.cli.output import counted
    from provisioner.fleet import ledger as words

    def tell(record: Record) -> None:
        if isinstance(record, words.WaveBegin):
            kind = plan.waves[record.wave].kind
            number = f"wave {record.wave + 1} of {len(plan.waves)} ({kind})"
            _quietly(out, f"{number}: {counted(len(record.hosts), 'host')}")
        elif isinstance(record, words.HostRecord):
            _quietly(out, "  " + _host_line(record))
        elif isinstance(record, words.Gate):
            _quietly(out, f"gate {record.wave + 1}: {'open' if record.passed else 'closed'}")

    return tell


def _host_line(record: Any) -> str:
    text = f"{record.host}: {record.state.replace('_', ' ')}"
    if record.unchanged:
        text += " (was already)"
    elif record.state == "done" and record.seconds is not None:
        text += f" in {record.seconds:.0f} s"
    elif record.reason:
        text += f" at {record.task!r}: {record.reason}"
    return text


def _told(
    out: Output,
    plan: Plan,
    name: str,
    progress: Progress,
    outcome: str,
    reasons: Sequence[str],
) -> int:
    from provisioner.fleet.status import counts_of

    counts = counts_of(plan, progress)
    left = len(plan.hosts) - counts.get("done", 0)
    if out.json:
        out.result(
            {
                "schema": ROLLOUT_SCHEMA,
                "rollout": name,
                "cell": plan.cell,
                "outcome": outcome,
                "reasons": reasons,
                "hosts": counts,
            }
        )
    else:
        for reason in reasons:
            out.line(f"stopped: {reason}")
        shown = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items())
        out.line(f"Rollout {name} {outcome}: {shown or 'no host'}")
        if outcome != "done":
            out.line(f"Go on with: provision fleet resume {name} -i INVENTORY")
    if outcome == "interrupted":
        return INTERRUPTED
    return int(Exit.FINDING if left or outcome != "done" else Exit.DONE)
