"""resolve(matrix, request): one Cell with its reasons, or a Refusal.

Candidates are (release, variant) pairs in order of preference; the first against which no rule
speaks, and that has a Python and an OS to live on, is the answer. Pure and deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.matrix import versions
from provisioner.matrix.assemble import Chosen, assemble
from provisioner.matrix.index import MatrixIndex, index_of
from provisioner.matrix.own_packages import package_problems
from provisioner.matrix.pairs import pair_problems
from provisioner.matrix.placing import os_problems, python_problems
from provisioner.matrix.request import Want, read_request
from provisioner.matrix.rules import Candidate, Problem

if TYPE_CHECKING:
    from provisioner.matrix.cell import Refusal, Request, Resolution
    from provisioner.matrix.model import Matrix, OperatingSystem, Release, Variant


def resolve(matrix: Matrix, request: Request) -> Resolution | Refusal:
    """The cell for a request with the reasons for it, or why there is none.

    Raises UsageError for words that make no sense at all.
    """
    index = index_of(matrix)
    want = read_request(index, request)
    found = choose(index, want)
    if isinstance(found, Rejected) and _too_old_to_run(found):
        # Step 3 of the procedure: cuda-compat comes after all that the host runs without it.
        bridged = choose(index, msgspec.structs.replace(want, bridged=True))
        found = bridged if isinstance(bridged, Chosen) else found
    if isinstance(found, Chosen):
        return assemble(index, want, found)
    from provisioner.matrix.refuse import refusal

    return refusal(index, want, found)


class Rejected(msgspec.Struct, frozen=True):
    """Nothing fits. `candidate` is the one that preference puts first, `problems` stand against it.

    Without a candidate the request names something that the matrix does not hold.
    """

    candidate: Candidate | None
    problems: tuple[Problem, ...]


def _too_old_to_run(found: Rejected) -> bool:
    return bool(found.problems) and found.problems[0].code == "driver.run-floor"


_UNPUBLISHED = "variant.unpublished"


def _unpublished(found: Rejected) -> bool:
    """Whether it says no more than that files were never seen: any real build tells more."""
    return found.problems[0].code == _UNPUBLISHED


def choose(index: MatrixIndex, want: Want) -> Chosen | Rejected:
    """The first candidate that passes every rule, or the first that did not."""
    blocked = _unknown(index, want)
    if blocked is not None:
        return Rejected(None, (blocked,))
    first: Rejected | None = None
    passed: list[tuple[Candidate, Problem]] = []
    for candidate in candidates(index, want):
        problems = pair_problems(index, want, candidate)
        better = first is None or _unpublished(first)
        if not problems or better:
            place, against = _place(index, want, candidate)
            if place is not None and not problems:
                python, system = place
                return Chosen(candidate, python, system, tuple(passed))
            problems += against
        passed.append((candidate, problems[0]))
        if first is None or (better and problems[0].code != _UNPUBLISHED):
            first = Rejected(candidate, tuple(problems))
    return first or Rejected(None, (_no_candidate(index, want),))


# --- candidates ---


def candidates(index: MatrixIndex, want: Want) -> list[Candidate]:
    """Release and variant pairs that match the request's words, best first."""
    return [
        candidate
        for release in _releases(index, want)
        for variant in _variants(index, want, release)
        if (candidate := candidate_for(want, release, variant)) is not None
    ]


def _releases(index: MatrixIndex, want: Want) -> list[Release]:
    if want.torch is not None:
        release = index.releases.get(want.torch)
        return [release] if release else []
    newest = list(index.newest_first)
    if want.torch_range is not None:
        newest = [r for r in newest if versions.satisfies(r.torch, want.torch_range)]
    if want.request.compile:
        # A release without torch.compile has to be named; it is never a silent fallback.
        able = [r for r in newest if r.compile.supported]
        newest = able or (newest if want.torch_range is not None else [])
    if want.newest or want.torch_range is not None:
        return newest
    default = index.releases[index.matrix.defaults.torch]
    return [default, *(r for r in newest if r is not default)]


def _variants(index: MatrixIndex, want: Want, release: Release) -> list[Variant]:
    """A release's variants, best first: the asked one, else default, package index, newest CUDA.

    A CPU build is never chosen by itself: it has to be asked for.
    """
    by_tag = {v.tag: v for v in release.variants}
    if want.variant is not None:
        found = by_tag.get(want.variant)
        return [found] if found else []
    defaults = index.matrix.defaults
    order: list[str] = []
    if release.torch == defaults.torch:
        order += [v.tag for v in release.variants if v.toolkit == defaults.cuda]
    order.append(release.pypi.variant if want.arch == "x86_64" else release.pypi.aarch64_variant)
    order += [
        v.tag
        for v in sorted(
            (v for v in release.variants if v.toolkit is not None),
            key=lambda v: versions.key(v.toolkit or "0"),
            reverse=True,
        )
    ]
    seen = [by_tag[t] for t in dict.fromkeys(order) if t in by_tag]
    return [v for v in seen if v.toolkit is not None]


