"""Which hosts of a fleet can take a cell, and what each needs for it. Pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from provisioner.host.gate import judge, system_of
from provisioner.host.gate_driver import capabilities_of, has_gpu, user_space
from provisioner.host.model import Finding, HostReport
from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provisioner.fleet.collect import Entry
    from provisioner.host.model import Wish
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.hosts import HostFacts
    from provisioner.matrix.index import MatrixIndex

Group = Literal["ready", "driver", "blocked", "never", "unknown"]
GROUPS: dict[Group, str] = {
    "ready": "take the cell as they are",
    "driver": "need a driver first, which the rollout installs",
    "blocked": "wait for somebody to clear something up",
    "never": "can never take the cell",
    "unknown": "could not be read",
}
"""Each group with what people are told of it."""

# A person can clear these up on the same machine; everything else that refuses stays.
_CLEARABLE = frozenset(
    {
        "driver.branch-unknown",
        "driver.held",
        "driver.not-loaded",
        "driver.run-file",
        "secure-boot.unsigned",
        "toolkit.none",
    }
)
# The drain ends these before the host is touched.
_DRAINED = frozenset({"gpu.busy"})


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier rollout left on a host (provision_rollout.fact), as far as it counts."""

    cell: str | None = None
    state: str | None = None
    digest: str | None = None
    branch: int | None = None


