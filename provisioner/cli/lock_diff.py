"""`provision lock CELL --diff OLD`: what differs between an older lock and the present one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.errors import Exit, FindingError, OutsideError

if TYPE_CHECKING:
    from pathlib import Path

    from provisioner.cli.output import Output

DIFF_SCHEMA = "provision.lock-diff/1"


def show_difference(root: Path, cell: str, old: Path, out: Output) -> int:
    """Prints how the lock of a cell differs from the one in the folder `old`.

    Exit status 0: the same packages; 1: they differ; 4: one of the two cannot be read.
    """
    from provisioner.lock.difference import differences, lines_of
    from provisioner.lock.halves import folder_reader, read_cell, read_halves

    try:
        now = read_cell(root, cell)
        was = read_halves(folder_reader(old), str(old), now.cell["arch"])
    except FindingError as error:  # 1 would say that they differ
        raise OutsideError(
            error.code, error.message, facts=error.facts, next_step=error.next_step
        ) from None
    found = differences(was, now.halves)
    if out.json:
        out.result({"schema": DIFF_SCHEMA, "cell": cell, "old": str(old), "differences": found})
    elif found:
        for line in lines_of(found):
            out.line(line)
    else:
        out.line(f"The same packages as in {old}.")
    return int(Exit.FINDING if found else Exit.DONE)