def candidate_for(want: Want, release: Release, variant: Variant) -> Candidate | None:
    """The pair on the wanted machine type; None where the matrix knows no such build.

    On aarch64 only the package index's own build is known.
    """
    if want.arch == "aarch64":
        if variant.tag != release.pypi.aarch64_variant or want.request.index == "torch":
            return None
        arch_list = release.pypi.aarch64_arch_list or variant.arch_list
        return Candidate(release, variant, True, arch_list, ())
    default = variant.tag == release.pypi.variant
    if want.request.index == "package" and not default:
        return None
    from_package_index = default and want.request.index != "torch"
    return Candidate(release, variant, from_package_index, variant.arch_list, variant.ptx)


# --- Python and OS ---


def _pythons(index: MatrixIndex, want: Want, system: OperatingSystem | None) -> list[str]:
    if want.python is not None:
        return [want.python]
    if want.python_from == "base" and system is not None:
        return [system.python]
    return list(index.matrix.defaults.python)


def _systems(index: MatrixIndex, want: Want) -> list[OperatingSystem]:
    if want.os is not None:
        return [index.systems[want.os]]
    return [index.systems[i] for i in index.matrix.defaults.os if i in index.systems]


def _place(
    index: MatrixIndex, want: Want, c: Candidate
) -> tuple[tuple[str, OperatingSystem] | None, list[Problem]]:
    """The first Python and OS on which a candidate can live, or what stands against the first."""
    first: list[Problem] = []
    for system in _systems(index, want):
        against = os_problems(index, want, c, system)
        blamed: list[Problem] = []
        for python in _pythons(index, want, system):
            problems = _python_against(index, want, c, python, system)
            if not problems:
                if not against:
                    return (python, system), []
                blamed = []  # where some Python would do, none is to blame
                break
            blamed = blamed or problems
        first = first or against + blamed
    return None, first


def _python_against(
    index: MatrixIndex, want: Want, c: Candidate, python: str, system: OperatingSystem
) -> list[Problem]:
    problems = python_problems(index, want, c, python)
    if not problems:
        problems += package_problems(index, want, c, python)
    if not problems and want.python_from == "base" and python != system.python:
        return [_base_python(system, python)]
    return problems


def _base_python(system: OperatingSystem, python: str) -> Problem:
    return Problem(
        "python.not-base",
        "python",
        f"{system.id} ships Python {system.python}, and --python-from base takes no other",
        python,
        f"{system.python}, another OS, or --python-from conda",
        system.source,
        verified=system.verified and system.toolchain_verified,
    )


# --- requests that name nothing ---


def _unknown(index: MatrixIndex, want: Want) -> Problem | None:
    """A named thing that is out of scope or not in the matrix at all."""
    if want.unsupported is not None:
        word, reason = want.unsupported
        asked = want.request
        axis = "gpu" if word in asked.gpu else "os" if word == asked.os else "cuda"
        need = "a Linux of the matrix" if axis == "os" else "an NVIDIA GPU or cpu"
        return Problem("platform.unsupported", axis, reason, word, need, ())
    for gpu in want.gpus:
        if gpu.embedded:
            reason = next(u.reason for u in index.matrix.unsupported if u.id == "jetson")
            return Problem("platform.unsupported", "gpu", reason, gpu.label, "another GPU", ())
        if gpu.host_arch not in {None, want.arch}:
            return Problem(
                "gpu.host-arch",
                "arch",
                f"the {gpu.label} sits on one board with its CPU, which is {gpu.host_arch}, not "
                f"{want.arch}",
                want.arch,
                str(gpu.host_arch),
                gpu.source,
                verified=gpu.verified,
            )
    if want.torch is not None and want.torch not in index.releases:
        known = index.newest_first
        return Problem(
            "torch.unknown",
            "torch",
            f"torch {want.torch} is not in the matrix ({known[-1].torch} to {known[0].torch}, "
            f"as of {index.matrix.meta.as_of})",
            want.torch,
            "a release of the matrix, or an overlay that adds it",
            (),
        )
    if want.torch_range is not None and not _releases(index, want):
        return Problem(
            "torch.unknown",
            "torch",
            f"no torch release of the matrix is in {want.torch_range}",
            want.torch_range,
            f"{index.newest_first[-1].torch} to {index.newest_first[0].torch}",
            (),
        )
    return None


def _no_candidate(index: MatrixIndex, want: Want) -> Problem:
    """Known releases, but none of them has such a build."""
    releases = _releases(index, want)
    tag = want.variant
    have = sorted({v.tag for r in releases for v in r.variants if v.published == "yes"})
    if want.arch == "aarch64":
        have = sorted({r.pypi.aarch64_variant for r in releases})
        tag = tag or "CUDA"
    name = f"torch {want.torch}" if want.torch else "no release of the matrix that fits"
    message = (
        f"torch {want.torch} has no {tag} build for {want.arch}: it has {', '.join(have)}"
        if want.torch
        else f"no torch release that fits has a {tag} build for {want.arch}"
    )
    if want.request.index is not None and tag in have:
        message = f"{name}+{tag} is not on the {want.request.index} index"
    return Problem(
        "variant.unavailable",
        "cuda",
        message,
        tag or "any CUDA variant",
        ", ".join(have),
        releases[0].source if len(releases) == 1 else (),
    )
