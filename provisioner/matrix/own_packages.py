"""A project's own packages against what a release bears: versions that can never meet.

Pure, like `rules`. What a package index would still have to say is left for the locker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from provisioner.matrix.rules import Candidate, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.specifiers import SpecifierSet

    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.request import Want

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_CONDA_EXACT = re.compile(r"(?<![=!<>~])=(?!=)([0-9][0-9A-Za-z.]*?)(?:\.\*)?(?=,|$)")
_BEYOND = ("0", "99999")


_LINUX = {
    "extra": "",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_system": "Linux",
    "sys_platform": "linux",
}


class _Bound(NamedTuple):
    """A requirement of a release, who makes it, and where that was read."""

    written: str
    specifier: SpecifierSet
    made_by: str
    source: tuple[str, ...]
    verified: bool


def package_problems(
    index: MatrixIndex, want: Want, c: Candidate, python: str
) -> Iterator[Problem]:
    """Own pip and conda packages of which no version fits this release, in order."""
    asked = want.request.packages
    if not asked.pip and not asked.conda:
        return
    bounds = _bounds(index, c, python)
    for written, name, specifier in _asked(asked.pip, asked.conda, python):
        for bound in bounds.get(name, ()):
            if meet(specifier, bound.specifier):
                continue
            yield Problem(
                "packages.bound",
                "packages",
                f"provision.yaml asks for {written}, and {bound.made_by} bears only "
                f"{bound.written}: no version is both",
                written,
                f"{bound.written}, or a torch without that bound",
                bound.source,
                verified=bound.verified,
            )


def meet(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether some version can fulfil both specifiers.

    A comparison changes its answer only at a version that it names, so it is enough to try each
    of these, and the nearest before and behind it. Pre-releases count only where one is named.
    """
    named = [v for clauses in (one, other) for v in _NUMBER.findall(str(clauses))]
    tries = {*_BEYOND, *(try_ for v in named for try_ in _around(v))}
    exact = {clause.version for s in (one, other) for clause in s if clause.operator == "=="}
    tries |= {text for text in exact if not text.endswith(".*")}
    return any(
        one.contains(text, prereleases=True if text in exact else None)
        and other.contains(text, prereleases=True if text in exact else None)
        for text in tries
    )


def _around(version: str) -> Iterator[str]:
    """A version, the next behind it, and the nearest before it, written with one number more."""
    yield version
    yield f"{version}.0.0.1"
    yield f"{version}.99999"
    numbers = [int(n) for n in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    if numbers:
        numbers[-1] -= 1
        yield ".".join(map(str, [*numbers, 99999, 99999]))


def _bounds(index: MatrixIndex, c: Candidate, python: str) -> dict[str, list[_Bound]]:
    """By package name: bounds of the matrix, then what torch's own metadata asks for."""
    made_by = f"torch {c.release.torch}"
    texts = [
        (text, made_by, bad.source, bad.verified)
        for bad in index.bad_for(c.release.torch, c.variant.tag)
        if bad.effect == "constrain" and (not bad.python or python in bad.python)
        for text in bad.requirements
    ]
    release = c.release
    texts += [(text, made_by, release.source, release.verified) for text in release.requires]
    found: dict[str, list[_Bound]] = {}
    for text, who, source, verified in texts:
        parsed = _parse(text, python)
        if parsed is not None and str(parsed[1]):
            bound = _Bound(text.split(";")[0].strip(), parsed[1], who, source, verified)
            found.setdefault(parsed[0], []).append(bound)
    return found


def _asked(
    pip: tuple[str, ...], conda: tuple[str, ...], python: str
) -> Iterator[tuple[str, str, SpecifierSet]]:
    """(as written, name, specifier) of each own package that this Python gets."""
    for text in pip:
        parsed = _parse(text, python)
        if parsed is not None:
            yield (text, *parsed)
    for text in conda:
        # conda's single = matches by prefix.
        parsed = _parse(_CONDA_EXACT.sub(r"==\1.*", text), python)
        if parsed is not None:
            yield (text, *parsed)


def _parse(text: str, python: str) -> tuple[str, SpecifierSet] | None:
    """(name, specifier) of a requirement; None where its marker leaves this Python out."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None  # a build string of conda and the like: for the solver to judge
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    if requirement.marker is not None and not requirement.marker.evaluate({**_LINUX, **here}):
        return None
    return canonicalize_name(requirement.name), requirement.specifier
