"""The rules about where a candidate lives: its Python and its operating system.

Like `rules`: pure, each gives Problems, nothing chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix import versions
from provisioner.matrix.rules import Candidate, Problem

if TYPE_CHECKING:
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import OperatingSystem
    from provisioner.matrix.request import Want


def python_problems(index: MatrixIndex, want: Want, c: Candidate, python: str) -> list[Problem]:
    """What stands against a Python for this release: wheels, companions, the compile ceiling."""
    release = c.release
    wheels = release.python.x86_64 if want.arch == "x86_64" else release.python.aarch64
    found: list[Problem] = []
    if python not in wheels:
        found.append(
            Problem(
                "python.no-wheel",
                "python",
                f"torch {release.torch} has no {want.arch} wheel for Python {python}: "
                f"it has {wheels[0]} to {wheels[-1]}"
                if wheels
                else f"torch {release.torch} has no {want.arch} wheel",
                python,
                ", ".join(wheels),
                release.source,
                verified=release.verified,
            )
        )
    for name, companion in (
        ("torchvision", release.torchvision),
        ("torchaudio", release.torchaudio),
    ):
        if name in want.request.without or companion.python == "any":
            continue
        if python not in companion.python and python in wheels:
            found.append(
                Problem(
                    f"python.no-{name}",
                    "python",
                    f"torch {release.torch} has a wheel for Python {python}, its {name} "
                    f"{companion.version} has none",
                    python,
                    f"{', '.join(companion.python)}, or --without {name}",
                    companion.source,
                    verified=companion.verified,
                )
            )
    ceiling = release.compile.python_max
    if want.request.compile and ceiling is not None and not versions.at_least(ceiling, python):
        found.append(
            Problem(
                "python.compile-ceiling",
                "python",
                f"torch {release.torch} refuses torch.compile from Python {_next(ceiling)} on",
                python,
                f"<={ceiling}, or --no-compile",
                release.source,
                verified=release.verified,
            )
        )
    found.extend(
        Problem(
            f"known-bad.{bad.id}",
            "python",
            bad.symptom,
            python,
            bad.fix,
            bad.source,
            verified=bad.verified,
        )
        for bad in index.bad_for(release.torch, c.variant.tag)
        if bad.effect == "refuse" and python in bad.python
    )
    return found


def _next(series: str) -> str:
    first, second = versions.key(f"{series}.1")[:2]
    return f"{first}.{second + 1}"


def os_problems(
    index: MatrixIndex, want: Want, c: Candidate, system: OperatingSystem
) -> list[Problem]:
    """What stands against an OS: glibc, its own Python, a devel image, nvcc's ceilings."""
    release = c.release
    found: list[Problem] = []
    if not versions.at_least(system.glibc, release.glibc):
        found.append(
            Problem(
                "os.glibc",
                "glibc",
                f"torch {release.torch} needs glibc {release.glibc}, {system.id} has "
                f"{system.glibc}",
                system.glibc,
                f">={release.glibc}",
                release.source,
                verified=system.toolchain_verified,
            )
        )
    if want.request.packages.apt and system.package_manager != "apt":
        found.append(
            Problem(
                "packages.apt",
                "packages",
                f"{system.id} has no apt: its packages come by {system.package_manager}",
                ", ".join(want.request.packages.apt),
                "an OS with apt, or no packages.apt",
                system.source,
            )
        )
    if want.flavour == "devel":
        found += _devel_problems(index, c, system)
    return found


def _devel_problems(index: MatrixIndex, c: Candidate, system: OperatingSystem) -> list[Problem]:
    series = c.variant.toolkit
    if series is None:
        return [
            Problem(
                "flavour.devel-cpu",
                "flavour",
                "the devel flavour brings a CUDA toolkit; a cpu cell has none",
                "devel",
                "slim",
                (),
            )
        ]
    toolkit = index.toolkits[series]
    found: list[Problem] = []
    if devel_image(index, series, system) is None:
        found.append(_no_image(index, series, system))
    limits = toolkit.host_compiler
    if limits is not None and system.gcc > limits.gcc_max:
        found.append(
            Problem(
                "os.gcc-ceiling",
                "gcc",
                f"nvcc {series} accepts gcc up to {limits.gcc_max}, {system.id} has gcc "
                f"{system.gcc}",
                str(system.gcc),
                f"<={limits.gcc_max}",
                limits.source,
                verified=system.toolchain_verified,
            )
        )
    breaks = limits.glibc_breaks_from if limits else None
    if limits is not None and breaks and versions.at_least(system.glibc, breaks):
        found.append(
            Problem(
                "os.glibc-ceiling",
                "glibc",
                f"nvcc {series} cannot read the headers of glibc {breaks} and newer, {system.id} "
                f"has {system.glibc}",
                system.glibc,
                f"<{breaks}",
                limits.source,
                verified=limits.glibc_verified,
            )
        )
    return found


def _no_image(index: MatrixIndex, series: str, system: OperatingSystem) -> Problem:
    """No devel image for this OS, or for none: then the OS is not to blame."""
    source = index.toolkits[series].source
    have = [o.id for o in index.systems.values() if devel_image(index, series, o) is not None]
    if have:
        return Problem(
            "flavour.no-image",
            "os",
            f"no nvidia/cuda {series} devel image is known for {system.id}",
            system.id,
            ", ".join(have),
            source,
        )
    known = [
        t for t in index.toolkits if any(devel_image(index, t, o) for o in index.systems.values())
    ]
    return Problem(
        "flavour.no-image",
        "flavour",
        f"no nvidia/cuda {series} devel image is known for any OS",
        "devel",
        f"slim, or CUDA {', '.join(known)}",
        source,
    )


def devel_image(index: MatrixIndex, series: str, system: OperatingSystem) -> str | None:
    """The newest nvidia/cuda version of a series that has a devel image for an OS."""
    if system.cuda_image_suffix is None:
        return None
    fits = [
        image.version
        for image in index.matrix.cuda_images
        if image.version.rsplit(".", 1)[0] == series
        and image.state != "deleted"
        and system.id in image.os
    ]
    return versions.newest(fits) if fits else None
