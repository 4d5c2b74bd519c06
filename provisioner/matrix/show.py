"""All that the matrix says about one thing: a release, a toolkit, a GPU, a driver, an OS."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.matrix import versions
from provisioner.matrix.cell import Nearest, Refusal
from provisioner.matrix.index import index_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.matrix.model import Matrix, Release, Variant

SHOW_SCHEMA = "provision.matrix.show/1"
KINDS = ("torch", "toolkit", "gpu", "driver", "os")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for: its kind and the object that `--json` prints."""

    kind: str
    name: str
    object: dict[str, Any]


def look_up(matrix: Matrix, text: str) -> Found | Refusal:
    """The thing of a name: 2.0.1, 11.8, A100, 8.0, driver:535, ubuntu22.04, or KIND:NAME.

    A bare number is a torch release first, then a toolkit series, then a compute capability.
    """
    kind, _, name = text.strip().rpartition(":")
    for candidate in (kind,) if kind else KINDS:
        found = _object(matrix, candidate, name)
        if found is not None:
            return Found(kind=candidate, name=name, object={"schema": SHOW_SCHEMA, **found})
    return _unknown(matrix, kind, name)


def _object(matrix: Matrix, kind: str, name: str) -> dict[str, Any] | None:
    index = index_of(matrix)
    plain: Any = None
    if kind == "torch":
        release = index.releases.get(name.partition("+")[0])
        return release_object(release) if release else None
    if kind == "toolkit":
        plain = index.toolkits.get(name) or index.toolkits.get(".".join(name.split(".")[:2]))
    elif kind == "driver":
        branches = {str(branch.branch): branch for branch in matrix.driver_branches}
        plain = branches.get(name.partition(".")[0])
    elif kind == "os":
        plain = index.systems.get(name)
    elif kind == "gpu":
        return _gpu_object(matrix, name)
    if plain is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(plain)
    if kind == "toolkit":
        found["run_floor"] = index.run_floor(plain.series).run_floor
        found |= _builds(matrix, lambda variant: variant.toolkit == plain.series, arch_list=False)
    found["unverified"] = unverified_fields(found)
    return found


_COVERS = {"toolchain_verified": ("python", "gcc", "glibc", "kernel")}
"""What a mark speaks of where its name does not say so; `x_verified` speaks of x and x_..."""


def unverified_fields(entry: dict[str, Any]) -> list[str]:
    """The fields of an entry that no first-hand source confirms; `all` stands for the whole."""
    marks: list[str] = [] if entry.get("verified", True) else ["all"]
    for key, value in entry.items():
        if isinstance(value, dict):
            marks += [f"{key}.{name}" for name in unverified_fields(value)]
        if not key.endswith("_verified") or value:
            continue
        stem = key.removesuffix("_verified")
        named = [k for k in entry if (k == stem or k.startswith(f"{stem}_")) and k != key]
        marks += _COVERS.get(key) or named
    return marks


def _gpu_object(matrix: Matrix, name: str) -> dict[str, Any] | None:
    from provisioner.matrix.listing import runs_on

    fact = index_of(matrix).gpu(name)
    if fact is None:
        return None
    capability = fact.capability
    rules = matrix.compile_rules
    own = {
        "driver_from": fact.driver_from,
        "host_arch": fact.host_arch,
        "source": list(fact.source),
        "verified": fact.verified,
        "note": fact.note,
    }
    return {
        "name": fact.label,
        "torch_compile": versions.at_least(capability.capability, rules.capability_min),
        **{key: value for key, value in msgspec.to_builtins(capability).items() if key not in own},
        **own,
        **_builds(matrix, lambda variant: runs_on(variant, capability.capability), arch_list=True),
        "unverified": [
            *([] if fact.verified else ["all"]),
            *([] if fact.driver_exact or fact.label == capability.capability else ["driver_from"]),
        ],
    }


