"""Which wheels can be installed on a target, and which of them an installer would take first."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from packaging import tags as pep425

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.lock.model import Target

_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST = {"x86_64": 5, "aarch64": 17}
_BUILD = re.compile(r"^([0-9]+)([^-]*)$")


class WheelName:
    """The parts of a wheel's file name; `build` sorts as installers compare build tags."""

    __slots__ = ("build", "distribution", "tags", "version")

    def __init__(self, filename: str) -> None:
        parts = filename[: -len(".whl")].split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6):
            raise ValueError(filename)
        self.distribution, self.version = parts[0], parts[1]
        self.build: tuple[int, str] = (0, "")
        if len(parts) == 6:
            build = _BUILD.match(parts[2])
            if build is None:
                raise ValueError(filename)
            self.build = (int(build.group(1)), build.group(2))
        pythons, abis, platforms = (part.split(".") for part in parts[-3:])
        self.tags = [f"{p}-{a}-{m}" for p in pythons for a in abis for m in platforms]


@functools.lru_cache(maxsize=16)
def ranks(target: Target) -> Mapping[str, int]:
    """Returns tag -> rank for every wheel tag that the target takes; rank 0 is liked best."""
    major, minor = (int(part) for part in target.python.split("."))
    platforms = _platforms(target)
    order = [
        *pep425.cpython_tags((major, minor), platforms=platforms),
        *pep425.compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    ]
    return {str(tag): rank for rank, tag in reversed(list(enumerate(order)))}


def rank(wheel: WheelName, target: Target) -> int | None:
    """Returns the rank of the wheel's best tag on the target, or None when it fits nowhere."""
    table = ranks(target)
    return min((table[tag] for tag in wheel.tags if tag in table), default=None)


def _platforms(target: Target) -> list[str]:
    major, newest = (int(part) for part in target.glibc.split("."))
    platforms: list[str] = []
    for minor in range(newest, _OLDEST[target.arch] - 1, -1):
        platforms.append(f"manylinux_{major}_{minor}_{target.arch}")
        if (major, minor) in _LEGACY:
            platforms.append(f"{_LEGACY[major, minor]}_{target.arch}")
    return [*platforms, f"linux_{target.arch}"]
