"""Package URLs (ECMA-427) of what a lock holds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.conda.explicit import LockedPackage as CondaPackage
    from provisioner.lock.model import LockedPackage

_ENDINGS = (".conda", ".tar.bz2")


def of_pip(package: LockedPackage, repository: str | None) -> str:
    """Returns pkg:pypi/NAME@VERSION; `repository` is an index other than the default one."""
    qualifiers = {} if repository is None else {"repository_url": repository}
    return _purl("pypi", package.name, package.version, qualifiers)


def of_conda(package: CondaPackage) -> str:
    """Returns pkg:conda/NAME@VERSION with channel, subdir, build and kind of archive."""
    path = unquote(urlsplit(package.url).path)
    channel, subdir, file = path.strip("/").rsplit("/", 2)
    ending = next((end for end in _ENDINGS if file.endswith(end)), "")
    build = file.removesuffix(ending).rpartition("-")[2]
    kind = ending.lstrip(".")
    return _purl(
        "conda",
        package.name,
        package.version,
        {"build": build, "channel": channel, "subdir": subdir, "type": kind},
    )


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    known = [f"{key}={quote(value, safe=':/')}" for key, value in sorted(qualifiers.items())]
    end = f"?{'&'.join(known)}" if known else ""
    return f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe='')}{end}"
