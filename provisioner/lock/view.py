"""The index that the engines see: on the loopback, one wheel for each version that counts.

Each version shows as one `py3-none-any` wheel whose content is its metadata alone. Which platform,
which day, which index: all that is decided before, in one place for every engine; an engine only
decides versions. Speaks PEP 691 JSON, PEP 503 HTML and PEP 658 metadata.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import secrets
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from provisioner.errors import OutsideError, ProvisionError
from provisioner.lock.inputs import normal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.lock.catalogue import Catalogue
    from provisioner.lock.select import Project

JSON = "application/vnd.pypi.simple.v1+json"
HTML = "text/html; charset=utf-8"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SUFFIX = "-py3-none-any.whl"


@contextlib.contextmanager
def serve(catalogue: Catalogue) -> Iterator[str]:
    """Yields the address of a simple index over the catalogue, served until the block ends.

    The path holds a secret word: another user of this machine cannot read through the view what
    the credentials of this one open.
    """
    word = secrets.token_urlsafe(18)
    try:
        server = _Server(catalogue, f"/{word}")
    except OSError as error:
        raise no_loopback(f"cannot be listened on: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{word}/simple/"
    finally:
        server.shutdown()
        server.server_close()


def no_loopback(what: str) -> OutsideError:
    """Returns the error for a machine on which engines cannot read our index."""
    return OutsideError(
        "lock.loopback",
        f"The loopback interface, over which the resolver reads, {what}.",
        facts={"address": "127.0.0.1"},
        next_step="Bring it up (`ip link set lo up`), and let programs connect to 127.0.0.1.",
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, catalogue: Catalogue, prefix: str) -> None:
        self.catalogue, self.prefix = catalogue, prefix
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - as inherited
        """An engine that hangs up is no news; anything else must not end as "no solution"."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, (ConnectionError, TimeoutError)):
            self.catalogue.fail(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        status, kind, body = self._answer()
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as inherited
        """Says nothing: requests of an engine are no news."""

    def _answer(self) -> tuple[int, str, bytes]:
        self.server.catalogue.heard = True
        path = self.path.partition("?")[0]
        parts = [unquote(part) for part in path.removeprefix(self.server.prefix).split("/")]
        if not path.startswith(f"{self.server.prefix}/") or len(parts) != 4:
            return 404, HTML, b""
        _, place, name, last = parts
        try:
            if place == "simple" and not last:
                return self._page(normal_name(name))
            if place == "files":
                return self._file(normal_name(name), last)
        except ProvisionError as error:
            self.server.catalogue.fail(error)
        return 404, HTML, b""

    def _page(self, name: str) -> tuple[int, str, bytes]:
        project = self.server.catalogue.project(name)
        if not project.known:
            return 404, HTML, b""
        if JSON in self.headers.get("Accept", ""):
            return 200, JSON, _json_page(project)
        return 200, HTML, _html_page(project)

    def _file(self, name: str, last: str) -> tuple[int, str, bytes]:
        filename = last.removesuffix(".metadata")
        version = filename.removesuffix(_SUFFIX).partition("-")[2]
        project = self.server.catalogue.project(name)
        if version not in project.candidates or filename != _alias(name, version):
            return 404, HTML, b""
        text = self.server.catalogue.metadata(name, version).text(name, version)
        if filename != last:
            return 200, "text/plain; charset=utf-8", text.encode()
        return 200, "application/zip", stub_wheel(name, version, text)


def stub_wheel(name: str, version: str, metadata: str) -> bytes:
    """Returns a wheel that holds its metadata and installs nothing."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{folder}/METADATA": metadata,
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{folder}/RECORD": f"{folder}/METADATA,,\n{folder}/WHEEL,,\n{folder}/RECORD,,\n",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path, _EPOCH), text)
    return out.getvalue()


def _alias(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}{_SUFFIX}"


def _files(project: Project) -> Iterator[tuple[str, str, bool]]:
    for version, candidate in project.candidates.items():
        alias = _alias(project.name, version)
        yield alias, f"../../files/{project.name}/{quote(alias)}", candidate.yanked


def _json_page(project: Project) -> bytes:
    files = [
        {"filename": alias, "url": url, "hashes": {}, "core-metadata": True, "yanked": yanked}
        for alias, url, yanked in _files(project)
    ]
    page = {"meta": {"api-version": "1.0"}, "name": project.name, "files": files}
    return json.dumps(page).encode()


def _html_page(project: Project) -> bytes:
    links = []
    for alias, url, yanked in _files(project):
        flag = ' data-yanked=""' if yanked else ""
        links.append(
            f'<a href="{html.escape(url)}" data-core-metadata="true" '
            f'data-dist-info-metadata="true"{flag}>{html.escape(alias)}</a><br>\n'
        )
    return ("<!DOCTYPE html>\n<html><body>\n" + "".join(links) + "</body></html>\n").encode()
