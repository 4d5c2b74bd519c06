"""`provision matrix list`: the matrix as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.options import common_options, matrix_options
from provisioner.cli.output import Output, note_age, table

if TYPE_CHECKING:
    from provisioner.cli.settings import Settings
    from provisioner.matrix.listing import Row

LIST_SCHEMA = "provision.matrix.list/1"


@click.command("list")
@click.option("--torch", metavar="RANGE", help="Only these releases: 2.0.1, or >=2.1,<2.5.")
@click.option("--cuda", metavar="SERIES", help="Only builds for this CUDA: 11.8, cu118, cpu.")
@click.option("--gpu", multiple=True, metavar="GPU", help="Only builds with code for this GPU.")
@matrix_options
@common_options
def command(
    settings: Settings, out: Output, torch: str | None, cuda: str | None, gpu: tuple[str, ...]
) -> None:
    """List the releases with their builds, Pythons and evidence."""
    from provisioner.matrix.age import age_days, today
    from provisioner.matrix.evidence import read_evidence
    from provisioner.matrix.listing import gpu_fact, rows
    from provisioner.matrix.load import evidence_directory

    matrix = settings.open().matrix
    evidence, refused = read_evidence(evidence_directory(), Path("lockfiles"))
    found = rows(matrix, torch=torch, cuda=cuda, gpus=gpu, evidence=evidence.values())
    cards = [gpu_fact(matrix, name) for name in gpu]
    if out.json:
        out.result(
            {
                "schema": LIST_SCHEMA,
                "as_of": matrix.meta.as_of,
                "matrix_age_days": age_days(matrix.meta, today()),
                "gpus": [
                    {"name": c.label, "capability": c.capability.capability, "verified": c.verified}
                    for c in cards
                ],
                "releases": found,
            }
        )
        return
    for line in page(found):
        out.line(line)
    for card in cards:
        if not card.verified:
            out.line(f"What is told of the {card.label} is not confirmed at first hand.")
    note_age(out, matrix)
    for sentence in refused:
        out.note(f"No evidence: {sentence}")


def page(found: list[Row]) -> list[str]:
    """The table for people, at most 80 columns."""
    if not found:
        return ["No release of the matrix passes these filters."]
    lines = table(
        ("torch", "date", "builds", "python", "comp", "triton", "level"),
        [
            (
                row.torch,
                row.released.rpartition("-")[0],
                " ".join(_mark(row, tag) for tag in row.variants),
                _span(row.python),
                row.compile_python_max or "-",
                row.triton or "-",
                _level(row),
            )
            for row in found
        ],
    )
    cells = [entry for row in found for entry in row.evidence]
    if cells:
        lines += ["", "Cells rendered here or with evidence:"]
        lines += [f"  {entry.cell}: {entry.level}" for entry in cells]
    lines += [
        "",
        "*: the build of the package index. ?: not confirmed at first hand.",
        "comp: newest Python for torch.compile. level: best of its cells (-: documented).",
    ]
    return lines


def _mark(row: Row, tag: str) -> str:
    return tag + "*" * (tag == row.pypi_variant) + "?" * (tag in row.unverified)


def _span(series: tuple[str, ...]) -> str:
    return series[0] if len(series) == 1 else f"{series[0]}-{series[-1]}"


def _level(row: Row) -> str:
    short = {"documented": "-", "verified on CPU": "CPU", "verified on GPU": "GPU"}
    return short.get(row.level, row.level)
