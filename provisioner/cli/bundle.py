"""`provision bundle`: everything that a cell needs, in one folder for a place without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cells import not_rendered
from provisioner.cli.options import Seconds, common_options, index_options
from provisioner.cli.output import counted
from provisioner.errors import Exit, FindingError, UsageError
from provisioner.shell import out_option, shell_word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.bundle.gather import Gathered, GatherPlan
    from provisioner.bundle.images import ImagePlan
    from provisioner.cli.output import Output
    from provisioner.cli.settings import Settings
    from provisioner.lock.halves import LockedCell
    from provisioner.lock.model import Target
    from provisioner.render.context import CellContext
    from provisioner.render.spec import Recorded

RUN_SCHEMA = "provision.bundle-run/1"
CHECK_SCHEMA = "provision.bundle-check/1"
_EVERY_S = 3.0


@click.command("bundle")
@click.argument("cell", required=False)
@click.option("--out", "target", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="The folder of the bundle: new, empty, or an earlier one.")  # fmt: skip
@click.option("--check", "checked", type=click.Path(path_type=Path), metavar="DIR",
              help="Write nothing, ask nobody: is the bundle in DIR whole?")  # fmt: skip
@click.option("--sha256", "digest", metavar="HEX", help="With --check: what bundle.json must be.")
@click.option("--image/--no-image", default=True,
              help="What `docker build` needs too; it takes a Docker engine.")  # fmt: skip
@click.option("--tool/--no-tool", default=True, help="The wheels of provision itself too.")
@click.option("--tool-python", metavar="SERIES", help="Their Python (default: the running one).")
@click.option("--base-image", metavar="IMAGE", help="Make the base on this image.")
@click.option("--builder-image", metavar="IMAGE", help="The image that makes conda's prefix.")
@click.option("--secret", "secrets", multiple=True, metavar="ID=FILE",
              help="ca or netrc, for the base; stays in no layer.")  # fmt: skip
@click.option("--network", metavar="MODE", help="Network of the base's build, such as host.")
@click.option("--own-index", multiple=True, metavar="NAME=URL",
              help="The index of your own that serves this package; repeatable.")  # fmt: skip
@click.option("--timeout", type=Seconds(0.1, 3600), default=30.0, metavar="SECONDS")
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), default=Path(),
              help="The folder of docker/ and lockfiles/ (default: this one).")  # fmt: skip
@index_options
@common_options
def command(
    settings: Settings,
    out: Output,
    cell: str | None,
    target: Path | None,
    checked: Path | None,
    digest: str | None,
    **how: Any,
) -> int:
    """Gather all that the locked CELL needs where there is no network, with checksums.

    Wheels, conda packages, playbooks, provision's own wheels, and the image that a build starts
    from. What is in DIR already and right is kept, so an interrupted run goes on.

    \b
    provision bundle torch2.0.1-cu118-py310-ubuntu22.04 --out /media/disk/bundle
    provision bundle --check /media/disk/bundle
    provision env create CELL --prefix /opt/torch --bundle /media/disk/bundle
    provision build CELL --bundle /media/disk/bundle
    """
    if checked is not None:
        if cell is not None or target is not None:
            raise UsageError("bundle.check-alone", "--check DIR takes neither CELL nor --out.")
        return _check(checked, digest, out)
    if cell is None or target is None:
        raise UsageError(
            "bundle.incomplete",
            "Which cell, and where to?",
            next_step="provision bundle CELL --out DIR (the cells are the folders below docker/)",
        )
    if digest is not None:
        raise UsageError("bundle.check-alone", "--sha256 belongs to --check DIR.")
    plan = _plan(cell, settings, out, how)
    from provisioner.bundle.gather import gather

    return _show(gather(plan, target.absolute()), target, out)


# --- check ---


def _check(folder: Path, digest: str | None, out: Output) -> int:
    import hashlib

    from provisioner.bundle.check import require_whole
    from provisioner.bundle.model import bundle_bytes, read_bundle

    bundle = read_bundle(folder)
    found = hashlib.sha256(bundle_bytes(bundle)).hexdigest()
    if digest is not None and found != digest.lower():
        raise FindingError(
            "bundle.other-bundle",
            f"{folder} is another bundle than the one with that sha256.",
            facts={"wanted": digest.lower(), "found": found},
            next_step="Do not use it. Compare with what `provision bundle` printed.",
        )
    size = sum(file.size for file in bundle.files)
    require_whole(folder, bundle, None, _meter(out, "Checked", size))
    if out.json:
        out.result(
            {
                "schema": CHECK_SCHEMA,
                "cell": bundle.cell,
                "sha256": found,
                "files": len(bundle.files),
                "size_bytes": size,
            }
        )
    else:
        from provisioner.bundle.store import readable

        out.line(f"{folder}: whole. {bundle.cell}, {counted(len(bundle.files), 'file')}, "
                 f"{readable(size)}.")  # fmt: skip
        out.line(f"  sha256 of bundle.json: {found}")
    return int(Exit.DONE)


# --- gather ---


def _plan(cell: str, settings: Settings, out: Output, how: Mapping[str, Any]) -> GatherPlan:
    """Everything that can be refused is, before anything is fetched or written."""
    from provisioner.bundle import own
    from provisioner.bundle.fetch import Finder
    from provisioner.bundle.gather import GatherPlan
    from provisioner.lock.client import Client
    from provisioner.lock.halves import read_cell
    from provisioner.render.recovery import refuse_interrupted

    root: Path = how["root"]
    refuse_interrupted(root)
    locked = read_cell(root, cell)
    recorded = _recorded(root, cell)
    _require_current(root, locked, settings)
    context = _context(root, recorded, settings)
    mirrors = {**recorded.mirrors, **settings.mirrors}
    environ = {**os.environ}
    if "conda" in mirrors:
        environ["PROVISION_MIRROR_CONDA"] = mirrors["conda"]
    client = Client(timeout_s=how["timeout"])
    tool = _tool_target(locked, how)
    pins = own.shipped("requirements/run.txt") if tool is not None else None
    return GatherPlan(
        root=root,
        locked=locked,
        context=context,
        finder=Finder(client, _addresses(locked, mirrors, how["own_index"]), environ),
        images=_images(root, locked, context, mirrors, how, out) if how["image"] else None,
        tool=tool,
        pins=pins.read_text(encoding="ascii") if pins is not None else "",
        told=_teller(out),
    )


def _recorded(root: Path, cell: str) -> Recorded:
    from provisioner.render.job import recorded_specs

    found = recorded_specs(root).get(cell)
    if found is None:
        raise not_rendered(root, cell)
    return found


def _require_current(root: Path, locked: LockedCell, settings: Settings) -> None:
    """Raises FindingError where files of the cell were edited, or its lock is not its lock."""
    from provisioner.cli.lock import standing_of
    from provisioner.lock.check import SAID
    from provisioner.render.job import CELL_GROUP, LOCK_GROUP
    from provisioner.render.plan import touched

    name, place = locked.name, out_option(root)
    bad = touched(root, {CELL_GROUP + name, LOCK_GROUP + name})
    if bad:
        raise FindingError(
            "bundle.edited",
            f"{bad[0].path} is not as provision wrote it ({bad[0].kind}).",
            facts={"files": {item.path: item.kind for item in bad}},
            next_step=f"`provision render --again --force{place}` or `provision lock {name} "
            f"--force{place}` takes it back.",
        )
    found = standing_of(root, {**locked.cell, "name": name}, settings)
    if found.state != "current":
        raise FindingError(
            "bundle.lock-not-current",
            f"The lock of {name} {SAID[found.state]}.",
            facts={"state": found.state},
            next_step=f"provision lock {name}{place}",
        )


def _context(root: Path, recorded: Recorded, settings: Settings) -> CellContext:
    """The cell as it was rendered; FindingError where the matrix makes another of it now.

    A mirror of this command is where files are read, and gets into none of them.
    """
    import msgspec

    from provisioner.cli.render_facts import facts_again
    from provisioner.matrix.cell import Resolution
    from provisioner.matrix.resolve import resolve
    from provisioner.render.context import CellContext

    facts = facts_again(msgspec.structs.replace(settings, mirrors={}))(recorded)
    found = resolve(facts.matrix, recorded.request)
    if isinstance(found, Resolution):
        now = msgspec.to_builtins(found.cell)
        moved = {k for k in now if k != "index_url" and _plain(now[k]) != recorded.cell.get(k)}
        if not moved:
            return CellContext(found, facts)
    raise FindingError(
        "bundle.stale",
        f"The matrix no longer makes the cell that was rendered: {recorded.cell['name']}.",
        next_step=f"provision render --again{out_option(root)}, then lock and gather again.",
    )


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(value))


def _addresses(locked: LockedCell, mirrors: Mapping[str, str], own: tuple[str, ...]) -> Any:
    from provisioner.lock.defaults import package_index
    from provisioner.lock.inputs import normal_name
    from provisioner.lock.sources import Addresses

    cell = locked.cell
    torch = cell["index_url"]
    if "torch_index" in mirrors:
        torch = f"{mirrors['torch_index'].rstrip('/')}/{cell['variant']}"
    pairs = [word.partition("=") for word in own]
    for name, _, url in pairs:
        if not name or not url.startswith(("http://", "https://")):
            raise UsageError(
                "lock.own-index-syntax",
                "--own-index takes NAME=URL with the http(s) address of a simple index.",
            )
    return Addresses(
        package=package_index(mirrors.get("package_index"), os.environ),
        torch=torch,
        own={normal_name(name): url for name, _, url in pairs},
    )


def _tool_target(locked: LockedCell, how: Mapping[str, Any]) -> Target | None:
    """The platform of the tool's wheels: that of the cell, on a Python that the tool runs on."""
    import msgspec

    if not how["tool"]:
        return None
    series = how["tool_python"] or f"{sys.version_info.major}.{sys.version_info.minor}"
    if series not in ("3.10", "3.11", "3.12", "3.13"):
        raise UsageError(
            "bundle.tool-python",
            f"provision runs on Python 3.10 to 3.13, not on {series!r}.",
            next_step="Name the Python of the machine without a network: --tool-python 3.11",
        )
    return msgspec.structs.replace(locked.halves.lock.platforms[0], python=series)


