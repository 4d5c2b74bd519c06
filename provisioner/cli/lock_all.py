"""`provision lock --all`: every rendered cell below the output root, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from provisioner.cli.output import Output, counted, print_error
from provisioner.errors import Exit, FindingError, ProvisionError
from provisioner.shell import out_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _Collecting(Output):
    """Keeps the results of single cells, for one result of them all."""

    def __init__(self, out: Output) -> None:
        super().__init__(json=out.json, verbose=out.verbose)
        self.kept: list[dict[str, Any]] = []

    def result(self, value: Any) -> None:
        self.kept.append(value)


def lock_all(root: Path, schema: str, out: Output, lock: Callable[[str, Output], int]) -> int:
    """Locks each cell by `lock`; one that cannot be locked does not keep the others from it.

    Returns 0, or the status of the first failure.
    """
    names = sorted(path.parent.name for path in root.glob("docker/*/spec.json"))
    if not names:
        raise FindingError(
            "lock.not-rendered",
            f"There is no rendered cell below {root.resolve()}.",
            next_step="Render one (`provision render`), or name the folder of docker/ with --out.",
        )
    collecting = _Collecting(out)
    failures: list[ProvisionError] = []
    for name in names:
        try:
            lock(name, collecting)
        except ProvisionError as error:
            failures.append(error)
            collecting.result({"cell": name, "state": "failed", "error": error.to_dict()})
            if not out.json:
                out.note(f"{name} is not locked:")
                print_error(error, as_json=False)
        if not out.json:
            out.line()
    if out.json:
        locks = [{k: v for k, v in each.items() if k != "schema"} for each in collecting.kept]
        out.result({"schema": schema, "locks": locks})
    else:
        done = len(names) - len(failures)
        out.line(f"{done} of {counted(len(names), 'cell')} locked.")
        out.line(f"Next: provision matrix list, or provision build CELL{out_option(root)}")
    return int(failures[0].exit_status if failures else Exit.DONE)
