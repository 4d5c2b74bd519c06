"""What each pattern of the model means, in words for messages and for the JSON Schema."""

from __future__ import annotations

import functools
from typing import Any, get_args

from msgspec import Meta

from provisioner.matrix import model, project_types

_WORDS: tuple[tuple[Any, str], ...] = (
    (model.Version, "a version such as 2.0.1"),
    (model.MinorVersion, "two numbers such as 3.10 or 11.8"),
    (model.Specifier, "a version specifier without blanks such as >=2.0,<2.7"),
    (model.Requirement, "a requirement such as numpy<2"),
    (model.Name, "a name of lower-case letters, digits, dots and dashes"),
    (model.PackageName, "a package name"),
    (model.Tag, "a variant tag such as cu118 or cpu"),
    (model.Date, "a date such as 2026-11-30"),
    (model.Month, "a month such as 2026-11, or a date"),
    (model.Sha256, "a sha256 of 64 hexadecimal digits"),
    (model.FileName, "a file name without directories"),
    (model.Url, "an http(s) address without user, password, query or fragment"),
    (model.ImageRef, "a container image such as ubuntu:22.04"),
    (model.GpuName, "a name of letters, digits, blanks, dots and dashes such as RTX 4090"),
    (model.PlainName, "a name of lower-case letters, digits, dots, dashes and underscores"),
    (model.SourceId, "the name of a source: letters, digits, dots, dashes and underscores"),
    (project_types.ProjectName, "lower-case words joined by dashes, at most 40 characters"),
    (project_types.CondaSpec, "a conda package such as ffmpeg or ffmpeg>=6,<7"),
    (project_types.AptSpec, "a package name such as libgl1, or with its version as libgl1=1.6.0-1"),
    (project_types.Word, "one short value such as 2.0.1 or ubuntu22.04"),
)


def pattern_of(annotated: Any) -> str:
    """The pattern inside an annotated string type of the model."""
    metas = [arg for arg in get_args(annotated) if isinstance(arg, Meta)]
    return str(metas[0].pattern)


@functools.cache
def _table() -> dict[str, str]:
    return {pattern_of(annotated): words for annotated, words in _WORDS}


def expectation(pattern: str | None) -> str:
    """What a string with this pattern should look like."""
    if pattern is None:
        return "text"
    return _table().get(pattern, f"text that matches {pattern}")
