"""`provision render`: write the files of a cell, of every cell, or check those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cli.options import CELL, cell_options, common_options
from provisioner.cli.output import counted, note_age, print_refusal, printable
from provisioner.errors import Exit, FindingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.matrix.cell import Resolution
    from provisioner.render.fileset import FileSet
    from provisioner.render.job import Job
    from provisioner.render.spec import Recorded

_ASKED = frozenset({*(option.name for option in CELL), "file"})


class How(NamedTuple):
    """The switches of the command, and the output root."""

    every: bool
    again: bool
    check: bool
    diff: bool
    force: bool
    remove: tuple[str, ...]
    root: Path

    @property
    def many(self) -> bool:
        """Whether the cells are not selected by options."""
        return self.every or self.again or bool(self.remove)

    @property
    def reads(self) -> bool:
        """Whether nothing is written."""
        return self.check or self.diff


@click.command("render")
@click.option("--all", "every", is_flag=True, help="Every release with every published variant.")
@click.option("--again", is_flag=True, help="Every cell that is there, from its own request.")
@click.option("--check", is_flag=True, help="Write nothing, say what differs; alone: all cells.")
@click.option(
    "--diff", is_flag=True, help="Write nothing, show what would change; alone: all cells."
)
@click.option("--remove", multiple=True, metavar="CELL", help="Take a cell away, locks and all.")
@click.option("--force", is_flag=True, help="Replace files that were edited or are not ours.")
@click.option(
    "--out",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of docker/ and lockfiles/ (default: this one).",
)
@cell_options
@common_options
def command(settings: Settings, out: Output, **switches: Any) -> int:
    """Write the files of a cell: what its locks are made from, its Dockerfile, its spec.

    Files that were edited by hand, or that provision did not write, are kept unless --force is
    given. `--check` with no option that selects a cell looks at every cell below the folder.

    \b
    provision render --cuda 11.8
    provision render --check
    provision render --again
    provision render --remove torch2.0.1-cu118-py310-ubuntu22.04
    """
    how = How(**switches)
    asked = sorted(_ASKED & settings.chosen.keys())
    if (how.check or how.diff) and not how.many and not asked:
        how = how._replace(again=True)
    _refuse_together(how, asked, settings)
    from provisioner.cli.render_facts import facts_again, facts_of
    from provisioner.render.job import every_cell_job, listed_cells, recorded_job, removal_job
    from provisioner.render.recovery import refuse_interrupted

    if how.reads:
        refuse_interrupted(how.root)
    else:
        recover_first(how.root, out)
    if not how.many:
        return _one(settings, how, out)
    if how.again and not listed_cells(how.root):
        raise _nothing_there(how.root)
    if how.remove:
        making = _Making(how.root, lambda recorded: removal_job(how.root, how.remove, recorded))
    elif how.again:
        facts_for = facts_again(settings)

        def again(recorded: Mapping[str, Recorded]) -> Job:
            gone = [name for name in listed_cells(how.root) if name not in recorded]
            return recorded_job(recorded, facts_for, gone)

        making = _Making(how.root, again)
    else:
        facts = facts_of(settings)
        making = _Making(how.root, lambda recorded: every_cell_job(facts, recorded))
    return _carry_out(making, how, out)


def _refuse_together(how: How, asked: list[str], settings: Settings) -> None:
    """No option of the command line is left out of account in silence."""
    if (how.many and asked) or how.every + how.again + bool(how.remove) > 1:
        raise UsageError(
            "render.all-and-options",
            "--all (every cell of the matrix), --again (every cell that is there), --remove and "
            "options that select one cell do not go together.",
            facts={"options": [settings.where(name) for name in asked]} if asked else {},
        )
    if how.force and how.reads:
        raise UsageError(
            "render.force-and-check",
            "--force replaces files, --check and --diff write nothing: they do not go together.",
        )
    idle = [
        chosen.where
        for name, chosen in sorted(settings.chosen.items())
        if how.remove and chosen.source == chosen.source.COMMAND_LINE
    ]
    if idle:
        raise UsageError(
            "render.remove-and-options",
            "--remove takes cells away by their names; other options mean nothing to it.",
            facts={"options": idle},
        )


def _carry_out(making: _Making, how: How, out: Output) -> int:
    if not how.reads:
        return _write(making, how, out)
    from provisioner.cli.render_check import run_check

    return run_check(making.job, making.recorded, how, out)


class _Making:
    """A job made from what is below the root, made again when the cells there change."""

    def __init__(self, root: Path, make: Callable[[Mapping[str, Recorded]], Job]) -> None:
        from provisioner.render.job import recorded_specs

        self._root, self._make, self._read = root, make, recorded_specs
        self.recorded = recorded_specs(root)
        self.job = make(self.recorded)

    def current(self, *, anew: bool = False) -> Job:
        """The job for what is recorded now; `anew` where it depends on more than that."""
        found = self._read(self._root)
        if anew or found != self.recorded:
            self.recorded, self.job = found, self._make(found)
        return self.job


def _nothing_there(root: Path) -> FindingError:
    """A check that looks at nothing must not pass."""
    return FindingError(
        "render.no-cells",
        f"There is no rendered cell below {printable(str(root.resolve()))}.",
        next_step="Name the folder of docker/ and lockfiles/ with --out, or render a cell first.",
    )


def _refuse_loss(job: Job, recorded: Mapping[str, Recorded]) -> None:
    """Raises FindingError where --again would drop cells, or what an overlay put into them."""
    next_step = "Give the --matrix or --overlay that they were rendered with, or "
    if job.refused:
        raise FindingError(
            "render.no-cell-any-more",
            f"{counted(len(job.refused), 'recorded cell')} cannot be rendered with this matrix; "
            "nothing was written.",
            facts={"refused": [refusal.message for _, refusal in job.refused]},
            next_step=f"{next_step}leave them out with --force.",
        )
    from provisioner.cli.render_check import files_said, other_matrices

    for other in other_matrices(job, recorded):
        if other.lost:
            raise FindingError(
                "render.other-matrix",
                f"{counted(len(other.cells), 'cell')} would lose what {files_said(other.lost)} put "
                "there; nothing was written.",
                facts={"cells": list(other.cells)},
                next_step=f"{next_step}render them without with --force.",
            )


def _one(settings: Settings, how: How, out: Output) -> int:
    from provisioner.cli.nearest import as_asked
    from provisioner.cli.render_facts import facts_of
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.resolve import resolve
    from provisioner.render.job import cell_job

    facts = facts_of(settings)
    answer = resolve(facts.matrix, settings.request)
    if isinstance(answer, Refusal):
        return print_refusal(out, as_asked(answer, settings), "provision render")
    making = _Making(how.root, lambda recorded: cell_job(answer, facts, recorded))
    status = _carry_out(making, how, out)
    if not how.reads:
        note_age(out, facts.matrix)
    return status


def render_resolved(resolution: Resolution, settings: Settings, root: Path) -> int:
    """Write the files of a resolved cell below `root`; returns how many were written."""
    from provisioner.cli.render_facts import facts_of
    from provisioner.render.job import cell_job, refuse_other_request
    from provisioner.render.journal import write_made

    facts = facts_of(settings)
    making = _Making(root, lambda recorded: cell_job(resolution, facts, recorded))

    def made() -> tuple[FileSet, frozenset[str]]:
        job = making.current()
        refuse_other_request(job, making.recorded)
        return job.files, job.groups

    outcome = write_made(root, made)
    return len(outcome.created) + len(outcome.updated)


def recover_first(root: Path, out: Output) -> None:
    """Deal with what an interrupted write left below `root`, and say so."""
    from provisioner.render.journal import WAIT_S
    from provisioner.render.recovery import recover

    recovery = recover(root, wait_s=WAIT_S)
    if recovery.action in ("completed", "undone", "cleared"):
        out.note(f"An interrupted write below {root} was {recovery.action}.")
    elif recovery.message:
        out.note(recovery.message)


def _write(making: _Making, how: How, out: Output) -> int:
    from provisioner.cli import render_said as said
    from provisioner.render.job import refuse_other_request
    from provisioner.render.journal import write_made

    def made() -> tuple[FileSet, frozenset[str]]:
        # A lock may have come meanwhile: it goes with its cell.
        job = making.current(anew=bool(how.remove))
        if how.again and not how.force:
            _refuse_loss(job, making.recorded)
        elif not how.force:
            refuse_other_request(job, making.recorded)
        return job.files, job.groups

    outcome = write_made(how.root, made, force=how.force)
    job = making.job
    # What the matrix never had is counted; what it no longer has is a finding.
    status = int(Exit.FINDING if how.again and job.refused else Exit.DONE)
    said.print_written(job, how, outcome, out)
    return status
