"""`provision lock`: pin the packages of a cell with hashes, or check that they still fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cells import not_rendered
from provisioner.cli.options import CELL, Seconds, cell_options, common_options
from provisioner.cli.output import counted
from provisioner.errors import Exit, FindingError, RefusedError, UsageError
from provisioner.shell import out_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.lock.check import Standing
    from provisioner.lock.choices import Asked
    from provisioner.lock.compile import LockResult
    from provisioner.lock.conda_half import CondaHalf
    from provisioner.lock.model import Choices, LockInput
    from provisioner.render.fileset import FileSet

    Cell = Mapping[str, Any]
    """The plain values of a cell, as spec.json has them."""

LOCK_RUN_SCHEMA = "provision.lock-run/1"
_SHOWN = 40


class _How(NamedTuple):
    """The switches of the command, and the output root."""

    root: Path
    engine: str
    as_of: str | None
    upgrade: tuple[str, ...]
    own_index: tuple[str, ...]
    single_source: bool | None
    recorded: bool
    lock_python: str | None
    timeout: float
    check: bool
    refresh: bool
    force: bool

    @property
    def own(self) -> dict[str, str]:
        """Name -> address of the indexes of the user's own."""
        pairs = [word.partition("=") for word in self.own_index]
        for name, equals, url in pairs:
            if not name or not equals or not url.startswith(("http://", "https://")):
                raise UsageError(
                    "lock.own-index-syntax",
                    "--own-index takes NAME=URL with the http(s) address of a simple index.",
                )
        return {name: url for name, _, url in pairs}


@click.command("lock")
@click.argument("cell", required=False)
@click.option(
    "--engine",
    type=click.Choice(["auto", "uv", "pip-tools"]),
    default="auto",
    envvar="PROVISION_ENGINE",
    help="Who decides versions (auto: uv where it is installed). [env: PROVISION_ENGINE]",
)
@click.option("--as-of", metavar="DATE", help="Packages as they were on that day; none; or cell.")
@click.option(
    "--upgrade",
    multiple=True,
    metavar="NAME[=DATE]",
    help="Take this package as of DATE (today), the others as before; repeatable.",
)
@click.option(
    "--own-index",
    multiple=True,
    metavar="NAME=URL",
    help="Take this package from that index and no other; repeatable.",
)
@click.option(
    "--accept-single-source/--no-accept-single-source",
    "single_source",
    default=None,
    help="Take recorded hashes that one project alone vouches for.",
)
@click.option("--recorded", is_flag=True, help="Recorded hashes; do not ask the torch index.")
@click.option("--lock-python", metavar="PATH", help="The interpreter that pip-tools runs on.")
@click.option("--timeout", type=Seconds(0.1, 3600), default=30.0, metavar="SECONDS")
@click.option(
    "--diff",
    "old",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write nothing: how does the lock of CELL differ from the one in that folder?",
)
@click.option("--check", is_flag=True, help="Write nothing, ask nobody: is the lock right?")
@click.option("--all", "every", is_flag=True, help="Every rendered cell below the folder.")
@click.option("--refresh", is_flag=True, help="Lock again though nothing changed.")
@click.option("--force", is_flag=True, help="Replace files that were edited or are not ours.")
@click.option(
    "--out",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of docker/ and lockfiles/ (default: this one).",
)
@cell_options
@common_options
def command(settings: Settings, out: Output, cell: str | None, **switches: Any) -> int:
    """Pin the packages of CELL with hashes, or of the cell that the options select.

    A lock whose inputs are the same is left as it is. `--check` alone looks at every lock below
    the folder.

    \b
    provision lock torch2.0.1-cu117-py39-debian11-basepy
    provision lock --cuda 11.8 --python-from base
    provision lock --all
    provision lock --check
    """
    from provisioner.render.recovery import refuse_interrupted

    old, every = switches.pop("old"), switches.pop("every")
    how = _How(**switches)
    if old is not None and cell is not None:
        from provisioner.cli.lock_diff import show_difference

        return show_difference(how.root, cell, old, out)
    if how.check:
        refuse_interrupted(how.root)
    selected = bool(settings.chosen.keys() & {*(option.name for option in CELL), "file"})
    if every:
        return _every(how, settings, out, alone=not (cell or selected or old or how.check))
    if cell is None and (old is not None or not selected):
        if how.check and old is None:
            return _check(_locked_cells(how.root), how, settings, out)
        raise UsageError(
            "lock.no-cell",
            "Which cell? Name one, or select it with options.",
            next_step="provision lock CELL (the folders below docker/), or provision lock "
            "--cuda 11.8 --python-from base",
        )
    found = _recorded(how.root, cell) if cell is not None else _resolved(settings, out)
    if found is None:
        return int(Exit.REFUSED)
    if how.check:
        return _check([found[0]], how, settings, out)
    return _lock(*found, settings, how, out)