def _builds(
    matrix: Matrix, wanted: Callable[[Variant], bool], *, arch_list: bool
) -> dict[str, list[str]]:
    """The builds that are wanted, those apart of which no first-hand source tells.

    `arch_list`: whether the list of machine code decides, so that it has to be confirmed too.
    """
    found: dict[str, list[str]] = {"torch": [], "torch_unverified": []}
    for release in matrix.releases:
        for variant in release.variants:
            if wanted(variant):
                sure = (
                    variant.verified
                    and variant.published == "yes"
                    and (variant.arch_list_verified or not arch_list)
                )
                found["torch" if sure else "torch_unverified"].append(
                    f"{release.torch}+{variant.tag}"
                )
    return found


def release_object(release: Release) -> dict[str, Any]:
    """A release flat, as scripts want it; `builds` has the variants in full."""
    return {
        "torch": release.torch,
        "released": release.released,
        "torchvision": release.torchvision.version,
        "torchvision_requires": release.torchvision.requires,
        "torchaudio": release.torchaudio.version,
        "torchaudio_requires": release.torchaudio.requires,
        "triton": release.triton.version if release.triton else None,
        "triton_requires": release.triton.requires if release.triton else None,
        "python": list(release.python.x86_64),
        "python_aarch64": list(release.python.aarch64),
        "compile": release.compile.supported,
        "compile_python_max": release.compile.python_max,
        "glibc": release.glibc,
        "variants": [variant.tag for variant in release.variants],
        "pypi_variant": release.pypi.variant,
        "pypi_variant_aarch64": release.pypi.aarch64_variant,
        "requires": list(release.requires),
        "nvidia": list(release.pypi.nvidia),
        "builds": [msgspec.to_builtins(variant) for variant in release.variants],
        "other_builds": list(release.other_builds),
        "unverified": unconfirmed(release),
        "source": list(release.source),
        "note": release.note,
    }


def unconfirmed(release: Release) -> list[str]:
    """What about a release nobody confirmed at first hand, in words."""
    marks = [] if release.verified else ["release"]
    marks += [name for name in ("torchvision", "torchaudio") if not getattr(release, name).verified]
    for variant in release.variants:
        marks += _variant_marks(variant)
    return marks


def _variant_marks(variant: Variant) -> list[str]:
    marks = []
    if not variant.verified or variant.published != "yes":
        published = "" if variant.published == "yes" else f" (published: {variant.published})"
        marks.append(f"{variant.tag}{published}")
    if not variant.arch_list_verified:
        marks.append(f"{variant.tag} arch_list")
    return marks


def _unknown(matrix: Matrix, kind: str, name: str) -> Refusal:
    names = [release.torch for release in matrix.releases]
    names += [toolkit.series for toolkit in matrix.toolkits]
    names += [gpu.name for gpu in matrix.gpus] + [system.id for system in matrix.operating_systems]
    number = name.partition(".")[0]
    if kind == "driver" and number.isdecimal():
        branches = [branch.branch for branch in matrix.driver_branches]
        near = sorted(branches, key=lambda branch: (abs(branch - int(number)), branch))
        close = [f"driver:{branch}" for branch in near[:3]]
    elif name[:1].isdigit() and name.count(".") >= 2:
        close = _closest_releases(matrix, name)
    else:
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return Refusal(
        code="matrix.unknown-name",
        message=f"The matrix (as of {matrix.meta.as_of}) has nothing with the name "
        f"{f'{kind}:{name}' if kind else name}.",
        have={"name": name},
        need={
            "torch": f"{matrix.releases[0].torch} to {matrix.releases[-1].torch}",
            "or": "a toolkit series, GPU, compute capability, OS, or driver:BRANCH",
        },
        source=(),
        nearest=tuple(
            Nearest(name=known, options=(known,), differs=f"{known} instead of {name}")
            for known in close
        ),
    )


def _closest_releases(matrix: Matrix, version: str) -> list[str]:
    """The releases around a version: first those of its own minor, then by distance in the list."""
    wanted = versions.key(version)
    releases = [release.torch for release in matrix.releases]
    place = sum(versions.key(release) < wanted for release in releases)
    near = sorted(
        releases,
        key=lambda release: (
            versions.key(release)[:2] != wanted[:2],
            abs(releases.index(release) - place + (releases.index(release) >= place)),
        ),
    )
    return near[:3]
