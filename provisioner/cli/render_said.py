"""What `provision render` says of a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from provisioner.cli.output import counted, printable
from provisioner.shell import out_option

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.cli.output import Output
    from provisioner.cli.render import How
    from provisioner.render.context import CellContext
    from provisioner.render.job import Job
    from provisioner.render.journal import Outcome

RENDER_SCHEMA = "provision.render/1"


def print_written(job: Job, how: How, outcome: Outcome, out: Output) -> None:
    """Print what was written, and the next command."""
    if out.json:
        out.result(_written_json(job, how, outcome))
        return
    if not how.many:
        for line in _cell_lines(job.cells[0]):
            out.line(line)
    out.line(_counts(outcome, how.root))
    for path in (*outcome.created, *outcome.updated, *outcome.pruned)[: 0 if how.every else None]:
        out.line(f"  {path}")
    for line in _after(job, how):
        out.line(line)


def _cell_lines(context: CellContext) -> list[str]:
    from provisioner.cli.resolve import summary_lines, warning_lines

    cell, warnings = context.cell, context.resolution.warnings
    lines = [cell.name, "", *summary_lines(cell), *warning_lines(warnings)]
    return [*lines, ""]


def _counts(outcome: Outcome, root: Path) -> str:
    return (
        f"Below {printable(str(root.resolve()))}: {len(outcome.created)} created, "
        f"{len(outcome.updated)} updated, {len(outcome.unchanged)} unchanged, "
        f"{len(outcome.pruned)} pruned."
    )


def _after(job: Job, how: How) -> list[str]:
    """What was refused, or the next command."""
    if how.many:
        from provisioner.cli.render_check import gone_lines

        refused = [f"  {count} x {code}" for code, count in job.refused_by_code().items()]
        total = len(job.refused)
        said = [counted(len(job.cells), "cell")]
        if total or how.every:
            said.append(f"{counted(total, 'combination')} without one")
        return ([] if how.remove else [f"{', '.join(said)}."]) + refused + gone_lines(job, how.root)
    return ["", f"Next: {next_command(job.cells[0], how.root)}"]


def next_command(context: CellContext, root: Path) -> str:
    """The lock while there is none, then the build."""
    from provisioner.render.dockerfile import lock_files

    missing = [name for name in lock_files(context) if not (root / context.locks / name).is_file()]
    verb = "lock" if missing else "build"
    return f"provision {verb} {context.name}{out_option(root)}"


def _written_json(job: Job, how: How, outcome: Outcome) -> dict[str, Any]:
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
