"""The plan of a rollout as a file: who is moved when, who is left out, what must hold meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from provisioner.errors import FindingError
from provisioner.fleet.names import check_name
from provisioner.fleet.store import read_whole, sha256, write_whole
from provisioner.fleet.survey import Group  # noqa: TC001 - decoded at run time
from provisioner.host.model import Wish  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

PLAN_SCHEMA: Final = "provision.fleet-plan/1"

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Policy(_Struct, frozen=True, kw_only=True):
    """What must hold during a rollout.

    `max_failed` is a share of the hosts of a wave, and of all hosts tried so far; the canary allows
    none. `max_unreachable` hosts in all may be set aside. `caps`: pattern of group names -> hosts
    of each such group that are worked on at the same time. `soak_s` is waited after each wave.
    `on_compile_failure`: stop counts it as a failure, fallback brings the host to `fallback`, a
    cell that is declared eager-only. `reports`: a host is done only with a compile report that
    proves it; a site whose own step leaves none says false. `forks` is how many hosts are worked on
    at the same time.
    """

    canary: tuple[str, ...] = ()
    first: _Positive = 5
    growth: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    max_batch: _Positive = 100
    max_failed: _Share = 0.0
    max_unreachable: _Count = 0
    max_slowdown: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    soak_s: _Count = 0
    host_timeout_s: _Positive = 7200
    max_facts_age_s: _Positive = 86400
    caps: dict[str, _Positive] = {}
    on_compile_failure: Literal["stop", "fallback"] = "stop"
    fallback: str | None = None
    reboot: bool = True
    reports: bool = True
    forks: _Positive = 10


class PlanHost(_Struct, frozen=True, kw_only=True):
    """One host that is moved: from what, what changes, whether it restarts."""

    hardware: str
    changes: tuple[str, ...]
    reboot: bool
    from_cell: str | None = None
    from_driver: str | None = None
    seconds: float | None = None


class Wave(_Struct, frozen=True, kw_only=True):
    """Hosts that are worked on together. `seconds` is an estimate, null without measurements."""

    kind: Literal["canary", "batch"]
    hosts: tuple[str, ...]
    seconds: float | None = None


class LeftOut(_Struct, frozen=True, kw_only=True):
    """Hosts that stay as they are, and why."""

    group: Group | Literal["done", "reboot"]
    reasons: tuple[str, ...]
    hosts: tuple[str, ...]


class Bound(_Struct, frozen=True, kw_only=True):
    """Digests of what the plan was made from; another one of any makes it stale."""

    facts: _Digest
    spec: _Digest
    lock: _Digest | None
    fallback_spec: _Digest | None = None
    fallback_lock: _Digest | None = None


class Plan(_Struct, frozen=True, kw_only=True):
    """A whole plan. `digest` is that of the wanted state; `seconds` the estimate for all waves."""

    schema: Literal["provision.fleet-plan/1"]
    cell: str
    digest: _Digest
    bound: Bound
    wish: Wish
    policy: Policy
    waves: tuple[Wave, ...]
    hosts: dict[str, PlanHost]
    left_out: tuple[LeftOut, ...] = ()
    seconds: float | None = None
    reboots: _Count = 0


def wanted_digest(cell: str, spec: str, lock: str | None, wish: Wish) -> str:
    """The digest of a host's wanted state: the cell's files and what is wanted beside it."""
    return sha256(msgspec.json.encode([cell, spec, lock, wish], order="deterministic"))


def encode(plan: Plan) -> bytes:
    """The bytes of a plan's file; the same plan gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(plan, order="deterministic"), indent=1) + b"\n"


def plan_id(data: bytes) -> str:
    """The short name of a plan: the first digits of the digest of its file."""
    return sha256(data)[:12]


def write_plan(path: Path, plan: Plan) -> str:
    """Writes a plan; returns its short name."""
    data = encode(plan)
    write_whole(path, data)
    return plan_id(data)


def read_plan(path: Path) -> tuple[Plan, str]:
    """A plan and its short name; raises FindingError for a file that is none, or not whole."""
    data = read_whole(path, "The plan", "provision fleet plan --cell CELL")
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.MsgspecError as error:
        raise _bad(path, str(error)) from None
    hosts = [host for wave in plan.waves for host in wave.hosts]
    if sorted(hosts) != sorted(plan.hosts) or len(set(hosts)) != len(hosts):
        raise _bad(path, "its waves and its hosts do not agree, or a host is in two waves")
    for host in hosts:
        check_name(host, "Host")
    for cell in (plan.cell, plan.policy.fallback or plan.cell):
        check_name(cell, "Cell")
    return plan, plan_id(data)


def _bad(path: Path, why: str) -> FindingError:
    return FindingError(
        "fleet.bad-plan",
        f"{path} is no plan of this version: {why}.",
        next_step="Make it again: provision fleet plan --cell CELL",
    )


def check_fresh(plan: Plan, bound: Bound, age_s: float) -> None:
    """Raises FindingError where facts, cell or lock are not those that the plan was made from."""
    now, then = msgspec.structs.asdict(bound), msgspec.structs.asdict(plan.bound)
    changed = [name.replace("_", " ") for name in then if now[name] != then[name]]
    if changed:
        raise FindingError(
            "fleet.stale-plan",
            f"The plan was made from another state: changed since then: {', '.join(changed)}.",
            next_step=f"Make it again: provision fleet plan --cell {plan.cell}",
        )
    if age_s > plan.policy.max_facts_age_s:
        raise FindingError(
            "fleet.stale-facts",
            f"The facts are {age_s / 3600:.1f} h old, the plan allows "
            f"{plan.policy.max_facts_age_s / 3600:.1f} h.",
            next_step="Read the hosts again (provision fleet facts -i INVENTORY), plan again.",
        )
