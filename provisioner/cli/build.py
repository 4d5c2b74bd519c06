"""`provision build`: from a locked cell to a verified image."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provisioner.cells import not_rendered
from provisioner.cli.options import CELL, cell_options, common_options
from provisioner.cli.output import counted, print_refusal
from provisioner.errors import Exit, FindingError, UsageError
from provisioner.shell import out_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from provisioner.build.image import Built
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.matrix.cell import Resolution

BUILD_SCHEMA = "provision.build/1"
_SHOWN = 5


@click.command("build")
@click.argument("cell", required=False)
@click.option("--tag", help="Name of the image (default: provision/CELL:latest).")
@click.option("--no-cache", is_flag=True, help="Run every step again.")
@click.option(
    "--secret", "secrets", multiple=True, metavar="ID=FILE", help="ca, netrc or pip_conf; no layer."
)
@click.option("--network", metavar="MODE", help="Network of the build steps, such as host or none.")
@click.option("--base-image", metavar="IMAGE", help="Build on this image, by digest for example.")
@click.option("--edited", is_flag=True, help="Build files that were edited by hand, too.")
@click.option(
    "--bundle",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Build from this bundle, without a network (see provision bundle).",
)
@click.option("--locked", is_flag=True, help="Stop where the render or the lock is missing.")
@click.option(
    "--out",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of docker/ and lockfiles/, and of the report (default: this one).",
)
@cell_options
@common_options
def command(settings: Settings, out: Output, cell: str | None, root: Path, **how: Any) -> int:
    """Build and verify the image of CELL, or of the cell that the options select.

    The whole chain: a cell that the options select is rendered, a missing lock is made (`--locked`
    stops instead), then the image is built and verified. The report is left in
    build/CELL/report.json, and in the image.

    \b
    provision build torch2.0.1-cu117-py39-debian11-basepy
    provision build --cuda 11.7 --os debian11 --python-from base \\
      --secret ca=/etc/ssl/certs/ca-certificates.crt
    """
    from provisioner.build import image
    from provisioner.build.engine import connect, find_client

    if how["bundle"] is not None:
        return _from_bundle(how["bundle"], cell, root, settings, how, out)
    secrets = secret_files(how["secrets"])
    image.check_secrets(secrets)
    wanted = _named(root, cell) if cell is not None else _selected(settings, root, out)
    if wanted is None:
        return int(Exit.REFUSED)
    name = wanted.cell["name"]
    if how["locked"]:
        _check_locked(root, wanted, settings)
    if wanted.resolution is None and not how["edited"]:
        _check_files(root, wanted.cell, settings)
    engine = connect(find_client(os.environ), os.environ)
    image.check_room(engine, wanted.cell["device"])
    if not how["locked"]:
        _prepare(root, wanted, settings, out)
    options = image.BuildOptions(
        tag=how["tag"],
        no_cache=how["no_cache"],
        network=how["network"],
        arguments=build_arguments(wanted.cell, settings.mirrors, how["base_image"]),
        secrets=secrets,
    )
    out.note(f"Building {name} with {engine.client.path}, engine {engine.version}.")
    built = image.build_image(engine, root, wanted.cell, options, speaker(out))
    _show(built, out, name)
    return int(Exit.DONE)


def _from_bundle(
    folder: Path,
    name: str | None,
    root: Path,
    settings: Settings,
    how: Mapping[str, Any],
    out: Output,
) -> int:
    """Build with what a bundle holds and nothing else; the report is left below `root`."""
    from provisioner.build import image
    from provisioner.build.engine import connect, find_client
    from provisioner.bundle.images import load_image
    from provisioner.bundle.model import read_bundle
    from provisioner.bundle.use import FOR_BUILD, open_bundle
    from provisioner.cli.settings import Source
    from provisioner.lock.halves import read_cell

    line = [each for each in settings.chosen.values() if each.source == Source.COMMAND_LINE]
    if line or any(how[option] for option in ("secrets", "network", "base_image", "locked")):
        raise UsageError(
            "bundle.alone",
            "--bundle takes everything from the bundle, the cell too: no secret, network, mirror, "
            "base image or option of a cell goes with it.",
        )
    name = name or read_bundle(folder).cell
    out.note(f"Checking the bundle in {folder}.")
    bundle = open_bundle(folder, name, FOR_BUILD)
    if not bundle.images:
        raise FindingError(
            "bundle.no-image",
            f"{folder} was gathered with --no-image: it has nothing to build on.",
            next_step=f"Gather it again without that option: provision bundle {name} --out DIR",
        )
    cell = read_cell(folder, name).cell
    engine = connect(find_client(os.environ), os.environ)
    image.check_room(engine, cell["device"])
    for each in bundle.images:
        if load_image(engine, folder, each):
            out.note(f"Loaded {each.name}.")
    options = image.BuildOptions(
        tag=how["tag"], no_cache=how["no_cache"], network="none", reports=root
    )
    out.note(f"Building {name} with {engine.client.path}, engine {engine.version}.")
    _show(image.build_image(engine, folder, cell, options, speaker(out)), out, name)
    return int(Exit.DONE)


class _Wanted(NamedTuple):
    """The cell to build, as spec.json has it; `resolution` while it is not rendered yet."""

    cell: Mapping[str, Any]
    resolution: Resolution | None


def secret_files(words: tuple[str, ...]) -> dict[str, Path]:
    """Returns id -> file of `--secret ID=FILE`; raises UsageError."""
    pairs: dict[str, Path] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(
                "build.secret-syntax",
                f"{word!r} is not a valid value for --secret: expected ID=FILE.",
            )
        pairs[name] = Path(value).resolve()
    return pairs


def _named(root: Path, name: str) -> _Wanted:
    """The rendered cell of a name."""
    from provisioner.render.job import recorded_specs
    from provisioner.render.recovery import refuse_interrupted

    refuse_interrupted(root)
    recorded = recorded_specs(root)
    if name in recorded:
        return _Wanted(recorded[name].cell, None)
    raise not_rendered(root, name)


def _selected(settings: Settings, root: Path, out: Output) -> _Wanted | None:
    """The cell of the options; None when the matrix refuses them (and says so)."""
    if not settings.chosen.keys() & {*(option.name for option in CELL), "file"}:
        raise UsageError(
            "build.no-cell",
            "Which cell? Name one, or select it with options.",
            next_step="provision build CELL (the folders below docker/), or provision build "
            "--cuda 11.8",
        )
    import msgspec

    from provisioner.cli.nearest import as_asked
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.resolve import resolve
    from provisioner.render.job import recorded_specs

    answer = resolve(settings.open().matrix, settings.request)
    if isinstance(answer, Refusal):
        print_refusal(out, as_asked(answer, settings), "provision build")
        return None
    recorded = recorded_specs(root)
    if answer.cell.name in recorded:
        return _Wanted(recorded[answer.cell.name].cell, None)
    return _Wanted(msgspec.to_builtins(answer.cell), answer)


def _check_locked(root: Path, wanted: _Wanted, settings: Settings) -> None:
    """Raises FindingError where the render or the lock of the cell is missing."""
    from provisioner.build.image import check_locked
    from provisioner.render.dockerfile import lock_names

    name = wanted.cell["name"]
    if wanted.resolution is not None:
        selected = settings.chosen.keys() & {option.name for option in CELL}
        words = " ".join(f"--{option.replace('_', '-')} ..." for option in sorted(selected))
        raise not_rendered(root, name, f"provision render {words}".rstrip())
    check_locked(root, name, lock_names(wanted.cell))


def _check_files(root: Path, cell: Mapping[str, Any], settings: Settings) -> None:
    """Raises FindingError where files of the cell were edited, or its lock no longer answers it."""
    from provisioner.cli.lock import standing_of
    from provisioner.lock.check import SAID
    from provisioner.render.job import CELL_GROUP, LOCK_GROUP
    from provisioner.render.plan import touched

    name = cell["name"]
    place = out_option(root)
    groups = {CELL_GROUP + name, LOCK_GROUP + name}
    # A missing lock is made, or has a message of its own.
    bad = [
        item
        for item in touched(root, groups)
        if item.kind == "edited" or item.path.startswith("docker/")
    ]
    if bad:
        raise FindingError(
            "build.edited",
            f"{len(bad)} file{' of the cell is' if len(bad) == 1 else 's of the cell are'} not as "
            f"provision wrote {'it' if len(bad) == 1 else 'them'}: "
            + ", ".join(f"{item.path} ({item.kind})" for item in bad[:_SHOWN])
            + (f" and {len(bad) - _SHOWN} more." if len(bad) > _SHOWN else "."),
            facts={"files": {item.path: item.kind for item in bad}},
            next_step=f"provision render --diff{place} shows it; --again --force takes it back, "
            f"`provision lock {name}{place}` makes a lock again, and --edited builds it as it is.",
        )
    found = standing_of(root, cell, settings)
    if found.state not in {"current", "missing"}:
        raise FindingError(
            "build.lock-not-current",
            f"The lock of {name} {SAID[found.state]}.",
            facts={"state": found.state},
            next_step=f"provision lock {name}{place}, or --edited to build with it as it is.",
        )


def _prepare(root: Path, wanted: _Wanted, settings: Settings, out: Output) -> None:
    """Render the cell and make its lock, whichever is missing."""
    from provisioner.cli.lock import lock_missing
    from provisioner.render.dockerfile import lock_names

    name = wanted.cell["name"]
    if wanted.resolution is not None:
        from provisioner.cli.render import render_resolved

        written = render_resolved(wanted.resolution, settings, root)
        out.note(f"Rendered {name}: {counted(written, 'file')}.")
    missing = [
        file for file in lock_names(wanted.cell) if not (root / "lockfiles" / name / file).is_file()
    ]
    if missing:
        lock_missing(root, name, settings, out)


def build_arguments(
    cell: Mapping[str, Any], mirrors: Mapping[str, str], base_image: str | None
) -> dict[str, str]:
    """Returns the build arguments that replace rendered addresses and the base image."""
    from provisioner.render.dockerfile import at_registry
    from provisioner.render.quote import checked

    arguments = {
        argument: mirrors[origin]
        for origin, argument in (
            ("package_index", "PACKAGE_INDEX"),
            ("apt", "APT_MIRROR"),
            ("apt_security", "APT_SECURITY_MIRROR"),
            ("dnf", "DNF_MIRROR"),
            ("conda", "CONDA_CHANNELS"),
        )
        if origin in mirrors
    }
    if "torch_index" in mirrors and any("+" in pin for pin in cell["requirements"]):
        arguments["TORCH_INDEX"] = f"{mirrors['torch_index'].rstrip('/')}/{cell['variant']}"
    if "image_registry" in mirrors:
        arguments["BASE_IMAGE"] = at_registry(mirrors["image_registry"], str(cell["base_image"]))
    if base_image is not None:
        arguments["BASE_IMAGE"] = str(checked("image", base_image, "--base-image"))
    return arguments


def speaker(out: Output) -> Callable[[str, bool], None]:
    """Prints lines of the builder: short ones for everybody, every one with -v."""

    def say(line: str, short: bool) -> None:
        if out.json or short == bool(out.verbose):
            return
        click.echo(line, err=True)
        sys.stderr.flush()

    return say


def _show(built: Built, out: Output, name: str) -> None:
    report = built.report
    if out.json:
        out.result(
            {
                "schema": BUILD_SCHEMA,
                "cell": name,
                "tag": built.tag,
                "image": built.image_id,
                "size_bytes": built.size_bytes,
                "seconds": round(built.seconds, 1),
                "report_path": str(built.report_path),
                "report": report,
            }
        )
        return
    out.line(f"{built.tag}  {built.image_id}")
    out.line(f"  size      {built.size_bytes / 1e9:.2f} GB, built in {built.seconds:.0f} s")
    out.line(f"  verdict   {report['verdict']}")
    out.line(f"  report    {built.report_path}")
    if report["verdict"] == "cpu-verified-cuda-deferred":
        out.line(f"Next: on a GPU host, docker run --rm --gpus all {built.tag} provision-verify")
    else:
        out.line(f"Next: docker run --rm -it {built.tag}")
