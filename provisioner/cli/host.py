"""`provision host`: what a GPU host is, and whether a cell can come to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cells import not_rendered
from provisioner.cli.options import common_options, matrix_options
from provisioner.errors import Exit, FindingError, OutsideError, UsageError

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.host.model import Finding
    from provisioner.matrix.cell import Cell

_PATH = click.Path(path_type=Path)
_LIMIT = 8 << 20


@click.group("host")
def group() -> None:
    """Read what a GPU host is and has, and hold it against a cell."""


@group.command("facts")
@common_options
def facts(out: Output) -> int:
    """Read this host; changes nothing and needs no root, which sees more.

    The reader is one file for Python 3.6: `ssh HOST python3 - < facts.py` reads another one.
    """
    found = _read_here()
    if out.json:
        out.result(found)
        return int(Exit.DONE)
    from provisioner.cli.output import wrap

    for name, value in _lines(found):
        for line in wrap(value, "    ", f"{name}: "):
            out.line(line)
    return int(Exit.DONE)


@group.command("tool")
@click.option("--out", "folder", type=_PATH, metavar="DIR", help="Default: the user's cache.")
@common_options
def tool(folder: Path | None, out: Output) -> int:
    """Write what a host needs to build environments itself: a wheel and a lock with hashes.

    They lie in a folder named by their digest. The role torch_env brings them to hosts.
    """
    from provisioner.host.tool import PYTHONS, TOOL_SCHEMA, write_tool

    made = write_tool(None if folder is None else folder.absolute())
    if out.json:
        out.result(
            {
                "schema": TOOL_SCHEMA,
                "digest": made.digest,
                "wheel": str(made.wheel),
                "lock": str(made.lock),
                "pythons": PYTHONS,
            }
        )
    else:
        out.line(f"{made.wheel}")
        out.line(f"{made.lock}")
    return int(Exit.DONE)


@group.command("gate")
@click.option("--cell", required=True, metavar="CELL", help="The rendered cell.")
@click.option(
    "--facts", "source", metavar="FILE", help="Facts of a host as JSON; - reads standard input."
)
@click.option("--branch", type=click.IntRange(1, 9999), help="The driver branch to install.")
@click.option("--lab", is_flag=True, help="A host without a GPU is wanted.")
@click.option("--keep-driver", is_flag=True, help="The driver stays as it is.")
@click.option("--no-toolkit", is_flag=True, help="No CUDA toolkit is installed.")
@click.option("--change-branch", is_flag=True, help="The host may leave its driver branch.")
@click.option("--ended-branch", is_flag=True, help="A branch past its end of life is meant.")
@click.option("--settled", is_flag=True, help="The environment is there and takes no more room.")
@click.option("--out", "root", type=_PATH, default=Path(), help="The folder of docker/.")
@matrix_options
@common_options
def gate(settings: Settings, out: Output, **options: Any) -> int:
    """Say what speaks against a cell on a host; exit status 1 where anything refuses it.

    \b
    provision host gate --cell torch2.0.1-cu118-py310-ubuntu22.04
    ssh HOST python3 - < facts.py | provision host gate --cell CELL --facts -
    """
    from provisioner.cli.render_facts import facts_of
    from provisioner.host.gate import judge, system_of
    from provisioner.host.model import GATE_SCHEMA, Wish, read_report
    from provisioner.matrix.hosts import host_facts
    from provisioner.matrix.index import index_of

    cell = cell_named(options["root"], options["cell"])
    raw, name = _facts(options["source"])
    report = read_report(raw, name)
    index, hosts = index_of(facts_of(settings).matrix), host_facts()
    wish = Wish(
        branch=options["branch"],
        lab=options["lab"],
        keep_driver=options["keep_driver"],
        toolkit=not options["no_toolkit"],
        change_branch=options["change_branch"],
        ended_branch=options["ended_branch"],
        settled=options["settled"],
    )
    found = judge(report, cell, index, hosts, wish)
    refused = [finding for finding in found if finding.severity == "refuse"]
    if out.json:
        system = system_of(report, index, hosts)
        out.result(
            {
                "schema": GATE_SCHEMA,
                "cell": cell.name,
                "os": system.id if system else None,
                "refused": len(refused),
                "driver": _driver(cell, wish, report, index),
                "findings": found,
            }
        )
    else:
        _print(found, len(refused), cell.name, out)
    return int(Exit.FINDING if refused else Exit.DONE)


def _driver(cell: Cell, wish: Any, report: Any, index: Any) -> dict[str, Any]:
    """The branch to install, with which modules, and whether there is a GPU for it."""
    from provisioner.host.gate_driver import capabilities_of, has_gpu, wants_open

    branch = wish.branch or cell.driver.install
    fact = next((b for b in index.branches if b.branch == branch), None)
    capabilities, _ = capabilities_of(report, index)
    return {
        "branch": branch,
        "open": None if fact is None else wants_open(capabilities, fact),
        "gpu": has_gpu(report),
        "nvswitch": None if report.pci is None else any(d.kind == "nvswitch" for d in report.pci),
    }


def _read_here() -> dict[str, Any]:
    from provisioner.host.facts import Host, collect

    return collect(Host())


def cell_named(root: Path, name: str) -> Cell:
    """The cell of a rendered folder; raises UsageError where there is none."""
    import msgspec

    from provisioner.matrix.cell import Cell
    from provisioner.render.spec import read_spec_file

    path = root / "docker" / name / "spec.json"
    if "/" in name or not path.is_file():
        raise not_rendered(root, name)
    try:
        return msgspec.convert(read_spec_file(path).cell, Cell)
    except msgspec.ValidationError as error:
        raise FindingError(
            "host.other-spec",
            f"{path} was written by another version of provision: {error}.",
            next_step="provision render --again",
        ) from None


def _facts(source: str | None) -> tuple[bytes, str]:
    from provisioner.regular import read_regular

    if source is None:
        import msgspec

        return msgspec.json.encode(_read_here()), "this host"
    if source == "-":
        raw, name = sys.stdin.buffer.read(_LIMIT + 1), "standard input"
    else:
        name = source
        try:
            raw = read_regular(Path(source), _LIMIT + 1)
        except OSError as error:
            raise OutsideError(
                "host.facts-unreadable",
                f"{source} cannot be read: {(error.strerror or str(error)).lower()}.",
                next_step="Make it with: provision host facts --json > FILE",
            ) from None
    if len(raw) > _LIMIT:
        raise UsageError("host.bad-facts", f"{name} is larger than {_LIMIT:,} bytes.")
    return raw, name


def _print(found: list[Finding], refused: int, cell: str, out: Output) -> None:
    from provisioner.cli.output import counted, printable, wrap

    for item in found:
        for line in wrap(printable(item.reason), "    ", f"{item.severity:<6} {item.id}: "):
            out.line(line)
        for label, text in (("have", item.have), ("need", item.need), ("Next", item.remedy)):
            for line in wrap(printable(text), "      ", f"    {label}: "):
                out.line(line)
    verdict = f"refused ({counted(refused, 'reason')})" if refused else "can be set up"
    out.line(f"{cell} on this host: {verdict}.")


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts for people: one line each, unknown said as such."""
    from provisioner.cli.output import printable

    def said(value: Any) -> str:
        if value is None:
            return "unknown"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, dict):
            return ", ".join(f"{key} {said(item)}" for key, item in value.items()) or "none"
        if isinstance(value, list):
            return "; ".join(said(item) for item in value) or "none"
        return printable(str(value))

    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        label = name.replace("_", " ")
        if isinstance(value, dict) and name not in {"os", "nvcc", "gcc"}:
            rows += [(f"{label}, {key.replace('_', ' ')}", said(v)) for key, v in value.items()]
        elif name != "schema":
            rows.append((label, said(value)))
    return rows
