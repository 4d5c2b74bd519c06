"""A conda channel over HTTP on the loopback: with credentials, with failures, with a log."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class ChannelServer:
    """What is served, and what was asked. `status` answers everything with that status."""

    folder: Path
    authorization: str | None = None
    status: int | None = None
    body: bytes | None = None
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def paths(self) -> list[str]:
        """The paths that were asked for, in order."""
        return [path for path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: ChannelServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        state = self.server_state
        sent = self.headers.get("Authorization")
        path = unquote(urlsplit(self.path).path)
        state.asked.append((path, sent))
        status, data = 200, b""
        file = state.folder / path.lstrip("/")
        if state.authorization is not None and sent != state.authorization:
            status = 401
        elif state.status is not None:
            status = state.status
        elif state.body is not None and path.endswith(".json"):
            data = state.body
        elif file.is_file():
            data = file.read_bytes()
        else:
            status = 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (name of the base class)
        """Keep the tests' output quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is no news."""


@contextmanager
def serve_channel(folder: Path) -> Iterator[ChannelServer]:
    """Serve a folder on a free port of 127.0.0.1; what is given can be changed meanwhile."""
    state = ChannelServer(folder)
    handler = type("ChannelHandler", (_Handler,), {"server_state": state})
    server = _Server(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="conda-channel", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