class FleetReport(HostReport, frozen=True, kw_only=True):
    """Facts of a host with what a rollout recorded there: false for nothing, null for unknown."""

    provision: HostState | Literal[False] | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where one host stands. `hardware` is its class: system and GPUs, the same for equal hosts.

    `reasons` say why it is in its group. `driver` is what is loaded now (null: none or unknown),
    `cell`, `digest` and `done` what an earlier rollout recorded.
    """

    host: str
    groups: tuple[str, ...]
    group: Group
    hardware: str = ""
    reasons: tuple[str, ...] = ()
    driver: str | None = None
    cell: str | None = None
    digest: str | None = None
    done: bool = False


class Judge:
    """Holds one cell against many hosts; equal hosts are judged once."""

    def __init__(self, cell: Cell, index: MatrixIndex, hosts: HostFacts, wish: Wish) -> None:
        self._cell, self._index, self._hosts, self._wish = cell, index, hosts, wish
        self._known: dict[bytes, tuple[Group, str, tuple[str, ...]]] = {}
        self._decoder = msgspec.json.Decoder(FleetReport)

    def standing(self, entry: Entry) -> Standing:
        """Where one host stands."""
        if entry.state != "read":
            reason = f"{entry.state}: {entry.reason}"
            return Standing(
                host=entry.host, groups=entry.groups, group="unknown", reasons=(reason,)
            )
        try:
            report = self._decoder.decode(entry.facts)
        except msgspec.MsgspecError as error:
            return Standing(
                host=entry.host,
                groups=entry.groups,
                group="unknown",
                reasons=(f"facts of another kind: {error}",),
            )
        own = report.provision or HostState()
        key = msgspec.json.encode(_alike(report))
        if key not in self._known:
            self._known[key] = self._judge(report)
        group, hardware, reasons = self._known[key]
        return Standing(
            host=entry.host,
            groups=entry.groups,
            group=group,
            hardware=hardware,
            reasons=reasons,
            driver=report.driver.loaded or None,
            cell=own.cell,
            digest=own.digest,
            done=own.state == "done",
        )

    def _judge(self, report: HostReport) -> tuple[Group, str, tuple[str, ...]]:
        found = judge(report, self._cell, self._index, self._hosts, self._wish)
        hardware = hardware_of(report, self._index, self._hosts)
        refused = [f for f in found if f.severity == "refuse" and f.id not in _DRAINED]
        if refused:
            passing = all(f.id in _CLEARABLE or f.id.startswith("disk.") for f in refused)
            return "blocked" if passing else "never", hardware, tuple(map(said, refused))
        needs = driver_needs(report, self._cell, self._index, self._wish)
        return ("driver" if needs else "ready"), hardware, needs


def _alike(report: FleetReport) -> FleetReport:
    """The report without what differs from host to host and decides nothing by its exact value."""
    disk = {
        folder: None if space is None else msgspec.structs.replace(space, total=0)
        for folder, space in report.disk.items()
    }
    return msgspec.structs.replace(report, disk=disk, provision=None, unreadable=())


def said(finding: Finding) -> str:
    """A finding in one line: id, what is there, what is needed."""
    return f"{finding.id}: have {finding.have}, need {finding.need}"


def hardware_of(report: HostReport, index: MatrixIndex, hosts: HostFacts) -> str:
    """The hardware class of a host: `ubuntu22.04 x86_64 8x NVIDIA A100-SXM4-80GB`."""
    system = system_of(report, index, hosts)
    names = [gpu.name or "unnamed GPU" for gpu in report.gpus or ()]
    if not names:
        names = [d.model or "unnamed GPU" for d in report.pci or () if d.kind == "gpu"]
    counts = {name: names.count(name) for name in sorted(names)}
    cards = " + ".join(f"{count}x {name}" for name, count in counts.items()) or "no GPU"
    return f"{system.id if system else 'unlisted system'} {report.arch or 'unknown'} {cards}"


def driver_needs(report: HostReport, cell: Cell, index: MatrixIndex, wish: Wish) -> tuple[str, ...]:
    """Why a host needs another driver before the cell; empty where it does not.

    Of mixed GPUs the one with the newest floor decides.
    """
    if cell.device != "cuda" or wish.keep_driver or has_gpu(report) is False:
        return ()
    loaded = report.driver.loaded
    if not loaded:
        return ("no driver is loaded" if loaded is False else "the loaded driver is unknown",)
    needs = []
    floor, why = strictest_floor(report, cell, index)
    if floor is not None and not versions.at_least(loaded, floor):
        needs.append(f"driver {loaded} is loaded, {floor} is needed ({why})")
    installed = user_space(report)
    if installed and loaded not in installed:
        needs.append(f"driver {loaded} is loaded, {', '.join(sorted(installed))} is installed")
    if wish.branch is not None and versions.major(loaded) != wish.branch:
        needs.append(f"driver {loaded} is loaded, branch {wish.branch} is asked for")
    return tuple(needs)


def strictest_floor(report: HostReport, cell: Cell, index: MatrixIndex) -> tuple[str | None, str]:
    """The oldest driver that serves every GPU of a host, and what asks for it."""
    floors = [(cell.driver.run_floor, "run floor"), (cell.driver.compile_floor, "compile floor")]
    capabilities, _ = capabilities_of(report, index)
    for name, fact in sorted(capabilities.items()):
        floors.append((cell.driver.compile_floor_by_arch.get(fact.capability), f"for {name}"))
        floors.append((fact.driver_from, f"first to know {name}"))
    known = [(floor, why) for floor, why in floors if floor is not None]
    if not known:
        return None, ""
    best = known[0]
    for floor, why in known[1:]:
        if not versions.at_least(best[0], floor):
            best = (floor, why)
    return best


def grouped(standings: Iterable[Standing]) -> dict[Group, list[dict[str, Any]]]:
    """Group -> reasons with the hosts that share them, most hosts first."""
    shared: dict[Group, dict[tuple[str, ...], list[str]]] = {group: {} for group in GROUPS}
    for standing in standings:
        shared[standing.group].setdefault(standing.reasons, []).append(standing.host)
    return {
        group: [
            {"reasons": list(reasons), "hosts": hosts}
            for reasons, hosts in sorted(rows.items(), key=lambda row: (-len(row[1]), row[0]))
        ]
        for group, rows in shared.items()
    }


def judge_all(entries: Sequence[Entry], judging: Judge) -> list[Standing]:
    """Where every host stands, in the order of the facts."""
    return [judging.standing(entry) for entry in entries]
