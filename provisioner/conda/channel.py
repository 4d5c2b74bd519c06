"""Where a conda channel is named, and where its bits are read. Pure; no secret leaves this module.

A lock always holds the channel's real address. A mirror, or a folder on this machine, changes
where records are read and nothing else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping  # noqa: TC003 - part of public signatures
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from provisioner.errors import UsageError

CANONICAL = "https://conda.anaconda.org"
"""Where a channel without an address lives, and what a lock says about it."""

MAP_VARIABLE = "PROVISION_CONDA_CHANNEL_MAP"
MIRROR_VARIABLE = "PROVISION_MIRROR_CONDA"
AUTH_FILE_VARIABLE = "PROVISION_CONDA_AUTH_FILE"
TOKEN_VARIABLE = "PROVISION_CONDA_TOKEN"  # noqa: S105 - the name of a variable
USER_VARIABLE = "PROVISION_CONDA_USER"
PASSWORD_VARIABLE = "PROVISION_CONDA_PASSWORD"  # noqa: S105 - the name of a variable

_TOKEN = re.compile(r"/t/[^/\s]+")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One channel. `url` goes into locks and messages, `read_from` is where it is read.

    `mirrored` says that `read_from` serves the same paths as `url`; otherwise the records of
    `read_from` are taken as they are, and addresses below it are told as below `url`.
    """

    name: str
    url: str
    read_from: str
    mirrored: bool = False
    authorization: str | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The host that is really asked, without port; empty for a folder."""
        return urlsplit(self.read_from).hostname or ""

    def public(self, address: str) -> str:
        """Returns the address of a record as a lock may hold it."""
        for base in (self.read_from, self.url):
            if address.startswith(base + "/"):
                return self.url + address[len(base) :]
        return redacted(address)


def channels_of(names: Iterable[str], environ: Mapping[str, str]) -> tuple[Channel, ...]:
    """Returns the channels for what a user or conda-lock calls them; raises UsageError.

    `PROVISION_CONDA_CHANNEL_MAP` holds `NAME=ADDRESS` pairs separated by blanks;
    `PROVISION_MIRROR_CONDA` replaces the host of every channel without an entry there.
    """
    moved = parse_map(environ.get(MAP_VARIABLE, ""))
    mirror = environ.get(MIRROR_VARIABLE, "").strip().rstrip("/")
    return tuple(_channel(name, moved, mirror, environ) for name in dict.fromkeys(names))


def parse_map(text: str) -> dict[str, str]:
    """Returns name -> address of a channel map; raises UsageError."""
    found: dict[str, str] = {}
    for pair in text.split():
        name, equals, address = pair.partition("=")
        if not equals or not _NAME.fullmatch(name) or "://" not in address:
            raise UsageError(
                "conda.bad-channel-map",
                f"{redacted(pair)!r} is no entry of a channel map: expected NAME=ADDRESS, such as "
                "conda-forge=file:///srv/conda-forge.",
            )
        found[name] = address.rstrip("/")
    return found


def _channel(
    name: str, moved: Mapping[str, str], mirror: str, environ: Mapping[str, str]
) -> Channel:
    address = _address(name)
    url = _bare(_TOKEN.sub("", address))
    read_from, mirrored = address, False
    if name in moved:
        read_from, mirrored = moved[name], not moved[name].startswith("file://")
    elif mirror and url.startswith(CANONICAL + "/"):
        read_from, mirrored = mirror + url[len(CANONICAL) :], True
    return Channel(
        name=redacted(name),
        url=url,
        read_from=_bare(read_from),
        mirrored=mirrored,
        authorization=_authorization(read_from, environ),
    )


def _address(name: str) -> str:
    if "://" in name:
        return name.rstrip("/")
    if name.startswith("/"):
        return f"file://{name.rstrip('/')}"
    if not _NAME.fullmatch(name):
        raise UsageError("conda.bad-channel", f"{name!r} is neither a channel's name nor address.")
    return f"{CANONICAL}/{name.rstrip('/')}"


def _bare(address: str) -> str:
    parts = urlsplit(address)
    place = parts.netloc.rpartition("@")[2]
    return SplitResult(parts.scheme, place, parts.path.rstrip("/"), "", "").geturl()


def _authorization(address: str, environ: Mapping[str, str]) -> str | None:
    """The header for a channel: from its address, else from the environment; else others look."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return None
    if parts.username is not None:
        return _basic(unquote(parts.username), unquote(parts.password or ""))
    if token := environ.get(TOKEN_VARIABLE):
        return f"Bearer {token}"
    if user := environ.get(USER_VARIABLE):
        return _basic(user, environ.get(PASSWORD_VARIABLE, ""))
    return None


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def headers_for(channels: Iterable[Channel]) -> Callable[[str, str], dict[str, str] | None] | None:
    """Returns what to send to a host and path, or None when no channel has credentials of its own.

    Nothing is sent to a host that no channel names.
    """
    known = {c.host: c.authorization for c in channels if c.authorization and c.host}
    if not known:
        return None

    def headers(host: str, _path: str) -> dict[str, str] | None:
        value = known.get(host)
        return None if value is None else {"Authorization": value}

    return headers


def redacted(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Returns the text without user, password and token, in addresses or from the environment."""
    text = _USERINFO.sub("***@", text)
    text = _TOKEN.sub("/t/***", text)
    for variable in (TOKEN_VARIABLE, PASSWORD_VARIABLE):
        secret = (environ or {}).get(variable, "")
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return text