def _every(how: _How, settings: Settings, out: Output, *, alone: bool) -> int:
    from provisioner.cli.lock_all import lock_all

    if not alone or how.upgrade:
        raise UsageError(
            "lock.all-alone",
            "--all locks every rendered cell: no CELL, option of a cell, --upgrade, --diff or "
            "--check goes with it.",
            next_step="provision lock --check looks at every lock.",
        )

    def lock(name: str, told: Output) -> int:
        return _lock(*_recorded(how.root, name), settings, how, told)

    return lock_all(how.root, LOCK_RUN_SCHEMA, out, lock)


# --- which cell ---


def _resolved(settings: Settings, out: Output) -> tuple[Cell, Mapping[str, str]] | None:
    import msgspec

    from provisioner.cli.nearest import as_asked
    from provisioner.cli.output import print_refusal
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.resolve import resolve

    answer = resolve(settings.open().matrix, settings.request)
    if isinstance(answer, Refusal):
        print_refusal(out, as_asked(answer, settings), "provision lock")
        return None
    return msgspec.to_builtins(answer.cell), settings.mirrors


def _recorded(root: Path, name: str) -> tuple[Cell, Mapping[str, str]]:
    """The cell as it was rendered below `root`, with the mirrors that were named then."""
    from provisioner.render.fileset import check_path
    from provisioner.render.spec import read_spec_file

    path = check_path(f"docker/{name}/spec.json")
    try:
        spec = read_spec_file(root / path, path)
    except (FileNotFoundError, NotADirectoryError):
        raise not_rendered(root, name) from None
    return {**spec.cell, "name": name}, spec.mirrors


def _locked_cells(root: Path) -> list[Cell]:
    locks = sorted(path.parent.name for path in (root / "lockfiles").glob("*/lock.json"))
    return [_recorded(root, name)[0] for name in locks]


# --- check ---


def _check(cells: list[Cell], how: _How, settings: Settings, out: Output) -> int:
    from provisioner.lock.check import SAID

    if not cells:
        raise FindingError(
            "lock.no-locks",
            f"There is no lock below {how.root.resolve()}.",
            next_step="Name the folder of docker/ and lockfiles/ with --out, or lock a cell first.",
        )
    found = [standing_of(how.root, cell, settings) for cell in cells]
    bad = [each for each in found if each.state != "current"]
    if out.json:
        locks = [{"cell": each.cell, "state": each.state} for each in found]
        out.result({"schema": LOCK_RUN_SCHEMA, "locks": locks})
        return int(Exit.FINDING if bad else Exit.DONE)
    out.line(f"{counted(len(found), 'lock')}, {len(found) - len(bad)} right.")
    for each in bad:
        step = f"provision lock {each.cell}{out_option(how.root)}"
        out.line(f"  {each.cell} {SAID[each.state]}: {step}")
    return int(Exit.FINDING if bad else Exit.DONE)


def standing_of(root: Path, cell: Cell, settings: Settings) -> Standing:
    """How both halves of a lock stand to the cell."""
    import dataclasses

    from provisioner.lock.check import standing

    found = standing(root, cell)
    if found.state == "current" and cell["python_from"] == "conda":
        from provisioner.lock.choices import Asked
        from provisioner.lock.conda_half import conda_stale

        chosen = found.lock.chosen if found.lock else None
        if conda_stale(root, cell, settings.open().matrix, Asked(choices=chosen)):
            return dataclasses.replace(found, state="changed-inputs")
        _remember(root, cell, settings)
    return found


