"""`provision render --check` and `--diff`: what is on disk, held against a render of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.cli.output import counted, printable, wrap
from provisioner.cli.render_said import RENDER_SCHEMA
from provisioner.errors import Exit
from provisioner.render.job import LOCK_GROUP
from provisioner.render.plan import Difference, check, touched
from provisioner.shell import out_option, shell_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from provisioner.cli.output import Output
    from provisioner.cli.render import How
    from provisioner.render.context import OwnMatrix
    from provisioner.render.job import Job
    from provisioner.render.spec import MatrixStamp, Recorded

_SHOWN = 20
_DIGITS = 12


class OtherMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that were rendered from another matrix than this run has."""

    cells: tuple[str, ...]
    recorded: MatrixStamp
    now: MatrixStamp

    @property
    def lost(self) -> list[OwnMatrix]:
        """The user's files that the cells were rendered with and this run was not given."""
        named = {(file.option, file.name) for file in self.now.own}
        return [file for file in self.recorded.own if (file.option, file.name) not in named]


def run_check(job: Job, recorded: Mapping[str, Recorded], how: How, out: Output) -> int:
    """Say which files differ from a render of today; with --diff show how. Writes nothing.

    Locks that the manifest lists and that are gone count too, though a render makes none.
    """
    from provisioner.render.diff import diff

    found = check(how.root, job.files, job.groups)
    locks = [] if how.remove else _lost_locks(how.root, job)
    refused = [] if how.every else list(job.refused)
    others = other_matrices(job, recorded)
    text = diff(how.root, job.files, job.groups) if how.diff else ""
    if out.json:
        out.result(
            {
                "schema": RENDER_SCHEMA,
                "root": str(how.root.resolve()),
                "cells": [str(context.name) for context in job.cells],
                "differences": [
                    {"path": item.path, "kind": item.kind} for item in [*found, *locks]
                ],
                "refused": [{"request": r, "refusal": why} for r, why in refused],
                "other_matrix": others,
                **({"diff": text} if how.diff else {}),
            }
        )
    else:
        for line in _lines(job, found, locks, others, how):
            out.line(line)
        for _, refusal in refused:
            for line in wrap(f"no cell any more: {refusal.message} [{refusal.code}]", "    ", "  "):
                out.line(line)
        if text:
            out.line(text.rstrip("\n"))
    return int(Exit.FINDING if how.check and (found or locks or refused) else Exit.DONE)


def _lost_locks(root: Path, job: Job) -> list[Difference]:
    groups = {f"{LOCK_GROUP}{context.name}" for context in job.cells}
    return [item for item in touched(root, groups) if item.kind == "missing"]


def other_matrices(job: Job, recorded: Mapping[str, Recorded]) -> list[OtherMatrix]:
    """The cells of the job that were rendered from another matrix, by that matrix."""
    from provisioner.render.spec import stamp_of

    cells: dict[tuple[MatrixStamp, MatrixStamp], list[str]] = {}
    for context in job.cells:
        old = recorded.get(context.name)
        now = stamp_of(context.facts)
        if old is not None and old.matrix is not None and old.matrix != now:
            cells.setdefault((old.matrix, now), []).append(str(context.name))
    return [
        OtherMatrix(cells=tuple(names), recorded=old, now=now)
        for (old, now), names in cells.items()
    ]


def _lines(
    job: Job,
    found: list[Difference],
    locks: list[Difference],
    others: list[OtherMatrix],
    how: How,
) -> list[str]:
    place = printable(str(how.root.resolve()))
    number = f"{counted(len(job.cells), 'cell')} below {place}"
    differing = [*found, *locks]
    if not differing:
        lines = [f"{number}: {counted(len(job.files), 'file')}, all as rendered."]
        return lines + gone_lines(job, how.root)
    files = counted(len(differing), "file")
    lines = [f"{number}: {files} {'differs' if len(differing) == 1 else 'differ'} from a render."]
    lines += [f"  {item.path}: {item.kind}" for item in differing[:_SHOWN]]
    if len(differing) > _SHOWN:
        lines.append(f"  and {len(differing) - _SHOWN} more")
    for other in others:
        lines += wrap(_said(other), "    ", "  ")
    lines += gone_lines(job, how.root)
    return [*lines, *_next(found, locks, others, how)]


def gone_lines(job: Job, root: Path) -> list[str]:
    """What the manifest still lists of cells whose spec.json was deleted."""
    from provisioner.render.job import CELL_GROUP, listed_cells

    if not job.gone:
        return []
    listed = listed_cells(root)
    lines: list[str] = []
    for name in job.gone:
        groups = listed.get(name, ())
        if CELL_GROUP + name in groups:
            lines.append(f"  docker/{name} was deleted; --again takes the rest away")
        elif groups:
            lines.append(f"  lockfiles/{name} is left of a cell; --remove {name} takes it away")
    return lines


def _next(
    found: list[Difference], locks: list[Difference], others: list[OtherMatrix], how: How
) -> list[str]:
    place = out_option(how.root)
    lines: list[str] = []
    lost = sorted({file for other in others for file in other.lost}, key=lambda file: file.name)
    if lost:
        options = " ".join(f"{file.option} {shell_word(file.name)}" for file in lost)
        lines = wrap(
            f"Next: give {options} too, or render without: provision render --again --force{place}"
        )
    elif found:
        verb, does = "with the same options", "writes them again"
        if how.remove:
            names = " ".join(f"--remove {shell_word(name)}" for name in how.remove)
            verb, does = f"{names}{place}", "takes them away"
        elif how.again:
            verb = f"--again{place}"
        if any(item.kind == "edited" for item in found):
            verb += " --force"  # without it what was edited by hand is kept
        lines = [f"Next: provision render {verb} {does}."]
    cells = sorted({item.path.split("/")[1] for item in locks})
    return lines + [f"Next: provision lock {name}{place}" for name in cells[:_SHOWN]]


def _said(other: OtherMatrix) -> str:
    """Why every file of a cell may differ: the matrix that it was rendered from is another."""
    cells = counted(len(other.cells), "cell")
    old, now = other.recorded, other.now
    if old.own == now.own:
        return (
            f"{cells}: rendered from the matrix of {old.as_of} ({old.sha256[:_DIGITS]}), "
            f"this is that of {now.as_of} ({now.sha256[:_DIGITS]})"
        )
    return f"{cells}: rendered with {files_said(old.own)}, this check has {files_said(now.own)}"


def files_said(files: Iterable[OwnMatrix]) -> str:
    """The user's own matrix files as people read them, with the begin of each SHA-256."""
    said = (f"{file.option} {shell_word(file.name)} ({file.sha256[:_DIGITS]})" for file in files)
    return " ".join(said) or "no --matrix and no --overlay"
