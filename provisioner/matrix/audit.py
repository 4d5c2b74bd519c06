"""Holds what the matrix says about a release against what an index serves.

The comparisons are pure: an `IndexView` answers with files and metadata, a `Finding` says what the
matrix has, what the index has, and whether they agree. How an index is asked is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provisioner.errors import OutsideError
from provisioner.matrix.wheels import (
    Wheel,
    applies,
    linux_wheels,
    normal_requirement,
    pythons,
    requirements_of,
    split_requirements,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from provisioner.matrix.model import Companion, Matrix, Release

OriginName: TypeAlias = Literal["package_index", "torch_index", "conda"]
State: TypeAlias = Literal["agrees", "differs", "not reachable"]


class ServedFile(Protocol):
    """A file as an index lists it; `uploaded` is a UTC time or None."""

    @property
    def filename(self) -> str: ...
    @property
    def sha256(self) -> str | None: ...
    @property
    def uploaded(self) -> str | None: ...
    @property
    def yanked(self) -> bool: ...


class IndexView(Protocol):
    """One index. Both methods raise OutsideError when it cannot be asked."""

    def files(self, project: str) -> list[ServedFile]:
        """All files of a project; empty when the index does not have it."""

    def requires(self, file: ServedFile) -> tuple[str, ...]:
        """The Requires-Dist lines of a wheel."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fact held against one origin. `matrix` and `index` are None where nothing is there."""

    origin: OriginName
    torch: str | None
    fact: str
    state: State
    matrix: str | None = None
    index: str | None = None


Check: TypeAlias = "tuple[str, Callable[[], tuple[str | None, str | None]]]"
"""The name of a fact, and what gives the matrix's and the index's word on it."""


def run_checks(origin: OriginName, torch: str | None, checks: Iterable[Check]) -> list[Finding]:
    """The findings of some checks; one that cannot ask its index is `not reachable`."""
    found: list[Finding] = []
    for fact, look in checks:
        try:
            matrix, index = look()
        except OutsideError as error:
            found.append(
                Finding(
                    origin=origin,
                    torch=torch,
                    fact=fact,
                    state="not reachable",
                    index=error.message,
                )
            )
            continue
        found.append(
            Finding(
                origin=origin,
                torch=torch,
                fact=fact,
                state="agrees" if matrix == index else "differs",
                matrix=matrix,
                index=index,
            )
        )
    return found


def release_findings(release: Release, view: IndexView) -> list[Finding]:
    """What the package index says about the pins, Pythons and requirements of a release."""
    checks = [*_torch_checks(release, view), *_triton_checks(release, view)]
    for name in ("torchvision", "torchaudio"):
        checks += _companion_checks(name, getattr(release, name), release, view)
    return run_checks("package_index", release.torch, checks)


def variant_findings(release: Release, views: Mapping[str, IndexView]) -> list[Finding]:
    """Whether the torch index serves each variant; `views` by variant tag."""
    checks: list[Check] = []
    for variant in release.variants:
        view = views[variant.tag]

        def look(view: IndexView = view, tag: str = variant.tag) -> tuple[str, str]:
            wheels = _of(view, "torch", f"{release.torch}+{tag}")
            said = next(entry.published for entry in release.variants if entry.tag == tag)
            return said, "yes" if wheels else "no files"

        checks.append((f"{variant.tag} published", look))
    return run_checks("torch_index", release.torch, checks)


def hash_findings(
    origin: OriginName, project: str, recorded: dict[str, str], view: IndexView
) -> list[Finding]:
    """Whether an index still serves each recorded file with its recorded sha256."""
    checks: list[Check] = []
    for filename, sha256 in sorted(recorded.items()):

        def look(filename: str = filename, sha256: str = sha256) -> tuple[str, str | None]:
            served = {file.filename: file.sha256 for file in view.files(project)}
            if filename not in served:
                return sha256, None
            return sha256, served[filename] or sha256

        checks.append((f"sha256 of {filename}", look))
    return run_checks(origin, None, checks)


def new_releases(matrix: Matrix, view: IndexView) -> list[str]:
    """Final torch versions on the package index that the matrix lacks, oldest first."""
    known = {release.torch for release in matrix.releases}
    oldest = Version(matrix.releases[0].torch)
    found: set[Version] = set()
    for wheel in linux_wheels(view.files("torch")):
        version = Version(wheel.version)
        final = not (version.is_prerelease or version.is_postrelease or version.local)
        if final and version > oldest and not wheel.file.yanked:
            found.add(version)
    return [str(version) for version in sorted(found) if str(version) not in known]


def _of(view: IndexView, project: str, version: str) -> list[Wheel]:
    wanted = Version(version)
    return [
        wheel
        for wheel in linux_wheels(view.files(project))
        if Version(wheel.version) == wanted and not wheel.file.yanked
    ]


def _first(wheels: list[Wheel]) -> Wheel | None:
    """The wheel whose metadata counts: x86_64, an ordinary CPython, the oldest."""
    usable = [wheel for wheel in wheels if "x86_64" in wheel.arches and wheel.series != "none"]
    return min(usable, key=lambda wheel: (wheel.order, wheel.file.filename), default=None)


