"""What can go wrong between us and an index, each as one sentence with a next step."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from urllib3 import exceptions as http

from provisioner.errors import OutsideError
from provisioner.lock.credentials import bare

_CA = (
    "If a company proxy re-signs TLS, name its certificate bundle in SSL_CERT_FILE "
    "(REQUESTS_CA_BUNDLE and PIP_CERT are read too)."
)
_CREDENTIALS = (
    "Put user and password (or token) for this host into netrc or the keyring, or into the "
    "index-url of your own pip configuration; none of them is ever written into a lock."
)
_REACH = "Check the network, or name a mirror: `--mirror package_index=URL` or torch_index=URL."


def transient(error: http.HTTPError) -> bool:
    """Returns whether the same request may succeed a moment later."""
    return not isinstance(error, (http.SSLError, http.LocationValueError, http.ProxyError))


def of_exception(error: http.HTTPError, url: str, what: str, timeout_s: float) -> OutsideError:
    """Returns the error to raise for a request that brought no answer."""
    host = urlsplit(url).hostname or "?"
    if isinstance(error, http.NameResolutionError):
        return _error("index.dns", f"The {what} cannot be found: no address for {host}.", url)
    if isinstance(error, (http.ProxyError, http.ProxySchemeUnknown)):
        return _error(
            "index.proxy",
            f"The {what} cannot be reached: the proxy takes no connection to {host}.",
            url,
            "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
        )
    if isinstance(error, http.SSLError):
        reason = getattr(error.args[0], "verify_message", None) or type(error.args[0]).__name__
        text = f"The {what} shows a certificate for {host} that is not trusted: {reason}."
        return _error("index.tls", text, url, _CA)
    if isinstance(error, http.NewConnectionError):  # a kind of timeout to urllib3: before that
        reason = str(error).rpartition(": ")[2]
        text = f"The {what} at {host} cannot be reached: {reason}."
        return _error("index.connection", text, url)
    if isinstance(error, http.TimeoutError):
        text = f"The {what} at {host} did not answer within {timeout_s:g} s."
        return _error("index.timeout", text, url, f"{_REACH} `--timeout` sets the limit.")
    text = f"The connection to the {what} at {host} broke: {type(error).__name__}."
    return _error("index.connection", text, url)


def bad_proxy(url: str, why: str) -> OutsideError:
    """Returns the error for a proxy setting that is no address; `why` may hold no password."""
    return _error(
        "index.proxy",
        "The proxy that the environment names is no address: "
        f"{re.sub(r'[^ ]*@', '***@', why).rstrip('.')}.",
        url,
        "Check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY.",
    )


def of_status(status: int, url: str, what: str) -> OutsideError:
    """Returns the error to raise for an answer that is not a success."""
    host = urlsplit(url).hostname or "?"
    if status in (401, 403, 407):
        doing = "wants credentials" if status != 403 else "refuses access"
        text = f"The {what} at {host} {doing} (HTTP {status})."
        return _error("index.credentials", text, url, _CREDENTIALS, status=status)
    if status >= 500 or status == 429:
        text = f"The {what} at {host} fails with HTTP {status}, also when asked again."
        return _error(
            "index.server", text, url, "Try again later, or name a mirror.", status=status
        )
    text = f"The {what} at {host} answers HTTP {status}."
    return _error("index.status", text, url, "Check the address of the index.", status=status)


def redirected(old: str, new: str, what: str) -> str:
    """Returns the new address; raises OutsideError when it leaves TLS or HTTP."""
    scheme = urlsplit(new).scheme
    if scheme == "https" or (scheme == "http" and urlsplit(old).scheme == "http"):
        return new
    raise _error(
        "index.redirect",
        f"The {what} sends us from {bare(old)} to {bare(new)}, which is not protected by TLS.",
        old,
        "Check the address of the index.",
    )


def redirect_loop(url: str, what: str) -> OutsideError:
    """Returns the error for redirects without an end."""
    return _error("index.redirect", f"The {what} redirects without an end.", url)


def endless(url: str, what: str, size: int) -> OutsideError:
    """Returns the error for an answer that is too large or too slow to be a page."""
    text = f"The {what} sends an answer that does not end: given up after {size} bytes."
    return _error("index.endless", text, url)


def _error(code: str, text: str, url: str, next_step: str = _REACH, **facts: Any) -> OutsideError:
    return OutsideError(code, text, facts={"address": bare(url), **facts}, next_step=next_step)
