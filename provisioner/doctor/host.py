"""The host around the driver: what may change it, hold the GPU, or keep the module out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_INSIDE = "in a container the host's own state cannot be seen"


def _no_gpu(seen: Seen) -> Outcome | None:
    if seen.inside or seen.facts.wsl:
        return skip(_INSIDE if seen.inside else "on WSL the driver is that of Windows")
    return skip("no GPU is here") if seen.has_gpu is False else None


def upgrades(seen: Seen) -> Outcome:
    """Can an unattended upgrade change the driver under running programs?"""
    if (answer := _no_gpu(seen)) is not None:
        return answer
    state = seen.facts.unattended_upgrades
    if state is None or (state.installed and state.enabled is None):
        return unknown("whether packages upgrade by themselves")
    if not state.enabled:
        return good("nothing is upgraded by itself")
    packages = {p.name for p in seen.facts.driver.packages or ()}
    if not packages:
        return skip("the driver comes from no package")
    if any("nvidia" in pattern for pattern in state.spared or ()):
        return good("unattended upgrades spare " + ", ".join(state.spared or ()))
    if packages <= set(seen.facts.held or ()):
        return good("every package of the driver is held")
    free = sorted(packages - set(seen.facts.held or ()))
    return bad(
        "warn",
        f"unattended upgrades are on, and {', '.join(free[:4])} may be upgraded",
        "A new driver library beside the loaded module fails every new CUDA program until the host "
        "restarts (803, driver/library version mismatch).",
        "Hold the packages and upgrade the driver on purpose.",
        "sudo apt-mark hold " + " ".join(free)
        if seen.system is None or seen.system.package_manager == "apt"
        else "sudo dnf versionlock add " + " ".join(free),
        source=("https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3",),
    )


def fabric_manager(seen: Seen) -> Outcome:
    """On NVSwitch: does a fabric manager of the driver's version run?"""
    if (answer := _no_gpu(seen)) is not None:
        return answer
    if seen.facts.pci is None:
        return unknown("whether there is an NVSwitch")
    if not any(d.kind == "nvswitch" for d in seen.facts.pci):
        return skip("no NVSwitch is here")
    state, driver = seen.facts.fabric_manager, seen.driver
    if state is None:
        return unknown("the fabric manager")
    branch = versions.major(driver) if driver else 0
    package = "nvidia-fabricmanager" + (f"-{branch}" if 0 < branch < 590 else "")
    install = f"sudo apt-get install {package}" + (f"={driver}-1" if driver else "")
    start = "sudo systemctl enable --now nvidia-fabricmanager"
    source = ("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",)
    if not state.present:
        return bad(
            "error",
            "an NVSwitch is on the bus, and no fabric manager is installed",
            "The switches stay uninitialised and cuInit returns 802.",
            "Install it, of exactly the driver's version.",
            install,
            start,
            source=source,
        )
    if driver is not None and state.version != driver:
        return bad(
            "error",
            f"fabric manager {state.version}, driver {driver}",
            "It refuses to start beside a driver of any other version.",
            "Install the driver's own version and hold both together.",
            install,
            start,
            source=source,
        )
    if state.active is False:
        return bad(
            "error",
            f"fabric manager {state.version} does not run",
            "The switches stay uninitialised and cuInit returns 802.",
            "Start it.",
            start,
            source=source,
        )
    return good(f"fabric manager {state.version}, active {state.active}")


def persistence(seen: Seen) -> Outcome:
    """Is the driver kept initialised while no program runs?"""
    if (answer := _no_gpu(seen)) is not None:
        return answer
    devices = seen.nvml.devices if seen.nvml else ()
    modes = [d.persistence for d in devices if d.persistence is not None]
    if not modes:
        return (
            good("nvidia-persistenced runs")
            if seen.facts.persistenced
            else unknown("the persistence mode (no NVML)")
        )
    if all(modes):
        return good("persistence is on")
    return bad(
        "note",
        f"persistence is off on {modes.count(False)} of {len(modes)} GPUs",
        "With the last program the driver lets go of the GPU; the next start waits seconds for it, "
        "and settings such as clocks are lost.",
        "Run the persistence daemon.",
        "sudo systemctl enable --now nvidia-persistenced",
        source=("https://docs.nvidia.com/deploy/driver-persistence/",),
    )


def secure_boot(seen: Seen) -> Outcome:
    """Does Secure Boot keep the module out?"""
    if (answer := _no_gpu(seen)) is not None:
        return answer
    state = seen.facts.secure_boot
    if state is None:
        return unknown("whether Secure Boot is on")
    if not state:
        return good("Secure Boot is off")
    if seen.driver is not None:
        return good("Secure Boot is on, and the module is loaded")
    return bad(
        "error",
        "Secure Boot is on, and no nvidia module is loaded",
        "A module that was built on the host is signed by a key that the firmware does not know.",
        "Enrol the key (it asks for a password, and again at the console on the next boot), or "
        "install the distribution's signed modules.",
        "mokutil --sb-state",
        "sudo mokutil --import /var/lib/dkms/mok.pub",
        source=("https://wiki.debian.org/SecureBoot",),
    )


def other_driver(seen: Seen) -> Outcome:
    """Does nouveau, nova or vfio hold the GPU?"""
    if (answer := _no_gpu(seen)) is not None:
        return answer
    modules = seen.facts.other_gpu_modules
    if modules is None:
        modules = ("nouveau",) if seen.facts.nouveau_loaded else None
    if modules is None and seen.facts.nouveau_loaded is None:
        return unknown("the loaded kernel modules")
    holding = [m for m in modules or () if m != "vfio_pci" or seen.driver is None]
    if not holding:
        return good("no other driver is loaded")
    name = holding[0]
    return bad(
        "error" if seen.driver is None else "warn",
        f"{', '.join(holding)} is loaded" + ("" if seen.driver else ", and nvidia is not"),
        "Only one kernel driver can have the GPU; nvidia's cannot take it from another.",
        "Keep that module out, make the initramfs again, restart.",
        f"echo blacklist {name} | sudo tee /etc/modprobe.d/blacklist-{name}.conf",
        "sudo update-initramfs -u",
        "sudo reboot",
        source=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",),
    )


CHECKS = (
    Check("host.upgrades", "no upgrade changes the driver by itself", upgrades),
    Check("host.fabric-manager", "the fabric manager fits the driver", fabric_manager),
    Check("host.persistence", "the driver stays initialised", persistence),
    Check("host.secure-boot", "Secure Boot lets the module in", secure_boot),
    Check("host.other-driver", "no other driver holds the GPU", other_driver),
)
