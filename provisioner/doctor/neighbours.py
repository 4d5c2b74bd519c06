"""What stands beside torch: numpy, setuptools, triton, Python; known-bad combinations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen
    from provisioner.matrix.model import KnownBad


def numpy(seen: Seen) -> Outcome:
    """Do torch and numpy exchange arrays?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    have = seen.version_of("numpy")
    if seen.torch_label is None or have is None:
        return skip("torch or numpy is not installed")
    error = seen.imported.numpy_error if seen.imported else None
    fact = _known(seen, "numpy2-abi")
    breaks = fact is not None and versions.major(have) >= 2
    if error is None and not breaks:
        return good(f"numpy {have}, {seen.build}")
    return bad(
        "error",
        f"numpy {have} beside {seen.build}" + (f": {error}" if error else ""),
        "This torch was built against NumPy 1; its arrays do not cross over. Compiling goes on as "
        "if nothing were wrong."
        if breaks
        else "A tensor cannot be turned into an array here.",
        "Install a numpy that fits.",
        seen.pip("install", "numpy<2" if breaks else "numpy"),
        source=fact.source if fact is not None else ("torch.zeros(1).numpy()",),
    )


def setuptools(seen: Seen) -> Outcome:
    """Is the setuptools that this torch and triton import there, and not too new?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None:
        return skip("no torch is installed for this interpreter")
    have = seen.version_of("setuptools")
    needs, cap = _known(seen, "triton-needs-setuptools"), _known(seen, "pkg-resources-packaging")
    if have is None:
        if needs is None or seen.cuda is None:
            return skip("setuptools is not installed, and nothing here imports it")
        return bad(
            "error",
            f"no setuptools beside {seen.build}",
            "Its triton imports it without asking for it: the first GPU kernel fails.",
            "Install it.",
            seen.pip("install", *(cap.requirements if cap else needs.requirements)),
            source=needs.source,
        )
    if cap is not None and not all(_fits(seen, text) for text in cap.requirements):
        return bad(
            "warn",
            f"setuptools {have} beside {seen.build}",
            f"Known to break: {cap.combination}. Then {cap.symptom}.",
            "Install one that is known to work.",
            seen.pip("install", *cap.requirements),
            source=cap.source,
        )
    return good(f"setuptools {have}")


def _known(seen: Seen, name: str) -> KnownBad | None:
    """A known-bad combination of the matrix that concerns this torch, whatever its effect."""
    for entry in seen.index.matrix.known_bad:
        if entry.id == name and seen.torch is not None:
            applies = entry.torch is None or versions.satisfies(seen.torch, entry.torch)
            return entry if applies else None
    return None


def triton(seen: Seen) -> Outcome:
    """Is the triton there that this torch asks for?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None or seen.cuda is None:
        return skip("no CUDA build of torch is installed")
    release = seen.release
    if release is None:
        return unknown(f"the matrix does not know {seen.build}")
    if release.triton is None or not release.compile.supported:
        return skip(f"{seen.build} uses no triton")
    have = seen.version_of("triton") or seen.version_of("pytorch-triton")
    if have is not None and versions.satisfies(have.partition("+")[0], release.triton.requires):
        return good(f"triton {have}")
    return bad(
        "error",
        f"triton {have or 'is missing'}; {seen.build} asks for {release.triton.requires}",
        "torch.compile on the GPU goes through triton, and the two share private interfaces.",
        "Install the one that belongs to this torch.",
        seen.pip("install", f"triton=={release.triton.version}"),
        source=release.source,
    )


def python(seen: Seen) -> Outcome:
    """Does torch.compile accept this Python?"""
    if seen.env is None or seen.python is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None:
        return skip("no torch is installed for this interpreter")
    if seen.release is None:
        return unknown(f"the matrix does not know {seen.build}")
    support = seen.release.compile
    if not support.supported:
        return skip(f"{seen.build} has no torch.compile")
    if support.python_max is None or versions.at_least(support.python_max, seen.python):
        return good(f"Python {seen.python}, {seen.build} compiles up to {support.python_max}")
    return bad(
        "error",
        f"Python {seen.python}; {seen.build} compiles up to {support.python_max}",
        "It has wheels for this Python and refuses torch.compile on it, at the first call.",
        "Take an older Python, or a newer torch.",
        f"provision resolve --torch {seen.torch} --python {support.python_max}",
        source=seen.release.source,
        claim="compile-any-python",
    )


def known_bad(seen: Seen) -> Outcome:
    """Is this one of the combinations that the matrix knows as broken?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch is None or seen.variant is None:
        return skip("no torch that the matrix knows is installed")
    found = []
    for entry in seen.index.bad_for(seen.torch, seen.variant.tag):
        python = not entry.python or seen.python in entry.python
        if python and (entry.effect in ("refuse", "warn") or _breaks(seen, entry)):
            found.append(entry)
    if not found:
        return good(f"none of {len(seen.index.matrix.known_bad)} known combinations")
    first = found[0]
    return bad(
        "error" if first.effect != "warn" else "warn",
        "; ".join(f"{entry.id}: {entry.combination}" for entry in found),
        first.symptom[0].upper() + first.symptom[1:] + ".",
        first.fix[0].upper() + first.fix[1:] + ".",
        seen.pip("install", *first.requirements)
        if first.requirements
        else f"provision matrix show {seen.torch}",
        source=first.source,
    )


def _breaks(seen: Seen, entry: KnownBad) -> bool:
    """Whether an installed package is outside the bounds that the matrix puts on it."""
    if entry.effect != "constrain" or entry.id in ("numpy2-abi", "pkg-resources-packaging"):
        return False  # those two have checks of their own
    return not all(_fits(seen, text) for text in entry.requirements)


def _fits(seen: Seen, requirement: str) -> bool:
    """Whether what is installed is within a requirement's bounds; what is not installed is."""
    named = re.match(r"([A-Za-z0-9._-]+)(.*)$", requirement.partition(";")[0].strip())
    have = seen.version_of(named[1].lower()) if named else None
    bounds = named[2].strip() if named else ""
    return not have or not bounds or versions.satisfies(have.partition("+")[0], bounds)


CHECKS = (
    Check("packages.numpy", "numpy fits", numpy),
    Check("packages.setuptools", "setuptools fits", setuptools),
    Check("packages.triton", "triton fits", triton),
    Check("packages.python", "torch.compile accepts this Python", python),
    Check("packages.known-bad", "no known-bad combination", known_bad),
)
