"""The builder stage of a conda cell: its prefix from a lock, every archive by its sha256."""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.conda_channel import greet_package, write_package
from support.engine import Completed, Engine
from support.rendering import facts, resolved

from provisioner.render.job import cell_job
from provisioner.render.journal import write

pytestmark = [pytest.mark.images, pytest.mark.network, pytest.mark.timeout(900)]

BUILDER = "localhost/provision-test/builder:12"
RESULT = "localhost/provision-test/conda-prefix:builder"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the tests' output quiet."""


@dataclass(frozen=True, kw_only=True)
class Yard:
    """A rendered conda cell with a lock of one package, and the channel that serves it."""

    engine: Engine
    root: Path
    name: str
    archive: Path
    options: tuple[str, ...]

    def build(self) -> Completed:
        return self.engine.build(
            self.root,
            *self.options,
            "--target=builder",
            f"--tag={RESULT}",
            dockerfile=self.root / "docker" / self.name / "Dockerfile",
        )


@pytest.fixture
def yard(
    engine: Engine,
    base_image: Callable[[str], str],
    ca_options: list[str],
    tmp_path: Path,
) -> Iterator[Yard]:
    base = base_image("12")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {base}\nRUN apt-get update && apt-get install -y --no-install-recommends "
        "python3 python3-venv && rm -rf /var/lib/apt/lists/*\n",
        encoding="ascii",
    )
    made = engine.build(tmp_path, f"--tag={BUILDER}")
    assert made.returncode == 0, made.stderr[-2000:]
    channel = tmp_path / "conda" / "conda-forge"
    archive = write_package(channel, greet_package(tmp_path / "greet"))
    resolution = resolved(torch="2.13.0", cuda="cpu", os="debian12", python="3.11")
    root, name = tmp_path / "root", resolution.cell.name
    job = cell_job(resolution, facts(), {})
    write(root, job.files, job.groups)
    write_lock(root / "lockfiles" / name, archive)
    handler = functools.partial(QuietHandler, directory=tmp_path / "conda")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options = (
        *ca_options,
        f"--build-arg=BASE_IMAGE={base}",
        f"--build-arg=BUILDER_IMAGE={BUILDER}",
        f"--build-arg=CONDA_CHANNELS=http://127.0.0.1:{server.server_port}",
    )
    try:
        yield Yard(engine=engine, root=root, name=name, archive=archive, options=options)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        engine.remove_image(RESULT)
        engine.remove_image(BUILDER)


def write_lock(folder: Path, archive: Path) -> None:
    """A lock of one package under its address on conda-forge."""
    data = archive.read_bytes()
    place = f"{archive.parent.name}/{archive.name}"
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    lines = [
        "@EXPLICIT",
        f"https://conda.anaconda.org/conda-forge/{place}#{md5}",
        f"# sha256 {hashlib.sha256(data).hexdigest()}  {place}",
    ]
    (folder / "conda-linux-64.lock").write_text("\n".join(lines) + "\n", encoding="ascii")
    for name in ("requirements.txt", "requirements-torch.txt"):
        (folder / name).write_text("# not read by the builder stage\n", encoding="ascii")


def test_the_builder_makes_the_prefix_from_the_lock_and_nothing_else(yard: Yard) -> None:
    done = yard.build()
    assert done.returncode == 0, done.stderr[-3000:]
    ran = yard.engine.run(RESULT, "/opt/env/bin/greet")
    assert ran.returncode == 0, ran.stderr
    assert "/opt/env" in ran.stdout


def test_an_archive_with_other_bytes_than_locked_ends_the_build(yard: Yard) -> None:
    data = bytearray(yard.archive.read_bytes())
    data[len(data) // 2] ^= 1
    yard.archive.write_bytes(data)
    done = yard.build()
    assert done.returncode != 0
    assert "conda.archive-hash" in done.stderr


def test_without_the_conda_half_the_build_names_the_lock(yard: Yard) -> None:
    (yard.root / "lockfiles" / yard.name / "conda-linux-64.lock").unlink()
    done = yard.build()
    assert done.returncode != 0
    assert f"conda-linux-64.lock is missing: run 'provision lock {yard.name}'" in done.stderr
