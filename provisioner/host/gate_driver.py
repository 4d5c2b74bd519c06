"""The gate's questions about GPUs and drivers. Pure decisions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.host.gate_branch import (
    ended_branch,
    fitting_branch,
    no_branch,
    refuse_branch,
)
from provisioner.host.model import Finding
from provisioner.matrix import versions
from provisioner.matrix.hosts import driver_choice
from provisioner.matrix.rules import sass_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.host.model import HostReport, Severity, Wish
    from provisioner.matrix.cell import Cell
    from provisioner.matrix.hosts import HostFacts
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import Capability, DriverBranch, OperatingSystem

_USER_SPACE = re.compile(
    r"^(nvidia-driver(-[0-9]+)?(-server)?(-open)?(-cuda)?|nvidia-smi|libcuda1"
    r"|nvidia-utils-[0-9]+(-server)?|libnvidia-compute-[0-9]+(-server)?|cuda-drivers(-[0-9]+)?)$"
)
_LOGS = ("/var/log/", "/var/lib/nvidia/")


def driver_findings(
    report: HostReport,
    cell: Cell,
    index: MatrixIndex,
    hosts: HostFacts,
    wish: Wish,
    system: OperatingSystem | None,
) -> list[Finding]:
    """What speaks against the driver that is there, and the one that would be installed."""
    capabilities, unknown = capabilities_of(report, index)
    there = has_gpu(report)
    found = [*_presence(wish, there), *_unnamed(unknown)]
    found += _code(cell, capabilities)
    found += _loaded(report, cell, wish)
    found += _sources(report, wish)
    if not wish.keep_driver and there is not False:
        branch = wish.branch or cell.driver.install
        fact = next((b for b in index.branches if b.branch == branch), None)
        if fact is None:
            found.append(no_branch(index, branch))
        else:
            found += fitting_branch(capabilities, fact, index)
            found += ended_branch(fact, index, wish)
            found += _crossing(report, fact, wish)
            found += _install(report, cell, hosts, system, fact, capabilities)
            found += _held(report, fact, wish)
            found += _busy(report, fact)
        found += _upgrades(report)
    return found


def has_gpu(report: HostReport) -> bool | None:
    """Whether an NVIDIA GPU is on the bus; None when neither bus nor driver tells."""
    if report.gpus:
        return True
    return None if report.pci is None else any(d.kind == "gpu" for d in report.pci)


def capabilities_of(
    report: HostReport, index: MatrixIndex
) -> tuple[dict[str, Capability], list[str]]:
    """GPU name -> capability, and the names that the matrix does not know."""
    known: dict[str, Capability] = {}
    unknown: list[str] = []
    rows = [(gpu.name or "", gpu.compute_cap) for gpu in report.gpus or ()]
    if not rows:
        rows = [(d.model or "", None) for d in report.pci or () if d.kind == "gpu"]
    for name, told in rows:
        capability = index.capabilities.get(told or "")
        if capability is None and name and (fact := index.gpu(name)) is not None:
            capability = fact.capability
        if capability is None:
            unknown.append(name or "a GPU without a name")
        else:
            known[name or capability.capability] = capability
    return known, unknown


def wants_open(capabilities: dict[str, Capability], branch: DriverBranch) -> bool:
    """Whether a branch is to be installed with its open modules: where a GPU or it demands them."""
    demanded = any(c.modules == "open" for c in capabilities.values())
    return branch.open_modules == "only" or (demanded and branch.open_modules != "none")


def _presence(wish: Wish, there: bool | None) -> Iterator[Finding]:
    if there is None:
        yield Finding(
            id="gpu.unknown",
            severity="warn",
            have="unknown",
            need="an NVIDIA GPU",
            reason="/sys/bus/pci cannot be read here.",
            remedy="Run the reader on the host itself, not in a container.",
        )
    elif not there:
        yield Finding(
            id="gpu.none",
            severity="note" if wish.lab else "refuse",
            have="no NVIDIA GPU on the PCI bus",
            need="an NVIDIA GPU",
            reason="The cell is verified on the CPU alone, and no driver is installed."
            if wish.lab
            else "A host of a CUDA cell is ready when torch.compile ran on its GPU.",
            remedy="A lab without GPUs says so: --lab, gpu_preflight_lab: true in its inventory.",
        )


def _unnamed(unknown: list[str]) -> Iterator[Finding]:
    for name in unknown:
        yield Finding(
            id="gpu.unlisted",
            severity="warn",
            have=name,
            need="a GPU of the matrix",
            reason="Its compute capability is unknown, so no driver was held against it.",
            remedy="Look it up, and name the branch yourself (--branch).",
        )


def _code(cell: Cell, capabilities: dict[str, Capability]) -> Iterator[Finding]:
    for name, fact in capabilities.items():
        jit = any(versions.at_least(fact.capability, target) for target in cell.ptx)
        if sass_for(fact.capability, cell.arch_list) is None and not jit:
            yield Finding(
                id="gpu.no-code",
                severity="refuse",
                have=f"{name} ({fact.capability})",
                need="one of " + ", ".join(cell.arch_list),
                reason=f"torch {cell.torch} {cell.variant} holds no code for this GPU.",
                remedy=f"Ask for its cell: provision resolve --gpu {fact.capability}",
                source=fact.source,
            )


def _install(
    report: HostReport,
    cell: Cell,
    hosts: HostFacts,
    system: OperatingSystem | None,
    branch: DriverBranch,
    capabilities: dict[str, Capability],
) -> Iterator[Finding]:
    if system is None:
        return
    choice = driver_choice(
        hosts, system, branch.branch, cell.arch, open_modules=wants_open(capabilities, branch)
    )
    if choice.kind == "refused" and all(u.os != system.id for u in hosts.unmanaged):
        yield refuse_branch(
            "driver.no-source",
            system.id,
            f"packages of branch {branch.branch}",
            choice.reason or "",
            "Install the driver yourself and keep it (--keep-driver, nvidia_driver_state: keep).",
            (),
        )
    if choice.kind == "refused" or choice.signed or report.secure_boot is False:
        return
    if report.driver.loaded and user_space(report):
        return  # a module from packages runs here: its key is known to the firmware
    sure = report.secure_boot is True
    yield Finding(
        id="secure-boot.unsigned",
        severity="refuse" if sure else "warn",
        have="Secure Boot is on" if sure else "unknown",
        need="modules signed by a key that the firmware knows",
        reason=f"The driver of {system.id} is built on the host and signed with a key of its own: "
        "the kernel refuses to load it.",
        remedy="Enrol the key (mokutil --import, then confirm at the console on the next boot), "
        "or switch Secure Boot off.",
    )


def _loaded(report: HostReport, cell: Cell, wish: Wish) -> Iterator[Finding]:
    """The driver that runs now; the role mends what is wrong unless it is to keep its hands off."""
    loaded = report.driver.loaded
    severity: Severity = "refuse" if wish.keep_driver else "warn"
    if not loaded:
        if wish.keep_driver and not wish.lab:
            yield Finding(
                id="driver.not-loaded",
                severity="refuse",
                have="unknown" if loaded is None else "no nvidia module is loaded",
                need="a loaded driver",
                reason="The driver is to be kept as it is, and there is none.",
                remedy="Load or install it, or let the playbook do it.",
            )
        return
    installed = sorted(user_space(report))
    if installed and loaded not in installed:
        yield Finding(
            id="driver.reboot-needed",
            severity=severity,
            have=f"{loaded} loaded, {', '.join(installed)} installed",
            need="one version",
            reason="Programs of one driver version do not talk to the module of another.",
            remedy="Restart the host, or unload and load the modules while nothing uses the GPU.",
        )
    floors = {"run": cell.driver.run_floor, "compile": cell.driver.compile_floor}
    for what, floor in floors.items():
        if floor is not None and not versions.at_least(loaded, floor):
            yield Finding(
                id=f"driver.below-{what}-floor",
                severity=severity,
                have=loaded,
                need=f"{floor} or newer",
                reason=f"torch {cell.torch} {cell.variant} cannot {what} on an older driver.",
                remedy="Let the playbook install a newer branch, or ask for another cell: "
                f"provision resolve --driver {loaded}",
            )


def user_space(report: HostReport) -> set[str]:
    """Upstream versions of the installed user-space packages (1:535.261.03-1 -> 535.261.03)."""
    names = [p for p in report.driver.packages or () if _USER_SPACE.match(p.name)]
    return {p.version.split(":")[-1].split("-")[0] for p in names}


def _sources(report: HostReport, wish: Wish) -> Iterator[Finding]:
    others = report.driver.other_sources
    live = [mark for mark in others if not mark.startswith(_LOGS)]
    if not others:
        return
    yield Finding(
        id="driver.run-file",
        severity="refuse" if live and not wish.keep_driver else "warn",
        have=", ".join(others),
        need="a driver from one source",
        reason="A driver from NVIDIA's run file is here: packages beside it overwrite each "
        "other's libraries."
        if live
        else "A run file was used here once.",
        remedy="nvidia-uninstall --silent, or keep that driver (--keep-driver).",
    )


def _crossing(report: HostReport, branch: DriverBranch, wish: Wish) -> Iterator[Finding]:
    other = sorted({v for v in user_space(report) if versions.major(v) != branch.branch})
    if other and not wish.change_branch:
        yield refuse_branch(
            "driver.branch-installed",
            f"{', '.join(other)} installed",
            f"branch {branch.branch}",
            "A host leaves the driver branch that is on it only when asked to.",
            f"--branch {versions.major(other[0])}, or --change-branch, "
            "nvidia_driver_branch_change: true.",
            (),
        )


def _held(report: HostReport, branch: DriverBranch, wish: Wish) -> Iterator[Finding]:
    ours = {package.name for package in report.driver.packages or ()}
    held = sorted(ours & set(report.held or ()))
    other = sorted({v for v in user_space(report) if versions.major(v) != branch.branch})
    if held and other:
        yield Finding(
            id="driver.held",
            severity="note" if wish.change_branch else "refuse",
            have=f"{', '.join(held)} held at {', '.join(other)}",
            need=f"branch {branch.branch}",
            reason="Somebody froze another branch of the driver on this host.",
            remedy=f"apt-mark unhold {' '.join(held)}, or keep that driver (--keep-driver).",
        )


def converged(report: HostReport, branch: DriverBranch) -> bool:
    """Whether the driver that runs is the one that is installed, and of the wanted branch."""
    loaded = report.driver.loaded
    return (
        bool(loaded)
        and user_space(report) == {loaded}
        and (versions.major(str(loaded)) == branch.branch)
    )


def _busy(report: HostReport, branch: DriverBranch) -> Iterator[Finding]:
    if converged(report, branch):
        return
    if report.gpu_processes is None:
        yield Finding(
            id="gpu.use-unknown",
            severity="warn",
            have="unknown",
            need="no process on the GPU",
            reason="nvidia-smi is there and does not answer.",
            remedy="See `provision diagnose` with its message; restart the host if nothing else.",
        )
    elif report.gpu_processes:
        pids = ", ".join(str(p.get("pid")) for p in report.gpu_processes)
        yield Finding(
            id="gpu.busy",
            severity="refuse",
            have=f"processes {pids}",
            need="no process on the GPU",
            reason="A change of the driver takes the GPU away from running programs.",
            remedy="Wait for them or end them, or keep the driver (--keep-driver).",
        )


def _upgrades(report: HostReport) -> Iterator[Finding]:
    state = report.unattended_upgrades
    if state is None or not state.enabled:
        return
    if any("nvidia" in pattern for pattern in state.spared or ()):
        return
    yield Finding(
        id="upgrades.unattended",
        severity="note",
        have="updates are installed by themselves",
        need="none of the driver",
        reason="An update of the driver under running programs breaks them until a restart.",
        remedy="The nvidia_driver role keeps its packages out.",
    )
