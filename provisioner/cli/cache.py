"""`provision cache`: damaged entries of the compile caches of torch and Triton."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.options import common_options
from provisioner.errors import Exit

if TYPE_CHECKING:
    from provisioner.cli.output import Output
    from provisioner.verify.caches import Looked

CACHE_SCHEMA = "provision.cache/1"
_SHOWN = 20
_DIR = click.option(
    "--dir",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="This folder (repeatable; default: those of this user).",
)


@click.group("cache")
def group() -> None:
    """Find and remove damaged entries of the compile caches of torch and Triton."""


@group.command("check")
@_DIR
@common_options
def check(folders: tuple[Path, ...], out: Output) -> int:
    """Look for entries that would kill or mislead whoever loads them; exit status 1 where any is.

    torch never builds a damaged kernel again: it crashes at every start. Removes nothing.
    """
    looked = _look(folders)
    if out.json:
        out.result(_shown(looked, ()))
    else:
        _print(looked, out)
        if any(entry.remove for entry in looked.damaged):
            place = "".join(f" --dir {folder}" for folder in folders)
            out.line(f"Next: provision cache clear{place} --yes")
    return int(Exit.FINDING if looked.damaged else Exit.DONE)


@group.command("clear")
@_DIR
@click.option("--yes", is_flag=True, help="Remove them; without it they are only named.")
@common_options
def clear(folders: tuple[Path, ...], yes: bool, out: Output) -> int:
    """Remove damaged entries; whole ones, other users' files and what a link leads to stay.

    What is removed is compiled again when it is next needed.
    """
    from provisioner.verify.caches import clear as remove

    looked = _look(folders)
    gone = remove(looked) if yes else []
    left = [entry for entry in looked.damaged if not (yes and entry.remove)]
    if out.json:
        out.result(_shown(looked, gone))
    else:
        _print(looked, out)
        if yes:
            out.line(f"{len(gone)} file{'' if len(gone) == 1 else 's'} removed.")
        elif any(entry.remove for entry in looked.damaged):
            out.line("Nothing was removed: --yes does it.")
    return int(Exit.FINDING if left else Exit.DONE)


def _look(folders: tuple[Path, ...]) -> Looked:
    from provisioner.verify.caches import default_folders, look

    return look([folder.absolute() for folder in folders] or default_folders(os.environ))


def _shown(looked: Looked, gone: list[Path] | tuple[()]) -> dict[str, object]:
    return {
        "schema": CACHE_SCHEMA,
        "folders": [str(folder) for folder in looked.folders],
        "files": looked.files,
        "damaged": [
            {"path": str(entry.path), "kind": entry.kind, "problem": entry.problem}
            for entry in looked.damaged
        ],
        "removed": [str(path) for path in gone],
    }


def _print(looked: Looked, out: Output) -> None:
    from provisioner.cli.output import wrap

    for entry in looked.damaged[:_SHOWN]:
        for line in wrap(entry.problem, "    ", f"{entry.path}: "):
            out.line(line)
    if len(looked.damaged) > _SHOWN:
        out.line(f"and {len(looked.damaged) - _SHOWN} more")
    places = ", ".join(map(str, looked.folders)) or "no cache folder"
    count = len(looked.damaged)
    found = f"{count} damaged entr{'y' if count == 1 else 'ies'}" if count else "nothing damaged"
    out.line(f"{found} in {looked.files} file{'' if looked.files == 1 else 's'}: {places}")
