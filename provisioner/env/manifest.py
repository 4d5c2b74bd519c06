"""Every file of an environment with its hash, so that it can be built here and shipped whole.

The text is what `sha256sum --check` reads, so a host needs nothing else to hold it against:
links and modes stand in comments, which our own check reads too.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provisioner.conda.worker import OURS
from provisioner.env.finding import Finding, listed
from provisioner.env.ownership import file_hash
from provisioner.errors import FindingError

_FILE = re.compile(r"([0-9a-f]{64})  (\./.+)")
_LINK = re.compile(r"# link (\./.+) -> (.*)")
_PREFIX = "# prefix "
_SKIPPED_SUFFIX = ".pyc"


def manifest_of(prefix: Path) -> bytes:
    """Returns the manifest of an environment, sorted by path; compiled Python is left out.

    Raises FindingError for a file name that no line can hold.
    """
    files, links = _walk(prefix)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        hashes = list(pool.map(lambda path: file_hash(prefix / path), files))
    lines = ["# Every file of an environment. Check it from its folder: sha256sum --check FILE"]
    lines.append(f"{_PREFIX}{prefix}")
    lines += [f"# link ./{path} -> {target}" for path, target in links]
    lines += [f"{sha256}  ./{path}" for path, sha256 in zip(files, hashes, strict=True)]
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def listed_files(manifest: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Returns (path -> SHA-256, link -> target) of a manifest, paths from the environment on."""
    files, links, _ = _read(manifest)
    return dict(files), dict(links)


def manifest_findings(prefix: Path, manifest: bytes) -> list[Finding]:
    """Returns how an environment differs from its manifest: missing, changed or added files."""
    wanted, links, made_for = _read(manifest)
    found: list[Finding] = []
    if made_for is not None and os.path.realpath(made_for) != os.path.realpath(prefix):
        text = f"The environment was built for {made_for}; its programs look for themselves there."
        found.append(Finding(code="env.moved", message=text))
    files, here = _walk(prefix)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        hashes = pool.map(lambda path: file_hash(prefix / path), files)
        present = dict(zip(files, hashes, strict=True))
    kinds = {
        "missing": sorted((wanted.keys() - present) | (links.keys() - dict(here).keys())),
        "changed": sorted(
            [path for path in wanted.keys() & present if wanted[path] != present[path]]
            + [path for path, target in here if links.get(path, target) != target]
        ),
        "added": sorted((present.keys() - wanted) | (dict(here).keys() - links.keys())),
    }
    for kind, paths in kinds.items():
        if paths:
            text = f"{len(paths)} of the manifest's files {kind}: {listed(paths)}."
            if kind == "added":
                text = f"{len(paths)} files are not in the manifest: {listed(paths)}."
            found.append(Finding(code=f"env.manifest-{kind}", message=text, paths=tuple(paths)))
    return found


def _walk(prefix: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Files and links below a prefix, sorted; what we keep about it and compiled code left out."""
    files: list[str] = []
    links: list[tuple[str, str]] = []
    for folder, names, entries in os.walk(prefix):
        base = Path(folder)
        if base == prefix and OURS in names:
            names.remove(OURS)
        for name in [*names, *entries]:
            path = base / name
            below = str(path.relative_to(prefix))
            if "\n" in below or "\\" in below:
                raise FindingError("env.file-name", f"A file name holds a line break: {below!r}.")
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                links.append((below, str(path.readlink())))
            elif stat.S_ISREG(mode) and not name.endswith(_SKIPPED_SUFFIX):
                files.append(below)
    return sorted(files), sorted(links)


def _read(manifest: bytes) -> tuple[dict[str, str], dict[str, str], str | None]:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    made_for = None
    for line in manifest.decode("utf-8").splitlines():
        if file := _FILE.fullmatch(line):
            files[file.group(2).removeprefix("./")] = file.group(1)
        elif link := _LINK.fullmatch(line):
            links[link.group(1).removeprefix("./")] = link.group(2)
        elif line.startswith(_PREFIX):
            made_for = line.removeprefix(_PREFIX)
        elif not line.startswith("#"):
            raise FindingError("env.manifest-bad", f"This is no line of a manifest: {line[:80]!r}.")
    return files, links, made_for


def digest_of(manifest: bytes) -> str:
    """Returns the hex SHA-256 that stands for a whole environment."""
    return hashlib.sha256(manifest).hexdigest()
