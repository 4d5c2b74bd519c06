"""The two real images, each built once for all tests that look at it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cell_images import (
    NEW,
    OLD,
    ArchiveMirror,
    Image,
    Workshop,
    archive_mirror,
    archive_of,
    secret_files,
)
from support.engine import Engine


@pytest.fixture(scope="session")
def old_workshop(
    engine: Engine,
    base_image: Callable[[str], str],
    ca_bundle: Path | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Workshop:
    """torch 2.0.1 of the package index, rendered and locked for Debian 11."""
    folder = tmp_path_factory.mktemp("old")
    workshop = Workshop(
        case=OLD,
        engine=engine,
        base=base_image(OLD.debian),
        root=folder / "root",
        secrets=secret_files(folder, ca_bundle, ""),
    )
    workshop.prepare()
    return workshop


@pytest.fixture(scope="session")
def archive(engine: Engine, base_image: Callable[[str], str]) -> Iterator[ArchiveMirror]:
    """A mirror of Debian's archive that wants a password."""
    with archive_mirror(archive_of(engine, base_image(NEW.debian))) as mirror:
        yield mirror


@pytest.fixture(scope="session")
def new_workshop(
    engine: Engine,
    base_image: Callable[[str], str],
    ca_bundle: Path | None,
    archive: ArchiveMirror,
    torch_cpu_index: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Workshop:
    """torch 2.13.0+cpu of a torch index, rendered and locked for Debian 12, all behind mirrors."""
    folder = tmp_path_factory.mktemp("new")
    workshop = Workshop(
        case=NEW,
        engine=engine,
        base=base_image(NEW.debian),
        root=folder / "root",
        secrets=secret_files(folder, ca_bundle, archive.netrc),
        mirrors={"torch_index": torch_cpu_index, "apt": archive.url},
    )
    workshop.prepare()
    return workshop


def _image(workshop: Workshop, at_end: ExitStack) -> Image:
    import json

    at_end.callback(workshop.engine.remove_image, workshop.tag)
    done = workshop.build()
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return Image(workshop=workshop, told=json.loads(done.stdout))


@pytest.fixture(scope="session")
def old_image(old_workshop: Workshop) -> Iterator[Image]:
    """The built image of torch 2.0.1."""
    with ExitStack() as at_end:
        yield _image(old_workshop, at_end)


@pytest.fixture(scope="session")
def new_image(new_workshop: Workshop) -> Iterator[Image]:
    """The built image of torch 2.13.0."""
    with ExitStack() as at_end:
        yield _image(new_workshop, at_end)
