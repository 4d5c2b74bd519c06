"""`provision matrix`: list, show, validate, schema, audit."""

from __future__ import annotations

import click

from provisioner.cli.lazy import LazyGroup
from provisioner.cli.options import common_options

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("provisioner.cli.matrix_list:command", "List the releases with their builds."),
    "show": ("provisioner.cli.matrix_show:command", "Show a release, toolkit, GPU, driver or OS."),
    "validate": ("provisioner.cli.matrix_validate:command", "Check a matrix or an overlay."),
    "schema": ("provisioner.cli.matrix:schema", "Print the JSON Schema of matrix.yaml."),
    "audit": ("provisioner.cli.matrix_audit:command", "Hold the matrix against package indexes."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def group() -> None:
    """Show, check and audit what the tool knows."""


@click.command("schema")
@common_options
def schema(out: object) -> None:  # noqa: ARG001 - the schema is JSON with and without --json
    """Print the JSON Schema of matrix.yaml."""
    from provisioner.matrix.schema import schema_text

    click.echo(schema_text(), nl=False)
