"""`provision matrix validate`: check a matrix, or an overlay on the shipped one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.options import common_options, matrix_options

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings

VALIDATE_SCHEMA = "provision.matrix.validate/1"


@click.command("validate")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@matrix_options
@common_options
def command(settings: Settings, out: Output, file: Path | None) -> None:
    """Check a matrix FILE (default: the shipped matrix), with --overlay laid over it.

    Each problem is named with its file, line, path in the document and what was expected.
    """
    from provisioner.matrix.load import load_matrix

    loaded = load_matrix(file or settings.matrix, settings.overlays, cache=False)
    matrix = loaded.matrix
    counts = {
        "releases": len(matrix.releases),
        "builds": sum(len(release.variants) for release in matrix.releases),
        "toolkits": len(matrix.toolkits),
        "driver_branches": len(matrix.driver_branches),
        "gpus": len(matrix.gpus),
        "operating_systems": len(matrix.operating_systems),
        "known_bad": len(matrix.known_bad),
    }
    if out.json:
        out.result(
            {
                "schema": VALIDATE_SCHEMA,
                "valid": True,
                "sha256": loaded.sha256,
                "files": loaded.paths,
                "counts": counts,
            }
        )
        return
    out.line(f"{' + '.join(loaded.paths)}: valid")
    listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    out.line(f"  {listed}")
