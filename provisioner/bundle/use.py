"""What `env create` and `build` take from a bundle instead of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.bundle.check import require_whole, sha256_of
from provisioner.bundle.model import Bundle, read_bundle
from provisioner.conda.channel import MAP_VARIABLE, MIRROR_VARIABLE
from provisioner.errors import FindingError
from provisioner.lock.writer import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from provisioner.bundle.model import Part

FOR_ENV: tuple[Part, ...] = ("cell", "wheels", "conda")
FOR_BUILD: tuple[Part, ...] = ("cell", "wheels", "conda", "builder", "images")


def open_bundle(
    folder: Path,
    cell: str,
    parts: Collection[Part],
    told: Callable[[int], None] | None = None,
) -> Bundle:
    """Returns a bundle of that cell whose parts are whole; raises FindingError `bundle.*`."""
    bundle = read_bundle(folder)
    if bundle.cell != cell:
        raise FindingError(
            "bundle.other-cell",
            f"{folder} is the bundle of {bundle.cell}, not of {cell}.",
            facts={"have": bundle.cell, "need": cell},
            next_step=f"Name the other cell, or gather this one: provision bundle {cell} --out DIR",
        )
    require_whole(folder, bundle, parts, told)
    return bundle


def require_same_lock(folder: Path, bundle: Bundle, root: Path) -> None:
    """Raises FindingError where the lock below `root` is not the one that was gathered."""
    lock = root / "lockfiles" / bundle.cell / LOCK
    if not lock.is_file() or sha256_of(lock) != bundle.lock:
        raise FindingError(
            "bundle.other-lock",
            f"The lock of {bundle.cell} below {root} is not the one in {folder}.",
            next_step="Leave out --out to use the lock of the bundle, or gather a bundle of the "
            "other lock.",
        )


def offline_environ(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which conda's channels are the folders of a bundle."""
    channels = folder / "conda"
    kept = {k: v for k, v in environ.items() if k not in (MAP_VARIABLE, MIRROR_VARIABLE)}
    names = sorted(p.name for p in channels.iterdir()) if channels.is_dir() else []
    if names:
        pairs = (f"{name}={(channels / name).as_uri()}" for name in names)
        kept[MAP_VARIABLE] = " ".join(pairs)
    return kept
