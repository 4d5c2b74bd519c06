"""A package index on 127.0.0.1 that serves a folder of wheels, and the CPU wheel of torch for it.

Stands for the torch index in real builds: PEP 503 pages with sha256 fragments, and the metadata
files of PEP 658 so that a resolver need not fetch a whole wheel to read its dependencies.
"""

import hashlib
import html
import platform
import re
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj

from support.needs import UnavailableError

TORCH_CPU = "2.13.0"
_PIP_TIMEOUT_SECONDS = 600


def normalized(name: str) -> str:
    """Return a distribution name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, kw_only=True)
class Served:
    """One wheel of the index: where it lies, its hash, its metadata file."""

    path: Path
    sha256: str
    metadata: bytes

    @classmethod
    def of(cls, path: Path) -> "Served":
        """Read hash and metadata of the wheel at `path`."""
        sha256 = hashlib.sha256()
        with path.open("rb") as wheel:
            while block := wheel.read(1 << 20):
                sha256.update(block)
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            return cls(path=path, sha256=sha256.hexdigest(), metadata=archive.read(name))

    @property
    def link(self) -> str:
        """The wheel's line on its project's page."""
        target = f"{urllib.parse.quote(self.path.name)}#sha256={self.sha256}"
        core = f"sha256={hashlib.sha256(self.metadata).hexdigest()}"
        label = html.escape(self.path.name)
        return f'<a href="{target}" data-core-metadata="{core}">{label}</a><br>'


def project_page(wheels: list[Served]) -> bytes:
    """Return the PEP 503 page that lists `wheels`."""
    links = "\n".join(wheel.link for wheel in wheels)
    return f"<!DOCTYPE html>\n<html><body>\n{links}\n</body></html>\n".encode()


class _Handler(BaseHTTPRequestHandler):
    """Answers `.../PROJECT/` and `.../PROJECT/FILE`, whatever comes before (such as /whl/cpu)."""

    protocol_version = "HTTP/1.1"
    projects: Mapping[str, list[Served]]

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        parts = path.split("/")
        project, name = (parts[-2], parts[-1]) if len(parts) > 2 else ("", "")
        wheels = self.projects.get(normalized(project), [])
        if wheels and not name:
            self._send(project_page(wheels), "text/html")
            return
        for wheel in wheels:
            if name == wheel.path.name:
                self._send_file(wheel.path)
                return
            if name == f"{wheel.path.name}.metadata":
                self._send(wheel.metadata, "application/octet-stream")
                return
        self.send_error(404)

    def _send(self, body: bytes, kind: str) -> None:
        self._head(len(body), kind)
        self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        self._head(path.stat().st_size, "application/octet-stream")
        with path.open("rb") as wheel:
            copyfileobj(wheel, self.wfile, 1 << 20)

    def _head(self, length: int, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (name of the base class)
        """Keep the tests' output quiet."""


@contextmanager
def serve_wheels(folder: Path) -> Iterator[str]:
    """Serve every wheel in `folder` on a free port of 127.0.0.1; yields the index's base URL.

    The URL has no trailing slash; projects are at `URL/NAME/`, and anything may stand between
    (`URL/cpu/NAME/`).
    """
    projects: dict[str, list[Served]] = {}
    for path in sorted(folder.glob("*.whl")):
        projects.setdefault(normalized(path.name.split("-")[0]), []).append(Served.of(path))
    handler = type("WheelHandler", (_Handler,), {"projects": projects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="wheelhouse", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/whl"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetch_torch_cpu(folder: Path, version: str = TORCH_CPU) -> Path:
    """Return the CPU wheel of torch `version` for Python 3.11 in `folder`, fetched when missing.

    pip's own settings decide where it comes from. The exact local version is asked for: an
    index without a CPU build says no at once, where a plain `torch==2.13.0` would bring a CUDA
    build of a gigabyte. Raises UnavailableError.
    """
    pattern = f"torch-{version}+cpu-cp311-*.whl"
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob(pattern)):
        _pip_download(folder, f"torch=={version}+cpu")
    return next(folder.glob(pattern))


def _pip_download(folder: Path, requirement: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    target = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311"]
    target.append(f"--platform=manylinux_2_28_{platform.machine()}")
    done = subprocess.run(
        [*command, *target, "--no-cache-dir", f"--dest={folder}", requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PIP_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise UnavailableError(
            f"pip finds no {requirement} for Python 3.11 with its own settings ({last}); "
            "point pip at an index or a folder that has it (pip config set global.find-links DIR)"
        )
