"""The typed model of the report that `probe.py` writes, its JSON Schema and what it means.

The probe itself knows nothing of this module: it runs where only torch is installed. A report
may come from the probe of an older or newer `provision`, so the summary fields are exact and
unknown fields in `details` are let through.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from provisioner.errors import Exit, FindingError, OutsideError
from provisioner.regular import read_regular

REPORT_SCHEMA: Final = "provision.report/1"
SCHEMA_FILE: Final = Path(__file__).with_name("report.schema.json")

Verdict = Literal[
    "verified", "cpu-verified-cuda-deferred", "eager-as-declared", "failed", "unjudged"
]
Status = Literal["pass", "warn", "fail", "skip"]

NO_COMPILE: Final = 3
NO_DEVICE: Final = 21

_LIMIT = 64 << 20


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: its stable id, what was seen, how long it took (seconds) and what to do."""

    id: str
    status: Status
    seconds: float
    detail: str
    remedy: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check without a judgement, and why; `cuda` stands for the half left to a GPU host."""

    check: str
    why: str


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """Compilers and headers that compiled code needs at run time; None where not found."""

    cxx: str | None
    cxx_version: str | None
    cc: str | None
    python_h: str | None


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Everything else that was seen. Paths are those of the judged system, sizes in bytes."""

    verified: bool
    exit_code: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    promised_device: Literal["cpu", "cuda"]
    expect: dict[str, Any]
    cuda_build: bool
    python: str
    executable: str
    gpu: str | None
    capability: tuple[int, int] | None
    driver: str | None
    torch_file: str | None
    torch_dists: tuple[dict[str, str | None], ...]
    packages: dict[str, dict[str, str | None]]
    backends: tuple[str, ...]
    system: str | None
    system_packages: dict[str, str]
    python_packages: dict[str, str]
    toolchain: Toolchain
    env: dict[str, str]
    switched_off_by: dict[str, str]
    tmp: dict[str, Any]
    user: dict[str, Any]
    user_cache: dict[str, Any] | None
    suppress_errors_was: bool | None
    constant: str | None
    cache: dict[str, Any]
    children: tuple[dict[str, Any], ...]
    speed_child: dict[str, Any] | None = None
    timing: dict[str, Any]
    machine: int | None
    skipped: tuple[Skipped, ...]
    kept: str | None
    probe_sha256: str


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run of the probe found. `artefacts` counts the files of its cache by kind."""

    schema: Literal["provision.report/1"]
    verdict: Verdict
    torch: str | None
    cuda: str | None
    device: Literal["cpu", "cuda"]
    checks: tuple[CheckResult, ...]
    artefacts: dict[str, int]
    speed: dict[str, Any]
    details: Details

    def failures(self) -> tuple[CheckResult, ...]:
        """Returns the failed checks; the first one decided the exit code."""
        return tuple(check for check in self.checks if check.status == "fail")


def load_report(path: Path) -> Report:
    """Returns the report in a file; raises OutsideError or FindingError when there is none."""
    try:
        raw = read_regular(path, _LIMIT)
    except OSError as error:
        raise OutsideError(
            "report.unreadable",
            f"The verification report {path} cannot be read: {error.strerror}.",
            facts={"path": str(path)},
            next_step="Run the verification again with --report.",
        ) from None
    return parse_report(raw, str(path))


def parse_report(raw: bytes, where: str) -> Report:
    """Returns the report in some bytes; `where` names them in the FindingError otherwise."""
    try:
        return msgspec.json.decode(raw, type=Report)
    except msgspec.MsgspecError as error:
        raise FindingError(
            "report.invalid",
            f"{where} is no verification report of schema {REPORT_SCHEMA}: {error}.",
            facts={"where": where},
            next_step="Run the verification again with this version of provision.",
        ) from None


def exit_status(report: Report) -> Exit:
    """Returns the tool's exit status for a report: done, a finding, or no device to judge on."""
    code = report.details.exit_code
    if code == 0 or (code == NO_COMPILE and report.verdict == "eager-as-declared"):
        return Exit.DONE
    return Exit.OUTSIDE if code == NO_DEVICE else Exit.FINDING


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a report."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Returns the text of the schema file that is kept beside this module."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
