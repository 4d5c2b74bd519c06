"""What can go wrong with a channel or a solve, each as one error with a next step. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence  # noqa: TC003 - part of public signatures

from provisioner.conda.channel import Channel, redacted
from provisioner.errors import FindingError, OutsideError, ProvisionError, UsageError

_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})")
_ADDRESS = re.compile(r"https?://[^\s)'\"]+")
_CREDENTIALS = (
    "Put user and password (or a token) for this host into netrc, into the file that "
    "PROVISION_CONDA_AUTH_FILE names, or into PROVISION_CONDA_TOKEN; none is ever locked or logged."
)
_REACH = "Check the network and the proxy, or name a mirror (`--mirror conda=URL`)."
_DNS = ("dns error", "lookup address", "Name or service not known")
_DOWN = (
    "Connection refused", "Network is unreachable", "No route to host", "Connection reset",
    "connection closed", "timed out", "operation timed out", "error sending request",
    "tcp connect error", "end of file", "IncompleteMessage",
)  # fmt: skip


def of_gateway(text: str, channels: Sequence[Channel]) -> OutsideError:
    """Returns the error for a channel that could not be read; `text` is what py-rattler says."""
    channel = _concerned(text, channels)
    where = channel.name if channel else "a channel"
    facts = {
        "channel": where,
        "read_from": channel.read_from if channel else None,
        "reason": _last(text),
    }
    code, message, next_step = _kind(text, where)
    return OutsideError(
        code, message, facts={k: v for k, v in facts.items() if v}, next_step=next_step
    )


def _kind(text: str, where: str) -> tuple[str, str, str]:
    status = _STATUS.search(text)
    code = int(status.group(1)) if status else 0
    if code in (401, 403, 407):
        doing = "refuses access" if code == 403 else "wants credentials"
        return "conda.channel-denied", f"The channel {where} {doing} (HTTP {code}).", _CREDENTIALS
    if "could not find subdir" in text or code in (404, 410):
        return (
            "conda.channel-missing",
            f"There is no channel {where} where it was looked for.",
            "Check the name of the channel and the address of the mirror.",
        )
    if code:
        return (
            "conda.channel-unreachable",
            f"The channel {where} fails with HTTP {code}, also when asked again.",
            "Try again later, or name a mirror (`--mirror conda=URL`).",
        )
    if "certificate" in text:
        return (
            "conda.channel-tls",
            f"The channel {where} shows a certificate that is not trusted.",
            "If a company proxy re-signs TLS, name its certificate bundle in SSL_CERT_FILE.",
        )
    if "no repodata" in text.lower() or "cache" in text.lower():
        return (
            "conda.offline",
            f"The channel {where} is not in the cache, and the network is not to be used.",
            "Lock once with the network, or map the channel to a folder.",
        )
    if any(mark in text for mark in _DNS):
        return (
            "conda.channel-unreachable",
            f"The channel {where} cannot be reached: its host has no address.",
            _REACH,
        )
    if any(mark in text for mark in _DOWN):
        return "conda.channel-unreachable", f"The channel {where} cannot be reached.", _REACH
    return (
        "conda.channel-broken",
        f"What the channel {where} answers cannot be read.",
        "Check the address: it may be a web page, or a mirror that is being filled.",
    )


def _concerned(text: str, channels: Sequence[Channel]) -> Channel | None:
    for channel in channels:
        if channel.read_from in text or channel.url in text:
            return channel
    found = _ADDRESS.search(text)
    for channel in channels:
        if found and channel.host and channel.host in found.group(0):
            return channel
    return channels[0] if len(channels) == 1 else None


def _last(text: str) -> str:
    """The innermost cause."""
    lines = [line.removeprefix("Caused by: ") for line in redacted(text).strip().splitlines()]
    return lines[-1][:300] if lines else ""


def unsatisfiable(
    text: str, clash: Sequence[str], target: str, channels: Iterable[Channel]
) -> ProvisionError:
    """Returns the error for specs that no set of packages satisfies; `clash` is the smallest part.

    `text` is the solver's explanation, a tree of candidates and what they would need; `target` the
    platform with its virtual packages.
    """
    names = ", ".join(channel.name for channel in channels)
    reason = redacted(text).removeprefix("Cannot solve the request because of: ").strip()
    if len(clash) == 1:
        message = f"No package of {names} answers {clash[0]} on this target"
    else:
        message = f"No set of packages of {names} satisfies together: " + ", ".join(clash)
    return FindingError(
        "conda.unsatisfiable",
        f"{message}.",
        facts={"clash": list(clash), "target": target, "channels": names, "solver": reason},
        next_step="Loosen one of these (packages.conda of provision.yaml, or another --python), "
        "then lock again.",
    )


def unknown_package(name: str, platform: str, channels: Iterable[Channel]) -> ProvisionError:
    """Returns the error for a name that no channel has."""
    names = ", ".join(channel.name for channel in channels)
    return FindingError(
        "conda.unknown-package",
        f"No channel has a package named {name} for {platform} (asked: {names}).",
        facts={"clash": [name], "platform": platform, "channels": names},
        next_step="Check the spelling; a package that only the package index has belongs into "
        "packages.pip.",
    )


def bad_spec(spec: str, reason: str) -> UsageError:
    """Returns the error for text that is no package spec."""
    return UsageError(
        "conda.bad-spec",
        f"{spec!r} is no conda package spec: {_last(reason)}.",
        facts={"spec": spec},
        next_step="Write it as NAME, NAME=1.2 or NAME >=1.2,<2.",
    )