def _images(
    root: Path,
    locked: LockedCell,
    context: CellContext,
    mirrors: Mapping[str, str],
    how: Mapping[str, Any],
    out: Output,
) -> ImagePlan:
    from provisioner.build.engine import connect, find_client
    from provisioner.build.image import check_room, check_secrets
    from provisioner.bundle.images import ImagePlan
    from provisioner.cli.build import build_arguments, secret_files, speaker
    from provisioner.errors import OutsideError
    from provisioner.render.dockerfile import at_registry

    secrets = secret_files(how["secrets"])
    check_secrets(secrets)
    try:
        engine = connect(find_client(os.environ), os.environ)
    except OutsideError as error:
        error.next_step = (
            f"{error.next_step or ''} Or leave images out with --no-image: then the "
            "bundle serves `env create`, not `docker build`."
        )
        raise
    check_room(engine, locked.cell["device"])
    arguments = build_arguments(locked.cell, mirrors, how["base_image"])
    builder = context.matrix.defaults.builder_image
    if "image_registry" in mirrors:
        builder = str(at_registry(mirrors["image_registry"], builder))
    return ImagePlan(
        engine=engine,
        root=root,
        cell=locked.cell,
        builder=how["builder_image"] or builder,
        arguments=arguments,
        secrets=secrets,
        network=how["network"],
        say=speaker(out),
    )


