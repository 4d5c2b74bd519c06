"""Every check, and how some of them are asked at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.doctor import (
    cache,
    container,
    driver,
    gpu,
    host,
    libraries,
    neighbours,
    nvcc,
    packages,
    process,
    toolkit,
)
from provisioner.doctor.model import SEVERITIES, Result
from provisioner.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provisioner.doctor.model import Check
    from provisioner.doctor.seen import Seen

CHECKS: tuple[Check, ...] = (
    *gpu.CHECKS,
    *driver.CHECKS,
    *host.CHECKS,
    *packages.CHECKS,
    *neighbours.CHECKS,
    *libraries.CHECKS,
    *toolkit.CHECKS,
    *nvcc.CHECKS,
    *process.CHECKS,
    *cache.CHECKS,
    *container.CHECKS,
)
"""In the order in which people would ask."""

_STATUS = {"fail": 0, "unknown": 1, "skip": 2, "pass": 3}


def examine(seen: Seen, only: Sequence[str] = ()) -> list[Result]:
    """The answers of every check, or of those in `only` (an id, or a group: cache): worst first.

    Raises UsageError as `check_names` does.
    """
    check_names(only)
    chosen = [check for check in CHECKS if not only or _named(check.id, only)]
    found = []
    for check in chosen:
        outcome = msgspec.structs.asdict(check.judge(seen))
        found.append(Result(id=check.id, title=check.title, **outcome))
    return sorted(found, key=rank)


def check_names(only: Sequence[str]) -> None:
    """Raises UsageError `doctor.no-check` for a name that is neither a check nor a group."""
    for name in only:
        if not any(_named(check.id, [name]) for check in CHECKS):
            import difflib

            ids = [check.id for check in CHECKS]
            near = difflib.get_close_matches(name, [*ids, *groups()], n=3)
            raise UsageError(
                "doctor.no-check",
                f"There is no check {name!r}.",
                next_step=f"Did you mean {', '.join(near)}?" if near else "provision doctor --list",
            )


def rank(result: Result) -> tuple[int, int]:
    """Where a result stands: failures by severity, then what is unknown, skipped, passed."""
    severity = SEVERITIES.index(result.severity) if result.severity else len(SEVERITIES)
    return _STATUS[result.status], severity


def groups() -> list[str]:
    """The first words of the ids."""
    return list(dict.fromkeys(check.id.partition(".")[0] for check in CHECKS))


def _named(check: str, only: Sequence[str]) -> bool:
    return any(check == name or check.startswith(name + ".") for name in only)