def _remember(root: Path, cell: Cell, settings: Settings) -> None:
    """Let the quick answer know of a whole lock; only where nothing but files decided it."""
    from provisioner.lock.remembered import remember

    if not settings.chosen and cell["python_from"] == "conda":
        remember(str(root), cell["name"])


# --- lock ---


def _lock(
    cell: Cell, mirrors: Mapping[str, str], settings: Settings, how: _How, out: Output
) -> int:
    from provisioner.lock.check import standing
    from provisioner.lock.choices import Asked, Said, merged

    said = Said(
        as_of=how.as_of, upgrades=how.upgrade, own=tuple(how.own), single_source=how.single_source
    )
    before = standing(how.root, cell)
    chosen = before.lock.chosen if before.lock else None
    choices = merged(chosen, said, _today())
    asked = Asked(choices=choices, before=chosen)
    conda = _conda(how.root, cell, mirrors, settings, out, asked, refresh=how.refresh)
    fits = before.lock is None or conda is None or before.lock.provided == conda.provided
    kept = conda is None or conda.kept
    same = not how.refresh and kept and fits
    if same and standing(how.root, cell, choices).state == "current":
        _remember(how.root, cell, settings)
        return _unchanged(before, out)
    inputs = _inputs(cell, choices, settings, conda.provided if conda else None)
    result = _make(cell, inputs, choices, {**mirrors, **settings.mirrors}, how, out)
    known = {package.name for package in result.lock.packages} | {
        *(conda.upgraded if conda else ())
    }
    unknown = sorted(set(choices.upgrades) - known)
    if unknown:
        raise UsageError(
            "lock.upgrade-unknown",
            f"{', '.join(unknown)} cannot be upgraded: the lock of {cell['name']} has no such "
            "package.",
            next_step=f"The packages are listed in lockfiles/{cell['name']}/lock.json.",
        )
    return _write(result, before, how, out, conda)


def _conda(
    root: Path,
    cell: Cell,
    mirrors: Mapping[str, str],
    settings: Settings,
    out: Output,
    asked: Asked,
    *,
    refresh: bool = False,
) -> CondaHalf | None:
    """The conda half of a cell whose Python is conda's; None for the others."""
    if cell["python_from"] != "conda":
        return None
    from provisioner.cli.settings import with_mirrors
    from provisioner.lock.conda_half import conda_half, conda_stale

    matrix = with_mirrors(settings.open().matrix, {**mirrors, **settings.mirrors})
    if refresh or conda_stale(root, cell, matrix, asked):
        out.note(f"Locking the conda half of {cell['name']}.")
    return conda_half(root, cell, matrix, matrix.origins, asked, refresh=refresh)


def _files(root: Path, result: LockResult, conda: CondaHalf | None) -> FileSet:
    from provisioner.lock import licenses
    from provisioner.lock.halves import folder_reader
    from provisioner.lock.writer import folder_of, group_of, lock_files

    lock = result.lock
    files = lock_files(lock)
    folder = folder_of(lock.cell)
    owned = conda.licenses if conda is not None else {}
    if owned is None:  # the conda half was kept, and so is what was read of it
        raw = folder_reader(root / folder)(licenses.FILE)
        owned = licenses.read_licenses(raw, lock.cell).conda
    declared = licenses.Licenses(cell=lock.cell, conda=owned, pip=result.licenses)
    content = licenses.licenses_bytes(declared)
    files.add(f"{folder}/{licenses.FILE}", content, group=group_of(lock.cell))
    for path, content in (conda.files if conda else {}).items():
        files.add(path, content, group=group_of(lock.cell))
    return files


def lock_missing(root: Path, name: str, settings: Settings, out: Output) -> None:
    """Make the lock of a rendered cell that has none, at the defaults of `provision lock`."""
    from provisioner.lock.choices import Asked, Said, merged
    from provisioner.lock.writer import group_of
    from provisioner.render.journal import write

    cell, mirrors = _recorded(root, name)
    how = _How(root, "auto", None, (), (), None, False, None, 30.0, False, False, False)
    choices = merged(None, Said(as_of=None, upgrades=(), own=(), single_source=None), _today())
    conda = _conda(root, cell, mirrors, settings, out, Asked(choices=choices))
    inputs = _inputs(cell, choices, settings, conda.provided if conda else None)
    result = _make(cell, inputs, choices, {**mirrors, **settings.mirrors}, how, out)
    write(root, _files(root, result, conda), {group_of(name)})
    out.note(f"Locked {counted(len(result.lock.packages), 'package')} as of {result.lock.as_of}.")


