"""`provision matrix audit`: the matrix against the indexes that it describes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.options import common_options, index_options
from provisioner.cli.output import Output, wrap
from provisioner.errors import Exit, OutsideError, UsageError

if TYPE_CHECKING:
    from provisioner.cli.audit_run import Audit
    from provisioner.cli.settings import OpenMatrix, Settings
    from provisioner.matrix.audit import Finding
    from provisioner.matrix.model import Matrix

AUDIT_SCHEMA = "provision.matrix.audit/1"
_NAMES = {"package_index": "package index", "torch_index": "torch index", "conda": "conda channel"}
_JOBS = 8


@click.command("audit")
@click.option("--torch", metavar="RANGE", help="Only these releases: 2.14.1, or >=2.10.")
@click.option("--jobs", type=click.IntRange(1, 32), default=_JOBS, help="Questions at once.")
@click.option(
    "--patch",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what adds the new releases: FILE.yaml an overlay, any other name a unified diff.",
)
@index_options
@common_options
def command(
    settings: Settings, out: Output, torch: str | None, jobs: int, patch: Path | None
) -> int:
    """Hold the matrix against the package index, the torch index and the conda channels.

    Each fact agrees, differs, or was not reachable. Exit status: 0 all that was reached agrees,
    1 something differs or a release is missing, 4 nothing was reached.
    """
    import os

    from provisioner.cli.audit_run import Plan, run_audit
    from provisioner.lock.client import Client
    from provisioner.lock.defaults import package_index
    from provisioner.matrix.age import today
    from provisioner.matrix.listing import matching

    opened = settings.open()
    matrix = opened.matrix
    releases = tuple(matching(matrix.releases, torch))
    plan = Plan(
        matrix=matrix,
        releases=releases,
        package_index=package_index(matrix.origins.package_index.url, os.environ),
        recorded=recorded_hashes(matrix, Path("lockfiles"), {r.torch for r in releases}),
        torch=torch,
        jobs=jobs,
        day=today(),
    )
    audit = run_audit(plan, Client(), _progress(out))
    if not releases and not audit.new:
        raise UsageError(
            "request.torch",
            f"No torch release of the matrix, and no new one that could be reached, is in {torch}.",
            next_step="provision matrix list shows the releases.",
        )
    if patch is not None and audit.proposals:
        _write_patch(patch, audit, opened, plan.day)
    status = exit_status(audit)
    if out.json:
        out.result(_json(audit, matrix, status))
    else:
        for line in page(audit, patch):
            out.line(line)
    return int(status)


def exit_status(audit: Audit) -> Exit:
    """The exit status of the whole audit."""
    states = {finding.state for finding in audit.findings}
    if "differs" in states or audit.new:
        return Exit.FINDING
    return Exit.DONE if "agrees" in states else Exit.OUTSIDE


def page(audit: Audit, patch: Path | None) -> list[str]:
    """The audit for people: counts per origin, differences, what is new."""
    lines: list[str] = []
    for origin, name in _NAMES.items():
        found = [finding for finding in audit.findings if finding.origin == origin]
        if found:
            lines += _origin_lines(name, found)
    if patch is not None and not audit.proposals:
        lines.append(f"No release to add was found; {patch} was not written.")
    if audit.new:
        lines += [f"On the package index and not in the matrix: torch {', '.join(audit.new)}"]
        for proposal in audit.proposals:
            lines += [f"  to confirm: {entry}" for entry in proposal.to_confirm]
        lines += [f"  {sentence}" for sentence in audit.without_proposal]
        if audit.proposals and patch is None:
            lines.append("  a patch: provision matrix audit --patch new.diff (or new.yaml)")
        elif audit.proposals:
            lines.append(f"  written to {patch}")
    return lines


def _origin_lines(name: str, found: list[Finding]) -> list[str]:
    counts = {
        state: sum(finding.state == state for finding in found)
        for state in ("agrees", "differs", "not reachable")
    }
    told = (f"{counts['agrees']} agree", f"{counts['differs']} differ")
    lines = [f"{name}: {', '.join(told)}, {counts['not reachable']} not reachable"]
    for finding in found:
        if finding.state == "differs":
            about = f"torch {finding.torch} {finding.fact}" if finding.torch else finding.fact
            lines += wrap(f"matrix: {finding.matrix or 'nothing'}", "      ", f"  {about}\n      ")
            lines += wrap(f"index:  {finding.index or 'nothing'}", "      ", "      ")
    reasons = dict.fromkeys(f.index for f in found if f.state == "not reachable" and f.index)
    for reason in reasons:
        lines += wrap(reason, "  ", "  ")
    return lines


def _json(audit: Audit, matrix: Matrix, status: Exit) -> dict[str, Any]:
    from provisioner.matrix.age import age_days, today

    return {
        "schema": AUDIT_SCHEMA,
        "as_of": matrix.meta.as_of,
        "matrix_age_days": age_days(matrix.meta, today()),
        "exit_status": int(status),
        "findings": audit.findings,
        "new": audit.new,
        "proposals": audit.proposals,
        "without_proposal": audit.without_proposal,
    }


def _progress(out: Output) -> Any:
    """A counter on a terminal's standard error; nothing elsewhere."""
    if out.json or not sys.stderr.isatty():
        return lambda done, total: None  # noqa: ARG005

    def show(done: int, total: int) -> None:
        text = f"\r{done}/{total} questions answered" if done < total else "\r\033[K"
        click.echo(text, nl=False, err=True)

    return show


