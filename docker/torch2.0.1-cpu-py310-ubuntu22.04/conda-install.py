"""Installs a conda lock into a new prefix, every archive by its sha256.

    python conda-install.py conda-lock.yml /opt/env

Needs Python 3.10 and py-rattler, and nothing else of this project: images carry this file as it is.
Exit status: 0 done, 1 the lock or an archive is not right, 2 usage, 4 something outside failed.
Credentials come from netrc (NETRC) or RATTLER_AUTH_FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

OURS = ".provision"
"""The folder in a prefix that holds what we know about it."""

MAX_PREFIX = 254
"""Bytes that a prefix may have: packages hold a placeholder of 254 or 255 to be overwritten."""

CANONICAL = "https://conda.anaconda.org"
AUTHORIZATION_VARIABLE = "PROVISION_CONDA_AUTHORIZATION"
CHANNELS_VARIABLE = "CONDA_CHANNELS"
_PARALLEL = 8
_TIMEOUT_S = 1800
_RETRIES = 2
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.(conda|tar\.bz2)")
_FIELD = re.compile(r"(- |  |    |      )([^\s:]+|'[^']+'):(?: (.*))?")
_HASH = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")
_HASHED = re.compile(r"# sha256 ([0-9a-f]{64})  (\S+)")


class Problem(Exception):  # noqa: N818 - told to people as it is
    """An expected failure: a stable code, a sentence, and an exit status."""

    def __init__(self, code: str, message: str, status: int = 4, **facts: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.facts = code, message, status, facts


class Archive(NamedTuple):
    """One package of a lock: its address, its hashes (hex, empty when unknown)."""

    url: str
    sha256: str
    md5: str

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def channel(self) -> str:
        """The address of its channel."""
        return self.url.rpartition("/")[0].rpartition("/")[0]


def read_lock(data: bytes, platform: str) -> list[Archive]:
    """Returns the archives of an explicit list or a conda-lock.yml, in order; raises Problem."""
    text = data.decode("utf-8")
    found = _explicit(text) if "@EXPLICIT" in text else _conda_lock(text, platform)
    if not found:
        raise Problem("conda.lock-empty", f"The lock holds no package for {platform}.", 1)
    for archive in found:
        scheme = urlsplit(archive.url).scheme
        hashes = _HASH.fullmatch(archive.sha256 or archive.md5 or "0" * 32)
        known = scheme in ("https", "http", "file") and _FILE.fullmatch(archive.file_name)
        if not known or not hashes:
            raise Problem("conda.lock-bad", f"The lock names no archive here: {archive.url}", 1)
    return found


def _explicit(text: str) -> list[Archive]:
    hashes = {match.group(2): match.group(1) for match in _HASHED.finditer(text)}
    found = []
    for line in text.splitlines():
        if line.startswith(("#", "@")) or not line.strip():
            continue
        url, _, fragment = line.strip().partition("#")
        key = "/".join(url.rsplit("/", 2)[1:])
        sha256 = fragment.removeprefix("sha256:") if fragment.startswith("sha256:") else ""
        md5 = fragment if re.fullmatch(r"[0-9a-f]{32}", fragment) else ""
        found.append(Archive(url, sha256 or hashes.get(key, ""), md5))
    return found


def _conda_lock(text: str, platform: str) -> list[Archive]:
    """Reads the one form that conda-lock writes, so that no YAML reader is needed in an image."""
    entries: list[dict[str, str]] = []
    section = ""
    _, found, body = f"\n{text}".partition("\npackage:\n")
    if not found:
        raise Problem("conda.lock-bad", "The file is no conda-lock.yml: it lists no package.", 1)
    for line in body.splitlines():
        match = _FIELD.fullmatch(line)
        if match is None and section == "dependencies":
            continue
        if match is None or (not entries and match[1] != "- "):
            raise Problem("conda.lock-bad", f"No line of a conda-lock.yml: {line[:80]!r}.", 1)
        indent, key, value = match[1], match[2], match[3] or ""
        if indent == "- ":
            entries.append({})
        if len(indent) == 2:
            section = key
        if len(indent) == 2 or section == "hash":
            entries[-1][key] = "" if value == "null" else value.strip("'\"")
    try:
        wanted = [entry for entry in entries if entry["platform"] == platform]
        if any(entry["manager"] != "conda" for entry in wanted):
            raise Problem("conda.lock-pip", "The lock holds pip packages; pip has its own lock.", 1)
        return [Archive(e["url"], e.get("sha256", ""), e.get("md5", "")) for e in wanted]
    except KeyError as error:
        raise Problem("conda.lock-bad", f"A package of the lock has no {error}.", 1) from None


def own_platform() -> str:
    """Returns what conda calls this machine; empty when that is neither of ours."""
    return {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(os.uname().machine, "")


class Installer:
    """One installation. `mirrors` maps address prefixes of the lock to where they are read."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.prefix = Path(options.prefix)
        self.options = options
        self.mirrors: list[list[str]] = [pair.split("=", 1) for pair in options.mirror]
        self.work = self.prefix / OURS / "work"
        self.store = Path(options.store or self.work / "archives")
        self._client: Any = None

    def say(self, event: str, **facts: Any) -> None:
        """Tells whoever waits what was done: a line of JSON, or a line for people."""
        if self.options.json:
            print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201
        elif event != "fetched":
            print(f"conda-install: {event} {facts}", flush=True)  # noqa: T201

    async def run(self, archives: list[Archive]) -> None:
        """Fetches, checks and links all archives into the prefix."""
        self.work.mkdir(parents=True, exist_ok=True)
        limit = asyncio.Semaphore(_PARALLEL)
        done = 0

        async def one(archive: Archive) -> Path:
            nonlocal done
            async with limit:
                path = await self.obtain(archive)
            done += 1
            self.say("fetched", name=archive.file_name, done=done, total=len(archives))
            return path

        tasks = [asyncio.ensure_future(one(archive)) for archive in archives]
        try:
            paths = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await self.link(archives, paths)

    async def obtain(self, archive: Archive) -> Path:
        """Returns the path of the archive with the right content; raises Problem."""
        folder = self.store / (archive.sha256 or archive.md5)
        path = folder / archive.file_name
        if path.is_file():
            try:
                await asyncio.to_thread(self.check, archive, path)
            except Problem:
                # Never used, never kept: it is fetched again, or missing when there is no network.
                path.unlink()
                self.say("discarded", name=archive.file_name, path=str(path))
            else:
                return path
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(prefix=".part-", dir=folder)
        os.close(descriptor)
        partial = Path(name)
        try:
            await self.fetch(archive, partial)
            await asyncio.to_thread(self.check, archive, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    async def fetch(self, archive: Archive, target: Path) -> None:
        """Copies the bytes from where they are read; says nothing about their content."""
        address = self.located(archive.url)
        if address.startswith("file://"):
            source = Path(unquote(urlsplit(address).path))
            try:
                await asyncio.to_thread(shutil.copyfile, source, target)
            except OSError as error:
                raise Problem("conda.archive-missing", f"{source}: {error.strerror}.") from None
            return
        if self.options.offline:
            text = f"{archive.file_name} is in no cache, and the network is not to be used."
            raise Problem("conda.offline", text, url=archive.url)
        from rattler.package_streaming import download_to_path

        try:
            await download_to_path(self.client(), address, target)
        except Exception as error:  # noqa: BLE001 - the library raises plain errors of many kinds
            facts: dict[str, Any] = {
                "url": archive.url,
                "read_from": address,
                "reason": _last(str(error)),
            }
            text = f"{archive.file_name} cannot be fetched."
            raise Problem("conda.archive-unreachable", text, **facts) from None

    def located(self, url: str) -> str:
        """The address to read for an address of the lock."""
        for known, real in self.mirrors:
            if url.startswith(known.rstrip("/") + "/"):
                return real.rstrip("/") + url[len(known.rstrip("/")) :]
        return url

    def check(self, archive: Archive, path: Path) -> None:
        """Raises Problem unless the file has the hash of the lock."""
        if not archive.sha256 and not (self.options.accept_md5 and archive.md5):
            text = f"The lock has no sha256 for {archive.file_name}."
            raise Problem("conda.lock-no-hash", text, 1)
        kind = "sha256" if archive.sha256 else "md5"
        want = archive.sha256 or archive.md5
        with path.open("rb") as stream:
            have = _digest(stream, kind)
        if have != want:
            text = f"{archive.file_name} is not what was locked: its {kind} differs."
            facts = {"locked": want, "found": have, "url": archive.url}
            facts["read_from"] = self.located(archive.url)
            raise Problem("conda.archive-hash", text, 1, **facts)

    async def link(self, archives: list[Archive], paths: list[Path]) -> None:
        """Puts all packages into the prefix, from an extraction that nothing else shares."""
        from rattler import RepoDataRecord
        from rattler.install import install

        records = [await RepoDataRecord.from_package_archive(path) for path in paths]
        self.say("linking", total=len(records))
        await install(
            records,
            self.prefix,
            cache_dir=self.work / "packages",
            installed_packages=[],
            execute_link_scripts=False,
            show_progress=False,
        )
        self.settle(dict(zip((a.file_name for a in archives), archives, strict=True)))

    def settle(self, archives: dict[str, Archive]) -> None:
        """Makes conda-meta tell the lock's addresses and nothing of this machine."""
        seen = set()
        for path in sorted((self.prefix / "conda-meta").glob("*.json")):
            record = json.loads(path.read_bytes())
            archive = archives[record["fn"]]
            seen.add(record["fn"])
            for key in ("extracted_package_dir", "package_tarball_full_path", "link"):
                record.pop(key, None)
            record |= {"url": archive.url, "channel": archive.channel}
            record |= {k: getattr(archive, k) for k in ("md5", "sha256") if getattr(archive, k)}
            for entry in record["paths_data"]["paths"]:
                if entry["path_type"] == "unix_python_entry_point":
                    (self.prefix / entry["_path"]).chmod(0o755)  # made writable for the group
            missing = [f for f in record["files"] if not os.path.lexists(self.prefix / f)]
            if missing:
                raise Problem("conda.install-incomplete", f"Missing after it: {missing[0]}.")
            path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            path.chmod(0o644)  # made for its owner alone
        if left := ", ".join(sorted(set(archives) - seen)):
            raise Problem("conda.install-incomplete", f"Not installed: {left}.")
        (self.prefix / "CACHEDIR.TAG").unlink(missing_ok=True)  # an environment is no cache
        shutil.rmtree(self.work)

    def client(self) -> Any:
        """The HTTP client, made when it is first needed."""
        if self._client is None:
            from rattler.networking import Client
            from rattler.networking.middleware import (
                AddHeadersMiddleware,
                AuthenticationMiddleware,
                RetryMiddleware,
            )

            known = json.loads(os.environ.get(AUTHORIZATION_VARIABLE, "{}"))
            told = {host: {"Authorization": value} for host, value in known.items()}
            own: Any = AuthenticationMiddleware()
            if told:
                own = AddHeadersMiddleware(lambda host, _: told.get(host))
            steps = [RetryMiddleware(_RETRIES), own]
            self._client = Client(steps, user_agent="provision", timeout=_TIMEOUT_S)
        return self._client


def _digest(stream: Any, kind: str) -> str:
    found = hashlib.new(kind, usedforsecurity=kind == "sha256")
    while block := stream.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def _last(text: str) -> str:
    return text.strip().splitlines()[-1].removeprefix("Caused by: ")[:300] if text.strip() else ""


def _die_with(parent: int) -> None:
    """Ends this process with the one that started it: nobody would clean up behind it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(4)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lock", metavar="LOCK", help="conda-lock.yml or an explicit list")
    parser.add_argument("prefix", metavar="PREFIX", help="the absolute path of the new environment")
    parser.add_argument("--platform", default=own_platform(), help="linux-64 or linux-aarch64")
    parser.add_argument("--store", help="a folder that keeps archives")
    parser.add_argument("--mirror", action="append", default=[], metavar="ADDRESS=ADDRESS")
    parser.add_argument("--offline", action="store_true", help="use no network")
    parser.add_argument("--accept-md5", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print events as JSON lines")
    options = parser.parse_args(arguments)
    channels = os.environ.get(CHANNELS_VARIABLE, "")
    if channels and channels.rstrip("/") != CANONICAL:
        options.mirror.append(f"{CANONICAL}={channels}")
    return options


def install(options: argparse.Namespace) -> None:
    """Installs as the options say; a prefix made here is gone again on failure. Raises Problem."""
    prefix = Path(options.prefix)
    if not prefix.is_absolute() or len(os.fsencode(options.prefix)) > MAX_PREFIX:
        text = f"PREFIX must be an absolute path of at most {MAX_PREFIX} bytes."
        raise Problem("conda.prefix-bad", text, 2)
    try:
        data = Path(options.lock).read_bytes()
    except OSError as error:
        raise Problem("conda.lock-unreadable", f"{options.lock}: {error.strerror}.") from None
    archives = read_lock(data, options.platform)
    installer = Installer(options)
    os.umask(0o022)
    if options.parent is not None:
        _die_with(options.parent)
    if prefix.exists() and {entry.name for entry in prefix.iterdir()} - {OURS}:
        raise Problem("conda.prefix-taken", f"{prefix} is not empty.", 2)
    try:
        asyncio.run(installer.run(archives))
    except BaseException:
        shutil.rmtree(prefix, ignore_errors=True)
        raise
    installer.say("installed", total=len(archives))


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit status. Every failure is one message."""
    options = _options(arguments)
    try:
        install(options)
    except Problem as problem:
        found = problem
    except KeyboardInterrupt:
        found = Problem("conda.interrupted", "Interrupted.", 130)
    except BaseException as error:  # noqa: BLE001 - a panic of the library is a BaseException
        found = Problem("conda.install-failed", f"{type(error).__name__}: {error}"[:600])
    else:
        return 0
    if options.json:
        told = {"event": "error", "code": found.code, "message": found.message}
        print(json.dumps({**told, "facts": found.facts, "status": found.status}))  # noqa: T201
    else:
        lines = [f"conda-install: {found.message} [{found.code}]"]
        lines += [f"  {name}: {value}" for name, value in found.facts.items()]
        print("\n".join(lines), file=sys.stderr)  # noqa: T201
    return found.status


if __name__ == "__main__":
    result = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # py-rattler's threads can crash an interpreter that ends in the ordinary way.
    os._exit(result)
