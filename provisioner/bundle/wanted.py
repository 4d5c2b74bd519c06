"""Which files a cell needs, out of its locks and the tool's own pins. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from provisioner.conda.channel import CANONICAL
from provisioner.errors import FindingError
from provisioner.lock.inputs import normal_name
from provisioner.lock.markers import applies, environment
from provisioner.lock.tags import WheelName, rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from provisioner.conda.explicit import CondaLock
    from provisioner.lock.model import Lock, LockedFile, Target
    from provisioner.lock.pages import IndexFile

Place = Literal["package", "torch", "own", "conda"]
"""Who serves a file: the package index, the index of the variant, one of the user's own, conda."""

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to fetch: its path in the bundle, its hex SHA-256, who serves it.

    `project` is the name on the index, or the address of a conda archive.
    """

    path: str
    sha256: str
    place: Place
    project: str

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One requirement of a hash-pinned list: any of these hashes will do."""

    name: str
    version: str
    hashes: frozenset[str]


def wheels_of(lock: Lock) -> list[Wanted]:
    """Returns the wheel that an installer would take of each package, for each platform."""
    found: dict[str, Wanted] = {}
    for package in lock.packages:
        if package.origin == "conda":
            continue
        for target in lock.platforms:
            file = _liked_best(package.files, target)
            if file is None:
                raise FindingError(
                    "bundle.no-wheel",
                    f"The lock has no wheel of {package.name} {package.version} for Python "
                    f"{target.python} on {target.arch}.",
                    next_step=f"Lock it again: provision lock {lock.cell}",
                )
            place: Place = "torch"
            if package.origin in ("package-index", "own-index"):
                place = "own" if package.origin == "own-index" else "package"
            path = f"wheels/{file.filename}"
            found[path] = Wanted(path=path, sha256=file.sha256, place=place, project=package.name)
    return [found[path] for path in sorted(found)]


def _liked_best(files: Iterable[LockedFile], target: Target) -> LockedFile | None:
    named = [(WheelName(file.filename), file) for file in files]
    fitting = [(rank(name, target), name.build, file) for name, file in named]
    return _first([(fit, build, file) for fit, build, file in fitting if fit is not None])


def _first(fitting: list[tuple[int, tuple[int, str], LockedFile]]) -> LockedFile | None:
    """As installers choose: the best tag, then the highest build tag."""
    if not fitting:
        return None
    best = min(fit for fit, _, _ in fitting)
    return max(
        ((build, file.filename, file) for fit, build, file in fitting if fit == best),
        key=lambda entry: entry[:2],
    )[2]


def archives_of(lock: CondaLock) -> list[Wanted]:
    """Returns the conda packages, each where its channel has it; FindingError for other hosts."""
    found = []
    for package in lock.packages:
        path = unquote(urlsplit(package.url).path).lstrip("/")
        if not package.url.startswith(f"{CANONICAL}/"):
            raise FindingError(
                "bundle.conda-channel",
                f"The lock has {package.name} from {urlsplit(package.url).hostname}; a bundle "
                f"holds channels of {urlsplit(CANONICAL).hostname} alone.",
                next_step="Lock it with a mirror of such a channel (`--mirror conda=URL`).",
            )
        found.append(
            Wanted(path=f"conda/{path}", sha256=package.sha256, place="conda", project=package.url)
        )
    return sorted(found, key=lambda wanted: wanted.path)


def read_pins(text: str, target: Target) -> list[Pin]:
    """Returns the pins of a hash-pinned list whose conditions hold on the target."""
    where = environment(target)
    pins = []
    for block in re.split(r"(?<!\\)\n", text):
        line = block.replace("\\\n", " ").strip()
        if not line or line.startswith("#"):
            continue
        requirement = _requirement(line.partition("--hash")[0].strip())
        version = str(requirement.specifier).removeprefix("==")
        hashes = frozenset(_HASH.findall(line))
        if hashes and applies(requirement, where):
            pins.append(Pin(name=normal_name(requirement.name), version=version, hashes=hashes))
    return pins


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise FindingError(
            "bundle.bad-pins", f"A line of the pinned list is no requirement: {text[:100]!r}."
        ) from error


def wheel_of_pin(
    pin: Pin, files: Iterable[IndexFile], target: Target, part: Literal["tool", "builder"]
) -> Wanted:
    """Returns the wheel of a pin that fits the target best; FindingError `bundle.no-wheel`."""
    fitting: list[tuple[int, tuple[int, str], str, str]] = []
    for file in files:
        if file.sha256 not in pin.hashes or not file.filename.endswith(".whl"):
            continue
        try:
            name = WheelName(file.filename)
        except ValueError:
            continue
        if (fit := rank(name, target)) is not None:
            fitting.append((-fit, name.build, file.filename, file.sha256))
    if not fitting:
        raise FindingError(
            "bundle.no-wheel",
            f"The package index has no wheel of {pin.name} {pin.version} for Python "
            f"{target.python} on {target.arch} with a hash of the list.",
            next_step="Name another Python with --tool-python, or a mirror that has the file.",
        )
    _, _, filename, sha256 = max(fitting)
    return Wanted(path=f"{part}/{filename}", sha256=sha256, place="package", project=pin.name)


def pinned_list(pins: Iterable[tuple[str, str, str]]) -> bytes:
    """Returns a requirements file with one hash for each (name, version, sha256), by name."""
    lines = [
        f"{name}=={version} \\\n    --hash=sha256:{sha256}\n"
        for name, version, sha256 in sorted(pins)
    ]
    return "".join(lines).encode("ascii")
