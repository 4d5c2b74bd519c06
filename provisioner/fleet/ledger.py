"""The ledger of a rollout: what happened, one line each, synced before anything else goes on.

Lines are only ever added. A last line that a crash cut off never happened.
"""

from __future__ import annotations

import contextlib
import datetime as dt  # noqa: TC003 - decoded at run time
import fcntl
import os
import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from provisioner.errors import FindingError, OutsideError
from provisioner.fleet.store import read_whole, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LEDGER: Final = "ledger.jsonl"
LOCK: Final = "controller.lock"

HostWord = Literal["started", "done", "failed", "unreachable", "lost", "set_aside"]
Outcome = Literal["done", "stopped", "interrupted"]


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """`at` is UTC by the controller's clock; durations come from a clock that is never set."""

    at: dt.datetime


class Begin(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="begin"):
    """A controller took the rollout up."""

    rollout: str
    cell: str
    controller: str
    resumed: bool = False


class WaveBegin(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="wave"):
    """Hosts of a wave were handed to Ansible."""

    wave: int
    hosts: tuple[str, ...]


class HostRecord(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="host"):
    """A host came to another state. `before` is what the host said of itself, with `started`."""

    host: str
    state: HostWord
    wave: int
    task: str = ""
    reason: str = ""
    compile_failed: bool = False
    unchanged: bool = False
    seconds: float | None = None
    cell: str | None = None
    before: dict[str, Any] | None = None


class Gate(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="gate"):
    """The gate after a wave."""

    wave: int
    passed: bool
    reasons: tuple[str, ...] = ()


class Soaked(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="soaked"):
    """The waiting time after a wave is over."""

    wave: int


class Retry(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="retry"):
    """Somebody said that these hosts are tried again."""

    hosts: tuple[str, ...]


class End(_Record, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """A controller put the rollout down."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()


Record: TypeAlias = Begin | WaveBegin | HostRecord | Gate | Soaked | Retry | End
_DECODER = msgspec.json.Decoder(Record)


class HostProgress(msgspec.Struct, kw_only=True):
    """Where a host is now. `before` is what it was before the rollout first touched it."""

    state: HostWord | Literal["pending"] = "pending"
    wave: int = -1
    task: str = ""
    reason: str = ""
    compile_failed: bool = False
    unchanged: bool = False
    seconds: float | None = None
    cell: str | None = None
    before: dict[str, Any] | None = None
    since: dt.datetime | None = None


class Progress(msgspec.Struct, kw_only=True):
    """Everything that a ledger tells, as it stands after its last line."""

    hosts: dict[str, HostProgress] = {}
    gates: dict[int, Gate] = {}
    soaked: set[int] = set()
    outcome: Outcome | Literal["running", "new"] = "new"
    reasons: tuple[str, ...] = ()
    begun: int = 0
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    controller: str = ""


def replay(records: Iterable[Record]) -> Progress:
    """What the records amount to. Pure."""
    progress = Progress()
    for record in records:
        apply(progress, record)
    return progress


def apply(progress: Progress, record: Record) -> None:
    """Brings the progress one record further."""
    progress.first = progress.first or record.at
    progress.last = record.at
    if isinstance(record, Begin):
        progress.outcome, progress.reasons = "running", ()
        progress.begun += 1
        progress.controller = record.controller
    elif isinstance(record, HostRecord):
        _apply_host(progress.hosts.setdefault(record.host, HostProgress()), record)
    elif isinstance(record, Gate):
        progress.gates[record.wave] = record
    elif isinstance(record, Soaked):
        progress.soaked.add(record.wave)
    elif isinstance(record, Retry):
        for host in record.hosts:
            known = progress.hosts.setdefault(host, HostProgress())
            known.state = "pending"
            progress.gates.pop(known.wave, None)
    elif isinstance(record, End):
        progress.outcome, progress.reasons = record.outcome, record.reasons


def _apply_host(host: HostProgress, record: HostRecord) -> None:
    host.state, host.wave, host.since = record.state, record.wave, record.at
    host.task, host.reason = record.task, record.reason
    host.compile_failed, host.unchanged = record.compile_failed, record.unchanged
    host.seconds = record.seconds
    host.cell = record.cell or host.cell
    if host.before is None and record.before is not None:
        host.before = record.before


def read_ledger(folder: Path) -> list[Record]:
    """The records of a rollout's folder; raises FindingError where a line inside is damaged."""
    path = folder / LEDGER
    data = read_whole(path, "The ledger", "provision fleet rollout PLAN")
    whole, _, _ = data.rpartition(b"\n")
    records = []
    for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
        try:
            records.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:  # noqa: PERF203
            raise FindingError(
                "fleet.bad-ledger",
                f"Line {number} of {path} is damaged: {error}.",
                next_step="Somebody changed the file: bring it back from a copy.",
            ) from None
    return records


class Ledger:
    """An open ledger: this process alone adds to it."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self.progress = replay(read_ledger(folder))

    def add(self, *records: Record) -> None:
        """Adds lines; they are on the disk when this returns."""
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        os.fsync(self._descriptor)
        for record in records:
            apply(self.progress, record)


@contextlib.contextmanager
def opened(folder: Path, children: str, wait_s: float) -> Iterator[Ledger]:
    """Opens a rollout's ledger for one controller; the fleet, the folder above, has one at a time.

    Raises OutsideError where another controller holds it, or where what a killed one started still
    runs after `wait_s` seconds: it holds a lock on the file named `children`.
    """
    fleet = folder.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(fleet / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(lock, 0):
            raise OutsideError(
                "fleet.held",
                f"Another controller works on this fleet ({fleet}).",
                next_step="provision fleet status shows what it does.",
            )
        remnant = os.open(fleet / children, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(remnant, wait_s):
                raise OutsideError(
                    "fleet.remnant",
                    "What a controller that was killed had started on the hosts still runs after "
                    f"{wait_s:g} s.",
                    next_step="Wait until its ansible-playbook processes have ended, then again.",
                )
        finally:
            os.close(remnant)
        descriptor = _open_cut(folder)
        try:
            yield Ledger(folder, descriptor)
        finally:
            os.close(descriptor)
    finally:
        os.close(lock)


def _locked(descriptor: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)
        else:
            return True


def _open_cut(folder: Path) -> int:
    """The ledger's file for adding, without a last line that a crash cut off."""
    path = folder / LEDGER
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.ftruncate(descriptor, whole)
    os.fsync(descriptor)
    sync_folder(folder)
    return descriptor
