"""Reads from an index over HTTP: the user's certificates, proxies and credentials, with retries.

Every failure ends as one OutsideError that says which index, what happened and what to do.
"""

from __future__ import annotations

import os
import random
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError

from provisioner import __version__
from provisioner.errors import OutsideError
from provisioner.lock import failures
from provisioner.lock.credentials import Credentials
from provisioner.lock.defaults import pip_setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ATTEMPTS = 3
MAX_REDIRECTS = 5
MAX_BODY = 128 * 1024 * 1024
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_CHUNK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_FOR_THE_CALLER = (404, 410, 416, 501)


@dataclass(frozen=True)
class Answer:
    """A response: status, headers with lower-case names, the whole body, the final address."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


@dataclass
class Client:
    """A pool of connections to index servers. Safe to use from several threads.

    `timeout_s` bounds a connection attempt and each silence while reading; a page may take ten
    times that altogether.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    timeout_s: float = 30.0
    attempts: int = ATTEMPTS

    def __post_init__(self) -> None:
        self.credentials = Credentials(self.environ)
        self._guard = threading.Lock()
        self._pools: dict[tuple[str | None, bool], urllib3.PoolManager] = {}

    def get(self, url: str, what: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Returns the answer when its status is below 400 or is 404, 410, 416 or 501.

        `what` names the index in error messages. Raises OutsideError for everything else. A server
        that ignores a Range header gets an answer without body: the whole file was not wanted.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                answer = self._follow(url, what, headers or {})
            except HTTPError as error:
                if failures.transient(error) and attempt < self.attempts:
                    self._pause(attempt)
                    continue
                raise failures.of_exception(error, url, what, self.timeout_s) from error
            if answer.status in (429, 500, 502, 503, 504) and attempt < self.attempts:
                self._pause(attempt)
                continue
            break
        if answer.status >= 400 and answer.status not in _FOR_THE_CALLER:
            raise failures.of_status(answer.status, answer.url, what)
        return answer

    def stream(
        self, url: str, what: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """Yields the body of a file of any size in pieces; raises OutsideError.

        `headers` go to the host of the address alone, never along with a redirect to another one.
        """
        host = urlsplit(url).netloc
        try:
            for _ in range(MAX_REDIRECTS + 1):
                more = headers if headers and urlsplit(url).netloc == host else {}
                response = self._send(url, {"Accept-Encoding": "identity", **more})
                place = response.headers.get("Location")
                if response.status not in _REDIRECTS or place is None:
                    break
                response.close()
                url = failures.redirected(url, urljoin(url, place), what)
            if response.status != 200:
                raise failures.of_status(response.status, url, what)
            yield from response.stream(_CHUNK)
            response.release_conn()
        except HTTPError as error:
            raise failures.of_exception(error, url, what, self.timeout_s) from error

    def _follow(self, url: str, what: str, headers: Mapping[str, str]) -> Answer:
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(url, headers)
            unwanted = "Range" in headers and response.status != 206
            body = b"" if unwanted else self._body(response, url, what)
            if unwanted:
                response.close()
            if response.status == 401 and self.credentials.after_refusal(url):
                continue
            place = response.headers.get("Location")
            if response.status not in _REDIRECTS or place is None:
                lower = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status, lower, body, url)
            url = failures.redirected(url, urljoin(url, place), what)
        raise failures.redirect_loop(url, what)

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        url = self.credentials.learn(url)
        sent = {"User-Agent": f"provision/{__version__}", "Accept-Encoding": "gzip", **headers}
        authorization = self.credentials.header(url)
        if authorization is not None:
            sent["Authorization"] = authorization
        return self._pool(url).request(
            "GET", url, headers=sent, retries=False, redirect=False, preload_content=False
        )

    def _body(self, response: urllib3.BaseHTTPResponse, url: str, what: str) -> bytes:
        """The whole body. A server that drips bytes, or never ends, is given up."""
        until = time.monotonic() + 10 * self.timeout_s
        pieces: list[bytes] = []
        size = 0
        for piece in response.stream(_CHUNK):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY or time.monotonic() > until:
                response.close()
                raise failures.endless(url, what, size)
        response.release_conn()
        return b"".join(pieces)

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxies = {} if proxy_bypass(parts.netloc) else getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy is not None and "://" not in proxy:
            proxy = f"http://{proxy}"
        try:
            secure = "https" in (parts.scheme, urlsplit(proxy or "").scheme)
            with self._guard:
                if (proxy, secure) not in self._pools:
                    self._pools[proxy, secure] = self._new_pool(proxy, secure)
                return self._pools[proxy, secure]
        except ValueError as error:  # urllib3's own errors about addresses are of this kind, too
            raise failures.bad_proxy(url, str(error)) from None

    def _new_pool(self, proxy: str | None, secure: bool) -> urllib3.PoolManager:
        timeout = urllib3.Timeout(connect=self.timeout_s, read=self.timeout_s)
        context = ssl_context(self.environ) if secure else None  # reading certificates takes time
        if proxy is None:
            return urllib3.PoolManager(
                maxsize=16, block=False, timeout=timeout, ssl_context=context
            )
        parts = urlsplit(proxy)
        headers = {}
        if parts.username is not None:
            pair = f"{parts.username}:{parts.password or ''}"
            headers = urllib3.make_headers(proxy_basic_auth=pair)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return urllib3.ProxyManager(
            place,
            proxy_headers=headers,
            maxsize=16,
            timeout=timeout,
            ssl_context=context,
        )

    def _pause(self, attempt: int) -> None:
        # Spread, so that many clients of a struggling server do not come back together.
        time.sleep(0.25 * 2**attempt * (0.5 + random.random()))  # noqa: S311


def ssl_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the TLS settings that the user's pip would use; raises OutsideError.

    The first of PIP_CERT, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE and SSL_CERT_FILE names the bundle,
    then pip's own `cert` setting; without one the system's certificates count.
    """
    named = next(((v, environ[v]) for v in _CA_VARIABLES if environ.get(v)), None)
    if named is None and (setting := pip_setting("cert", environ)):
        named = ("pip's setting `cert`", setting)
    if named is not None:
        return _context_of(*named)
    context = ssl.create_default_context()
    defaults = ssl.get_default_verify_paths()
    if not (defaults.cafile or defaults.capath):
        _add_certifi(context)
    return context


def _context_of(variable: str, path: str) -> ssl.SSLContext:
    try:
        if Path(path).is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise OutsideError(
            "index.ca-bundle",
            f"The certificates that {variable} names cannot be read: {path}: {error}.",
            facts={"variable": variable, "path": path},
            next_step=f"Point {variable} to a PEM file with the certificates, or unset it.",
        ) from error


def _add_certifi(context: ssl.SSLContext) -> None:
    """A system without a certificate store still has the one that requests brings along."""
    try:
        import certifi
    except ImportError:
        return
    context.load_verify_locations(cafile=certifi.where())
