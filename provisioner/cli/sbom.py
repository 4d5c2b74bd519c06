"""`provision sbom`: the bill of materials of a locked cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.options import common_options
from provisioner.errors import Exit, OutsideError

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.lock.halves import LockedCell

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
    "--prefix",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Licenses that the locks do not know, from this environment of the cell.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of docker/ and lockfiles/ (default: this one).",
)
@common_options
def command(
    cell: str,
    form: str,  # noqa: ARG001
    target: Path | None,
    prefix: Path | None,
    root: Path,
    out: Output,
) -> int:
    """Print the software bill of materials of CELL, from its locks alone.

    CycloneDX 1.6: every package of both halves with purl, hashes, address, declared license and
    what it depends on.
    The same locks give the same bytes.

    \b
    provision sbom torch2.0.1-cu118-py310-ubuntu22.04 --out sbom.cdx.json
    """
    from provisioner.lock.halves import read_cell
    from provisioner.lock.sbom import sbom, sbom_bytes

    locked = read_cell(root, cell)
    if prefix is not None:
        locked = _with_licenses(locked, prefix)
    data = sbom_bytes(locked)
    if target is None:
        click.echo(data, nl=False)
        return int(Exit.DONE)
    from provisioner.atomic import write_whole

    try:
        write_whole(target, data)
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


def _with_licenses(locked: LockedCell, prefix: Path) -> LockedCell:
    import dataclasses

    from provisioner.env.licenses import installed_licenses

    found = installed_licenses(prefix, locked.name)
    return dataclasses.replace(locked, licenses=locked.licenses.beside(found))
