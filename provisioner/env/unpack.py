"""Puts an environment that was packed elsewhere where it belongs, proves it, and switches to it.

    tar -xOf torch.tar unpack.py | python3 - torch.tar --sha256 DIGEST

Standard library alone, Python 3.6 or newer: the host's own Python may be too old for provision.
The folder is whole and every file has its hash before it gets its name; a link is switched to it
in one step, and the environment before stays. Exit status: 0 done, 1 the archive or what came of
it is not right, 2 usage, 4 this host cannot take it.
"""
# ruff: noqa: PTH101, PTH103, PTH104, PTH105, PTH108, PTH112, PTH114, PTH115, PTH118, PTH119
# ruff: noqa: PTH120, PTH123, PTH211, S103, T201, UP006, UP021, UP022, UP035, UP045

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

Manifest = Dict[str, Any]

SCHEMA = "provision.env-pack/1"
MANIFEST = "manifest.json"
INSIDE = "env/"
_BLOCK = 1 << 20


class UnpackError(Exception):
    """A message for people with its exit status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: List[str]) -> int:
    """Unpack an archive; return the exit status after one line about what was done or why not."""
    parser = argparse.ArgumentParser(prog="unpack.py", description=__doc__.split("\n", 1)[0])
    parser.add_argument("archive", metavar="FILE", help="what `provision env pack` wrote")
    parser.add_argument("--sha256", metavar="DIGEST", help="refuse an archive with another digest")
    options = parser.parse_args(arguments)
    try:
        print(unpack(options.archive, options.sha256))
    except UnpackError as failure:
        print(f"unpack: {failure}", file=sys.stderr)
        return failure.status
    except (OSError, tarfile.TarError, ValueError, KeyError, EOFError) as error:
        said = str(error) or "it ends too early"
        print(f"unpack: {options.archive}: {said}", file=sys.stderr)
        return 4 if isinstance(error, OSError) else 1
    return 0


def unpack(archive: str, wanted: Optional[str]) -> str:
    """Do all of it; return what to say."""
    if wanted is not None:
        found = digest_of(archive)
        if found != wanted.lower():
            raise UnpackError(1, f"{archive} has the sha256 {found}, not {wanted}.")
    with tarfile.open(archive) as tar:
        manifest = read_manifest(tar)
        refuse_host(manifest)
        prefix, link = manifest["prefix"], manifest["link"]
        folder = os.path.dirname(prefix)
        os.makedirs(folder, exist_ok=True)
        with held(os.path.join(folder, "lock")):
            if os.path.lexists(link) and not os.path.islink(link):
                raise UnpackError(4, f"{link} is in the way: move it, then try again.")
            if os.path.lexists(prefix):
                wrong = differences(prefix, manifest)
                if wrong:
                    text = f"{prefix} is there and differs: {wrong[0]}."
                    raise UnpackError(1, f"{text} Remove it, then try again.")
            else:
                place(tar, manifest)
            switch(link, prefix)
    return f"{link} is the environment of {manifest['cell']}: {prefix}"


def read_manifest(tar: tarfile.TarFile) -> Manifest:
    """Return the manifest of an archive; UnpackError for anything else, or a path that leads out.

    The order in the archive is fixed: this program, the manifest, then the environment.
    """
    member = tar.next()
    while member is not None and member.name != MANIFEST:
        member = tar.next() if member.name == "unpack.py" else None
    body = tar.extractfile(member) if member is not None else None
    if body is None:
        raise UnpackError(1, "This is no archive of `provision env pack`.")
    manifest: Manifest = json.loads(body.read().decode("utf-8"))
    if manifest.get("schema") != SCHEMA:
        raise UnpackError(1, f"The archive is of another version: {manifest.get('schema')}.")
    for key in ("prefix", "link"):
        path = manifest[key]
        if not path.startswith("/") or os.path.normpath(path) != path:
            raise UnpackError(1, f"{path!r} is no place for an environment.")
    links = set(manifest["links"])
    for path in [*manifest["files"], *links, *manifest["folders"]]:
        parts = path.split("/")
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if {"", ".", ".."} & set(parts) or above & links:
            raise UnpackError(1, f"The archive has a path that leads out of it: {path!r}.")
    return manifest


def refuse_host(manifest: Manifest) -> None:
    """Raise UnpackError for a machine on which the environment cannot run or has no room."""
    machine = os.uname().machine
    if machine != manifest["arch"]:
        raise UnpackError(4, f"The environment is for {manifest['arch']}, this is {machine}.")
    said = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None
    have, need = (said or "").rpartition(" ")[2], manifest["glibc"]
    if need is not None and (not have or numbers(have) < numbers(need)):
        raise UnpackError(4, f"It needs glibc {need}, this host has {have or 'none'}.")
    place_for = manifest["prefix"]
    while not os.path.isdir(place_for):
        place_for = os.path.dirname(place_for)
    size = sum(entry["size"] for entry in manifest["files"].values())
    free = shutil.disk_usage(place_for).free
    if not os.path.lexists(manifest["prefix"]) and free < size:
        raise UnpackError(4, f"It needs {size >> 20} MB, {place_for} has {free >> 20}.")


def numbers(version: str) -> Tuple[int, ...]:
    """Return 2.31 as (2, 31)."""
    return tuple(int(part) for part in version.split("."))


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Keep another unpack, or a provision, from the same environment meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UnpackError(4, "Somebody else is at work on this environment.") from None
    try:
        yield
    finally:
        os.close(descriptor)


def place(tar: tarfile.TarFile, manifest: Manifest) -> None:
    """Write the environment aside, hold it against the manifest, rename it, try it."""
    prefix = manifest["prefix"]
    made = tempfile.mkdtemp(prefix=".provision-new-", dir=os.path.dirname(prefix))
    try:
        write(tar, manifest, made)
        os.chmod(made, 0o755)
        refuse_different(made, manifest)
        os.sync()
        os.rename(made, prefix)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    try:
        prove(manifest)
    except BaseException:
        shutil.rmtree(prefix, ignore_errors=True)
        raise


def write(tar: tarfile.TarFile, manifest: Manifest, made: str) -> None:
    """Write what the manifest names, and nothing else."""
    for path in manifest["folders"]:
        os.makedirs(os.path.join(made, path), mode=0o755, exist_ok=True)
    for path, target in manifest["links"].items():
        os.symlink(target, os.path.join(made, path))
    for member in tar:
        if member.name in ("unpack.py", MANIFEST):
            continue
        path = member.name[len(INSIDE) :]
        entry = manifest["files"].get(path)
        body = tar.extractfile(member) if member.isfile() else None
        if not member.name.startswith(INSIDE) or body is None or entry is None:
            raise UnpackError(1, f"The archive has what its manifest does not name: {member.name}.")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(os.path.join(made, path), flags, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            shutil.copyfileobj(body, stream, _BLOCK)
            os.fchmod(stream.fileno(), 0o755 if entry["executable"] else 0o644)
        os.utime(os.path.join(made, path), (member.mtime, member.mtime))


def refuse_different(made: str, manifest: Manifest) -> None:
    """Raise UnpackError unless a folder is what the manifest says."""
    wrong = differences(made, manifest)
    if wrong:
        raise UnpackError(1, f"The archive is not what it says: {wrong[0]}.")


def differences(place_of: str, manifest: Manifest) -> List[str]:
    """Return what is missing, changed or too much in a folder, as words."""
    wrong = []
    left = set(manifest["files"]) | set(manifest["links"])
    for folder, names, files in os.walk(place_of):
        for name in names + files:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, place_of)
            if os.path.islink(full):
                same = manifest["links"].get(path) == os.readlink(full)
            elif os.path.isdir(full):
                continue
            elif path in manifest["files"]:
                same = digest_of(full) == manifest["files"][path]["sha256"]
            elif path.endswith(".pyc"):
                continue  # compiled here since
            else:
                same = False
            left.discard(path)
            if not same:
                wrong.append(f"{path} is not what was packed")
    return sorted([f"{path} is missing" for path in left] + wrong)


def prove(manifest: Manifest) -> None:
    """Raise UnpackError unless the environment's own Python starts and has its cell's torch."""
    python = os.path.join(manifest["prefix"], "bin", "python")
    code = "import sys, torch; print('%d.%d' % sys.version_info[:2], torch.__version__)"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, "-I", "-B", "-c", code],
            cwd="/",
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=600,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        base = manifest["base_python"]
        hint = f" It is {base} of this host: install that." if base else ""
        raise UnpackError(4, f"{python} does not start: {error}.{hint}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise UnpackError(4, f"torch cannot be imported here: {lines[-1]}")
    wanted = f"{manifest['python']} {manifest['local_version']}"
    if done.stdout.strip() != wanted:
        raise UnpackError(1, f"Its Python and torch are {done.stdout.strip()}, not {wanted}.")


def switch(link: str, prefix: str) -> None:
    """Let the link lead to the prefix, in one step; the one before becomes `previous`."""
    folder = os.path.dirname(prefix)
    target = os.path.join(os.path.basename(folder), os.path.basename(prefix))
    before = os.readlink(link) if os.path.islink(link) else None
    if before == target:
        return
    if before is not None and os.path.dirname(before) == os.path.basename(folder):
        point(os.path.join(folder, "previous"), os.path.basename(before))
    point(link, target)


def point(link: str, target: str) -> None:
    """Make a link in one step, over an older one."""
    aside = f"{link}.{os.getpid()}.new"
    try:
        os.symlink(target, aside)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        os.unlink(aside)
        os.symlink(target, aside)
    os.replace(aside, link)


def digest_of(path: str) -> str:
    """Return the hex sha256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            found.update(block)
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
