"""What Ansible's events say of the hosts of a wave, as records of the ledger. No I/O."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from provisioner.diagnose.secrets import mask
from provisioner.fleet.engine import result_of
from provisioner.fleet.ledger import HostRecord

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

# Names of tasks in playbooks/rollout.yml, and of the one of compile_check that judges the report.
TAKE = "Take the host"
DONE = "Remember the host as done"
FAIL = "Fail the host"
LET_GO = "Let go of the host"
NOT_PROVED = "Fail where torch.compile is not proved"
_REASON = 500


class Watch:
    """Follows the hosts of one run of Ansible."""

    def __init__(
        self,
        wave: int,
        hosts: Iterable[str],
        cell: str,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wave, self._cell, self._now, self._clock = wave, cell, now, clock
        self._hosts = frozenset(hosts)
        self._begun: dict[str, float] = {}
        self._failure: dict[str, tuple[str, str]] = {}
        self._ended: set[str] = set()
        self.tasks: dict[str, str] = {}

    def records(self, event: Mapping[str, Any]) -> list[HostRecord]:
        """The records that one event amounts to."""
        kind, host, task, result = result_of(event)
        if host not in self._hosts or host in self._ended:
            return []
        self.tasks[host] = task
        if kind == "runner_on_ok":
            return self._fine(host, task, result)
        if kind == "runner_on_unreachable":
            return [self._gone(host, task, result)]
        if kind == "runner_on_failed" and not (event.get("event_data") or {}).get("ignore_errors"):
            return self._failed(host, task, result)
        if kind == "runner_item_on_failed":
            self._failure.setdefault(host, (task, reason_of(result)))
        return []

    def left(self, why: str) -> list[HostRecord]:
        """Records for the hosts that Ansible began and then said nothing more of."""
        found = []
        for host in sorted(self._begun):
            if host not in self._ended:
                task, reason = self._failure.get(host, (self.tasks.get(host, ""), why))
                state = "failed" if host in self._failure else "lost"
                found.append(self._record(host, state, task=task, reason=reason))
        return found

    def _fine(self, host: str, task: str, result: Mapping[str, Any]) -> list[HostRecord]:
        if task == TAKE:
            before = result.get("state")
            before = before if isinstance(before, dict) else {}
            if result.get("already"):
                return [self._record(host, "done", unchanged=True, before=before)]
            self._begun[host] = self._clock()
            return [self._record(host, "started", before=before)]
        if task == DONE:
            return [self._record(host, "done", seconds=self._seconds(host))]
        return []

    def _failed(self, host: str, task: str, result: Mapping[str, Any]) -> list[HostRecord]:
        known = self._failure.setdefault(host, (task, reason_of(result)))
        if task in (TAKE, FAIL):
            return [self._failure_record(host, *known)]
        return []

    def _failure_record(self, host: str, task: str, reason: str) -> HostRecord:
        return self._record(
            host,
            "failed",
            task=task,
            reason=reason,
            compile_failed=task == NOT_PROVED,
            seconds=self._seconds(host),
        )

    def _gone(self, host: str, task: str, result: Mapping[str, Any]) -> HostRecord:
        """A host that cannot be reached: set aside, unless it was being changed."""
        state = "lost" if host in self._begun else "unreachable"
        return self._record(host, state, task=task, reason=reason_of(result))

    def _seconds(self, host: str) -> float | None:
        begun = self._begun.get(host)
        return None if begun is None else round(self._clock() - begun, 3)

    def _record(self, host: str, state: Any, **more: Any) -> HostRecord:
        if state != "started":
            self._ended.add(host)
        return HostRecord(
            at=self._now(), host=host, state=state, wave=self._wave, cell=self._cell, **more
        )


def reason_of(result: Mapping[str, Any]) -> str:
    """Why a task failed, in one line without secrets."""
    said = (
        result.get("msg"),
        result.get("stderr"),
        result.get("stdout"),
        result.get("module_stderr"),
    )
    texts = [
        " ".join(map(str, text)) if isinstance(text, list) else str(text) for text in said if text
    ]
    # A command's own "non-zero return code" says less than what it printed.
    texts.sort(key=lambda text: text.startswith(("non-zero return code", "One or more items")))
    return mask(" ".join(texts[0].split()) if texts else "no reason was given")[:_REASON]
