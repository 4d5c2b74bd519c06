"""A patch for a torch release that is on the index and not in the matrix.

It fills in what files and metadata tell. What they cannot tell (code lists, compile ceiling, ptxas)
is taken over from the release before and marked as not confirmed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provisioner.matrix import versions
from provisioner.matrix.audit import (
    companion_pythons,
    newest_of,
    torch_requirement,
)
from provisioner.matrix.wheels import (
    Split,
    Wheel,
    applies,
    linux_wheels,
    pythons,
    requirements_of,
    split_requirements,
)

if TYPE_CHECKING:
    from provisioner.matrix.audit import IndexView
    from provisioner.matrix.model import Matrix, Release, Toolkit

_RUNTIME = re.compile(r"^nvidia-cuda-runtime(?:-cu[0-9]+)?==([0-9]+\.[0-9]+)")
_TOOLKIT = re.compile(r"^cuda-toolkit(?:\[[^]]*\])?==([0-9]+\.[0-9]+(?:\.[0-9]+)?)")
_CUDNN = re.compile(r"^nvidia-cudnn(?:-cu[0-9]+)?==([0-9.]+)")
_GLIBC = re.compile(r"^manylinux_([0-9]+)_([0-9]+)_x86_64$")
_CANDIDATES = 12
"""How many companion versions are looked at, newest first."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """An overlay that adds a release, and what a person still has to look up."""

    torch: str
    overlay: dict[str, Any]
    to_confirm: tuple[str, ...]


def propose(matrix: Matrix, torch: str, view: IndexView, day: str) -> Proposal | str:
    """The proposal for a new release read on a day, or one sentence why there can be none."""
    wheels = _of(view, "torch", torch)
    first = min(
        (wheel for wheel in wheels if "x86_64" in wheel.arches and wheel.series.startswith("3.")),
        key=lambda wheel: wheel.order,
        default=None,
    )
    if first is None:
        return f"torch {torch} has no wheel for Linux x86_64."
    before = _before(matrix, torch)
    needs = split_requirements(view.requires(first.file))
    series, built_with = _cuda(needs)
    if series is not None and versions.major(series) not in {m.major for m in matrix.cuda_majors}:
        return (
            f"torch {torch} uses CUDA {series}: the run floor of this CUDA major is not in the "
            "matrix (cuda_majors), and no index tells it."
        )
    source = f"package index, read {day}"
    known = pythons(wheels, "x86_64")
    triton = _triton(needs, view, known[0] if known else "3.10")
    if triton is None and series is not None and before.compile.supported:
        return f"torch {torch} asks for no triton, unlike {before.torch}: look at it by hand."
    release: dict[str, Any] = {
        "torch": torch,
        "released": _released(wheels, day),
        "python": {"x86_64": list(known), "aarch64": list(pythons(wheels, "aarch64"))},
        "compile": {
            "supported": before.compile.supported,
            "python_max": _ceiling(before, known),
        },
        "torchvision": _companion("torchvision", torch, view, known, source),
        "torchaudio": _companion("torchaudio", torch, view, known, source),
        "triton": triton,
        "glibc": _glibc(first) or before.glibc,
        "index_platform": before.index_platform,
        "requires": list(needs.other),
        "pypi": _pypi(before, needs, series),
        "variants": _variants(before, needs, series, built_with, source),
        "source": [source],
        "verified": False,
        "note": f"Compile ceiling and code lists are those of {before.torch}; variants beyond "
        "these were not looked for.",
    }
    overlay: dict[str, Any] = {"releases": [release]}
    to_confirm = [f"torch {torch}: compile.python_max, code lists, further variants"]
    if triton is not None:
        _add_triton(matrix, triton["version"], source, overlay, to_confirm)
    if series is not None:
        _add_toolkit(matrix, series, built_with, source, (overlay, to_confirm))
    return Proposal(torch=torch, overlay=overlay, to_confirm=tuple(to_confirm))


def _of(view: IndexView, project: str, version: str) -> list[Wheel]:
    wanted = Version(version)
    return [
        wheel
        for wheel in linux_wheels(view.files(project))
        if Version(wheel.version) == wanted and not wheel.file.yanked
    ]


def _before(matrix: Matrix, torch: str) -> Release:
    """The newest release older than this one, else the oldest."""
    older = [r for r in matrix.releases if versions.key(r.torch) < versions.key(torch)]
    return older[-1] if older else matrix.releases[0]


def _released(wheels: list[Wheel], day: str) -> str:
    return min((wheel.file.uploaded[:10] for wheel in wheels if wheel.file.uploaded), default=day)


def _ceiling(before: Release, known: tuple[str, ...]) -> str | None:
    """The compile ceiling of the release before, as far as there is a wheel for it."""
    ceiling = before.compile.python_max
    if ceiling is None or not known:
        return None
    below = [series for series in known if versions.key(series) <= versions.key(ceiling)]
    return below[-1] if below else known[0]


def _cuda(needs: Split) -> tuple[str | None, str | None]:
    """The CUDA series of the package index's build and, where told, the exact toolkit."""
    for line in needs.nvidia:
        if (match := _TOOLKIT.match(line)) is not None:
            exact = match.group(1)
            return ".".join(exact.split(".")[:2]), exact if exact.count(".") == 2 else None
    for line in needs.nvidia:
        if (match := _RUNTIME.match(line)) is not None:
            return match.group(1), None
    return None, None


def _glibc(wheel: Wheel) -> str | None:
    found = [match for match in map(_GLIBC.match, wheel.platforms) if match]
    return f"{found[0].group(1)}.{found[0].group(2)}" if found else None


