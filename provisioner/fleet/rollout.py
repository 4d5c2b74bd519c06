"""Runs a plan: wave after wave through Ansible, a gate after each, every step in the ledger."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.fleet.engine import Job, run
from provisioner.fleet.events import Watch
from provisioner.fleet.gate import (
    Measured,
    failed_too_many,
    gate_reasons,
    measured_of,
    needs_fallback,
)
from provisioner.fleet.ledger import Begin, End, Gate, HostRecord, Retry, Soaked, WaveBegin
from provisioner.fleet.plan import wanted_digest
from provisioner.fleet.store import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from provisioner.fleet.ledger import Ledger, Outcome, Record
    from provisioner.fleet.plan import Plan

REPORTS = "reports"
"""The folder of the compile reports in the folder of a rollout."""
_BAD = frozenset({"failed", "lost"})
_LOST = frozenset({"started", "lost"})


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout needs beside its plan.

    `root` holds docker/ and lockfiles/; `playbook` is rollout.yml; `controller` tells this
    controller from others on the hosts' locks; `supersedes` names rollouts of this fleet whose
    locks may be taken, `take_over` says so of this rollout's lock under another controller.
    """

    root: Path
    playbook: Path
    sources: tuple[str, ...]
    controller: str
    supersedes: tuple[str, ...] = ()
    take_over: bool = False
    vault_password_file: str | None = None


class Stop:
    """Whether somebody wants to stop: first after the hosts that were begun, then at once."""

    def __init__(self) -> None:
        self.asked = 0
        self._hooks: list[Callable[[], None]] = []

    def ask(self) -> None:
        """Called by a signal's handler."""
        self.asked += 1
        for hook in self._hooks:
            hook()

    def on_ask(self, hook: Callable[[], None]) -> None:
        """Adds what is done as soon as somebody asks."""
        self._hooks.append(hook)

    @property
    def now(self) -> bool:
        """Whether not even the hosts that were begun are waited for."""
        return self.asked > 1


