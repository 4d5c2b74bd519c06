"""Whose is each file of a prefix, and is it as its owner wrote it. Pure but for hashing files."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from provisioner.env.finding import Finding, listed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from provisioner.env.inventory import Distribution, Inventory

_REBUILD = "Build the environment anew beside it: provision env create CELL --prefix DIR."
_NEVER_PIP = (
    "Never install with pip over what conda owns: name the package in packages.conda, lock, and "
    "build the environment anew."
)
_TELLING = ("RECORD", "INSTALLER", "METADATA")


def owner_findings(inventory: Inventory) -> list[Finding]:
    """Returns a finding for every package that has a file of another owner."""
    return [
        *_replaced(inventory),
        *_two_owners(inventory),
        *_gone(inventory),
        *_twice(inventory),
        *_rivals(inventory),
    ]


def _replaced(inventory: Inventory) -> Iterable[Finding]:
    """A dist-info of conda's that is not as conda wrote it: pip put the same version over it."""
    hashes = {file.path: file.sha256 for package in inventory.conda for file in package.files}
    for dist in inventory.distributions:
        if dist.owner is None:
            continue
        folder = inventory.prefix / dist.folder
        foreign = [
            f"{dist.folder}/{name}"
            for name in sorted(entry.name for entry in folder.iterdir())
            if name != "__pycache__" and f"{dist.folder}/{name}" not in hashes
        ]
        changed = [
            path
            for path in (f"{dist.folder}/{name}" for name in _TELLING)
            if hashes.get(path)
            and (inventory.prefix / path).is_file()
            and file_hash(inventory.prefix / path) != hashes[path]
        ]
        if foreign or changed:
            yield Finding(
                code="env.conda-replaced",
                message=f"pip put {dist.label} over conda's package {dist.owner}.",
                paths=tuple(changed + foreign),
                next_step=_NEVER_PIP,
            )


def _two_owners(inventory: Inventory) -> Iterable[Finding]:
    owners = inventory.conda_owners()
    for dist in inventory.distributions:
        if dist.owner is not None:
            continue
        shared: dict[str, list[str]] = defaultdict(list)
        for file in dist.files:
            if file.path in owners:
                shared[owners[file.path]].append(file.path)
        for package, paths in sorted(shared.items()):
            yield Finding(
                code="env.two-owners",
                message=f"pip's {dist.label} and conda's package {package} both own "
                f"{listed(paths)}.",
                paths=tuple(paths),
                next_step=_NEVER_PIP,
            )


def _gone(inventory: Inventory) -> Iterable[Finding]:
    present = {d.folder: d.has_metadata for d in inventory.distributions}
    for package in inventory.conda:
        folders = {f.path.rpartition("/")[0] for f in package.files if _is_metadata(f.path)}
        for folder in sorted(folders):
            if not present.get(folder, False):
                yield Finding(
                    code="env.conda-distribution-gone",
                    message=f"The distribution of conda's package {package.name} "
                    f"{package.version} was removed.",
                    paths=(folder,),
                    next_step=_NEVER_PIP,
                )


def _is_metadata(path: str) -> bool:
    return path.endswith(".dist-info/METADATA")


def _twice(inventory: Inventory) -> Iterable[Finding]:
    by_name: dict[str, list[Distribution]] = defaultdict(list)
    for dist in inventory.distributions:
        by_name[dist.name].append(dist)
    for name, found in sorted(by_name.items()):
        if len(found) > 1:
            yield Finding(
                code="env.distribution-twice",
                message=f"{name} is installed {len(found)} times: "
                f"{', '.join(dist.version for dist in found)}.",
                paths=tuple(dist.folder for dist in found),
                next_step=_REBUILD,
            )


