"""User names and passwords for an index, kept in memory and in no text that leaves the process.

They come from the address that the user's own pip or uv settings hold, from netrc, and (once the
index has answered 401) from the keyring package where it is installed.
"""

from __future__ import annotations

import base64
import netrc
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


def bare(url: str) -> str:
    """Returns the address without user, password, query and fragment: safe to show and to log."""
    parts = urlsplit(url)
    return SplitResult(parts.scheme, _place(parts), parts.path, "", "").geturl()


class Credentials:
    """Finds an Authorization value per host. Not shown by `repr`, never written anywhere."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._known: dict[str, tuple[str, str]] = {}
        self._asked: set[str] = set()
        self._netrc = self._read_netrc()

    def learn(self, url: str) -> str:
        """Keeps the user and password inside an address, and returns the address without them."""
        parts = urlsplit(url)
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            self._known[_place(parts)] = (user, password)
        return SplitResult(parts.scheme, _place(parts), parts.path, parts.query, "").geturl()

    def header(self, url: str) -> str | None:
        """Returns the Authorization value to send to this address at once, or None."""
        parts = urlsplit(url)
        pair = self._known.get(_place(parts))
        if pair is None and self._netrc is not None and parts.hostname in self._netrc.hosts:
            # Only a named host: a `default` entry would send its secret to every server.
            user, _, password = self._netrc.hosts[parts.hostname]
            pair = (user, password or "")
        return _basic(pair) if pair is not None else None

    def after_refusal(self, url: str) -> bool:
        """Returns whether the keyring had something for the host, asked once per host."""
        parts = urlsplit(url)
        place = _place(parts)
        if place in self._asked:
            return False
        self._asked.add(place)
        pair = _from_keyring(bare(url), place)
        if pair is not None:
            self._known[place] = pair
        return pair is not None

    def _read_netrc(self) -> netrc.netrc | None:
        named = self._environ.get("NETRC")
        home = self._environ.get("HOME")
        paths = [Path(named)] if named else []
        if home and not named:
            paths = [Path(home, ".netrc"), Path(home, "_netrc")]
        return next(filter(None, map(_netrc, paths)), None)


def _netrc(path: Path) -> netrc.netrc | None:
    try:
        return netrc.netrc(str(path))
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None


def _from_keyring(url: str, place: str) -> tuple[str, str] | None:
    try:
        import keyring  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    for service in (url, place):
        try:
            found = keyring.get_credential(service, None)
        except Exception:  # noqa: BLE001 - a keyring backend may raise anything; no answer then
            return None
        if found is not None:
            return (found.username or "", found.password or "")
    return None


def _basic(pair: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(pair).encode()).decode("ascii")


def _place(parts: SplitResult) -> str:
    """host:port as written, without user and password."""
    return parts.netloc.rpartition("@")[2]
