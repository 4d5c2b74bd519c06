"""The rule for parts of the tests that need something this machine may not have.

A person without a Docker engine sees those tests skipped, with the reason and the remedy. Where
everything can be had (.ci/run), the variable PROVISION_TEST_REQUIRE names the parts that must
be there ("engine,network,system,torch"), and the same skip is a failure. `system` stands for what
root may do and what packages of the distribution and the locked tools bring: mounts, mkfs, linters.
"""

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest

VARIABLE = "PROVISION_TEST_REQUIRE"
PARTS = frozenset({"engine", "network", "system", "torch"})


class UnavailableError(Exception):
    """Something outside is not to be had; the message is the reason that a skip shows."""


def required_parts(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the parts that must be there; ValueError when one has no such name."""
    named = frozenset(part.strip() for part in environ.get(VARIABLE, "").split(",") if part.strip())
    if unknown := named - PARTS:
        raise ValueError(f"{VARIABLE} names {sorted(unknown)}; known parts: {sorted(PARTS)}")
    return named


def needs(part: str, *, missing: bool, reason: str) -> pytest.MarkDecorator:
    """Mark a test that is skipped with `reason` where something is missing.

    Where PROVISION_TEST_REQUIRE names `part` it is not skipped: it runs, and fails by itself.
    """
    return pytest.mark.skipif(missing and part not in required_parts(), reason=reason)


def skip_or_fail(part: str, reason: str) -> NoReturn:
    """Skip the test with `reason`, or fail it when PROVISION_TEST_REQUIRE names `part`."""
    if part in required_parts():
        pytest.fail(f"{reason} ({VARIABLE} demands {part!r} here)", pytrace=False)
    pytest.skip(reason)