def recorded_hashes(
    matrix: Matrix, lockfiles: Path, releases: set[str]
) -> dict[tuple[str, str], dict[str, str]]:
    """Hashes that the tool ships or has locked, by (package_index or variant tag, project)."""
    from provisioner.lock.recorded import load_records

    found: dict[tuple[str, str], dict[str, str]] = {}
    pins = _pins(matrix, releases)
    for project in load_records().projects:
        version, _, label = project.version.partition("+")
        if (project.name, version) in pins:
            files = found.setdefault((label or "package_index", project.name), {})
            files.update({file.filename: file.sha256 for file in project.files})
    for project_name, filename, sha256 in _locked(lockfiles, releases):
        found.setdefault(("package_index", project_name), {})[filename] = sha256
    return found


def _pins(matrix: Matrix, releases: set[str]) -> set[tuple[str, str]]:
    """The torch family and triton of some releases, by name and version."""
    pins: set[tuple[str, str]] = set()
    for release in matrix.releases:
        if release.torch in releases:
            pins |= {
                ("torch", release.torch),
                ("torchvision", release.torchvision.version),
                ("torchaudio", release.torchaudio.version),
            }
            if release.triton is not None:
                pins.add(("triton", release.triton.version))
    return pins


def _locked(lockfiles: Path, releases: set[str]) -> list[tuple[str, str, str]]:
    """(project, file, sha256) of the package index in the locks of these releases' cells."""
    import msgspec

    from provisioner.lock.halves import LIMIT
    from provisioner.lock.model import Lock
    from provisioner.regular import read_regular

    found: list[tuple[str, str, str]] = []
    for path in sorted(lockfiles.glob("*/lock.json")):
        release = path.parent.name.rpartition("--")[2].partition("-")[0].removeprefix("torch")
        if release not in releases:
            continue
        try:
            lock = msgspec.json.decode(read_regular(path, LIMIT), type=Lock)
        except (OSError, msgspec.MsgspecError):
            continue  # `provision lock --check` is the one that judges locks
        found += [
            (package.name, file.filename, file.sha256)
            for package in lock.packages
            if package.origin == "package-index"
            for file in package.files
        ]
    return found


def _write_patch(patch: Path, audit: Audit, opened: OpenMatrix, day: str) -> None:
    """Write what adds the new releases; a file that is there is replaced whole."""
    from provisioner.atomic import write_whole
    from provisioner.matrix.patch import overlay_text, unified_diff

    overlays = [proposal.overlay for proposal in audit.proposals]
    if patch.suffix in {".yaml", ".yml"}:
        head = f"New torch releases on the package index, read {day}.\n"
        head += "\n".join(f"To confirm: {line}" for p in audit.proposals for line in p.to_confirm)
        text = overlay_text(overlays, head)
    else:
        source = Path(opened.paths[0])
        text = unified_diff(source.read_text(encoding="utf-8"), overlays, source.name)
    try:
        write_whole(patch, text.encode())
    except OSError as error:
        raise OutsideError(
            "audit.patch", f"{patch} cannot be written: {error.strerror or error}."
        ) from error
