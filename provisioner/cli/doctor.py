"""`provision doctor`: what is wrong with this host and an environment on it, worst first."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cli.options import common_options, matrix_options
from provisioner.errors import Exit, OutsideError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.doctor.fix import Fix
    from provisioner.doctor.model import Result
    from provisioner.doctor.seen import Seen

_PATH = click.Path(path_type=Path)
_LEVELS = ("error", "warn", "note")


class _How(NamedTuple):
    """The options of the command."""

    prefix: Path | None
    image: str | None
    source: str | None
    python: str | None
    cell: str | None
    only: tuple[str, ...]
    severity: str | None
    fix: bool
    yes: bool
    record: Path | None
    listed: bool
    root: Path


@click.command("doctor")
@click.option("--env", "prefix", type=_PATH, metavar="PREFIX", help="This environment.")
@click.option("--image", metavar="NAME", help="This image, in a container without a network.")
@click.option("--facts", "source", metavar="FILE", help="Facts recorded elsewhere; - reads them.")
@click.option("--python", metavar="PATH", help="This interpreter, of machine or image.")
@click.option("--cell", metavar="CELL", help="Hold it against this rendered cell, too.")
@click.option("--only", multiple=True, metavar="ID,..", help="These checks or groups of them.")
@click.option(
    "--severity",
    type=click.Choice(_LEVELS),
    help="Show, and fail from, this on. Default: all is shown, errors fail.",
)
@click.option("--fix", is_flag=True, help="Mend what is harmless, each after asking.")
@click.option("--yes", is_flag=True, help="Do not ask (not as root).")
@click.option("--record", type=_PATH, metavar="FILE", help="Keep the facts there as JSON.")
@click.option("--list", "listed", is_flag=True, help="List the checks and end.")
@click.option(
    "--out", "root", type=_PATH, default=Path(), help="The folder of docker/ (default: this one)."
)
@matrix_options
@common_options
def command(settings: Settings, out: Output, **options: Any) -> int:
    """Find what keeps PyTorch and torch.compile from working here, worst first.

    Without a place the active virtual or conda environment is looked at, else the
    first python3 on PATH. Works without torch, GPU, driver or root.

    \b
    provision doctor
    provision doctor --env /opt/torch --cell CELL
    provision doctor --record host.json   # there
    provision doctor --facts host.json    # here
    """
    how = _How(**options)
    names = [name for text in how.only for name in text.split(",") if name]
    if how.listed:
        return _list(out)
    _check_usage(how, out)
    from provisioner.doctor.registry import check_names, examine

    check_names(names)
    seen = _look(how, settings, out)
    results = examine(seen, names)
    fixes: list[Fix] = []
    if how.fix:
        fixes = _fix(results, how, out)
        if any(fix.state == "done" for fix in fixes):
            seen = _look(how, settings, out)
            results = examine(seen, names)
    return _show(seen, results, fixes, how, out)


def _list(out: Output) -> int:
    from provisioner.cli.output import table
    from provisioner.doctor.registry import CHECKS

    if out.json:
        out.result({"checks": [{"id": c.id, "title": c.title} for c in CHECKS]})
    else:
        for line in table(("check", "is it so that"), [(c.id, c.title) for c in CHECKS]):
            out.line(line)
    return int(Exit.DONE)


def _check_usage(how: _How, out: Output) -> None:
    if sum(place is not None for place in (how.prefix, how.image, how.source)) > 1:
        raise UsageError(
            "doctor.one-place", "--env, --image and --facts each name what to look at: give one."
        )
    if how.python is not None and how.source is not None:
        raise UsageError("doctor.one-place", "--facts and --python exclude each other.")
    if not how.fix:
        return
    if how.image is not None or how.source is not None:
        raise UsageError("doctor.fix-here", "--fix mends this machine, no image and no recording.")
    if how.yes and os.geteuid() == 0:
        raise UsageError(
            "doctor.fix-root",
            "--fix --yes would change files as root without asking.",
            next_step="Run it as the user whose folders they are, or without --yes.",
        )
    if not how.yes and out.json:
        raise UsageError("doctor.fix-json", "--fix asks; with --json add --yes.")


# --- the facts ---


def _look(how: _How, settings: Settings, out: Output) -> Seen:
    from provisioner.doctor.facts import facts_from, read_facts
    from provisioner.doctor.seen import Seen
    from provisioner.matrix.index import index_of

    cell = None
    if how.cell is not None:
        from provisioner.cli.host import cell_named

        cell = cell_named(how.root, how.cell)
    if how.source is not None:
        raw, name = _read(how.source)
        facts = read_facts(raw, name)
    else:
        plain = _collect(how, out)
        if how.record is not None:
            _keep(how.record, plain)
        facts = facts_from(plain)
    return Seen(facts, index_of(settings.open().matrix), cell)


def _collect(how: _How, out: Output) -> dict[str, Any]:
    from provisioner.doctor.collect import collect_here, collect_image

    if how.image is None:
        python = _interpreter(how)
        try:
            return collect_here(python, os.environ)
        except OutsideError as error:
            if how.python is not None or how.prefix is not None:
                raise
            # The host can still be looked at: its own python3 may be too old to ask.
            out.note(f"{error.message.splitlines()[0]} Only the host is looked at.")
            return collect_here(None, os.environ)
    from provisioner.build.engine import connect, find_client

    engine = connect(find_client(os.environ), os.environ)
    gpus = Path("/dev/nvidiactl").exists()
    return collect_image(engine, how.image, how.python or "python3", gpus=gpus)


def _interpreter(how: _How) -> Path | None:
    if how.python is not None:
        return Path(how.python)
    if how.prefix is not None:
        return how.prefix / "bin" / "python"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(variable)
        if folder:
            return Path(folder) / "bin" / "python"
    found = shutil.which("python3")
    return None if found is None else Path(found)


def _read(source: str) -> tuple[bytes, str]:
    from provisioner.regular import read_regular

    limit = 32 << 20
    if source == "-":
        raw, name = sys.stdin.buffer.read(limit + 1), "Standard input"
    else:
        name = source
        try:
            raw = read_regular(Path(source), limit + 1)
        except OSError as error:
            raise OutsideError(
                "doctor.facts-unreadable",
                f"{source} cannot be read: {(error.strerror or str(error)).lower()}.",
                next_step="Make it with: provision doctor --record FILE",
            ) from None
    if len(raw) > limit:
        raise UsageError("doctor.bad-facts", f"{name} is larger than {limit:,} bytes.")
    return raw, name


def _keep(path: Path, plain: dict[str, Any]) -> None:
    """Write the facts whole or not at all."""
    from provisioner.atomic import write_whole
    from provisioner.cli.output import to_json

    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError("doctor.no-folder", f"There is no folder {folder} for --record.")
    write_whole(path, f"{to_json(plain)}\n".encode())


# --- mending ---


def _fix(results: Sequence[Result], how: _How, out: Output) -> list[Fix]:
    from provisioner.cli.output import printable
    from provisioner.doctor.fix import apply

    def agree(check: str, text: str) -> bool:
        out.note(f"{check}: {printable(text)}")
        return how.yes or click.confirm("Run it?", default=False, err=True)

    found = apply(results, agree)
    for fix in found:
        if fix.state == "failed":
            out.note(f"  failed: {printable(fix.said)}")
    if not found:
        out.note("Nothing here can be mended without asking you for more than a yes.")
    return found


# --- what is shown ---


def _show(
    seen: Seen, results: Sequence[Result], fixes: Sequence[Fix], how: _How, out: Output
) -> int:
    from provisioner.doctor.model import SCHEMA

    shown = _LEVELS[: _LEVELS.index(how.severity or "note") + 1]
    decides = _LEVELS[: _LEVELS.index(how.severity or "error") + 1]
    failed = [r for r in results if r.status == "fail" and r.severity in shown]
    status = Exit.FINDING if any(r.severity in decides for r in failed) else Exit.DONE
    if out.json:
        out.result(
            {
                "schema": SCHEMA,
                "judged": _judged(seen, how),
                "failing_from": decides[-1],
                "failed": sum(r.severity in decides for r in failed),
                "counts": counts(results),
                "results": [r for r in results if r.status != "fail" or r.severity in shown],
                "fixes": fixes,
            }
        )
        return int(status)
    for line in as_lines(failed, results, verbose=out.verbose > 0):
        out.line(line)
    out.line(_last_line(_judged(seen, how), results))
    return int(status)


def _judged(seen: Seen, how: _How) -> dict[str, Any]:
    env = seen.env
    return {
        "where": how.image or how.source or "this machine",
        "os": seen.facts.os.name if seen.facts.os else None,
        "python": env.python.executable if env else None,
        "torch": seen.torch_label if env is not None and env.torch is not None else None,
        "driver": seen.driver,
        "gpus": [gpu.name for gpu in seen.gpus],
        "cell": seen.cell.name if seen.cell else None,
    }


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many answers there are of each kind."""
    found = dict.fromkeys((*_LEVELS, "pass", "unknown", "skip"), 0)
    for result in results:
        found[
            result.severity if result.status == "fail" and result.severity else result.status
        ] += 1
    return found


