"""`provision env`: create, check and roll back environments on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.options import common_options
from provisioner.errors import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.cli.output import Output
    from provisioner.env.finding import Finding

CREATE_SCHEMA = "provision.env-create/1"
CHECK_SCHEMA = "provision.env-check/1"
PACK_SCHEMA = "provision.env-pack-run/1"
MANIFEST_SCHEMA = "provision.env-manifest/1"
ROLLBACK_SCHEMA = "provision.env-rollback/1"
_MOST_LISTED = 256 << 20
_PATH = click.Path(path_type=Path)
_PREFIX = click.option(
    "--prefix", required=True, type=_PATH, metavar="DIR", help="The path of the environment."
)


@click.group("env")
def group() -> None:
    """Create, check and roll back environments on this machine."""


@group.command("create")
@click.argument("cell")
@_PREFIX
@click.option("--engine", type=click.Choice(["auto", "pip", "uv"]), default="auto")
@click.option("--python", type=_PATH, metavar="PATH", help="The Python under a virtual env.")
@click.option("--torch-index", metavar="URL", help="A mirror of the torch family's index.")
@click.option("--wheels", type=_PATH, metavar="DIR", help="Take all wheels from this folder.")
@click.option(
    "--bundle",
    type=_PATH,
    metavar="DIR",
    help="Take everything from this bundle, the locks too, and ask no network.",
)
@click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="ORIGIN=URL",
    help="Take package_index, torch_index or conda from a mirror; repeatable. "
    "[env: PROVISION_MIRROR_ORIGIN]",
)
@click.option("--offline", is_flag=True, help="Conda packages from caches and folders alone.")
@click.option("--replace", is_flag=True, help="Take the place of what is not ours; it is kept.")
@click.option("--out", "root", type=_PATH, help="The folder of lockfiles/ (default: this one).")
@common_options
def create(cell: str, prefix: Path, out: Output, **options: Any) -> int:
    """Build the environment of CELL from its locks, beside the one that is there.

    DIR becomes a link to DIR.d/VERSION. It is switched when the new version is whole and proved;
    the version before is kept (provision env rollback). Nothing is done when nothing changed.

    \b
    provision env create torch2.0.1-cu118-py310-ubuntu22.04 --prefix /opt/torch
    """
    from provisioner.env.create import CreateOptions, create_env
    from provisioner.render.recovery import refuse_interrupted

    bundle: Path | None = options.pop("bundle")
    root: Path = options.pop("root") or bundle or Path()
    mirrors = options.pop("mirrors")
    options["environ"] = {**os.environ, **_mirror_variables(mirrors)}
    refuse_interrupted(root)
    if bundle is not None:
        _take_bundle(bundle.absolute(), cell, root, options, mirrors, out)
    made = create_env(
        cell,
        prefix.absolute(),
        CreateOptions(root=root.absolute(), progress=_progress(out), **options),
    )
    if out.json:
        out.result(
            {
                "schema": CREATE_SCHEMA,
                "cell": made.cell,
                "prefix": str(made.link),
                "version": str(made.prefix),
                "changed": made.changed,
                "previous": str(made.previous) if made.previous else None,
            }
        )
    elif made.changed:
        out.line(f"{made.link} is the environment of {made.cell}: {made.prefix}")
        if made.previous is not None:
            out.line(f"The one before is kept: provision env rollback --prefix {made.link}")
    else:
        out.line(f"{made.link} is the environment of {made.cell} already.")
    return int(Exit.DONE)


@group.command("check")
@click.argument("prefix", type=_PATH)
@click.option("--spec", type=_PATH, metavar="FILE", help="Hold it against this spec.json.")
@click.option("--manifest", type=_PATH, metavar="FILE", help="Hold its files against this list.")
@common_options
def check(prefix: Path, spec: Path | None, manifest: Path | None, out: Output) -> int:
    """Prove that PREFIX is as it was installed: one owner per file, one torch, nothing foreign.

    Exit status 1 and a list of findings otherwise.
    """
    from provisioner.env.check import CheckOptions, check_env
    from provisioner.env.expected import read_expected
    from provisioner.env.manifest import manifest_findings

    cell = None if spec is None else read_expected(spec)
    listed = None if manifest is None else _listed(manifest)
    found = check_env(prefix.absolute(), CheckOptions(cell=cell))
    if listed is not None:
        found += manifest_findings(prefix.resolve(), listed)
    if out.json:
        findings = [finding.to_dict() for finding in found]
        out.result({"schema": CHECK_SCHEMA, "prefix": str(prefix), "findings": findings})
    else:
        for finding in found:
            _show(finding, out)
        if not found:
            out.line(f"{prefix}: no finding.")
    return int(Exit.FINDING if found else Exit.DONE)


def _listed(manifest: Path) -> bytes:
    from provisioner.regular import read_regular

    try:
        return read_regular(manifest, _MOST_LISTED)
    except OSError as error:
        raise UsageError(
            "env.manifest-unreadable",
            f"The manifest {manifest} cannot be read: {error.strerror}.",
            next_step="provision env manifest PREFIX > FILE",
        ) from None


@group.command("rollback")
@_PREFIX
@common_options
def rollback(prefix: Path, out: Output) -> int:
    """Go back to the environment before the last change; again, and forward."""
    from provisioner.env import versions

    found = versions.Versions(prefix.absolute())
    with versions.held(found):
        now = versions.rollback(found)
    if out.json:
        out.result({"schema": ROLLBACK_SCHEMA, "prefix": str(found.link), "version": str(now)})
    else:
        out.line(f"{found.link} leads to {now} again.")
    return int(Exit.DONE)


@group.command("manifest")
@click.argument("prefix", type=_PATH)
@common_options
def manifest(prefix: Path, out: Output) -> int:
    """Print every file of PREFIX with its SHA-256, to ship it whole to another host.

    There: sha256sum --check FILE (from the folder of the environment), or provision env check.
    """
    from provisioner.env.manifest import listed_files, manifest_of

    text = manifest_of(prefix.resolve())
    if out.json:
        files, links = listed_files(text)
        told = {"prefix": str(prefix), "files": files, "links": links}
        out.result({"schema": MANIFEST_SCHEMA, **told})
    else:
        click.echo(text, nl=False)
    return int(Exit.DONE)


@group.command("pack")
@click.argument("prefix", type=_PATH)
@click.option(
    "--out", "target", type=_PATH, required=True, metavar="FILE", help="A .tar or .tar.gz."
)
@common_options
def pack(prefix: Path, target: Path, out: Output) -> int:
    """Pack PREFIX whole, for a host whose own Python is too old for provision.

    It is proved first, and goes to the same path there. The same environment gives the same bytes.

    \b
    provision env pack /opt/torch --out torch.tar
    tar -xOf torch.tar unpack.py | python3 - torch.tar --sha256 DIGEST   # there
    """
    from provisioner.env.check import cell_of
    from provisioner.env.pack import pack_env
    from provisioner.matrix.load import load_matrix

    cell = cell_of(prefix.resolve())
    systems = {system.id: system.glibc for system in load_matrix().matrix.operating_systems}
    packed = pack_env(prefix.absolute(), target, systems.get(cell.os) if cell else None)
    if out.json:
        told = {"cell": packed.cell, "prefix": str(packed.prefix), "link": str(packed.link)}
        sizes = {"files": packed.files, "bytes": packed.size, "sha256": packed.sha256}
        out.result({"schema": PACK_SCHEMA, "file": str(target), **told, **sizes})
        return int(Exit.DONE)
    out.line(f"{target}: {packed.cell}, {packed.files} files, {packed.size >> 20} MiB.")
    out.line(f"sha256 {packed.sha256}")
    out.line(f"On the host, as a user who may write {packed.link.parent}:")
    out.line(f"  tar -xOf {target.name} unpack.py | python3 - {target.name} --sha256 \\")
    out.line(f"    {packed.sha256}")
    return int(Exit.DONE)


def _take_bundle(
    bundle: Path,
    cell: str,
    root: Path,
    options: dict[str, Any],
    mirrors: tuple[str, ...],
    out: Output,
) -> None:
    """Points the options at a bundle that is whole, of this cell, and of the lock below `root`."""
    from provisioner.bundle.use import FOR_ENV, offline_environ, open_bundle, require_same_lock
    from provisioner.errors import UsageError

    if options["wheels"] or options["torch_index"] or mirrors:
        raise UsageError(
            "bundle.alone",
            "--bundle takes everything from the bundle: no --wheels, --torch-index or --mirror "
            "goes with it.",
        )
    out.note(f"Checking the bundle in {bundle}.")
    found = open_bundle(bundle, cell, FOR_ENV)
    require_same_lock(bundle, found, root)
    options["wheels"] = bundle / "wheels"
    options["offline"] = True
    options["environ"] = offline_environ(bundle, options["environ"])


def _mirror_variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """The variables that say the same as --mirror; the command line wins over the environment."""
    from provisioner.cli.options import MIRROR
    from provisioner.cli.settings import settings_from

    mirrors = settings_from((MIRROR,), {MIRROR.name: pairs}, {}).mirrors
    return {f"PROVISION_MIRROR_{origin.upper()}": url for origin, url in mirrors.items()}


def _progress(out: Output) -> Any:
    """Lines for people on standard error; many packages make one line now and then."""

    def told(event: str, facts: Mapping[str, Any]) -> None:
        if event == "fetched":
            if facts["done"] == facts["total"] or facts["done"] % 10 == 0:
                out.note(f"conda: {facts['done']} of {facts['total']} packages are here")
        elif event == "discarded":
            out.note(f"conda: {facts['path']} in the cache was not what it should be: discarded")
        elif event == "linking":
            out.note(f"conda: installing {facts['total']} packages")
        elif event == "pip":
            out.note(f"pip: installing {facts['lock']} with {facts['engine']}")
        elif event == "checking":
            out.note(f"checking {facts['prefix']}")
        elif event == "venv":
            out.note(f"making a virtual environment with {facts['python']}")

    return told


def _show(finding: Finding, out: Output) -> None:
    out.line(f"{finding.message} [{finding.code}]")
    if finding.next_step:
        out.line(f"  Next: {finding.next_step}")