def _torch_checks(release: Release, view: IndexView) -> Iterator[Check]:
    def wheels() -> list[Wheel]:
        return _of(view, "torch", release.torch)

    def served() -> tuple[str, str | None]:
        return release.torch, release.torch if wheels() else None

    def released() -> tuple[str, str]:
        days = [wheel.file.uploaded[:10] for wheel in wheels() if wheel.file.uploaded]
        return release.released, min(days, default=release.released)

    def series(arch: Literal["x86_64", "aarch64"]) -> tuple[str, str]:
        return " ".join(getattr(release.python, arch)), " ".join(pythons(wheels(), arch))

    def required(group: Literal["nvidia", "other", "triton"]) -> tuple[str, str]:
        first = _first(wheels())
        split = split_requirements(view.requires(first.file) if first else ())
        if group == "triton":
            pin = release.triton.requires if release.triton else ""
            return _specifier(pin), _specifier(requirements_of(split.triton))
        mine = release.pypi.nvidia if group == "nvidia" else release.requires
        theirs = split.nvidia if group == "nvidia" else split.other
        return _sorted(mine), _sorted(theirs)

    yield "version", served
    yield "released", released
    yield "python.x86_64", lambda: series("x86_64")
    yield "python.aarch64", lambda: series("aarch64")
    yield "requires", lambda: required("other")
    yield "pypi.nvidia", lambda: required("nvidia")
    yield "triton.requires", lambda: required("triton")


def _triton_checks(release: Release, view: IndexView) -> Iterator[Check]:
    pin = release.triton
    if pin is None:
        return

    def newest() -> tuple[str, str | None]:
        return pin.version, newest_of(view, "triton", pin.requires)

    def aarch64() -> tuple[str, str]:
        first = _first(_of(view, "torch", release.torch))
        lines = split_requirements(view.requires(first.file) if first else ()).triton
        asked = any(applies(line, "aarch64", release.python.x86_64[0]) for line in lines)
        return str(pin.aarch64).lower(), str(asked).lower()

    yield "triton.version", newest
    yield "triton.aarch64", aarch64


def newest_of(view: IndexView, project: str, requires: str) -> str | None:
    """The newest final version of a project that satisfies a specifier, or None."""
    specifier = SpecifierSet(requires)
    versions = {
        Version(wheel.version)
        for wheel in linux_wheels(view.files(project))
        if not wheel.file.yanked and not Version(wheel.version).is_prerelease
    }
    fits = [version for version in versions if version in specifier]
    return str(max(fits)) if fits else None


def _companion_checks(
    name: str, companion: Companion, release: Release, view: IndexView
) -> Iterator[Check]:
    def wheels() -> list[Wheel]:
        return _of(view, name, companion.version)

    def served() -> tuple[str, str | None]:
        return companion.version, companion.version if wheels() else None

    def required() -> tuple[str, str]:
        first = _first(wheels())
        theirs = torch_requirement(view.requires(first.file)) if first else None
        return _specifier(companion.requires or ""), _specifier(theirs or "")

    def series() -> tuple[str, str]:
        mine = companion.python if companion.python != "any" else ("any",)
        return " ".join(mine), " ".join(companion_pythons(wheels(), release.python.x86_64))

    yield f"{name}.version", served
    yield f"{name}.requires", required
    yield f"{name}.python", series


def companion_pythons(wheels: list[Wheel], known: tuple[str, ...]) -> tuple[str, ...]:
    """The series of a companion's x86_64 wheels; ("any",) for a Python-independent wheel."""
    if any(wheel.series == "any" and "x86_64" in wheel.arches for wheel in wheels):
        return ("any",)
    return pythons(wheels, "x86_64", known)


def torch_requirement(requires: tuple[str, ...]) -> str | None:
    """What a companion asks of torch, without blanks; None when it asks nothing."""
    lines = [line for line in map(normal_requirement, requires) if line.name == "torch"]
    return requirements_of(lines) or None


def _specifier(text: str) -> str:
    """A specifier in an order of its own, so that two spellings compare equal."""
    return ",".join(sorted(str(part) for part in SpecifierSet(text)))


def _sorted(requirements: Iterable[str]) -> str:
    return "; ".join(sorted(normal_requirement(line).text for line in requirements))


def conda_findings(matrix: Matrix, names: Callable[[str], Mapping[str, set[str]]]) -> list[Finding]:
    """Whether the channels have the base packages and the Pythons that cells are made of.

    `names` gives the versions by name of a channel; it raises OutsideError.
    """
    defaults = matrix.defaults
    together: dict[str, set[str]] = {}

    def served() -> dict[str, set[str]]:
        for channel in defaults.conda_channels if not together else ():
            for name, found in names(channel).items():
                together.setdefault(name, set()).update(found)
        return together

    def package(name: str) -> Check:
        return f"{name}", lambda: (name, name if name in served() else None)

    def python(series: str) -> Check:
        def look() -> tuple[str, str | None]:
            there = any(v.startswith(f"{series}.") for v in served().get("python", ()))
            return series, series if there else None

        return f"python {series}", look

    wanted = {s for release in matrix.releases for s in release.python.x86_64}
    checks = [package(name) for name in defaults.conda_packages]
    checks += [python(series) for series in defaults.python if series in wanted]
    return run_checks("conda", None, checks)
