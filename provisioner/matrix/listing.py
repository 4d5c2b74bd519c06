"""The matrix as a table: one row per release, filtered by torch, CUDA and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.specifiers import InvalidSpecifier

from provisioner.errors import UsageError
from provisioner.matrix import versions
from provisioner.matrix.evidence import highest
from provisioner.matrix.index import index_of
from provisioner.matrix.rules import sass_for
from provisioner.matrix.show import unconfirmed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provisioner.matrix.evidence import Evidence
    from provisioner.matrix.index import GpuFact
    from provisioner.matrix.model import Matrix, Release, Variant


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One release. `variants` are those that the filters leave, `evidence` that of its cells.

    `unverified` are tags whose build or list of machine code is not confirmed at first hand,
    `unconfirmed` says in words what is not; `level` is the highest of the evidence.
    """

    torch: str
    released: str
    variants: tuple[str, ...]
    pypi_variant: str
    unverified: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    python: tuple[str, ...]
    compile_python_max: str | None
    triton: str | None
    level: str
    evidence: tuple[Evidence, ...]


def rows(
    matrix: Matrix,
    *,
    torch: str | None = None,
    cuda: str | None = None,
    gpus: Sequence[str] = (),
    evidence: Iterable[Evidence] = (),
) -> list[Row]:
    """The releases that the filters leave, oldest first. Raises UsageError for a bad filter."""
    capabilities = [gpu_fact(matrix, gpu).capability.capability for gpu in gpus]
    known = list(evidence)
    found: list[Row] = []
    for release in matching(matrix.releases, torch):
        kept = tuple(
            variant
            for variant in release.variants
            if (cuda is None or cuda in {variant.tag, variant.toolkit})
            and all(runs_on(variant, capability) for capability in capabilities)
        )
        if kept:
            found.append(_row(release, kept, known))
    return found


def matching(releases: Sequence[Release], torch: str | None) -> list[Release]:
    """The releases of a version or range; all for None. Raises UsageError for a bad range."""
    kept = in_range((release.torch for release in releases), torch)
    return [release for release in releases if release.torch in kept]


def in_range(candidates: Iterable[str], torch: str | None) -> list[str]:
    """The versions of a version or range; all for None. Raises UsageError for a bad range."""
    return [version for version in candidates if torch is None or _matches(version, torch)]


def runs_on(variant: Variant, capability: str) -> bool:
    """Whether a build holds machine code, or PTX, for a GPU."""
    if sass_for(capability, variant.arch_list) is not None:
        return True
    return any(versions.at_least(capability, ptx) for ptx in variant.ptx)


def _row(release: Release, variants: tuple[Variant, ...], evidence: list[Evidence]) -> Row:
    proved = tuple(entry for entry in evidence if _cell_of(entry.cell, release.torch, variants))
    return Row(
        torch=release.torch,
        released=release.released,
        variants=tuple(variant.tag for variant in variants),
        pypi_variant=release.pypi.variant,
        unverified=tuple(
            variant.tag
            for variant in variants
            if not variant.verified or variant.published != "yes" or not variant.arch_list_verified
        ),
        unconfirmed=tuple(unconfirmed(release)),
        python=release.python.x86_64,
        compile_python_max=release.compile.python_max,
        triton=release.triton.version if release.triton else None,
        level=highest(proved),
        evidence=proved,
    )


def _cell_of(cell: str, torch: str, variants: Iterable[Variant]) -> bool:
    """Whether a cell name, with a project's name before it or not, is of one of these builds."""
    own = cell.rpartition("--")[2]
    return own.startswith(tuple(f"torch{torch}-{variant.tag}-" for variant in variants))


def _matches(version: str, wanted: str) -> bool:
    text = wanted.strip()
    if text[:1].isdigit():
        text = f"=={text}"
    try:
        return versions.satisfies(version, text)
    except InvalidSpecifier:
        raise UsageError(
            "request.torch",
            f"{wanted!r} is not a valid value for --torch: expected a version such as 2.0.1 or a "
            "range such as >=2.1,<2.5.",
            facts={"value": wanted},
        ) from None


def gpu_fact(matrix: Matrix, gpu: str) -> GpuFact:
    """The GPU of a filter. Raises UsageError for a name that the matrix does not have."""
    fact = index_of(matrix).gpu(gpu)
    if fact is None:
        raise UsageError(
            "request.gpu",
            f"{gpu!r} is not a valid value for --gpu: expected a GPU name of the matrix or a "
            "compute capability such as 8.6.",
            facts={"value": gpu},
        )
    return fact
