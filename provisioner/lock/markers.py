"""The environment of a target, for the conditions that requirements carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.requirements import Requirement

    from provisioner.lock.model import Target


def environment(target: Target) -> dict[str, str]:
    """Returns the PEP 508 environment of CPython on the target."""
    return {
        "implementation_name": "cpython",
        "implementation_version": target.python_full,
        "os_name": "posix",
        "platform_machine": target.arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.python_full,
        "python_version": target.python,
        "sys_platform": "linux",
    }


def applies(requirement: Requirement, where: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    """Returns whether the condition of a requirement holds, for one of the extras or for none."""
    marker = requirement.marker
    if marker is None:
        return True
    try:
        return any(marker.evaluate({**where, "extra": extra}) for extra in ("", *extras))
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False
