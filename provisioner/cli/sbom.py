"""`provision sbom`: the bill of materials of a locked cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.options import common_options
from provisioner.errors import Exit, OutsideError

if TYPE_CHECKING:
    from provisioner.cli.output import Output

SBOM_SCHEMA = "provision.sbom-run/1"


@click.command("sbom")
@click.argument("cell")
@click.option(
    "--format", "form", type=click.Choice(["json"]), default="json", help="CycloneDX 1.6 as JSON."
)
@click.option(
    "--out",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there (default: standard output).",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of docker/ and lockfiles/ (default: this one).",
)
@common_options
def command(cell: str, form: str, target: Path | None, root: Path, out: Output) -> int:  # noqa: ARG001
    """Print the software bill of materials of CELL, from its locks alone.

    CycloneDX 1.6: every package of both halves with purl, hashes, address and what it depends on.
    The same locks give the same bytes.

    \b
    provision sbom torch2.0.1-cu118-py310-ubuntu22.04 --out sbom.cdx.json
    """
    from provisioner.lock.halves import read_cell
    from provisioner.lock.sbom import sbom, sbom_bytes

    locked = read_cell(root, cell)
    data = sbom_bytes(locked)
    if target is None:
        click.echo(data, nl=False)
        return int(Exit.DONE)
    from provisioner.conda.prefix import write_atomically

    try:
        write_atomically(target, data)
    except OSError as error:
        raise OutsideError(
            "sbom.not-written",
            f"{target} cannot be written: {error.strerror}.",
            next_step="Name a file in a folder that is there and has room.",
        ) from None
    count = len(sbom(locked)["components"])
    if out.json:
        out.result({"schema": SBOM_SCHEMA, "cell": cell, "file": str(target), "components": count})
    else:
        out.line(f"{target}: {count} packages of {cell}, CycloneDX 1.6.")
    return int(Exit.DONE)
