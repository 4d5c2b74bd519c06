"""Holds the facts of a host against a cell, before anything is touched. Pure decisions.

What is unknown is never taken for good: where it decides, it is a finding of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.host.gate_driver import converged, driver_findings
from provisioner.host.model import Finding
from provisioner.matrix import versions
from provisioner.matrix.hosts import toolkit_choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.host.model import HostReport, Wish
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.hosts import HostFacts
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import OperatingSystem

_ORDER = {"refuse": 0, "warn": 1, "note": 2}
_GB = 1_000_000_000


def judge(
    report: HostReport, cell: Cell, index: MatrixIndex, hosts: HostFacts, wish: Wish
) -> list[Finding]:
    """Every finding, refusals first; an empty list means that nothing speaks against the cell."""
    system = system_of(report, index, hosts)
    found = [
        *_system(report, cell, system, hosts),
        *_machine(report, cell),
        *_disk(report, hosts, _steps(report, cell, index, wish)),
        *_libraries(report),
    ]
    if cell.device == "cuda":
        found += driver_findings(report, cell, index, hosts, wish, system)
        if system is not None and cell.cuda is not None and wish.toolkit:
            found += _toolkit(cell, index, hosts, system)
    return sorted(found, key=lambda finding: (_ORDER[finding.severity], finding.id))


def system_of(report: HostReport, index: MatrixIndex, hosts: HostFacts) -> OperatingSystem | None:
    """The operating system of the matrix that a host runs; None for any other."""
    told = report.os
    if told is None or told.id is None or told.version is None:
        return None
    family = hosts.families.get(told.id)
    version = told.version.partition(".")[0] if family in ("el", "debian") else told.version
    return index.systems.get(f"{family}{version}")


def _system(
    report: HostReport, cell: Cell, system: OperatingSystem | None, hosts: HostFacts
) -> Iterator[Finding]:
    told = report.os
    have = "unknown" if told is None else told.name or f"{told.id} {told.version}"
    if system is None:
        yield Finding(
            id="os.unlisted",
            severity="refuse",
            have=have,
            need="a system of the matrix",
            reason="Nothing is known about where this system gets its driver and toolkit from.",
            remedy="See `provision matrix show` for the systems, or run the image of the cell.",
        )
        return
    for entry in hosts.unmanaged:
        if entry.os == system.id:
            yield Finding(
                id="os.unmanaged",
                severity="refuse",
                have=have,
                need="a system that these playbooks manage",
                reason=entry.reason,
                remedy=entry.remedy,
                source=entry.source,
            )
    if system.id != cell.os:
        on_base = cell.python_from == "base"
        yield Finding(
            id="os.other",
            severity="refuse" if on_base else "note",
            have=system.id,
            need=cell.os,
            reason="The cell stands on the Python of its own system."
            if on_base
            else "The cell was made for another system; its environment brings its own Python.",
            remedy=f"Render the cell for this system: --os {system.id}",
        )
    if report.kernel is not None and not versions.at_least(_two(report.kernel), system.kernel):
        yield Finding(
            id="kernel.older",
            severity="warn",
            have=report.kernel,
            need=f"{system.kernel} or newer",
            reason=f"{system.id} came with kernel {system.kernel}: this is another system's "
            "kernel, or the host was not restarted for very long.",
            remedy="Boot the kernel of the distribution; modules are built for it.",
            source=system.source,
        )


def _two(version: str) -> str:
    return ".".join(version.partition("-")[0].split(".")[:2])


def _machine(report: HostReport, cell: Cell) -> Iterator[Finding]:
    if report.arch != cell.arch:
        yield Finding(
            id="arch.other",
            severity="refuse",
            have=report.arch or "unknown",
            need=cell.arch,
            reason="Machine code of one architecture does not run on another.",
            remedy="Render the cell with the --arch of this host.",
        )
    if report.glibc is None or not versions.at_least(report.glibc, cell.glibc):
        yield Finding(
            id="glibc.older",
            severity="refuse",
            have=report.glibc or "unknown",
            need=f"{cell.glibc} or newer",
            reason=f"The wheels of torch {cell.torch} were linked against glibc {cell.glibc}.",
            remedy="Take an older torch, or run the image of the cell.",
        )


def _steps(report: HostReport, cell: Cell, index: MatrixIndex, wish: Wish) -> set[str]:
    """The steps that will fill the disk: what is installed already has its room."""
    steps = set() if wish.settled else {"environment"}
    if cell.device == "cpu":
        return steps
    branch = next(
        (b for b in index.branches if b.branch == (wish.branch or cell.driver.install)), None
    )
    there = branch is not None and converged(report, branch)
    if not (wish.keep_driver or wish.lab or there):
        steps.add("driver")
    if wish.toolkit and not _has_toolkit(report, str(cell.cuda)):
        steps.add("toolkit")
    return steps


def _has_toolkit(report: HostReport, series: str) -> bool:
    told = report.nvcc.version if report.nvcc is not None else None
    return f"/usr/local/cuda-{series}" in (
        report.cuda_toolkits or ()
    ) or f"{told or ''}.".startswith(f"{series}.")


def _disk(report: HostReport, hosts: HostFacts, steps: set[str]) -> Iterator[Finding]:
    for room in hosts.room:
        if room.step not in steps:
            continue
        space = report.disk.get(room.folder)
        if space is not None and space.free >= room.bytes:
            continue
        yield Finding(
            id=f"disk.{room.step}",
            severity="warn" if space is None else "refuse",
            have="unknown" if space is None else f"{space.free / _GB:.1f} GB free",
            need=f"{room.bytes / _GB:.1f} GB on {room.folder}",
            reason=f"The {room.step} step may fill the disk half way. {room.note or ''}".strip(),
            remedy=f"Make room on the file system of {room.folder}.",
            source=room.source,
        )


def _libraries(report: HostReport) -> Iterator[Finding]:
    shadow = report.library_path.etc_environment
    if shadow:
        yield Finding(
            id="library-path.set",
            severity="warn",
            have=f"LD_LIBRARY_PATH={shadow} in /etc/environment",
            need="none for all users",
            reason="Libraries there are loaded instead of those that the environment brings.",
            remedy="Take the line out; the environment needs none.",
        )


def _toolkit(
    cell: Cell, index: MatrixIndex, hosts: HostFacts, system: OperatingSystem
) -> Iterator[Finding]:
    choice = toolkit_choice(index, hosts, system, str(cell.cuda), cell.arch)
    if choice.kind == "refused" and all(u.os != system.id for u in hosts.unmanaged):
        limits = index.toolkits[str(cell.cuda)].host_compiler
        yield Finding(
            id="toolkit.none",
            severity="refuse",
            have=system.id,
            need=f"a CUDA {cell.cuda} toolkit for it",
            reason=choice.reason or "",
            remedy="Leave the toolkit out (--no-toolkit, cuda_toolkit_state: unmanaged): torch and "
            "torch.compile need none.",
            source=limits.source if limits else (),
        )