def as_lines(failed: Sequence[Result], results: Sequence[Result], *, verbose: bool) -> list[str]:
    """The answers for people in 80 columns; commands are never wrapped."""
    from provisioner.cli.output import printable, wrap

    lines: list[str] = []
    for item in failed:
        lines += wrap(printable(item.evidence), "      ", f"{item.severity or '':<5} {item.id}: ")
        lines += wrap(printable(item.reason), "      ")
        lines += wrap(printable(item.remedy), "      ", "      Remedy: ")
        lines += [f"        {printable(text)}" for text in item.commands]
        source = ", ".join((*item.source, *([_claim(item.claim)] if item.claim else [])))
        lines += [*wrap(printable(source), "        ", "      Source: "), ""]
    unknown = [item for item in results if item.status == "unknown"]
    if unknown and not verbose:
        said = ", ".join(item.id for item in unknown)
        lines += [*wrap(f"Not known here (-v says why): {said}."), ""]
    if verbose:
        for item in results:
            if item.status != "fail":
                word = {"pass": "ok", "unknown": "?", "skip": "-"}[item.status]
                lines += wrap(printable(item.evidence), "        ", f"{word:<5} {item.id}: ")
        lines.append("")
    return lines


def _claim(anchor: str) -> str:
    return f"docs/claims.md#{anchor}"


def _last_line(judged: dict[str, Any], results: Sequence[Result]) -> str:
    from provisioner.cli.output import counted, wrap

    number = counts(results)
    parts = [
        counted(number["error"], "error"),
        counted(number["warn"], "warning"),
        counted(number["note"], "note"),
        f"{number['pass']} passed",
        f"{number['unknown']} unknown",
        f"{number['skip']} do not apply",
    ]
    who = judged["torch"] and f"torch {judged['torch']}"
    what = f"{judged['python'] or 'no Python'}: {who or 'no torch'}"
    return "\n".join(
        wrap(f"{what}. {counted(len(results), 'check')}: {', '.join(parts)}.", "  ", "")
    )
