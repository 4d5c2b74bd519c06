"""Makes a plan from where the hosts stand. Pure, and linear in the hosts."""

from __future__ import annotations

import math
from collections import deque
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import UsageError
from provisioner.fleet.plan import (
    PLAN_SCHEMA,
    Bound,
    LeftOut,
    Plan,
    PlanHost,
    Policy,
    Wave,
    wanted_digest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from provisioner.fleet.survey import Standing
    from provisioner.host.model import Wish
    from provisioner.matrix.cell import Cell

DEFAULT_CANARY = "canary"
"""The group whose hosts go first where the policy names none."""


def make_plan(
    standings: Sequence[Standing],
    cell: Cell,
    bound: Bound,
    wish: Wish,
    policy: Policy,
    seconds: Mapping[str, float],
) -> Plan:
    """The plan that moves every host that can be moved.

    `seconds` is what earlier rollouts took per host, by hardware class; classes that are not in it
    have no estimate, nor has the whole then.
    """
    digest = wanted_digest(cell.name, bound.spec, bound.lock, wish)
    moved: list[Standing] = []
    out: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for standing in sorted(standings, key=lambda s: s.host):
        why = _left_out(standing, digest, policy)
        if why is None:
            moved.append(standing)
        else:
            out.setdefault(why, []).append(standing.host)
    hosts = {s.host: _plan_host(s, cell, wish, seconds) for s in moved}
    waves = tuple(_waves(moved, hosts, policy))
    known = [wave.seconds for wave in waves]
    return Plan(
        schema=PLAN_SCHEMA,
        cell=cell.name,
        digest=digest,
        bound=bound,
        wish=wish,
        policy=policy,
        waves=waves,
        hosts=hosts,
        left_out=tuple(
            msgspec.convert({"group": group, "reasons": reasons, "hosts": names}, LeftOut)
            for (group, reasons), names in sorted(out.items())
        ),
        seconds=None if None in known else sum(s for s in known if s is not None),
        reboots=sum(host.reboot for host in hosts.values()),
    )


def _left_out(
    standing: Standing, digest: str, policy: Policy
) -> tuple[str, tuple[str, ...]] | None:
    if standing.group not in ("ready", "driver"):
        return standing.group, standing.reasons
    if standing.done and standing.digest == digest and standing.group == "ready":
        return "done", ("has the cell, from this lock, with these wishes",)
    if standing.group == "driver" and not policy.reboot:
        return "reboot", (*standing.reasons, "a restart is needed, and none is allowed")
    return None


def _plan_host(
    standing: Standing, cell: Cell, wish: Wish, seconds: Mapping[str, float]
) -> PlanHost:
    driver = standing.group == "driver"
    changes = []
    if driver:
        branch = wish.branch or cell.driver.install
        changes.append(f"driver {standing.driver or 'none'} -> branch {branch}")
    if wish.toolkit and cell.cuda:
        changes.append(f"toolkit {cell.cuda}")
    changes.append(f"environment {standing.cell or 'none recorded'} -> {cell.name}")
    return PlanHost(
        hardware=standing.hardware,
        changes=tuple(changes),
        reboot=driver,
        from_cell=standing.cell,
        from_driver=standing.driver,
        seconds=seconds.get(standing.hardware),
    )


def _waves(
    moved: Sequence[Standing], hosts: Mapping[str, PlanHost], policy: Policy
) -> Iterator[Wave]:
    canaries = _canaries(moved, policy)
    names = {standing.host for standing in canaries}
    rest = [standing for standing in moved if standing.host not in names]
    for kind, members in (("canary", canaries), ("batch", rest)):
        queues = _Queues(members, policy.caps)
        size = float(len(members) if kind == "canary" else policy.first)
        while queues.left:
            batch = queues.take(min(int(size), policy.max_batch if kind == "batch" else 1 << 30))
            estimate = _estimate([hosts[host] for host in batch], policy)
            yield msgspec.convert({"kind": kind, "hosts": batch, "seconds": estimate}, Wave)
            if kind == "batch":
                size = min(size * policy.growth, float(policy.max_batch))


def _canaries(moved: Sequence[Standing], policy: Policy) -> list[Standing]:
    """Hosts of the canary groups; without such a host the first of each hardware class."""
    wanted = set(policy.canary or (DEFAULT_CANARY,))
    labelled = [standing for standing in moved if wanted & set(standing.groups)]
    if labelled:
        return labelled
    if policy.canary and moved:
        raise UsageError(
            "fleet.no-canary",
            f"No host that is moved is in a canary group ({', '.join(policy.canary)}).",
            next_step="Name another group with --canary, or none: the first host of each hardware "
            "class goes first then.",
        )
    first: dict[str, Standing] = {}
    for standing in moved:
        first.setdefault(standing.hardware, standing)
    return list(first.values())


def _estimate(batch: Sequence[PlanHost], policy: Policy) -> float | None:
    """Seconds of a wave: as many rounds of its slowest class as the forks make necessary."""
    longest = 0.0
    for host in batch:
        if host.seconds is None:
            return None
        longest = max(longest, host.seconds)
    return math.ceil(len(batch) / policy.forks) * longest + policy.soak_s


class _Queues:
    """Hosts by the capped groups that they are in, handed out so that no cap is passed."""

    def __init__(self, members: Sequence[Standing], caps: Mapping[str, int]) -> None:
        self.left = len(members)
        self._limits: dict[str, int] = {}
        self._queues: dict[tuple[str, ...], deque[str]] = {}
        for standing in members:
            capped = tuple(group for group in standing.groups if self._limit(group, caps))
            self._queues.setdefault(capped, deque()).append(standing.host)

    def _limit(self, group: str, caps: Mapping[str, int]) -> int:
        if group not in self._limits:
            found = [limit for pattern, limit in caps.items() if fnmatchcase(group, pattern)]
            self._limits[group] = min(found, default=0)
        return self._limits[group]

    def take(self, size: int) -> list[str]:
        """At most `size` hosts, one at least."""
        used: dict[str, int] = {}
        taken: list[str] = []
        for groups, queue in list(self._queues.items()):
            room = min((self._limits[g] - used.get(g, 0) for g in groups), default=size)
            count = min(room, size - len(taken), len(queue))
            taken += [queue.popleft() for _ in range(count)]
            for group in groups:
                used[group] = used.get(group, 0) + count
            if not queue:
                del self._queues[groups]
            if len(taken) == size:
                break
        self.left -= len(taken)
        return sorted(taken)
