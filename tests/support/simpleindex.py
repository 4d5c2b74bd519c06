"""A real package index on 127.0.0.1 whose projects, and whose misbehaviour, a test writes down."""

import base64
import hashlib
import html
import io
import json
import re
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = "application/vnd.pypi.simple.v1+json"
LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(kw_only=True)
class Wheel:
    """One wheel as its index page shows it, which need not be what it is."""

    filename: str
    body: bytes
    metadata: bytes
    uploaded: str | None
    sha256: str | None
    requires_python: str | None = None
    yanked: bool = False
    metadata_sha256: str | None = None


@dataclass(kw_only=True)
class Index:
    """Projects and manners of one index. Change the fields before or while it serves.

    `status` answers a path that holds the key with that status, `delay_s` waits before any answer,
    `user` asks for that user and password, `beside` offers metadata files (PEP 658), `ranges`
    serves parts of files. `asked` has every path that was asked for, `heard` every Authorization.
    """

    json: bool = True
    beside: bool = True
    ranges: bool = True
    user: tuple[str, str] | None = None
    delay_s: float = 0.0
    status: dict[str, int] = field(default_factory=dict)
    redirect: dict[str, str] = field(default_factory=dict)
    projects: dict[str, list[Wheel]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    url: str = ""

    def add(
        self,
        name: str,
        version: str,
        *requires: str,
        tag: str = "py3-none-any",
        **how: str | bool | None,
    ) -> Wheel:
        """Put a wheel on the index; `how` sets fields of Wheel, `build` a build tag."""
        build = f"-{how.pop('build')}" if "build" in how else ""
        file, metadata, body = make(name, version, requires, f"{build}-{tag}")
        wheel = Wheel(
            filename=file,
            body=body,
            metadata=metadata,
            uploaded=LONG_AGO,
            sha256=hashlib.sha256(body).hexdigest(),
            metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        )
        for key, value in how.items():
            setattr(wheel, key, value)
        self.projects.setdefault(normalized(name), []).append(wheel)
        return wheel

    def add_source(self, name: str, version: str) -> None:
        """Put a source archive on the index, with nothing of use in it."""
        wheel = self.add(name, version)
        wheel.filename = f"{name}-{version}.tar.gz"

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Yields the address of the simple index, without a slash at its end."""
        handler = type("Handler", (_Handler,), {"index": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/simple"
        try:
            yield self.url
        finally:
            server.shutdown()
            server.server_close()


def normalized(name: str) -> str:
    """Return a distribution name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def make(name: str, version: str, requires: tuple[str, ...], end: str) -> tuple[str, bytes, bytes]:
    """Return file name, METADATA and content of a wheel that pip can install."""
    module = name.replace("-", "_").replace(".", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    extras = {found for text in requires for found in re.findall(r"extra == ['\"](\w+)", text)}
    lines += [f"Provides-Extra: {extra}" for extra in sorted(extras)]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    metadata = ("\n".join(lines) + "\n\nA longer description.\n").encode()
    files = {
        f"{module}.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},{_record(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path), data)
    return f"{module}-{version}{end}.whl", metadata, out.getvalue()


def _record(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: Index

    def do_GET(self) -> None:
        index = self.index
        path = urllib.parse.unquote(self.path)
        index.asked.append(path)
        if (sent := self.headers.get("Authorization")) is not None:
            index.heard.append(sent)
        time.sleep(index.delay_s)
        for part, target in index.redirect.items():
            if part in path:
                self._send(302, "text/plain", b"", {"Location": target})
                return
        for part, status in index.status.items():
            if part in path:
                self._send(status, "text/plain", b"no")
                return
        if index.user is not None:
            pair = base64.b64encode(":".join(index.user).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {pair}":
                self._send(401, "text/plain", b"who are you?")
                return
        self._project(path)

    def _project(self, path: str) -> None:
        parts = path.split("/")
        wheels = self.index.projects.get(normalized(parts[-2]), [])
        last = parts[-1]
        if wheels and not last:
            as_json = self.index.json and JSON in self.headers.get("Accept", "")
            page = self._json(wheels) if as_json else self._html(wheels)
            self._send(200, JSON if as_json else "text/html", page)
            return
        for wheel in wheels:
            if last == wheel.filename:
                self._file(wheel.body)
                return
            if last == f"{wheel.filename}.metadata" and self.index.beside:
                self._send(200, "application/octet-stream", wheel.metadata)
                return
        self._send(404, "text/plain", b"")

    def _json(self, wheels: list[Wheel]) -> bytes:
        files = [self._entry(wheel) for wheel in wheels]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": "x", "files": files}).encode()

    def _entry(self, wheel: Wheel) -> dict[str, object]:
        entry: dict[str, object] = {
            "filename": wheel.filename,
            "url": urllib.parse.quote(wheel.filename),
            "hashes": {"sha256": wheel.sha256} if wheel.sha256 else {},
            "yanked": wheel.yanked,
            "size": len(wheel.body),
            "core-metadata": self.index.beside and {"sha256": wheel.metadata_sha256},
        }
        if wheel.uploaded:
            entry["upload-time"] = wheel.uploaded
        if wheel.requires_python:
            entry["requires-python"] = wheel.requires_python
        return entry

    def _html(self, wheels: list[Wheel]) -> bytes:
        lines = []
        for wheel in wheels:
            end = f"#sha256={wheel.sha256}" if wheel.sha256 else ""
            more = ' data-yanked=""' if wheel.yanked else ""
            if wheel.requires_python:
                more += f' data-requires-python="{html.escape(wheel.requires_python)}"'
            if self.index.beside:
                more += f' data-core-metadata="sha256={wheel.metadata_sha256}"'
            link = urllib.parse.quote(wheel.filename) + end
            lines.append(f'<a href="{link}"{more}>{wheel.filename}</a><br>')
        return ("<!DOCTYPE html>\n<html><body>" + "\n".join(lines) + "</body></html>").encode()

    def _file(self, body: bytes) -> None:
        asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        if asked is None or not self.index.ranges:
            self._send(200, "application/octet-stream", body)
            return
        start, end = int(asked.group(1)), min(int(asked.group(2)), len(body) - 1)
        where = {"Content-Range": f"bytes {start}-{end}/{len(body)}"}
        self._send(206, "application/octet-stream", body[start : end + 1], where)

    def _send(
        self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": kind, **(more or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as inherited)
        """Keep the tests' output quiet."""
