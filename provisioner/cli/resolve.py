"""`provision resolve`: which cell a request gets, and why; or why it gets none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.nearest import as_asked
from provisioner.cli.options import cell_options, common_options
from provisioner.cli.output import note_age, print_refusal, wrap
from provisioner.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.matrix.cell import Cell, Decision, Refusal, Resolution
    from provisioner.matrix.model import Matrix


@click.command("resolve")
@cell_options
@common_options
def command(settings: Settings, out: Output) -> int:
    """Find the cell for a request and say what decided each part.

    \b
    provision resolve --cuda 11.8
    provision resolve --torch latest --gpu "GTX 1080" --no-compile
    provision resolve --torch 2.15.0 --gpu A100 --driver 535.104.05
    """
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.resolve import resolve

    opened = settings.open()
    answer = resolve(opened.matrix, settings.request)
    if isinstance(answer, Refusal):
        answer = as_asked(answer, settings)
    if out.json:
        out.result(answer_json(answer, settings, opened.matrix))
    elif isinstance(answer, Refusal):
        print_refusal(out, answer, "provision resolve")
    else:
        for line in resolution_lines(answer, verbose=bool(out.verbose)):
            out.line(line)
    note_age(out, opened.matrix)
    return int(Exit.REFUSED if isinstance(answer, Refusal) else Exit.DONE)


def answer_json(answer: Resolution | Refusal, settings: Settings, matrix: Matrix) -> dict[str, Any]:
    """The object that `--json` prints (docs/json.md): `cell` and `decisions`, or `refusal`."""
    from provisioner.matrix.cell import RESOLVE_SCHEMA, Refusal

    head: dict[str, Any] = {"schema": RESOLVE_SCHEMA, "matrix_as_of": matrix.meta.as_of}
    if isinstance(answer, Refusal):
        return {**head, "refusal": answer, "options": settings.explain()}
    import msgspec

    cell = {**msgspec.to_builtins(answer.cell), "decisions": answer.decisions}
    return {
        **head,
        "cell": cell,
        "decisions": answer.decisions,
        "warnings": answer.warnings,
        "unverified": answer.unverified,
        "options": settings.explain(),
    }


# --- for people ---


def resolution_lines(answer: Resolution, *, verbose: bool) -> list[str]:
    """The cell, then what decided each part, then warnings."""
    lines = [answer.cell.name, ""]
    lines += summary_lines(answer.cell, answer.unverified)
    if answer.unverified:
        lines += ["", "  ?: not confirmed at first hand, see the last note."]
    lines += ["", "Why:"]
    for decision in answer.decisions:
        lines += _decision_lines(decision, verbose=verbose)
    lines += warning_lines(answer.warnings)
    return lines


def summary_lines(cell: Cell, unverified: Collection[str] = ()) -> list[str]:
    """The cell as a table of two columns; a `?` behind what is not confirmed at first hand."""
    mark = dict.fromkeys(unverified, " ?").get
    driver = cell.driver
    build = mark("torch") or mark("variant") or ""
    gpus = f"{', '.join(cell.gpu)}{mark('gpu') or mark('arch_list') or ''}"
    rows: list[tuple[str, str | None]] = [
        ("torch", f"{cell.local_version}{build} from {cell.index_url or 'the package index'}"),
        ("torchvision", f"{cell.torchvision or 'none'}{mark('torchvision', '')}"),
        ("torchaudio", f"{cell.torchaudio or 'none'}{mark('torchaudio', '')}"),
        ("triton", cell.triton),
        ("python", f"{cell.python} ({'base image' if cell.python_from == 'base' else 'conda'})"),
        ("os", f"{cell.os} {cell.arch}, image {cell.base_image}"),
        ("bounds", ", ".join(cell.constraints) or None),
        ("compile", None if cell.compile else "no: eager-only"),
    ]
    if cell.device == "cuda":
        rows += [
            ("gpu", gpus if cell.gpu else None),
            ("driver to run", f">= {driver.run_floor} (made for branch {driver.native})"),
            ("older driver", cell.forward_compat and f"as asked, with {cell.forward_compat}"),
            ("driver to compile", _at_least(driver.compile_floor) if cell.compile else None),
            ("driver for the GPU", _at_least(driver.gpu_floor, mark("gpu_floor") or mark("gpu"))),
            ("driver to install", f"branch {driver.install}" if driver.install else None),
        ]
    width = max(len(name) for name, value in rows if value)
    return [f"  {name.ljust(width)}  {value}" for name, value in rows if value]


def _at_least(version: str | None, mark: str | None = None) -> str | None:
    return f">= {version}{mark or ''}" if version else None


def _decision_lines(decision: Decision, *, verbose: bool) -> list[str]:
    sure = "" if decision.verified else " (not confirmed at first hand)"
    head = f"  {decision.part} {decision.value}: "
    lines = wrap(f"{decision.because}{sure}", "    ", head)
    for over in decision.passed_over if verbose else decision.passed_over[:1]:
        lines += wrap(f"not {over.value}: {over.because}", "      ", "    ")
    if verbose and decision.source:
        lines += wrap("source: " + ", ".join(decision.source), "      ", "    ")
    return lines


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """Warnings as paragraphs."""
    return [line for text in warnings for line in ["", *wrap(text, "  ", "Note: ")]]
