"""The environments with a real torch that tests of the probe run in, one release after another."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import UnavailableError, skip_or_fail
from torch_env import BUILDS, Outcome, TorchEnv, copy_of, make_environment, without_namespaces

CHOSEN = os.environ.get("PROVISION_TEST_TORCH", "2.13.0 2.0.1").split()
"""The releases that are judged; tools/acceptance.py names the others, one at a time."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`torch` is each chosen release that compiles, `eager_torch` each that cannot.

    A test that makes sense for some builds alone says so by the mark `builds`.
    """
    for name, compiles in (("torch", True), ("eager_torch", False)):
        if name in metafunc.fixturenames:
            mark = metafunc.definition.get_closest_marker("builds")
            fits = mark.args[0] if mark else bool
            builds = [BUILDS[torch] for torch in CHOSEN]
            chosen = [b.torch for b in builds if b.promise["compile"] is compiles and fits(b)]
            metafunc.parametrize(name, chosen, indirect=True, scope="module")


def _environment(torch: str, scratch: Path) -> TorchEnv:
    try:
        python = make_environment(torch)
    except UnavailableError as error:
        skip_or_fail("torch", str(error))
    return TorchEnv(python=python, scratch=scratch, build=BUILDS[torch])


@pytest.fixture(scope="module")
def torch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEnv:
    """An environment whose torch compiles."""
    return _environment(request.param, tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def eager_torch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TorchEnv:
    """An environment whose torch is older than torch.compile."""
    return _environment(request.param, tmp_path_factory.mktemp("probe"))


@pytest.fixture
def copied(torch: TorchEnv, tmp_path: Path) -> Iterator[TorchEnv]:
    """A second environment of the same content, to be broken."""
    with copy_of(torch, tmp_path) as other:
        yield other


@pytest.fixture(scope="module")
def verified(torch: TorchEnv) -> Outcome:
    """One run in a good environment, from nothing to its verdict."""
    folder = torch.scratch / "tmp"
    folder.mkdir()
    promise = ("--expect", json.dumps(torch.build.promise))
    return torch.probe("--strict-cache", *promise, env={"TMPDIR": str(folder)})


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Needs mount namespaces."""
    reason = without_namespaces()
    if reason:
        skip_or_fail("system", f"no mount namespace can be made here: {reason}")
