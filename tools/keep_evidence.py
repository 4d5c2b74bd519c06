#!/usr/bin/env python3
"""Keep a report of the probe as evidence, with the hashes of the code and the lock that it judged.

    tools/keep_evidence.py REPORT CELL WHERE [--lock lockfiles/CELL/lock.json]
    tools/keep_evidence.py REPORT --about FOLDER NAME        (no cell of ours: the probe itself)

The first form writes evidence/CELL/WHERE.json, which counts for the cell. A report that was made by
another probe.py than the one that is here is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from provisioner.matrix.evidence import proved
from provisioner.verify.report import parse_report

PROJECT = Path(__file__).resolve().parents[1]
PROBE = PROJECT / "provisioner" / "verify" / "probe.py"
ABOUT = "provision.probe-evidence/1"


def sha256(path: Path) -> str:
    """The hex SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def neutral(text: str) -> str:
    """The report without the places of the machine that made it; what is judged stays as it was."""
    return re.sub(r"/[^\s\"']*?/(?=provisioner/verify/probe\.py)|/root/out/r/", "", text)


def kept(raw: str) -> dict[str, Any]:
    """A report as it is kept: whole but for the environment variables, which judge nothing."""
    report: dict[str, Any] = json.loads(neutral(raw))
    report["details"]["env"] = {}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("cell")
    parser.add_argument("where")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--about", action="store_true", help="CELL is a folder, no cell")
    options = parser.parse_args()
    raw = options.report.read_text(encoding="utf-8")
    parse_report(raw.encode(), str(options.report))
    report = kept(raw)
    code = sha256(PROBE)
    if report["details"]["probe_sha256"] != code:
        print(f"{options.report} is of another probe.py than {PROBE}", file=sys.stderr)
        return 1
    if options.about:
        document: dict[str, Any] = {"schema": ABOUT, "code": code, "report": report}
    else:
        lock = sha256(options.lock) if options.lock else None
        document = {"cell": options.cell, "level": proved(report), "code": code, "lock": lock}
        document["report"] = report
    target = PROJECT / "evidence" / options.cell / f"{options.where}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(target.relative_to(PROJECT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
