"""docs/json.md against the code: every object that a command prints is described there."""

import re

import pytest
from support.engine import PROJECT

DOCUMENTED = set(
    re.findall(r"provision\.[a-z.-]+/[0-9]+", (PROJECT / "docs" / "json.md").read_text("utf-8"))
)
NAMED = {
    (schema, str(path.relative_to(PROJECT)))
    for path in sorted((PROJECT / "provisioner").rglob("*.py"))
    for schema in re.findall(r'"(provision\.[a-z.-]+/[0-9]+)"', path.read_text("utf-8"))
}
PRINTED = sorted({schema for schema, path in NAMED if path.startswith("provisioner/cli/")})
# Files of the tool's own, which no command prints.
FILES = {
    "provision.bundle/1",
    "provision.env-pack/1",
    "provision.fleet-facts/1",
    "provision.licenses/1",
    "provision.model-probe/1",
    "provision.prefix/1",
    "provision.probe-evidence/1",
    "provision.ptxas-evidence/1",
    "provision.spec/1",
}


@pytest.mark.parametrize("schema", PRINTED)
def test_what_a_command_prints_is_described(schema: str) -> None:
    assert schema in DOCUMENTED


def test_nothing_is_described_that_is_not_there() -> None:
    assert DOCUMENTED - {schema for schema, _ in NAMED} == set()


def test_what_is_not_described_is_a_file_of_our_own() -> None:
    assert {schema for schema, _ in NAMED} - DOCUMENTED <= FILES
