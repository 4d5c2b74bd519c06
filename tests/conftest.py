"""Session fixtures for what lies outside Python, and the rule of their markers.

A test marked `images` gets the engine, one marked `network` a package index that answers: both
are skipped with the reason where there is none (failed instead under PROVISION_TEST_REQUIRE).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import PROJECT, Engine, base_image_name, find_engine, missing_suite
from support.needs import UnavailableError, required_parts, skip_or_fail
from support.wheelhouse import fetch_torch_cpu, serve_wheels

MARKED_FIXTURES = {"images": "engine", "network": "package_index"}


def pytest_configure() -> None:
    """Refuse a misspelt PROVISION_TEST_REQUIRE before any test runs."""
    try:
        required_parts()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each marked test the session fixture that its marker stands for."""
    for item in items:
        for marker, fixture in MARKED_FIXTURES.items():
            if item.get_closest_marker(marker) and isinstance(item, pytest.Function):
                item.fixturenames.insert(0, fixture)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The Docker engine of the tests."""
    try:
        return find_engine()
    except UnavailableError as error:
        skip_or_fail("engine", str(error))


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> Callable[[str], str]:
    """Name of the Debian base image of a version: `base_image("12")`."""

    def named(version: str) -> str:
        try:
            return base_image_name(engine, version)
        except UnavailableError as error:
            if missing_suite(version):
                # Nothing on this machine can bring back a suite that left the archive.
                pytest.skip(str(error))
            skip_or_fail("engine", str(error))

    return named


@pytest.fixture(scope="session")
def ca_bundle() -> Path | None:
    """CA certificates that clients here are told to trust, or None for their own defaults."""
    for variable in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if (value := os.environ.get(variable)) and Path(value).is_file():
            return Path(value)
    return None


@pytest.fixture(scope="session")
def ca_options(ca_bundle: Path | None) -> list[str]:
    """Options that hand the CA bundle to an image build as the secret `ca`; none without one."""
    return [] if ca_bundle is None else ["--secret", f"id=ca,src={ca_bundle}"]


@pytest.fixture(scope="session")
def package_index() -> None:
    """A package index that answers pip under its own settings."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries=1"]
    asked = subprocess.run(
        [*command, "--timeout=20", "index", "versions", "pip"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        last = (asked.stderr.strip() or "pip said nothing").splitlines()[-1]
        skip_or_fail("network", f"no package index answers pip here ({last})")


@pytest.fixture(scope="session")
def torch_cpu_index() -> Iterator[str]:
    """Base URL of a loopback index with the CPU wheel of torch 2.13.0 for Python 3.11."""
    folder = PROJECT / ".cache" / "wheelhouse"
    try:
        fetch_torch_cpu(folder)
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    with serve_wheels(folder) as url:
        yield url