def _triton(needs: Split, view: IndexView, python: str) -> dict[str, Any] | None:
    requires = requirements_of(needs.triton)
    if not requires:
        return None
    return {
        "requires": requires,
        "version": newest_of(view, "triton", requires) or requires.lstrip("=~<>!").split(",")[0],
        "aarch64": any(applies(line, "aarch64", python) for line in needs.triton),
    }


def _companion(
    name: str, torch: str, view: IndexView, known: tuple[str, ...], source: str
) -> dict[str, Any]:
    """The newest companion that names this torch, else the newest that admits it."""
    by_version: dict[Version, list[Wheel]] = {}
    for wheel in linux_wheels(view.files(name)):
        version = Version(wheel.version)
        if not (wheel.file.yanked or version.is_prerelease or version.local):
            by_version.setdefault(version, []).append(wheel)
    admitting: tuple[Version, str | None] | None = None
    for version in sorted(by_version, reverse=True)[:_CANDIDATES]:
        wheels = [wheel for wheel in by_version[version] if "x86_64" in wheel.arches]
        if not companion_pythons(wheels, known):
            continue
        requires = torch_requirement(view.requires(wheels[0].file))
        if requires is not None and torch not in SpecifierSet(requires):
            continue
        if requires is not None and requires.startswith("=="):
            admitting = (version, requires)
            break
        admitting = admitting or (version, requires)
    if admitting is None:
        admitting = (max(by_version), None)
    version, requires = admitting
    series = companion_pythons(by_version[version], known)
    entry: dict[str, Any] = {
        "version": str(version),
        "requires": requires,
        "python": "any" if series == ("any",) else list(series),
        "source": [source],
    }
    # Only an exact pin says that the two were made for each other.
    return entry if (requires or "").startswith("==") else {**entry, "verified": False}


def _pypi(before: Release, needs: Split, series: str | None) -> dict[str, Any]:
    tag = _tag(series)
    aarch64 = tag if before.pypi.aarch64_variant != "cpu" else "cpu"
    return {
        "variant": tag,
        "aarch64_variant": aarch64,
        "aarch64_arch_list": [] if aarch64 == "cpu" else list(before.pypi.aarch64_arch_list),
        "nvidia": list(needs.nvidia),
    }


def _tag(series: str | None) -> str:
    return "cpu" if series is None else "cu" + series.replace(".", "")


def _variants(
    before: Release, needs: Split, series: str | None, built_with: str | None, source: str
) -> list[dict[str, Any]]:
    """The package index's build, and the cpu build that every release has had."""
    found: list[dict[str, Any]] = []
    if series is not None:
        tag = _tag(series)
        same = [variant for variant in before.variants if variant.tag == tag]
        like = (same or [variant for variant in before.variants if variant.toolkit])[-1]
        cudnn = [match.group(1) for match in map(_CUDNN.match, needs.nvidia) if match]
        found.append(
            {
                "tag": tag,
                "toolkit": series,
                "built_with": built_with,
                "cudnn": cudnn[0] if cudnn else None,
                "arch_list": list(like.arch_list),
                "ptx": list(like.ptx),
                "published": "yes",
                "arch_list_verified": False,
                "source": [source],
            }
        )
    cpu: dict[str, Any] = {"tag": "cpu", "toolkit": None, "source": [source]}
    if series is not None:
        cpu |= {"published": "expected", "verified": False}
    return [*found, cpu]


def _add_triton(
    matrix: Matrix, version: str, source: str, overlay: dict[str, Any], to_confirm: list[str]
) -> None:
    """A triton that the matrix lacks, with the ptxas of the one before it."""
    if version in {triton.version for triton in matrix.tritons}:
        return
    older = [t for t in matrix.tritons if versions.key(t.version) < versions.key(version)]
    like = older[-1] if older else matrix.tritons[0]
    entry: dict[str, Any] = {"version": version, "ptxas": like.ptxas}
    if like.ptxas_blackwell:
        entry["ptxas_blackwell"] = like.ptxas_blackwell
    note = f"ptxas is that of triton {like.version}; read it from the wheel of {version}."
    overlay["tritons"] = [{**entry, "source": [source], "verified": False, "note": note}]
    to_confirm.append(f"triton {version}: ptxas (it decides the compile floor)")


def _add_toolkit(
    matrix: Matrix,
    series: str,
    built_with: str | None,
    source: str,
    into: tuple[dict[str, Any], list[str]],
) -> None:
    """A CUDA series that the matrix lacks, with the driver branch of the one before it."""
    overlay, to_confirm = into
    if series in {toolkit.series for toolkit in matrix.toolkits}:
        return
    older = [t for t in matrix.toolkits if versions.key(t.series) < versions.key(series)]
    like: Toolkit = older[-1] if older else matrix.toolkits[0]
    entry: dict[str, Any] = {
        "series": series,
        "native_branch": like.native_branch,
        "ptx_isa": like.ptx_isa,
        "ptx_isa_verified": False,
        "capability_first": like.capability_first,
        "capabilities": list(like.capabilities),
    }
    if built_with is not None:
        entry["releases"] = [
            {"version": built_with, "driver": None, "source": [source], "verified": False}
        ]
    note = f"All but the series is that of CUDA {like.series}."
    overlay["toolkits"] = [{**entry, "source": [source], "verified": False, "note": note}]
    to_confirm.append(f"CUDA {series}: native driver branch, PTX version, capabilities, run file")
