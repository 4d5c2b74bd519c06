"""`provision render`: write the files of a cell, of every cell, or check those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cli.options import CELL, cell_options, common_options
from provisioner.cli.output import note_age, print_refusal
from provisioner.errors import Exit, FindingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.matrix.cell import Resolution
    from provisioner.render.context import CellContext, Facts
    from provisioner.render.fileset import FileSet
    from provisioner.render.job import Job
    from provisioner.render.journal import Outcome
    from provisioner.render.plan import Difference
    from provisioner.render.spec import Recorded

RENDER_SCHEMA = "provision.render/1"
_ASKED = frozenset({*(option.name for option in CELL), "file"})
_SHOWN = 20


class _How(NamedTuple):
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
    how = _How(**switches)
    asked = sorted(_ASKED & settings.chosen.keys())
    if (how.check or how.diff) and not how.many and not asked:
        how = how._replace(again=True)
    if (how.many and asked) or how.every + how.again + bool(how.remove) > 1:
        raise UsageError(
            "render.all-and-options",
            "--all (every cell of the matrix), --again (every cell that is there), --remove and "
            "options that select one cell do not go together.",
            facts={"options": asked},
        )
    from provisioner.render.job import every_cell_job, listed_cells, recorded_job, removal_job
    from provisioner.render.journal import refuse_interrupted

    if how.check or how.diff:
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
        by_mirrors = _facts_by_mirrors(settings)

        def again(recorded: Mapping[str, Recorded]) -> Job:
            gone = [name for name in listed_cells(how.root) if name not in recorded]
            return recorded_job(recorded, by_mirrors, gone)

        making = _Making(how.root, again)
    else:
        facts = facts_of(settings)
        making = _Making(how.root, lambda recorded: every_cell_job(facts, recorded))
    return _check(making.job, how, out) if how.check or how.diff else _write(making, how, out)


class _Making:
    """A job made from the cells that are recorded below the root, made again when they change."""

    def __init__(self, root: Path, make: Callable[[Mapping[str, Recorded]], Job]) -> None:
        from provisioner.render.job import recorded_specs

        self._root, self._make, self._read = root, make, recorded_specs
        self.recorded = recorded_specs(root)
        self.job = make(self.recorded)

    def current(self) -> Job:
        """The job for what is recorded now."""
        found = self._read(self._root)
        if found != self.recorded:
            self.recorded, self.job = found, self._make(found)
        return self.job


def _nothing_there(root: Path) -> FindingError:
    """A check that looks at nothing must not pass."""
    return FindingError(
        "render.no-cells",
        f"There is no rendered cell below {root.resolve()}.",
        next_step="Name the folder of docker/ and lockfiles/ with --out, or render a cell first.",
    )


def _no_more(job: Job) -> FindingError:
    """Some recorded cells do not resolve with this matrix: writing would drop them."""
    return FindingError(
        "render.no-cell-any-more",
        f"{len(job.refused)} recorded cell{'' if len(job.refused) == 1 else 's'} cannot be "
        "rendered with this matrix; nothing was written.",
        facts={"refused": [refusal.message for _, refusal in job.refused]},
        next_step="Give the --matrix or --overlay that they were rendered with, or leave them out "
        "with --force.",
    )


def _one(settings: Settings, how: _How, out: Output) -> int:
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.resolve import resolve
    from provisioner.render.job import cell_job

    facts = facts_of(settings)
    answer = resolve(facts.matrix, settings.request)
    if isinstance(answer, Refusal):
        return print_refusal(out, answer, "provision render")
    making = _Making(how.root, lambda recorded: cell_job(answer, facts, recorded))
    if how.check or how.diff:
        return _check(making.job, how, out)
    status = _write(making, how, out)
    note_age(out, facts.matrix)
    return status


def render_resolved(resolution: Resolution, settings: Settings, root: Path) -> int:
    """Write the files of a resolved cell below `root`; returns how many were written."""
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


def facts_of(settings: Settings) -> Facts:
    """The matrix of the settings as the renderers take it."""
    from provisioner.render.context import Facts

    opened = settings.open()
    return Facts(
        matrix=opened.matrix,
        sha256=opened.sha256,
        mirrors=settings.mirrors,
        laid_over=_laid_over(settings),
    )


def _laid_over(settings: Settings) -> tuple[str, ...]:
    """The user's own matrix files as options: names alone, since folders differ by machine."""
    words = ["--matrix", settings.matrix.name] if settings.matrix else []
    for path in settings.overlays:
        words += ["--overlay", path.name]
    return tuple(words)


def _facts_by_mirrors(settings: Settings) -> Callable[[dict[str, str]], Facts]:
    """A function from a cell's own mirrors to the matrix with them.

    Only --mirror replaces one of them: a variable of the environment must not make a check of the
    same files fail on one machine and pass on another.
    """
    from provisioner.cli.settings import Source, with_mirrors
    from provisioner.matrix.load import load_matrix
    from provisioner.render.context import Facts

    loaded = load_matrix(settings.matrix, settings.overlays)
    given = {
        name: url
        for name, url in settings.mirrors.items()
        if settings.chosen[f"mirror.{name}"].source == Source.COMMAND_LINE
    }

    def facts(own: dict[str, str]) -> Facts:
        mirrors = {**own, **given}
        matrix = with_mirrors(loaded.matrix, mirrors)
        return Facts(
            matrix=matrix, sha256=loaded.sha256, mirrors=mirrors, laid_over=_laid_over(settings)
        )

    return facts


