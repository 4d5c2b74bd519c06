"""`provision fleet facts`: what the hosts of an inventory are, and which can take a cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.fleet_options import (
    FACTS,
    PATH,
    ansible_options,
    fleet_option,
    judge_of,
    wish_options,
)
from provisioner.cli.options import common_options, matrix_options
from provisioner.errors import Exit, UsageError

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.fleet.collect import Survey
    from provisioner.fleet.survey import Standing
    from provisioner.host.model import Wish

SURVEY_SCHEMA = "provision.fleet-survey/1"
_SHOWN = 6


@click.command("facts")
@click.option("-i", "--inventory", multiple=True, metavar="INVENTORY", help="As Ansible takes it.")
@click.option("--cell", metavar="CELL", help="Say which hosts can take this rendered cell.")
@click.option("--kept", is_flag=True, help="Ask no host; take the facts that are there.")
@click.option("--timeout", type=click.IntRange(1, 3600), default=60, help="Seconds for one host.")
@click.option("--out", "root", type=PATH, default=Path(), help="The folder of docker/.")
@wish_options
@fleet_option
@ansible_options
@matrix_options
@common_options
def command(settings: Settings, out: Output, wish: Wish, fleet: Path, **options: Any) -> int:
    """Read every host of an inventory over Ansible's connections; changes nothing there.

    \b
    provision fleet facts -i hosts.yml
    provision fleet facts --kept --cell torch2.0.1-cu118-py310-ubuntu22.04

    Exit status 1 where a host could not be read or, with --cell, not every host can take it.
    """
    from provisioner.fleet.collect import read_survey

    path = fleet / FACTS
    if not options["kept"]:
        _collect(path, out, **options)
    survey = read_survey(path)
    cell = options["cell"]
    if cell is None:
        return _told(survey, path, out)
    from provisioner.cli.host import cell_named
    from provisioner.fleet.survey import judge_all

    judging = judge_of(cell_named(options["root"], cell), settings, wish)
    return _answered(judge_all(survey.entries, judging), cell, survey, out)


def _collect(path: Path, out: Output, **options: Any) -> None:
    import datetime as dt

    from provisioner.fleet.collect import collect, write_survey
    from provisioner.fleet.engine import playbooks
    from provisioner.fleet.inventory import read_inventory

    sources, vault = options["inventory"], options["vault_password_file"]
    if not sources:
        raise UsageError(
            "fleet.no-inventory", "No inventory was named.", next_step="Name one with -i."
        )
    listed = read_inventory(sources, vault)
    if not listed.groups:
        raise UsageError("fleet.no-hosts", "The inventory holds no host.")
    out.detail(f"Asking {len(listed.groups)} hosts.")
    entries = collect(
        sources,
        listed,
        playbooks(options["root"]) / "fleet" / "facts.yml",
        forks=options["forks"],
        vault_password_file=vault,
        timeout_s=options["timeout"],
    )
    write_survey(path, entries, dt.datetime.now(dt.timezone.utc).replace(microsecond=0))


def _told(survey: Survey, path: Path, out: Output) -> int:
    from provisioner.cli.output import counted, printable, wrap

    unread = [entry for entry in survey.entries if entry.state != "read"]
    if out.json:
        out.result(
            {
                "schema": SURVEY_SCHEMA,
                "facts": {"sha256": survey.sha256, "collected_at": survey.collected_at},
                "hosts": len(survey.entries),
                "unread": [{"host": e.host, "state": e.state, "reason": e.reason} for e in unread],
            }
        )
    else:
        for entry in unread:
            line = f"{entry.host}: {entry.state}: {printable(entry.reason or '')}"
            for text in wrap(line, "    ", "  "):
                out.line(text)
        read = counted(len(survey.entries) - len(unread), "host")
        out.line(f"Read {read}, {len(unread)} could not be read: {path}")
    return int(Exit.FINDING if unread else Exit.DONE)


def _answered(standings: list[Standing], cell: str, survey: Survey, out: Output) -> int:
    from provisioner.cli.output import counted, printable, wrap
    from provisioner.fleet.survey import GROUPS, grouped

    groups = grouped(standings)
    fine = sum(len(row["hosts"]) for name in ("ready", "driver") for row in groups[name])
    if out.json:
        out.result(
            {
                "schema": SURVEY_SCHEMA,
                "facts": {"sha256": survey.sha256, "collected_at": survey.collected_at},
                "cell": cell,
                "hosts": len(standings),
                "groups": groups,
                "standings": standings,
            }
        )
    else:
        for name, meaning in GROUPS.items():
            count = sum(len(row["hosts"]) for row in groups[name])
            if not count:
                continue
            out.line(f"{counted(count, 'host')} {meaning}:")
            for row in groups[name]:
                hosts = row["hosts"]
                more = f" and {len(hosts) - _SHOWN:,} more" if len(hosts) > _SHOWN else ""
                for text in wrap(" ".join(hosts[:_SHOWN]) + more, "    ", "  "):
                    out.line(text)
                for reason in row["reasons"]:
                    for text in wrap(printable(reason), "      ", "    - "):
                        out.line(text)
        out.line(f"{fine:,} of {len(standings):,} can be moved to {cell}.")
    return int(Exit.DONE if fine == len(standings) else Exit.FINDING)
