"""Four small machines over ssh, their facts read once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import Engine
from support.fleets import Boxes, Site, running, site_of


@pytest.fixture(scope="session")
def boxes(
    engine: Engine, base_image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Boxes]:
    """Machines gpu0 to gpu3."""
    folder = tmp_path_factory.mktemp("boxes")
    with running(engine, base_image("12"), folder, [f"gpu{n}" for n in range(4)]) as found:
        yield found


@pytest.fixture(scope="session")
def facts(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their facts, read over ssh."""
    site = site_of(boxes, tmp_path_factory.mktemp("facts"), None)
    done = site.call("facts")
    assert done.returncode == 0, done.stdout + done.stderr
    return site.fleet / "facts.jsonl"


@pytest.fixture
def new_site(boxes: Boxes, facts: Path, tmp_path: Path) -> Callable[..., Site]:
    """Makes a fleet folder over machines that nothing was done to."""

    def made(**variables: Any) -> Site:
        boxes.reset()
        return site_of(boxes, tmp_path, facts, **variables)

    return made
