"""Takes off what logs put around a message: colours, times, prefixes of docker, Ansible and CI."""

from __future__ import annotations

import re

LINE_LIMIT = 4096
"""Characters of a line that are looked at, around the place of interest."""

_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?"
    r"|[()][A-Z0-9]|[=>78cDEHM])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]+")
_QUOTES = str.maketrans(dict(zip("\u2018\u2019\u2032\u201c\u201d\u00a0", "'''\"\" ", strict=True)))
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:\ ?(?:Z|[+-]\d\d:?\d\d))?"
_PREFIX = re.compile(
    rf"""^\s*(?:
      \#\d+\ \d+\.\d+\b                                          # BuildKit: step, seconds
    | \#\d+\ (?=[A-Z[])                                          # BuildKit: step
    | =>\ (?:=>\ )?(?:\#\ )?                                     # BuildKit, interactive
    | ---?>\ (?!\d+\b)                                           # classic builder, nvidia-installer
    | \[?{_DATE}\]?:?                                            # timestamps of CI, docker, Python
    | \[\s*\d+\.\d{{3,6}}\]                                      # kernel ring buffer
    | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ {{1,2}}\d{{1,2}}   # syslog
      \ \d\d:\d\d:\d\d\ \S{{1,64}}\ (?:\S{{1,64}}:)?
    | [WIEFVD]\d{{4}}\ \d\d:\d\d:\d\d\.\d+\ +\d+                       # glog, torch
      \ \S{{1,200}}\]\ ?(?:\[[\d/_!*]+\]\ ?)?
    | \[\s*(?:rank\ ?)?\d{{1,5}}\]:?                               # torchrun, srun -l, mpirun
    | \[(?:default)?\d{{1,4}}\]:
    | \(\w{{1,40}}\ pid=\d{{1,9}}(?:,\ ip=[\d.]+)?\)               # ray, vllm
    | (?:E|>|fatal|building)\ {{2,}}                             # pytest
    | [│├╰╭─▶\u00d7|┃]+                                                # uv, rich
    | (?:stdout|stderr)\ [FP]\ (?=\S)                             # CRI
    | [A-Za-z0-9._-]{{1,60}}\ {{1,8}}\|                            # docker compose
    | \#\#\[(?:error|warning|debug|group|section|command)\]       # CI annotations
    | ::(?:error|warning|notice)[^:]{{0,200}}::
    )\s*""",
    re.VERBOSE,
)
_JSON = re.compile(
    r"""=> ?\{|^\s*\{ ?["']"""
    r"""|"(?:msg|stderr|stdout|log|message|output|module_stderr|module_stdout|error|text)" ?:"""
)

_KEY = re.compile(
    r"""^.{0,6000}["'](?:msg|stderr|stdout|log|message|output|error|text)["'] ?: ?["']"""
)
_END = re.compile(r"""(?<!\\)["'] ?(?:, ?["']\w+["'] ?:.*|[}\]]+)\s*$""")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"t": " ", "r": " ", "n": " "}


def clean(text: str) -> str:
    """A line without colours and control characters, quotes made plain, at most LINE_LIMIT long."""
    text = _ANSI.sub("", text)
    return _CONTROL.sub(" ", text).translate(_QUOTES)[:LINE_LIMIT]


def strip_prefix(text: str) -> str:
    """A cleaned line without up to five prefixes and without blanks at its ends."""
    for _ in range(5):
        match = _PREFIX.match(text)
        if match is None or match.end() == len(text):
            break
        text = text[match.end() :]
    return text.strip()


def is_escaped(line: str) -> bool:
    """Whether a line holds a text whose line ends are written as backslash-n (Ansible, JSON)."""
    return "\\n" in line and _JSON.search(line) is not None


def unescape(text: str) -> str:
    """A piece of such a line as it was before: without the key before it, escapes undone."""
    text = _END.sub("", _KEY.sub("", text))
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)
