"""Real images of two cells for the tests here: rendered, locked and built by the command line."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.engine import Completed, Engine

CANARY = "canary-4f1d7c0b9a"
"""Stands in every secret; a layer that holds it has leaked one."""

PREFIX = "localhost/provision-test/cell"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell that is built for real."""

    name: str
    options: tuple[str, ...]
    debian: str
    torch_index: bool


OLD = Case(
    name="torch2.0.1-cu117-py39-debian11-basepy",
    options=("--torch=2.0.1", "--cuda=11.7", "--os=debian11", "--python-from=base"),
    debian="11",
    torch_index=False,
)
NEW = Case(
    name="torch2.13.0-cpu-py311-debian12-basepy",
    options=(
        "--torch=2.13.0", "--cuda=cpu", "--os=debian12", "--python-from=base",
        "--without=torchvision,torchaudio",
    ),
    debian="12",
    torch_index=True,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """An output root, the engine, and what builds in it are given."""

    case: Case
    engine: Engine
    base: str
    root: Path
    secrets: Mapping[str, Path]
    mirrors: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return f"{PREFIX}:{self.case.name}"

    def provision(self, *words: str, timeout: float = 1800) -> Completed:
        """Run our command line in a process of its own, on the engine of the tests."""
        return subprocess.run(
            [sys.executable, "-m", "provisioner", *words],
            env={**self.engine.environ, "PROVISION_DOCKER": str(self.engine.client)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def prepare(self) -> None:
        """Render and lock the cell."""
        mirrors = [f"--mirror={name}={url}" for name, url in self.mirrors.items()]
        place = f"--out={self.root}"
        done = self.provision("render", *self.case.options, place)
        assert done.returncode == 0, done.stderr
        done = self.provision("lock", self.case.name, place, *mirrors)
        assert done.returncode == 0, done.stderr + done.stdout

    def build(
        self, root: Path | None = None, tag: str | None = None, words: tuple[str, ...] = ()
    ) -> Completed:
        """Build with everything that this workshop gives; JSON comes out.

        `words` stand in the place of the cell's name: options that select it, say.
        """
        given = [f"--out={root or self.root}", f"--tag={tag or self.tag}", "--json"]
        given += [f"--base-image={self.base}", "--network=host"]
        given += [f"--secret={name}={path}" for name, path in self.secrets.items()]
        given += [f"--mirror={name}={url}" for name, url in self.mirrors.items()]
        return self.provision("build", *(words or (self.case.name,)), *given)

    def docker_build(self, root: Path, *options: str) -> Completed:
        """The build as a user without our command line types it."""
        secrets = [
            word
            for name, path in self.secrets.items()
            for word in ("--secret", f"id={name},src={path}")
        ]
        return self.engine.build(
            root, *secrets, *options, dockerfile=root / "docker" / self.case.name / "Dockerfile"
        )


@dataclass(frozen=True, kw_only=True)
class Image:
    """A built cell. `told` is what `provision build --json` printed."""

    workshop: Workshop
    told: dict[str, Any]

    def run(self, *command: str, options: tuple[str, ...] = ()) -> Completed:
        return self.workshop.engine.run(self.workshop.tag, *command, options=options)

    def inspect(self) -> dict[str, Any]:
        done = self.workshop.engine.docker("image", "inspect", self.workshop.tag)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found


@dataclass(kw_only=True)
class ArchiveMirror:
    """A mirror of a Debian archive that wants a password, and sends its readers to the archive."""

    url: str
    netrc: str
    served: list[str] = field(default_factory=list)
    turned_away: list[str] = field(default_factory=list)


@contextmanager
def archive_mirror(archive: str) -> Iterator[ArchiveMirror]:
    """Serve `archive` on a free port of 127.0.0.1 below /debian."""
    wanted = "Basic " + base64.b64encode(f"reader:{CANARY}".encode()).decode()
    mirror = ArchiveMirror(url="", netrc="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                mirror.turned_away.append(self.path)
                self._answer(401, "WWW-Authenticate", 'Basic realm="archive"')
                return
            mirror.served.append(self.path)
            self._answer(302, "Location", archive.rstrip("/") + self.path.removeprefix("/debian"))

        def _answer(self, status: int, header: str, value: str) -> None:
            self.send_response(status)
            self.send_header(header, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the tests' output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    address = f"http://127.0.0.1:{server.server_port}"
    mirror.url = f"{address}/debian"
    mirror.netrc = f"machine {address} login reader password {CANARY}\n"
    thread = threading.Thread(target=server.serve_forever, name="archive", daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def archive_of(engine: Engine, base: str) -> str:
    """The archive that a base image installs from."""
    done = engine.run(base, "cat", "/etc/apt/sources.list")
    return next(word for word in done.stdout.split() if word.startswith("http"))


def secret_files(folder: Path, ca_bundle: Path | None, netrc: str) -> dict[str, Path]:
    """Secrets for a build, each with the canary in it."""
    (folder / "netrc").write_text(netrc or f"machine none.example login x password {CANARY}\n")
    secrets = {"netrc": folder / "netrc"}
    if ca_bundle is not None:
        text = ca_bundle.read_text(encoding="utf-8", errors="replace")
        (folder / "ca.pem").write_text(f"# {CANARY}\n{text}", encoding="utf-8")
        secrets["ca"] = folder / "ca.pem"
    for path in secrets.values():
        os.chmod(path, 0o600)  # noqa: PTH101
    return secrets
