"""Finds where the wanted files are served, says how large they are, and fetches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping  # noqa: TC003 - types of fields
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from provisioner.bundle.store import write_stream
from provisioner.conda.channel import CANONICAL, Channel, channels_of
from provisioner.errors import FindingError, OutsideError
from provisioner.lock.client import Client  # noqa: TC001 - type of a field
from provisioner.lock.credentials import bare
from provisioner.lock.pages import ACCEPT, IndexFile, PageError, parse_page

if TYPE_CHECKING:
    from provisioner.bundle.model import BundleFile
    from provisioner.bundle.wanted import Wanted
    from provisioner.lock.sources import Addresses

_AT_ONCE = 8
_AGAIN = frozenset({"index.connection", "index.timeout", "index.server"})
_ATTEMPTS = 3
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Located:
    """A wanted file with the address that serves it and its size in bytes (None: not told)."""

    wanted: Wanted
    url: str
    size: int | None
    what: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass
class Finder:
    """Asks indexes and channels. Nothing of an address gets into a bundle."""

    client: Client
    addresses: Addresses
    environ: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        self._pages: dict[tuple[str, str], list[IndexFile]] = {}

    def page(self, place: str, project: str) -> list[IndexFile]:
        """Returns the files of a project on its index; raises OutsideError."""
        key = (place, project)
        if key not in self._pages:
            self._pages[key] = self._read(place, project)
        return self._pages[key]

    def pages(self, place: str, projects: list[str]) -> None:
        """Reads several pages at once, for `page` to know them."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda project: self.page(place, project), dict.fromkeys(projects)))

    def locate(self, wanted: list[Wanted]) -> list[Located]:
        """Returns where each file is; raises OutsideError, FindingError `bundle.wrong-hash`."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._one, wanted))

    def _one(self, wanted: Wanted) -> Located:
        if wanted.place == "conda":
            return self._archive(wanted)
        what = _what(wanted.place)
        for file in self.page(wanted.place, wanted.project):
            if file.filename != wanted.filename:
                continue
            if file.sha256 is not None and file.sha256 != wanted.sha256:
                raise FindingError(
                    "bundle.wrong-hash",
                    f"The {what} has another {wanted.filename} than the one that was locked.",
                    facts={"locked": wanted.sha256, "found": file.sha256},
                    next_step="Do not use it. Check the index or its mirror.",
                )
            size = file.size if file.size is not None else self._size(file.url, what, {})
            return Located(wanted=wanted, url=file.url, size=size, what=what)
        raise OutsideError(
            "bundle.not-there",
            f"The {what} does not have {wanted.filename} (any more).",
            facts={"package": wanted.project},
            next_step="Name a mirror that has it, or lock the cell again.",
        )

    def _read(self, place: str, project: str) -> list[IndexFile]:
        base = {
            "package": self.addresses.package,
            "torch": self.addresses.torch,
            "own": self.addresses.own.get(project),
        }[place]
        what = _what(place)
        if base is None:
            raise OutsideError(
                "index.no-address",
                f"No address is known for the {what} that serves {project}.",
                next_step=f"Name it: `--own-index {project}=URL`."
                if place == "own"
                else "Name it: `--mirror torch_index=URL`.",
            )
        answer = self.client.get(f"{base.rstrip('/')}/{quote(project)}/", what, {"Accept": ACCEPT})
        if answer.status != 200:
            return []
        try:
            return parse_page(answer.body, answer.headers.get("content-type", ""), answer.url)
        except PageError as error:
            raise OutsideError(
                "index.bad-page",
                f"The {what} answers with something that is no index page: {error}.",
                facts={"address": bare(base)},
                next_step="Check the address: it is that of a simple index (PEP 503 or 691).",
            ) from None

    def _archive(self, wanted: Wanted) -> Located:
        name = wanted.project.removeprefix(f"{CANONICAL}/").rsplit("/", 2)[0]
        channel = channels_of([name], self.environ)[0]
        url = channel.read_from + wanted.project[len(channel.url) :]
        what = f"conda channel {name}"
        if url.startswith("file://"):
            return Located(wanted=wanted, url=url, size=_local_size(url), what=what)
        headers = _authorization(channel)
        size = self._size(url, what, headers)
        return Located(wanted=wanted, url=url, size=size, what=what, headers=headers)

    def _size(self, url: str, what: str, headers: Mapping[str, str]) -> int | None:
        """The size that a server tells when it is asked for one byte."""
        answer = self.client.get(url, what, {"Range": "bytes=0-0", **headers})
        if answer.status in (404, 410):
            raise OutsideError(
                "bundle.not-there",
                f"The {what} does not have {url.rpartition('/')[2]} (any more).",
                facts={"address": bare(url)},
                next_step="Name a mirror that has it, or lock the cell again.",
            )
        told = answer.headers.get("content-range", "").rpartition("/")[2]
        if answer.status != 206:
            told = answer.headers.get("content-length", "")
        return int(told) if told.isdigit() else None


def fetch(
    located: Located, folder: Path, client: Client, told: Callable[[int], None] | None = None
) -> BundleFile:
    """Fetches a file into the bundle, its hash checked while it comes; raises ProvisionError.

    A broken connection is tried again, from the start: `told` gets the bytes of the lost try with
    a minus.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        got = 0

        def count(size: int) -> None:
            nonlocal got
            got += size
            if told is not None:
                told(size)

        try:
            wanted = located.wanted
            return write_stream(folder, wanted.path, _pieces(located, client), wanted.sha256, count)
        except OutsideError as error:
            if error.code not in _AGAIN or attempt == _ATTEMPTS:
                raise
            if told is not None:
                told(-got)
    raise AssertionError  # the last attempt returns or raises


def _pieces(located: Located, client: Client) -> Iterator[bytes]:
    if not located.url.startswith("file://"):
        yield from client.stream(located.url, located.what, located.headers)
        return
    path = _path(located.url)
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except OSError as error:
        raise _unreadable(path, error) from None


def _local_size(url: str) -> int:
    path = _path(url)
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _unreadable(path: Path, error: OSError) -> OutsideError:
    return OutsideError(
        "bundle.not-there",
        f"{path} cannot be read: {(error.strerror or str(error)).lower()}.",
        next_step="Complete the folder that stands for the channel.",
    )


def _authorization(channel: Channel) -> dict[str, str]:
    return {"Authorization": channel.authorization} if channel.authorization else {}


def _what(place: str) -> str:
    names = {"package": "package index", "torch": "torch index", "own": "index of your own"}
    return names[place]
