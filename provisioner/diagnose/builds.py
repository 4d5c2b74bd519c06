"""Published builds of torch against a driver, a GPU, a log: what the advice is made of."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.diagnose.model import Facts
    from provisioner.matrix.model import Matrix, Release, Variant

_NEWEST_SHOWN = 3


def install(torch: str, tag: str) -> str:
    """The pip command for one build."""
    index = f"https://download.pytorch.org/whl/{tag}"
    return shlex.join(
        [
            "python",
            "-m",
            "pip",
            "install",
            "--force-reinstall",
            f"torch=={torch}",
            "--index-url",
            index,
        ]
    )


def variant_of(facts: Facts, release: Release | None) -> Variant | None:
    """The variant that the log names, else the one of the package index."""
    if release is None:
        return None
    tag = facts.variant or release.pypi.variant
    return next((v for v in release.variants if v.tag == tag), None)


def run_floor(matrix: Matrix, cuda: str) -> str | None:
    """The oldest driver that runs machine code of a CUDA version's major."""
    major = versions.major(cuda)
    return next((m.run_floor for m in matrix.cuda_majors if m.major == major), None)


def runnable(facts: Facts, matrix: Matrix, release: Release) -> list[str]:
    """Variants of a release whose run floor the log's driver reaches."""
    tags = []
    for variant in release.variants:
        if variant.toolkit is None:
            continue
        floor = run_floor(matrix, variant.toolkit)
        if facts.driver is not None:
            fits = floor is not None and versions.at_least(facts.driver, floor)
        elif facts.driver_cuda is not None:
            fits = versions.major(variant.toolkit) <= versions.major(facts.driver_cuda)
        else:
            fits = False
        if fits:
            tags.append(variant.tag)
    return tags


def builds_for(matrix: Matrix, capability: str) -> Iterator[tuple[str, str]]:
    """(torch, variant) of each published build with code for a capability, oldest first."""
    major, minor = (int(part) for part in capability.split("."))
    for release in matrix.releases:
        for variant in release.variants:
            if variant.published != "yes":
                continue
            for held in variant.arch_list:
                match = re.fullmatch(r"(\d+)\.(\d+)", held)
                if match and int(match[1]) == major and int(match[2]) <= minor:
                    yield release.torch, variant.tag
                    break


def driver_runs(facts: Facts, matrix: Matrix, tag: str) -> bool:
    """Whether the log's driver, where it names one, reaches the run floor of a variant."""
    match = re.fullmatch(r"cu(\d+)(\d)", tag)
    if match is None or facts.driver is None:
        return True
    floor = run_floor(matrix, f"{match[1]}.{match[2]}")
    return floor is not None and versions.at_least(facts.driver, floor)


def listing(tags: list[str]) -> str:
    """The newest of some variants, for a sentence."""
    return ", ".join(tags[-_NEWEST_SHOWN:])