def _teller(out: Output) -> Any:
    """Lines for people on standard error."""
    from provisioner.bundle.store import readable

    meter = _meter(out, "Fetched", 0)

    def told(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal meter
        if event == "sizes":
            size = facts["fetch_bytes"]
            meter = _meter(out, "Fetched", size)
            files = counted(facts["fetch_files"], "file")
            there = f"; {facts['kept_files']:,} are there" if facts["kept_files"] else ""
            out.note(f"To fetch: {files}, {readable(size)}{there}.")
        elif event == "bytes":
            meter(facts["size"])
        elif event == "file":
            out.detail(f"  {facts['path']}")
        elif event == "image":
            out.note(f"Making the image of the {facts['kind']}.")

    return told


def _meter(out: Output, verb: str, total: int) -> Any:
    """Counts bytes, and says so every few seconds."""
    import time

    from provisioner.bundle.store import readable

    done, last = 0, time.monotonic()

    def count(size: int) -> None:
        nonlocal done, last
        done += size
        now = time.monotonic()
        if now - last >= _EVERY_S:
            last = now
            out.note(f"{verb} {readable(done)} of {readable(total)}.")

    return count


def _show(done: Gathered, target: Path, out: Output) -> int:
    bundle = done.bundle
    size = sum(file.size for file in bundle.files)
    if out.json:
        out.result(
            {
                "schema": RUN_SCHEMA,
                "cell": bundle.cell,
                "folder": str(target),
                "sha256": done.digest,
                "files": len(bundle.files),
                "size_bytes": size,
                "fetched_files": done.fetched_files,
                "fetched_bytes": done.fetched_bytes,
                "kept_files": done.kept_files,
                "images": [image.name for image in bundle.images],
                "tool_python": bundle.tool.python if bundle.tool else None,
            }
        )
        return int(Exit.DONE)
    from provisioner.bundle.store import readable

    place = shell_word(str(target))
    out.line(f"{target}: {bundle.cell}, {counted(len(bundle.files), 'file')}, {readable(size)}.")
    out.line(f"  sha256 of bundle.json: {done.digest}")
    out.line(f"Next, where it was carried to: provision bundle --check {place}")
    return int(Exit.DONE)
