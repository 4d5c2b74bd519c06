"""Guards on a set of distributions, locked or installed: one torch, one variant, one CUDA.

    python guard.py SPEC.json

runs in an image after its installation: it judges what that interpreter would import, and ends
with 1 and one line for each problem. Standard library alone, Python 3.8 or newer; nothing of a
package runs.
"""
# ruff: noqa: PTH123, T201

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FAMILY = ("torch", "torchvision", "torchaudio")

RIVALS = frozenset({"pytorch", "pytorch-cpu", "torch-cpu", "torch-nightly", "torchtriton"})
"""Other distributions that carry, or claim to carry, a `torch`."""

_BY_CUDA_VERSION = frozenset(
    {
        "cuda-toolkit",
        "nvidia-cublas",
        "nvidia-cuda-cupti",
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-runtime",
    }
)
"""Distributions without a series in their name, whose major version is that of CUDA."""

_CUDA_NAME = re.compile(r"-cu(?:da)?([0-9]{2})[0-9]?x?$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SEPARATORS = re.compile(r"[-_.]+")


class Problem(NamedTuple):
    """What must not be there. `code` is stable, `message` one sentence."""

    code: str
    message: str


def normal(name: str) -> str:
    """Returns the form of a distribution name under which names are compared (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def cuda_problem(device: str, cuda: str | None, name: str, version: str) -> str | None:
    """Returns why a distribution does not go with the CUDA of a cell, or None."""
    found = _CUDA_NAME.search(name)
    series = found.group(1) if found is not None else None
    if name in _BY_CUDA_VERSION:
        series = version.partition(".")[0]
    if device == "cpu":
        if name.startswith("nvidia-") or series is not None:
            return "the cell is for the CPU and takes no CUDA libraries"
        return None
    major = (cuda or "").partition(".")[0]
    if series is not None and series != major:
        return f"it belongs to CUDA {series}, and the cell has CUDA {cuda}"
    return None


def pins_of(cell: Mapping[str, Any]) -> dict[str, str]:
    """Returns name -> exact version of the torch family of a cell, as spec.json has it."""
    pairs = [text.partition("==") for text in cell["requirements"]]
    return {normal(name): version for name, _, version in pairs}


def problems(cell: Mapping[str, Any], found: Iterable[tuple[str, str]]) -> list[Problem]:
    """Returns what is wrong with a set of distributions (name, version) for a cell.

    `cell` holds `requirements`, `device`, `cuda`, `companions` and `ptxas` as spec.json has them.
    """
    versions: dict[str, list[str]] = {}
    for name, version in found:
        versions.setdefault(normal(name), []).append(version)
    return [*_family(pins_of(cell), versions), *_strangers(cell, versions)]


def _family(pins: Mapping[str, str], versions: Mapping[str, list[str]]) -> Iterator[Problem]:
    for name in FAMILY:
        have, want = versions.get(name, []), pins.get(name)
        if len(have) > 1:
            text = f"There is more than one {name}: {', '.join(have)}."
            yield Problem("torch-twice" if name == "torch" else "family-twice", text)
        elif want is None and have:
            text = f"{name} {have[0]} is there, and the cell leaves it out."
            yield Problem("family-uncalled", text)
        elif want is not None and not have:
            code = "torch-missing" if name == "torch" else "family-missing"
            yield Problem(code, f"{name} {want} is missing.")
        elif want is not None and have[0] != want:
            same = have[0].partition("+")[0] == want.partition("+")[0]
            text = f"{name} is {have[0]}, the cell has {want}."
            yield Problem(_other(name, same_release=same), text)


def _other(name: str, *, same_release: bool) -> str:
    if not same_release:
        return "family-version"
    return "torch-variant" if name == "torch" else "family-variant"


def _strangers(cell: Mapping[str, Any], versions: Mapping[str, list[str]]) -> Iterator[Problem]:
    ptxas = cell.get("ptxas") or {}
    named = [*(cell.get("companions") or ()), *filter(None, [ptxas.get("package")])]
    matches = (_NAME.match(text) for text in named)
    beside = {normal(match.group(0)) for match in matches if match is not None}
    for name in sorted(RIVALS & set(versions)):
        yield Problem("second-torch", f"{name} is there, which brings a second torch.")
    for name in sorted(set(versions) - beside):
        reason = cuda_problem(cell["device"], cell["cuda"], name, versions[name][0])
        if reason is not None:
            code = "cuda-on-cpu" if cell["device"] == "cpu" else "other-cuda"
            yield Problem(code, f"{name} {versions[name][0]} is there: {reason}.")


def main(arguments: list[str]) -> int:
    """Judges this interpreter by a spec.json; returns 1 after a line for each problem."""
    from importlib import metadata

    with open(arguments[0], encoding="utf-8") as stream:
        cell = json.load(stream)["cell"]
    seen = [(d.metadata["Name"], d.version) for d in metadata.distributions() if d.metadata]
    wrong = problems(cell, ((name, version) for name, version in seen if name))
    for problem in wrong:
        print(f"guard: {problem.message} [{problem.code}]", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