def recover_first(root: Path, out: Output) -> None:
    """Deal with what an interrupted write left below `root`, and say so."""
    from provisioner.render.journal import WAIT_S, recover

    recovery = recover(root, wait_s=WAIT_S)
    if recovery.action in ("completed", "undone", "cleared"):
        out.note(f"An interrupted write below {root} was {recovery.action}.")
    elif recovery.message:
        out.note(recovery.message)


def _write(making: _Making, how: _How, out: Output) -> int:
    from provisioner.render.job import refuse_other_request
    from provisioner.render.journal import write_made

    def made() -> tuple[FileSet, frozenset[str]]:
        job = making.current()
        if not how.force:
            refuse_other_request(job, making.recorded)
            if how.again and job.refused:
                raise _no_more(job)
        return job.files, job.groups

    outcome = write_made(how.root, made, force=how.force)
    job = making.job
    # What the matrix never had is counted; what it no longer has is a finding.
    status = int(Exit.FINDING if how.again and job.refused else Exit.DONE)
    if out.json:
        out.result(_written_json(job, how, outcome))
        return status
    if not how.many:
        for line in _cell_lines(job.cells[0]):
            out.line(line)
    out.line(_counts(outcome, how.root))
    for path in (*outcome.created, *outcome.updated, *outcome.pruned)[: 0 if how.every else None]:
        out.line(f"  {path}")
    for line in _after(job, how):
        out.line(line)
    return status


def _cell_lines(context: CellContext) -> list[str]:
    from provisioner.cli.resolve import summary_lines, warning_lines

    cell, warnings = context.cell, context.resolution.warnings
    lines = [cell.name, "", *summary_lines(cell), *warning_lines(warnings)]
    return [*lines, ""]


def _counts(outcome: Outcome, root: Path) -> str:
    return (
        f"Below {root.resolve()}: {len(outcome.created)} created, {len(outcome.updated)} updated, "
        f"{len(outcome.unchanged)} unchanged, {len(outcome.pruned)} pruned."
    )


def _after(job: Job, how: _How) -> list[str]:
    """What was refused, or the next command."""
    if how.many:
        refused = [f"  {count} x {code}" for code, count in job.refused_by_code().items()]
        total = len(job.refused)
        counted = [f"{len(job.cells)} cell{'' if len(job.cells) == 1 else 's'}"]
        if total or how.every:
            counted.append(f"{total} combination{'' if total == 1 else 's'} without one")
        return ([] if how.remove else [f"{', '.join(counted)}."]) + refused
    return ["", f"Next: {next_command(job.cells[0], how.root)}"]


def next_command(context: CellContext, root: Path) -> str:
    """The lock while there is none, then the build."""
    from provisioner.render.dockerfile import lock_files

    missing = [name for name in lock_files(context) if not (root / context.locks / name).is_file()]
    verb = "lock" if missing else "build"
    place = "" if root == Path() else f" --out {root}"
    return f"provision {verb} {context.name}{place}"


def _written_json(job: Job, how: _How, outcome: Outcome) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "schema": RENDER_SCHEMA,
        "root": str(how.root.resolve()),
        "created": outcome.created,
        "updated": outcome.updated,
        "unchanged": outcome.unchanged,
        "pruned": outcome.pruned,
    }
    if how.many:
        return {
            **shown,
            "cells": [str(context.name) for context in job.cells],
            "refused": job.refused_by_code(),
        }
    context = job.cells[0]
    return {
        **shown,
        "cell": context.cell,
        "decisions": context.resolution.decisions,
        "warnings": context.resolution.warnings,
        "next": next_command(context, how.root),
    }


# --- checks ---


def _check(job: Job, how: _How, out: Output) -> int:
    """Say which files differ from a render of today; with --diff show how."""
    from provisioner.render.diff import diff
    from provisioner.render.plan import check

    found = check(how.root, job.files, job.groups)
    refused = [] if how.every else [(request, refusal) for request, refusal in job.refused]
    bad = bool(found or refused)
    text = diff(how.root, job.files, job.groups) if how.diff else ""
    if out.json:
        out.result(
            {
                "schema": RENDER_SCHEMA,
                "root": str(how.root.resolve()),
                "cells": [str(context.name) for context in job.cells],
                "differences": [{"path": item.path, "kind": item.kind} for item in found],
                "refused": [{"request": r, "refusal": why} for r, why in refused],
                **({"diff": text} if how.diff else {}),
            }
        )
    else:
        for line in _check_lines(job, found, how):
            out.line(line)
        for _, refusal in refused:
            out.line(f"  no cell any more: {refusal.message} [{refusal.code}]")
        if text:
            out.line(text.rstrip("\n"))
    return int(Exit.FINDING if bad and how.check else Exit.DONE)


def _check_lines(job: Job, found: list[Difference], how: _How) -> list[str]:
    number = f"{len(job.cells)} cell{'' if len(job.cells) == 1 else 's'}"
    if not found:
        return [f"{number} below {how.root.resolve()}: {len(job.files)} files, all as rendered."]
    files = "1 file differs" if len(found) == 1 else f"{len(found)} files differ"
    lines = [f"{number} below {how.root.resolve()}: {files} from a render."]
    lines += [f"  {item.path}: {item.kind}" for item in found[:_SHOWN]]
    lines += [f"  docker/{name} was deleted; --again takes the rest away" for name in job.gone]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    verb = "--again" if how.again else "with the same options"
    if any(item.kind == "edited" for item in found):
        verb += " --force"  # without it what was edited by hand is kept
    return [*lines, f"Next: provision render {verb} writes them again."]