def _today() -> str:
    import datetime as dt

    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def _inputs(
    cell: Cell, choices: Choices, settings: Settings, provided: Mapping[str, str] | None = None
) -> LockInput:
    from provisioner.lock.inputs import lock_input

    systems = {system.id: system for system in settings.open().matrix.operating_systems}
    system = systems.get(str(cell["os"]))
    if system is None:
        raise RefusedError(
            "lock.unknown-os",
            f"The matrix does not know {cell['os']}, so it cannot say which wheels run there.",
            next_step="Give the matrix that the cell was rendered with (--matrix, --overlay).",
        )
    return lock_input(cell, choices, system.glibc, provided)


def _make(
    cell: Cell,
    inputs: LockInput,
    choices: Choices,
    mirrors: Mapping[str, str],
    how: _How,
    out: Output,
) -> LockResult:
    import os

    from provisioner.lock.client import Client
    from provisioner.lock.compile import Means, make_lock
    from provisioner.lock.defaults import package_index
    from provisioner.lock.find import find_engine
    from provisioner.lock.sources import Addresses

    client = Client(timeout_s=how.timeout)
    package = package_index(mirrors.get("package_index"), os.environ)
    engine = find_engine(how.engine, inputs.target, how.lock_python, client, package)
    torch = cell["index_url"]
    if "torch_index" in mirrors:
        torch = f"{mirrors['torch_index'].rstrip('/')}/{cell['variant']}"
    out.note(f"Locking {cell['name']} with {engine.name}.")
    means = Means(
        engine=engine,
        client=client,
        addresses=Addresses(
            package=package,
            torch=torch if inputs.torch_index is not None else None,
            own=how.own,
        ),
        recorded_only=how.recorded,
    )
    return make_lock(inputs, choices, means)


def _unchanged(before: Standing, out: Output) -> int:
    if out.json:
        out.result({"schema": LOCK_RUN_SCHEMA, "cell": before.cell, "state": "unchanged"})
    else:
        out.line(f"The lock of {before.cell} answers its cell; nothing to do.")
    return int(Exit.DONE)


def _write(
    result: LockResult, before: Standing, how: _How, out: Output, conda: CondaHalf | None
) -> int:
    from provisioner.lock.changes import changes
    from provisioner.lock.writer import group_of
    from provisioner.render.journal import write

    lock = result.lock
    outcome = write(
        how.root, _files(how.root, result, conda), {group_of(lock.cell)}, force=how.force
    )
    changed = changes(before.lock, lock) if before.lock is not None else []
    changed = [*(conda.changes if conda is not None else ()), *changed]
    notes = (*(conda.notes if conda is not None else ()), *result.notes)
    if out.json:
        out.result(
            {
                "schema": LOCK_RUN_SCHEMA,
                "cell": lock.cell,
                "state": "locked",
                "engine": result.engine,
                "seconds": round(result.seconds, 3),
                "packages": len(lock.packages),
                "as_of": lock.as_of,
                "changes": changed,
                "notes": notes,
                "warnings": lock.warnings,
                "created": outcome.created,
                "updated": outcome.updated,
                "pruned": outcome.pruned,
            }
        )
        return int(Exit.DONE)
    out.line(
        f"{lock.cell}: {counted(len(lock.packages), 'package')} as of "
        f"{lock.as_of or 'any day'}, "
        f"{counted(sum(len(package.files) for package in lock.packages), 'hash', 'hashes')}, "
        f"{result.seconds:.1f} s."
    )
    for line in (*changed[:_SHOWN], *(f"warning: {text}" for text in lock.warnings)):
        out.line(f"  {line}")
    if len(changed) > _SHOWN:
        out.line(f"  and {len(changed) - _SHOWN} more")
    for note in notes:
        out.note(note)
    for path in (*outcome.created, *outcome.updated, *outcome.pruned):
        out.line(f"  {path}")
    out.line()
    out.line(f"Next: provision build {lock.cell}{out_option(how.root)}")
    return int(Exit.DONE)
