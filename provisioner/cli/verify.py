"""`provision verify`: prove that torch.compile works in an environment, an image, on this host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cells import not_rendered
from provisioner.cli.options import Seconds, common_options
from provisioner.errors import Exit, OutsideError, ProvisionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.cli.output import Output
    from provisioner.verify.compare import Difference
    from provisioner.verify.report import Report

COMPARE_SCHEMA = "provision.verify-compare/1"
_PATH = click.Path(path_type=Path)


class _How(NamedTuple):
    """The options of the command."""

    prefix: Path | None
    image: str | None
    host: bool
    python: Path | None
    cell: str | None
    device: str
    strict_cache: bool | None
    speed: bool
    timeout: float | None
    report: Path | None
    compare: tuple[Path, Path] | None
    model: str | None
    shapes: str | None
    root: Path


@click.command("verify")
@click.option("--prefix", type=_PATH, metavar="DIR", help="This environment.")
@click.option("--image", metavar="NAME", help="This image, in a container without a network.")
@click.option("--host", is_flag=True, help="The Python of this machine (first on PATH).")
@click.option("--python", type=_PATH, metavar="PATH", help="This interpreter, of machine or image.")
@click.option("--cell", metavar="CELL", help="Hold it against this rendered cell.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="auto: the device that the cell promises.",
)
@click.option(
    "--strict-cache/--no-strict-cache",
    default=None,
    help="An unusable default cache folder fails (default for --image and --host).",
)
@click.option("--speed", is_flag=True, help="Measure eager against compiled code, too.")
@click.option("--timeout", type=Seconds(1, 86400), metavar="SECONDS", help="For each process.")
@click.option("--report", type=_PATH, metavar="FILE", help="Keep the JSON report there.")
@click.option(
    "--compare", nargs=2, type=_PATH, metavar="OLD NEW", help="Say what became worse, run nothing."
)
@click.option("--model", metavar="MODULE:FUNCTION", help="Judge your own model instead.")
@click.option("--shapes", metavar="SIZES,..", help="Its inputs, a call each: 8x3x224x224,16x...")
@click.option(
    "--out", "root", type=_PATH, default=Path(), help="The folder of docker/ (default: this one)."
)
@common_options
def command(out: Output, **options: Any) -> int:
    """Prove that torch.compile works: captured, compiled, run, and right.

    Without a place the interpreter of the active virtual or conda environment is judged. An
    environment that `provision env create` made, and an image of ours, know their own cell.

    \b
    provision verify --prefix /opt/torch
    provision verify --image provision/torch2.0.1-cu118-py310-ubuntu22.04 --device cuda
    provision verify --compare before.json after.json
    provision verify --prefix DIR --model my.module:build --shapes 4x16,8x16

    With --model the function is called in the current folder and returns the model;
    graph breaks, recompiles, numbers, speed and memory over the shapes are told.
    """
    how = _How(**options)
    if how.compare is not None:
        return _compare(*how.compare, out)
    if sum((how.prefix is not None, how.image is not None, how.host)) > 1:
        raise UsageError(
            "verify.one-place",
            "--prefix, --image and --host each name what to judge: give one of them.",
        )
    if how.model is not None or how.shapes is not None:
        return _model(how, out)
    if how.report is not None and not how.report.absolute().parent.is_dir():
        raise UsageError(
            "verify.no-folder", f"There is no folder {how.report.absolute().parent} for --report."
        )
    report = _judge(how, out)
    if how.report is not None:
        _keep(how.report, report)
    return _show(report, out)


def _model(how: _How, out: Output) -> int:
    from provisioner.cli.verify_model import judge_model

    if how.model is None or how.shapes is None:
        raise UsageError("verify.model", "--model and --shapes belong together.")
    if how.image is not None or how.report is not None or how.cell is not None:
        raise UsageError(
            "verify.model", "--model looks at this machine: no --image, --cell or --report with it."
        )
    return judge_model(
        _interpreter(how),
        how.model,
        how.shapes,
        device=how.device,
        timeout_s=how.timeout,
        out=out,
    )


def _judge(how: _How, out: Output) -> Report:
    from provisioner.verify.run import Question, verify_interpreter

    strict = how.strict_cache
    question = Question(
        device=how.device,
        expect=_promise(how),
        strict_cache=(how.host or how.image is not None) if strict is None else strict,
        speed=how.speed,
        timeout_s=how.timeout,
    )
    takes = "this compiles twice and takes a minute or two."
    if how.image is None:
        python = _interpreter(how)
        # Nobody named it: say whose torch is judged before a minute is spent on it.
        out.note(f"Verifying {python}; {takes}")
        return verify_interpreter(python, question)
    out.note(f"Verifying {how.image}; {takes}")
    from provisioner.build.engine import connect, find_client
    from provisioner.build.judged import verify_image

    engine = connect(find_client(os.environ), os.environ)
    return verify_image(engine, how.image, question, str(how.python or "python3"))


def _interpreter(how: _How) -> Path:
    if how.python is not None:
        return how.python
    if how.prefix is not None:
        return how.prefix / "bin" / "python"
    if not how.host:
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            folder = os.environ.get(variable)
            if folder:
                return Path(folder) / "bin" / "python"
    found = shutil.which("python3")
    if found is None:
        raise OutsideError(
            "verify.no-python",
            "There is no python3 on PATH.",
            next_step="Name the environment with --prefix, or an interpreter with --python.",
        )
    return Path(found)


def _promise(how: _How) -> Mapping[str, object] | None:
    """What the cell promises: that of --cell, else what the environment was made for."""
    path: Path | None = None
    if how.cell is not None:
        path = how.root / "docker" / how.cell / "spec.json"
        if not os.path.lexists(path):  # what is there and no file, the reader tells
            raise not_rendered(how.root, how.cell)
    elif how.prefix is not None:
        from provisioner.env.check import SPEC

        inside = how.prefix / SPEC
        path = inside if inside.is_file() else None
    if path is None:
        return None
    from provisioner.render.spec import read_spec_file, recorded_promise

    return recorded_promise(read_spec_file(path).cell)


def _keep(path: Path, report: Report) -> None:
    """Write the report whole or not at all."""
    import msgspec

    from provisioner.atomic import write_whole

    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    write_whole(path, text)


def _show(report: Report, out: Output) -> int:
    from provisioner.verify.report import exit_status

    status = int(exit_status(report))
    if out.json:
        out.result(report)
        return status
    import msgspec

    from provisioner.cli.output import table
    from provisioner.verify.probe import summarise

    if out.verbose:
        rows = [(c.id, c.status, f"{c.seconds:.1f}", c.detail[:48]) for c in report.checks]
        for line in table(("check", "status", "s", "seen"), rows):
            out.line(line)
        out.line()
    out.line(summarise(msgspec.to_builtins(report)))
    return status


# --- compare ---


def _compare(old: Path, new: Path, out: Output) -> int:
    from provisioner.verify.compare import compare
    from provisioner.verify.report import load_report

    try:
        found = compare(load_report(old), load_report(new))
    except ProvisionError as error:  # here a report is what the user names: wrong use
        raise UsageError(
            error.code,
            error.message,
            facts=error.facts,
            next_step="Name two reports that provision verify --report wrote.",
        ) from None
    worse = [item for item in found if item.kind == "worse"]
    status = int(Exit.FINDING if worse else Exit.DONE)
    if out.json:
        out.result({"schema": COMPARE_SCHEMA, "worse": len(worse), "differences": found})
        return status
    for item in found:
        for line in _difference_lines(item):
            out.line(line)
    count = "Nothing" if not worse else f"{len(worse)} thing{'' if len(worse) == 1 else 's'}"
    out.line(f"{count} became worse from {old} to {new}.")
    return status


def _difference_lines(item: Difference) -> list[str]:
    from provisioner.cli.output import wrap

    sign = {"worse": "WORSE ", "better": "better ", "other": ""}[item.kind]
    return wrap(f"{item.old} -> {item.new}", "    ", f"{sign}{item.what}: ")
