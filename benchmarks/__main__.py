"""`python -m benchmarks [PART ...] [--runs N] [--json]`: measure and say which goals are met.

Exits 0 whatever the figures are: a busy machine is no failed test.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

PARTS = tuple(sorted(p.stem for p in Path(__file__).parent.glob("part*.py")))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--runs", type=int, default=15, help="runs of each process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for part in options.part:
        if part not in PARTS:
            parser.error(f"no part {part!r}: {', '.join(PARTS)}")
        found += importlib.import_module(f"benchmarks.{part}").goals(options.runs)
    if options.json:
        rows = [{**asdict(goal), "met": goal.met} for goal in found]
        print(json.dumps({"schema": "provision.benchmarks/1", "goals": rows}, indent=2))
    else:
        for goal in found:
            print(goal.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
