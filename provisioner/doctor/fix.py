"""What `--fix` may do: make or close this user's own cache folders, nothing else."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from provisioner.doctor.model import Result

HARMLESS = frozenset({"mkdir", "chmod"})
_LIMIT_S = 60.0


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was offered: `state` says what became of it."""

    id: str
    command: str
    state: Literal["done", "failed", "declined"]
    said: str = ""


def apply(results: Iterable[Result], agree: Callable[[str, str], bool]) -> list[Fix]:
    """Run the harmless remedies of what failed, each after `agree(id, command)`.

    Raises ValueError for a command that is not harmless: a check may offer no other.
    """
    found = []
    for result in results:
        for argv in result.fix if result.status == "fail" else ():
            if argv[0] not in HARMLESS:
                raise ValueError(f"{result.id} offers {argv[0]}, which --fix never runs")
            found.append(_one(result.id, argv, agree))
    return found


def _one(check: str, argv: tuple[str, ...], agree: Callable[[str, str], bool]) -> Fix:
    command = shlex.join(argv)
    if not agree(check, command):
        return Fix(id=check, command=command, state="declined")
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Fix(id=check, command=command, state="failed", said=str(error))
    said = done.stdout.decode("utf-8", "replace").strip()[-400:]
    return Fix(id=check, command=command, state="failed" if done.returncode else "done", said=said)
