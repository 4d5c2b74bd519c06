"""Masks what must not be repeated: passwords in addresses, tokens, keys, headers."""

from __future__ import annotations

import re

MASK = "***"

_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^/\s'\"<>@]{1,500}@")
_NAMED = re.compile(
    r"(?i)(\b[\w.-]{0,60}(?:token|passw(?:or)?d|passwd|passphrase|secret|api[_-]?key|apikey"
    r"|access[_-]?key(?:[_-]?id)?|credential|auth(?:orization)?|cookie|private[_-]?key|pwd)[\w-]{0,40}"
    r"['\"]?\s{0,4}(?:[:=]|=>)\s{0,4}['\"]?)"
    r"(?:(?:bearer|basic|token|digest)\s{1,4})?[^\s'\",;&]{1,2000}"
)
_OPTION = re.compile(
    r"(?i)(--?(?:password|passwd|token|secret|api-key|user|proxy-user)(?:[ =]))"
    r"['\"]?[^\s'\"]{1,500}"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s{1,4}[A-Za-z0-9+/_.~=-]{8,}")
_QUERY = re.compile(
    r"(?i)([?&](?:x-amz-[a-z-]{1,30}|sig|signature|token|key|code|se|sp|awsaccesskeyid"
    r"|access_token|auth)=)[^&\s'\"]{1,2000}"
)
_SHAPES = re.compile(
    r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{12,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{20,}|sk-[\w-]{20,}"
    r"|nvapi-[\w-]{16,}|AIza[\w-]{30,}|dckr_pat_[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]{4,})?)"
)


def mask(text: str) -> str:
    """The text with every secret that has a known shape or name replaced by MASK."""
    text = _URL.sub(rf"\1{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    text = _OPTION.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1 {MASK}", text)
    return _SHAPES.sub(MASK, text)