def _rivals(inventory: Inventory) -> Iterable[Finding]:
    """Two of pip's distributions with different content for one path.

    Equal content is usual: every nvidia-* wheel brings the same empty nvidia/__init__.py.
    """
    first: dict[str, tuple[str, str]] = {}
    clashes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for dist in inventory.distributions:
        if dist.owner is not None:
            continue
        for file in dist.files:
            if file.sha256 is None:
                continue
            label, sha256 = first.setdefault(file.path, (dist.label, file.sha256))
            if sha256 != file.sha256 and label != dist.label:
                clashes[label, dist.label].append(file.path)
    for (one, other), paths in sorted(clashes.items()):
        yield Finding(
            code="env.two-distributions",
            message=f"{one} and {other} both own {listed(paths)}, with different content.",
            paths=tuple(paths),
            next_step=_REBUILD,
        )


def integrity_findings(inventory: Inventory) -> list[Finding]:
    """Returns a finding for every package with files that are missing or were changed."""
    expected: list[tuple[str, str, str | None, bool]] = []
    for package in inventory.conda:
        label = f"conda's {package.name} {package.version}"
        expected += [(label, file.path, file.sha256, file.link) for file in package.files]
    for dist in inventory.distributions:
        if dist.owner is None:
            label = f"pip's {dist.label}"
            expected += [(label, f.path, f.sha256, False) for f in dist.files if f.sha256]
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        states = pool.map(lambda entry: _state(inventory.prefix, *entry[1:]), expected)
        wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (label, path, _, _), state in zip(expected, states, strict=True):
            if state is not None:
                wrong[label, state].append(path)
    found = [_damage(label, state, sorted(paths)) for (label, state), paths in wrong.items()]
    return sorted(found, key=lambda finding: finding.message) + _unrecorded(inventory)


def _state(prefix: Path, path: str, sha256: str | None, link: bool) -> str | None:
    full = prefix / path
    if link:
        if not full.is_symlink():
            return "changed" if full.exists() else "missing"
        return None if sha256 in (None, _link_hash(full)) else "changed"
    if not full.is_file():
        return "missing"
    return "changed" if sha256 is not None and file_hash(full) != sha256 else None


def _link_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()


def file_hash(path: Path) -> str:
    """Returns the hex SHA-256 of a file; of nothing when it cannot be read."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                found.update(block)
    except OSError:
        return "unreadable"
    return found.hexdigest()


def _damage(label: str, state: str, paths: list[str]) -> Finding:
    number = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    was = "is" if len(paths) == 1 else "are"
    how = "missing" if state == "missing" else "not as installed"
    return Finding(
        code=f"env.file-{state}",
        message=f"{number} of {label} {was} {how}: {listed(paths)}.",
        paths=tuple(paths),
        next_step=_REBUILD,
    )


def _unrecorded(inventory: Inventory) -> list[Finding]:
    return [
        Finding(
            code="env.no-record",
            message=f"{dist.label} says nowhere which files it has"
            + ("." if dist.has_metadata else ", and has no metadata."),
            paths=(dist.folder,),
            next_step=_REBUILD,
        )
        for dist in inventory.distributions
        if dist.owner is None and not (dist.has_record and dist.has_metadata)
    ]


def pth_findings(inventory: Inventory) -> list[Finding]:
    """Returns a finding for every .pth file that leads out of the prefix or that nobody owns."""
    owned = set(inventory.conda_owners())
    owned |= {file.path for dist in inventory.distributions for file in dist.files}
    found: list[Finding] = []
    for site in inventory.sites:
        for path in sorted((inventory.prefix / site).glob("*.pth")):
            found += _pth(inventory.prefix, path, f"{site}/{path.name}", owned)
    return found


def _pth(prefix: Path, path: Path, name: str, owned: set[str]) -> Iterable[Finding]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    root = os.path.realpath(prefix)
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        if line.startswith(("import ", "import\t")):
            if name not in owned:
                yield Finding(
                    code="env.pth-unowned",
                    message=f"{name} runs code at every start of Python, and no package owns it.",
                    paths=(name,),
                    next_step=f"Remove {path} if you did not put it there.",
                )
                return
            continue
        place = os.path.realpath(path.parent / line)
        if not f"{place}/".startswith(f"{root}/"):
            yield Finding(
                code="env.pth-escape",
                message=f"{name} adds {place}, which is outside the environment, to sys.path.",
                paths=(name,),
                next_step=f"Remove {path}; an editable install belongs into another environment.",
            )
