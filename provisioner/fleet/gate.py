"""Whether a rollout goes on after a wave. Pure decisions.

A host that Ansible could not reach, or never came to, is counted: Ansible's own limits do not.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provisioner.fleet.ledger import HostProgress, Progress
    from provisioner.fleet.plan import Plan

_FAILED = frozenset({"failed", "lost"})
_NOT_BEGUN = frozenset({"pending", "started"})


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a host's compile report says: verdict, milliseconds of a compiled call by case."""

    verdict: str
    compiled_ms: dict[str, float] = {}


def gate_reasons(
    plan: Plan, wave: int, progress: Progress, reports: Mapping[str, Measured]
) -> list[str]:
    """Why the rollout stops after this wave; nothing means that it goes on."""
    hosts = plan.waves[wave].hosts
    reasons = failed_too_many(plan, wave, progress)
    begun = [h for h in hosts if _state(progress.hosts.get(h)) not in _NOT_BEGUN]
    missing = len(hosts) - len(begun)
    if missing and not reasons:
        failed = [host for host in hosts if _state(progress.hosts.get(host)) in _FAILED]
        if missing + len(failed) > _allowed(plan, wave):
            rest = [h for h in hosts if h not in set(begun)]
            reasons.append(f"{missing} of {len(hosts)} hosts were not begun: {_some(rest)}")
    tried = [h for w in plan.waves[: wave + 1] for h in w.hosts]
    gone = [h for h in tried if _state(progress.hosts.get(h)) == "unreachable"]
    if len(gone) > plan.policy.max_unreachable:
        reasons.append(
            f"{len(gone)} hosts cannot be reached, {plan.policy.max_unreachable} may: {_some(gone)}"
        )
    states = {_state(progress.hosts.get(host)) for host in hosts}
    if plan.waves[wave].kind == "canary" and not reasons and "done" not in states:
        reasons.append("no canary is done")
    return reasons + _unproved(plan, wave, progress, reports) + _slow(plan, wave, progress, reports)


def failed_too_many(plan: Plan, wave: int, progress: Progress) -> list[str]:
    """Why no further host of a wave may be begun: the hosts that failed so far.

    Asked after each host, so that a large wave stops before its end.
    """
    hosts = plan.waves[wave].hosts
    failed = [host for host in hosts if _counts(plan, progress.hosts.get(host))]
    share = _share(plan, wave)
    if len(failed) > _allowed(plan, wave):
        return [
            (
                f"{len(failed)} of {len(hosts)} hosts of wave {wave + 1} failed, "
                f"{share:.0%} may: {_some(failed)}"
            )
        ]
    tried = [h for w in plan.waves[: wave + 1] for h in w.hosts]
    all_failed = [h for h in tried if _counts(plan, progress.hosts.get(h))]
    if len(all_failed) > math.floor(plan.policy.max_failed * len(tried) + 1e-9):
        return [
            (
                f"{len(all_failed)} of the {len(tried)} hosts tried so far failed, "
                f"{plan.policy.max_failed:.0%} may: {_some(all_failed)}"
            )
        ]
    return []


def needs_fallback(plan: Plan, host: HostProgress | None) -> bool:
    """Whether a host failed to compile and its eager-only fallback was not tried yet."""
    return (
        host is not None
        and host.state == "failed"
        and host.compile_failed
        and plan.policy.on_compile_failure == "fallback"
        and host.cell != plan.policy.fallback
    )


def _counts(plan: Plan, host: HostProgress | None) -> bool:
    return _state(host) in _FAILED and not needs_fallback(plan, host)


def _share(plan: Plan, wave: int) -> float:
    return 0.0 if plan.waves[wave].kind == "canary" else plan.policy.max_failed


def _allowed(plan: Plan, wave: int) -> int:
    return math.floor(_share(plan, wave) * len(plan.waves[wave].hosts) + 1e-9)


def _unproved(
    plan: Plan, wave: int, progress: Progress, reports: Mapping[str, Measured]
) -> list[str]:
    """Hosts that are called done without a report that proves it."""
    if not plan.policy.reports:
        return []
    wanted = {"verified", "eager-as-declared"}
    if plan.wish.lab:
        wanted.add("cpu-verified-cuda-deferred")
    bad = []
    for name in plan.waves[wave].hosts:
        host = progress.hosts.get(name)
        if host is not None and host.state == "done" and not host.unchanged:
            verdict = reports[name].verdict if name in reports else "none"
            if verdict not in wanted:
                bad.append(f"{name} ({verdict})")
    return [f"the compile report does not prove it: {_some(bad)}"] if bad else []


def _slow(plan: Plan, wave: int, progress: Progress, reports: Mapping[str, Measured]) -> list[str]:
    """Hosts of the wave that are slower than the others of their hardware class."""
    classes: dict[tuple[str, str], list[float]] = {}
    for host, measured in reports.items():
        if host in plan.hosts:
            for case, value in measured.compiled_ms.items():
                classes.setdefault((plan.hosts[host].hardware, case), []).append(value)
    slow = []
    for host in plan.waves[wave].hosts:
        if _state(progress.hosts.get(host)) != "done" or host not in reports:
            continue
        for case, value in sorted(reports[host].compiled_ms.items()):
            usual = median(classes[plan.hosts[host].hardware, case])
            if value > usual * plan.policy.max_slowdown:
                slow.append(f"{host} ({case}: {value:.3g} ms, its class {usual:.3g} ms)")
                break
    if not slow:
        return []
    return [f"slower than {plan.policy.max_slowdown:g} times their class: {_some(slow)}"]


def measured_of(report: Mapping[str, Any]) -> Measured:
    """The verdict and the compiled times of a compile report, as far as it tells them."""
    found = {}
    speed = report.get("speed")
    for case, row in (speed if isinstance(speed, dict) else {}).items():
        times = row.get("compiled_ms") if isinstance(row, dict) else None
        value = times.get("median") if isinstance(times, dict) else None
        if isinstance(value, (int, float)) and value > 0:
            found[str(case)] = float(value)
    return Measured(verdict=str(report.get("verdict") or "unknown"), compiled_ms=found)


def _state(host: HostProgress | None) -> str:
    return "pending" if host is None else host.state


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