class Rollout:
    """One controller's work on a rollout."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        ledger: Ledger,
        setting: Setting,
        stop: Stop,
        say: Callable[[Record], None],
    ) -> None:
        self._plan, self._name, self._ledger = plan, name, ledger
        self._setting, self._stop, self._say = setting, stop, say
        self._folder = ledger.folder
        self._brake = self._folder / "stop"
        stop.on_ask(self._brake.touch)

    def run(self, *, retry: bool = False, set_aside: Sequence[str] = ()) -> End:
        """From where the ledger stands to the end, a closed gate or an interruption."""
        self._begin(retry=retry, set_aside=set_aside)
        for wave in range(len(self._plan.waves)):
            ended = self._wave(wave)
            if ended is not None:
                return self._end(*ended)
        return self._end("done", [])

    def _begin(self, *, retry: bool, set_aside: Sequence[str]) -> None:
        progress = self._ledger.progress
        self._brake.unlink(missing_ok=True)
        self._add(
            Begin(
                at=_now(),
                rollout=self._name,
                cell=self._plan.cell,
                controller=self._setting.controller,
                resumed=progress.begun > 0,
            )
        )
        again = _LOST | {"failed", "unreachable"} if retry else _LOST
        hosts = [h for h in self._plan.hosts if h in progress.hosts]
        # What was being changed when a controller ended is half done at most: it is done again.
        names = tuple(h for h in hosts if progress.hosts[h].state in again and h not in set_aside)
        if names:
            self._add(Retry(at=_now(), hosts=names))
        for host in set_aside:
            wave = next(n for n, w in enumerate(self._plan.waves) if host in w.hosts)
            self._add(HostRecord(at=_now(), host=host, state="set_aside", wave=wave))
            progress.gates.pop(wave, None)

    def _wave(self, wave: int) -> tuple[Outcome, list[str]] | None:
        """Why the rollout ends with this wave; None where it goes on."""
        progress = self._ledger.progress
        gate = progress.gates.get(wave)
        if gate is None or not gate.passed:
            reasons = failed_too_many(self._plan, wave, progress)
            if not reasons:
                self._change(wave)
                if self._stop.asked:
                    return "interrupted", ["somebody asked for it"]
                reasons = gate_reasons(self._plan, wave, progress, self._reports())
            self._add(Gate(at=_now(), wave=wave, passed=not reasons, reasons=tuple(reasons)))
            if reasons:
                return "stopped", reasons
        if wave not in progress.soaked and wave + 1 < len(self._plan.waves):
            if not self._soak():
                return "interrupted", ["somebody asked for it"]
            self._add(Soaked(at=_now(), wave=wave))
        return None

    def _change(self, wave: int) -> None:
        known = self._ledger.progress.hosts
        bound, cell = self._plan.bound, self._plan.cell
        hosts = [
            host
            for host in self._plan.waves[wave].hosts
            if host not in known or known[host].state == "pending"
        ]
        self._play(wave, hosts, cell, self._plan.digest)
        fallback = self._plan.policy.fallback
        failing = [
            h for h in self._plan.waves[wave].hosts if needs_fallback(self._plan, known.get(h))
        ]
        if fallback and failing and not self._stop.asked:
            digest = wanted_digest(
                fallback, bound.fallback_spec or "", bound.fallback_lock, self._plan.wish
            )
            self._play(wave, failing, fallback, digest)

    def _play(self, wave: int, hosts: Sequence[str], cell: str, digest: str) -> None:
        if not hosts:
            return
        self._add(WaveBegin(at=_now(), wave=wave, hosts=tuple(hosts)))
        watch = Watch(wave, hosts, cell, _now)

        def on_event(event: Mapping[str, Any]) -> None:
            for record in watch.records(event):
                self._add(record)
                if record.state in _BAD and failed_too_many(
                    self._plan, wave, self._ledger.progress
                ):
                    self._brake.touch()

        ended = run(self._job(hosts, cell, digest), on_event, lambda: self._stop.now)
        if not self._stop.now:
            # Whoever is stopped at once leaves them as begun: the next controller does them again.
            for record in watch.left(f"Ansible ended with status {ended.status}: {ended.said}"):
                self._add(record)
        if not self._stop.asked:
            self._brake.unlink(missing_ok=True)

    def _job(self, hosts: Sequence[str], cell: str, digest: str) -> Job:
        wish, setting = self._plan.wish, self._setting
        group = self._folder / "wave.yaml"
        tree = {"provision_wave": {"hosts": dict.fromkeys(hosts)}}
        write_whole(group, json.dumps(tree, indent=0).encode())
        variables = {
            "rollout": self._name,
            "controller": setting.controller,
            "supersedes": list(setting.supersedes),
            "take_over": setting.take_over,
            "cell": cell,
            "digest": digest,
            "root": str(setting.root.absolute()),
            "reports": str((self._folder / REPORTS).absolute()),
            "stop": str(self._brake.absolute()),
            "branch": wish.branch or 0,
            "lab": wish.lab,
            "keep_driver": wish.keep_driver,
            "toolkit": wish.toolkit,
            "reboot": self._plan.policy.reboot,
        }
        return Job(
            playbook=setting.playbook,
            inventory=(*setting.sources, str(group)),
            folder=self._folder.parent,
            variables={f"provision_fleet_{key}": value for key, value in variables.items()},
            forks=self._plan.policy.forks,
            vault_password_file=setting.vault_password_file,
            environ={"ANSIBLE_TASK_TIMEOUT": str(self._plan.policy.host_timeout_s)},
        )

    def _reports(self) -> dict[str, Measured]:
        """The compile reports that hosts of this rollout left."""
        return read_reports(self._folder, self._plan)

    def _soak(self) -> bool:
        """Waits; False where somebody wants to stop meanwhile."""
        until = time.monotonic() + self._plan.policy.soak_s
        while time.monotonic() < until:
            if self._stop.asked:
                return False
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))
        return not self._stop.asked

    def _end(self, outcome: Outcome, reasons: Sequence[str]) -> End:
        record = End(at=_now(), outcome=outcome, reasons=tuple(reasons))
        self._add(record)
        return record

    def _add(self, record: Record) -> None:
        self._ledger.add(record)
        self._say(record)


def read_reports(folder: Path, plan: Plan) -> dict[str, Measured]:
    """The compile reports in a rollout's folder; one that is no JSON counts as unreadable."""
    found = {}
    place = folder / REPORTS
    names = {path.name for path in place.iterdir()} if place.is_dir() else set()
    for host in plan.hosts:
        if f"{host}.json" in names:
            try:
                report = msgspec.json.decode((place / f"{host}.json").read_bytes())
            except (OSError, msgspec.DecodeError):
                report = {"verdict": "unreadable"}
            found[host] = measured_of(report if isinstance(report, dict) else {})
    return found


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
