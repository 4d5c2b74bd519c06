"""What file names and Requires-Dist lines say: Python series, machines, requirements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence  # noqa: TC003 - part of public signatures
from typing import TYPE_CHECKING, NamedTuple

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

if TYPE_CHECKING:
    from provisioner.matrix.audit import ServedFile

_PLATFORM = re.compile(r"^(?:manylinux|linux).*?_(x86_64|aarch64)$")
_CPYTHON = re.compile(r"^cp3([0-9]+)$")
# Clauses that hold for every cell of the kind that the matrix describes: no news.
_IMPLIED = (
    re.compile(r"""^platform_system\s*==\s*["']Linux["']$"""),
    re.compile(r"""^platform_machine\s*==\s*["']x86_64["']$"""),
)


class Wheel(NamedTuple):
    """A Linux wheel. `series` is 3.10, 3.12+ (abi3), any (py3-none), or none (free-threaded)."""

    file: ServedFile
    version: str
    series: str
    arches: frozenset[str]
    platforms: frozenset[str]

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts by series."""
        return tuple(int(part) for part in re.findall(r"[0-9]+", self.series))


class Line(NamedTuple):
    """One Requires-Dist line: its name, its specifier, its one spelling, its whole marker."""

    name: str
    specifier: str
    text: str
    marker: str = ""


class Split(NamedTuple):
    """The requirements of a torch wheel: CUDA parts, triton, and the rest."""

    nvidia: tuple[str, ...]
    triton: tuple[Line, ...]
    other: tuple[str, ...]


def linux_wheels(files: Iterable[ServedFile]) -> list[Wheel]:
    """The wheels for Linux among some files; anything else is passed over."""
    return [wheel for wheel in map(_wheel, files) if wheel is not None]


def _wheel(file: ServedFile) -> Wheel | None:
    if not file.filename.endswith(".whl"):
        return None
    try:
        _, version, _, tags = parse_wheel_filename(file.filename)
    except InvalidWheelFilename:
        return None
    platforms = {tag.platform for tag in tags}
    arches = {match.group(1) for match in map(_PLATFORM.match, platforms) if match}
    if "any" in platforms:
        arches = {"x86_64", "aarch64"}
    if not arches:
        return None
    series = {_series(tag.interpreter, tag.abi) for tag in tags} - {"none"}
    return Wheel(
        file, str(version), min(series, default="none"), frozenset(arches), frozenset(platforms)
    )


def _series(interpreter: str, abi: str) -> str:
    """3.10 for cp310-cp310 and cp37-cp37m, 3.12+ for abi3, any for py3-none, else none."""
    if interpreter.startswith("py3") and abi == "none":
        return "any"
    match = _CPYTHON.match(interpreter)
    if match is None:
        return "none"
    if abi == "abi3":
        return f"3.{match.group(1)}+"
    return f"3.{match.group(1)}" if abi in {interpreter, f"{interpreter}m"} else "none"


def pythons(wheels: Iterable[Wheel], arch: str, known: Sequence[str] = ()) -> tuple[str, ...]:
    """The Python series that have a wheel for a machine, ascending.

    A stable-ABI wheel counts for every series of `known` from its own on.
    """
    found: set[int] = set()
    for wheel in wheels:
        if arch not in wheel.arches or not wheel.series.startswith("3."):
            continue
        minor = int(wheel.series[2:].rstrip("+"))
        found.add(minor)
        if wheel.series.endswith("+"):
            found |= {int(series[2:]) for series in known if int(series[2:]) >= minor}
    return tuple(f"3.{minor}" for minor in sorted(found))


def normal_requirement(line: str) -> Line:
    """A requirement in one spelling: normal name, sorted extras and specifier, implied markers out.

    A line that is no requirement stands for itself.
    """
    try:
        parsed = Requirement(line)
    except InvalidRequirement:
        return Line(line, "", line)
    specifier = ",".join(sorted(str(part) for part in parsed.specifier))
    name = canonicalize_name(parsed.name)
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    marker = _marker(str(parsed.marker)) if parsed.marker else ""
    text = f"{name}{extras}{specifier}" + (f"; {marker}" if marker else "")
    return Line(name, specifier, text, str(parsed.marker or ""))


def applies(line: Line, arch: str, python: str) -> bool:
    """Whether a requirement counts on Linux, on a machine, for a Python series."""
    if not line.marker:
        return True
    environment = {
        "platform_system": "Linux",
        "platform_machine": arch,
        "python_version": python,
        "sys_platform": "linux",
    }
    return Marker(line.marker).evaluate(environment)


def _marker(text: str) -> str:
    """A marker without the clauses that are implied; kept whole where it is more than `and`."""
    if " or " in text or "(" in text:
        return text
    clauses = [clause.strip() for clause in text.split(" and ")]
    return " and ".join(
        clause for clause in clauses if not any(implied.match(clause) for implied in _IMPLIED)
    )


def split_requirements(lines: Iterable[str]) -> Split:
    """The Requires-Dist lines of torch by what they are for; extras of torch are left out."""
    nvidia: list[str] = []
    triton: list[Line] = []
    other: list[str] = []
    for text in lines:
        if re.search(r";.*\bextra\b", text):
            continue
        line = normal_requirement(text)
        if line.name == "triton":
            triton.append(line)
        elif line.name.startswith(("nvidia-", "cuda-")):
            nvidia.append(as_written(text))
        else:
            other.append(as_written(text))
    return Split(tuple(nvidia), tuple(triton), tuple(other))


def as_written(text: str) -> str:
    """A Requires-Dist line as matrix.yaml writes it: the order of its own specifiers is kept."""
    try:
        parsed = Requirement(text)
    except InvalidRequirement:
        return text
    name = canonicalize_name(parsed.name)
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    marker = str(parsed.marker) if parsed.marker and _marker(str(parsed.marker)) else ""
    return f"{name}{extras}{parsed.specifier}" + (f"; {marker}" if marker else "")


def requirements_of(lines: Iterable[Line]) -> str:
    """The specifiers of some lines together."""
    return ",".join(dict.fromkeys(line.specifier for line in lines if line.specifier))
