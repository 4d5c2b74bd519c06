"""Options that the fleet commands share, and what they mean."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.fleet.survey import Judge
    from provisioner.host.model import Wish
    from provisioner.matrix.cell import Cell

F = TypeVar("F", bound="Callable[..., Any]")
PATH = click.Path(path_type=Path)
FACTS = "facts.jsonl"


def fleet_option(function: F) -> F:
    """Adds --fleet, the folder that holds facts, plans and ledgers."""
    option = click.option(
        "--fleet",
        type=PATH,
        default=Path("fleet"),
        show_default=True,
        envvar="PROVISION_FLEET",
        help="The folder of the fleet's facts, plans and ledgers.",
    )
    return option(function)


def ansible_options(function: F) -> F:
    """Adds what every run of Ansible takes."""
    for option in (
        click.option(
            "--forks",
            type=click.IntRange(1, 1000),
            default=10,
            show_default=True,
            help="Hosts that Ansible works on at the same time; 12 MB of memory each.",
        ),
        click.option("--vault-password-file", metavar="FILE", help="Passed to Ansible as it is."),
    ):
        function = option(function)
    return function


def inventory_options(function: F) -> F:
    """Adds the inventory of a command that changes hosts; their number at once is the plan's."""
    for option in (
        click.option(
            "-i", "--inventory", multiple=True, metavar="INVENTORY", help="As Ansible takes it."
        ),
        click.option("--vault-password-file", metavar="FILE", help="Passed to Ansible as it is."),
    ):
        function = option(function)
    return function


def wish_options(function: F) -> F:
    """Adds what is wanted beside the cell; the command gets `wish`."""

    @click.option("--branch", type=click.IntRange(1, 9999), help="The driver branch to install.")
    @click.option("--lab", is_flag=True, help="Hosts without a GPU are wanted.")
    @click.option("--keep-driver", is_flag=True, help="Drivers stay as they are.")
    @click.option("--toolkit", is_flag=True, help="A CUDA toolkit is installed, too.")
    @functools.wraps(function)
    def command(
        *args: Any, branch: int | None, lab: bool, keep_driver: bool, toolkit: bool, **kwargs: Any
    ) -> Any:
        from provisioner.host.model import Wish

        # A plan names each change of a driver, so that leaving a branch is asked for.
        wish = Wish(
            branch=branch,
            lab=lab,
            keep_driver=keep_driver,
            toolkit=toolkit,
            change_branch=True,
        )
        return function(*args, wish=wish, **kwargs)

    return cast("F", command)


def judge_of(cell: Cell, settings: Any, wish: Wish) -> Judge:
    """What holds the cell against hosts, by the matrix of the settings."""
    from provisioner.cli.render_facts import facts_of
    from provisioner.fleet.survey import Judge
    from provisioner.matrix.hosts import host_facts
    from provisioner.matrix.index import index_of

    return Judge(cell, index_of(facts_of(settings).matrix), host_facts(), wish)
