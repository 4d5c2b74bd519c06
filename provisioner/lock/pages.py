"""The files of a project as an index page lists them: PEP 691 JSON or PEP 503 HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"


class IndexFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an index page.

    `uploaded` is the UTC time as the index writes it (2023-05-08T16:56:02...), null where it does
    not say. `metadata` tells whether the metadata is a file of its own, with its sha256 when given.
    """

    filename: str
    url: str
    sha256: str | None
    requires_python: str | None = None
    uploaded: str | None = None
    yanked: bool = False
    size: int | None = None
    metadata: bool = False
    metadata_sha256: str | None = None


class PageError(ValueError):
    """An answer that is not an index page."""


class _JsonFile(msgspec.Struct, rename="kebab"):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    requires_python: str | None = None
    upload_time: str | None = None
    yanked: bool | str = False
    size: int | None = None
    core_metadata: bool | dict[str, str] | None = None
    dist_info_metadata: bool | dict[str, str] | None = None


class _JsonPage(msgspec.Struct):
    files: list[_JsonFile]
    meta: dict[str, Any] = {}


def parse_page(body: bytes, content_type: str, url: str) -> list[IndexFile]:
    """Returns the files of a page; raises PageError for anything that is no index page."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("json"):
        return _from_json(body, url)
    return _from_html(body, url)


def _from_json(body: bytes, url: str) -> list[IndexFile]:
    try:
        page = msgspec.json.decode(body, type=_JsonPage)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise PageError(str(error)) from error
    version = str(page.meta.get("api-version", "1.0"))
    if version.partition(".")[0] != "1":
        raise PageError(f"API version {version}")
    return [_json_file(file, url) for file in page.files]


def _json_file(file: _JsonFile, url: str) -> IndexFile:
    metadata = file.core_metadata if file.core_metadata is not None else file.dist_info_metadata
    return IndexFile(
        filename=file.filename,
        url=file.url if file.url.startswith("https://") else urljoin(url, file.url),
        sha256=_hex(file.hashes.get("sha256")),
        requires_python=file.requires_python or None,
        uploaded=file.upload_time or None,
        yanked=file.yanked is not False,
        size=file.size,
        metadata=bool(metadata),
        metadata_sha256=_hex(metadata.get("sha256")) if isinstance(metadata, dict) else None,
    )


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base: str | None = None
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))
        elif tag == "base" and self.base is None:
            self.base = dict(attrs).get("href")


def _from_html(body: bytes, url: str) -> list[IndexFile]:
    parser = _Links()
    parser.feed(body.decode("utf-8", errors="replace"))
    parser.close()
    if not parser.links and b"<" not in body:
        raise PageError("neither JSON nor HTML")
    base = urljoin(url, parser.base) if parser.base else url
    return [_html_file(link, base) for link in parser.links if link.get("href")]


def _html_file(link: dict[str, str | None], base: str) -> IndexFile:
    address, fragment = urldefrag(urljoin(base, link["href"] or ""))
    algorithm, _, value = fragment.partition("=")
    metadata = link.get("data-core-metadata", link.get("data-dist-info-metadata", ""))
    return IndexFile(
        filename=unquote(urlsplit(address).path.rpartition("/")[2]),
        url=address,
        sha256=_hex(value) if algorithm == "sha256" else None,
        requires_python=link.get("data-requires-python") or None,
        yanked="data-yanked" in link,
        metadata=bool(metadata) and metadata != "false",
        metadata_sha256=_hex((metadata or "").partition("sha256=")[2]),
    )


def _hex(value: str | None) -> str | None:
    """A sha256 in lower case, or None when it is none: text of a page never goes on unchecked."""
    text = (value or "").lower()
    return text if len(text) == 64 and not set(text) - set("0123456789abcdef") else None
