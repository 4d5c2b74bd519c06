"""Installs a conda lock into a prefix on this machine; the work is done by `worker.py`.

The worker is a process of its own, so that a crash of the library is an error message here. It
ends when this process ends, and what it leaves half done is never taken for whole (`prefix.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - part of public signatures
from typing import Any

from provisioner.conda import prefix as prefixes
from provisioner.conda import worker
from provisioner.conda.channel import CANONICAL, Channel, channels_of, redacted
from provisioner.errors import Exit, FindingError, OutsideError, ProvisionError, UsageError
from provisioner.regular import read_regular

Progress = Callable[[str, Mapping[str, Any]], None]
"""Called with an event (fetched, discarded, linking, installed) and its facts."""

_KINDS: dict[int, type[ProvisionError]] = {
    int(Exit.FINDING): FindingError,
    int(Exit.USAGE): UsageError,
}
_LIMIT = 64 << 20
_NEXT = {
    "conda.archive-hash": "Do not install it. If the channel itself changed the file, lock again; "
    "if a mirror or a folder serves something else, mend that.",
    "conda.archive-unreachable": "Check the network, or name a mirror (`--mirror conda=URL`).",
    "conda.archive-missing": "Complete the folder that stands for the channel.",
    "conda.offline": "Run once with the network, or map the channel to a folder.",
}


@dataclass(frozen=True, kw_only=True)
class InstallOptions:
    """How to install. `platform` defaults to this machine's, `store` to the user's cache.

    `keep_open` leaves the prefix marked as building, because more is to come into it. Mirrors and
    credentials come from `environ`. `accept_md5` is for lists that other tools made.
    """

    platform: str | None = None
    store: Path | None = None
    offline: bool = False
    accept_md5: bool = False
    keep_open: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    progress: Progress | None = None


def install_conda(lock: Path, prefix: Path, options: InstallOptions | None = None) -> int:
    """Installs the packages of a conda-lock.yml or explicit list; returns how many.

    The prefix must not exist, be empty, or be left over from an interrupted run. Every archive's
    sha256 is checked first, wherever it comes from. Raises FindingError (`conda.archive-hash`,
    `conda.lock-*`), OutsideError (`conda.archive-*`, `conda.offline`, `env.prefix-taken`, ...) or
    UsageError (`env.prefix-*`); the prefix is then gone again.
    """
    options = options or InstallOptions()
    prefixes.check_prefix(prefix)
    try:
        data = read_regular(lock, _LIMIT)
    except OSError as error:
        raise OutsideError(
            "conda.lock-unreadable", f"The lock {lock} cannot be read: {error.strerror}."
        ) from None
    archives = _archives(data, options)
    prefixes.claim(prefix, {})
    try:
        _run(lock, prefix, archives, options)
        if not options.keep_open:
            prefixes.finish(prefix)
    except BaseException:
        prefixes.remove(prefix)
        raise
    return len(archives)


def _archives(data: bytes, options: InstallOptions) -> list[worker.Archive]:
    platform = options.platform or worker.own_platform()
    try:
        archives = worker.read_lock(data, platform)
    except worker.Problem as problem:
        raise _error(problem.code, problem.message, problem.status, problem.facts) from None
    for archive in archives:
        if not archive.sha256 and not options.accept_md5:
            raise FindingError(
                "conda.lock-no-hash",
                f"The lock has no sha256 for {archive.file_name}.",
                next_step="Lock again with `provision lock`.",
            )
    return archives


def _run(lock: Path, prefix: Path, archives: list[worker.Archive], options: InstallOptions) -> None:
    channels = _channels(archives, options.environ)
    command = [sys.executable, "-m", "provisioner.conda.worker", str(lock.absolute()), str(prefix)]
    command += ["--json", "--parent", str(os.getpid())]
    command += ["--platform", options.platform or worker.own_platform()]
    store = options.store or _default_store()
    if store is not None:
        command += ["--store", str(store)]
    command += ["--offline"] * options.offline + ["--accept-md5"] * options.accept_md5
    for channel in channels:
        if channel.read_from != channel.url:
            command += ["--mirror", f"{channel.url}={channel.read_from}"]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command,
            cwd="/",
            env=_environment(channels, options.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process:
            try:
                failure = _listen(process, options)
            except BaseException:
                process.kill()
                raise
        if process.returncode == 0:
            return
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace")
    raise failure or _died(process.returncode, said)


def _listen(process: subprocess.Popen[bytes], options: InstallOptions) -> ProvisionError | None:
    """Passes events on until the worker ends; returns the error that it told."""
    failure = None
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    for line in process.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        kind = event.pop("event")
        if kind == "error":
            failure = _error(event["code"], event["message"], event["status"], event["facts"])
        elif options.progress is not None:
            options.progress(kind, event)
    process.wait()
    return failure


def _channels(archives: list[worker.Archive], environ: Mapping[str, str]) -> tuple[Channel, ...]:
    """The channels of the lock, with where this machine reads them."""
    urls = dict.fromkeys(archive.channel for archive in archives)
    return channels_of((url.removeprefix(CANONICAL + "/") for url in urls), environ)


def _environment(channels: tuple[Channel, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """What the worker sees; credentials travel here and never on its command line."""
    passed = {k: v for k, v in environ.items() if k != worker.CHANNELS_VARIABLE}
    known = {c.host: c.authorization for c in channels if c.authorization}
    if known:
        passed[worker.AUTHORIZATION_VARIABLE] = json.dumps(known)
    if "PROVISION_CONDA_AUTH_FILE" in environ:
        passed["RATTLER_AUTH_FILE"] = environ["PROVISION_CONDA_AUTH_FILE"]
    return passed | {"PYTHONSAFEPATH": "1"}


def _default_store() -> Path | None:
    from provisioner.matrix.cache import cache_directory

    base = cache_directory()
    return None if base is None else base / "conda" / "archives"


def _error(code: str, message: str, status: int, facts: Mapping[str, Any]) -> ProvisionError:
    kind = _KINDS.get(status, OutsideError)
    shown = {name: redacted(str(value)) for name, value in facts.items()}
    return kind(code, redacted(message), facts=shown, next_step=_NEXT.get(code))


def _died(status: int, said: str) -> OutsideError:
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    lines = [line for line in redacted(said).splitlines() if line.strip()]
    return OutsideError(
        "conda.installer-died",
        f"The installer of conda packages ended {how}.",
        facts={"last_words": lines[-1][:300] if lines else ""},
        next_step="Run it again; nothing of the environment was kept.",
    )
