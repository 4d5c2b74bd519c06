"""The driver's role against a repository with NVIDIA's names, on a Debian 12 machine over ssh.

apt, dpkg, dkms with its compiler, systemd, unattended-upgrades and the restarts are real; GPU and
"loading" are stand-ins below the line of facts (tests/support/gpumachine.py). One machine for the
whole module, since each state grows out of the one before: the tests run in this order.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.aptrepo import Key, Package, build, family, make_key, sign, stop_agent
from support.engine import Completed, Engine
from support.gpumachine import FOLDER, URL, equip, lines_of, play_of_role, publish, put, said
from support.machine import Machine, machine, recap
from support.needs import skip_or_fail

pytestmark = pytest.mark.images

OLD, NEW, LATER, OTHER = "580.65.06", "580.82.07", "580.95.05", "595.45.04"
BROKEN = "580.99.01"
PIN = "/etc/apt/preferences.d/provision-nvidia"
SPARED = "/etc/apt/apt.conf.d/52provision-nvidia"
SOURCE = "/etc/apt/sources.list.d/provision-nvidia.list"
# What the archive has, and fetching it is not what is tested.
FROM_THE_START = ("dkms", "gpg", "linux-headers-amd64", "unattended-upgrades")
UPGRADES = """\
APT::Periodic::Unattended-Upgrade "1";
#clear Unattended-Upgrade::Origins-Pattern;
Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };
"""
PREFLIGHT = {"os": "debian12", "driver": {"gpu": True, "open": False, "nvswitch": False}}


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine with its repository."""

    machine: Machine
    kernel: str
    repository: Path
    keys: dict[str, Key]

    def publish(self, *versions: str, toolkit: str = "1.17.8-1", key: str = "vendor") -> None:
        """Serve the driver in some versions, and a package that is no driver."""
        shutil.rmtree(self.repository, ignore_errors=True)
        packages = [p for v in versions for p in family(v, breaks=v == BROKEN)]
        packages.append(Package(name="nvidia-container-toolkit", version=toolkit))
        build(packages, self.repository)
        sign(self.repository, self.keys[key])
        publish(self.machine, self.repository, self.keys[key], f"{key}.pub")

    def play(self, *options: str, key: str = "vendor", **variables: Any) -> Completed:
        """Run the role; it may restart the machine only where a test says so."""
        source = {
            "kind": "repository", "packages": ["cuda-drivers"], "packages_open": ["nvidia-open"],
            "repository": FOLDER, "signed": False, "fabric_manager": "nvidia-fabricmanager",
        }  # fmt: skip
        known = {"file": f"{key}.pub", "fingerprint": self.keys[key].fingerprint}
        told = {
            "nvidia_repository_url": URL,
            "nvidia_repository_keys": {"debian12": known},
            "nvidia_driver_branch": 580,
            "nvidia_driver_sources": {"debian12": {"580": source, "595": source}},
            "nvidia_driver_kernels": [self.kernel],
            "nvidia_driver_boot_time_command": "awk '{print $22}' /proc/1/stat",
            **variables,
        }
        playbook = play_of_role(self.machine, "nvidia_driver", PREFLIGHT)
        return self.machine.play(*options, variables=lines_of(told), playbook=playbook)

    def versions(self) -> dict[str, str]:
        """Package -> version, of what is installed from the repository, the driver's alone."""
        form = "${db:Status-Status} ${Package} ${Version}\\n"
        rows = self.machine.inside("dpkg-query", "-W", "-f", form).stdout.splitlines()
        told = [row.split() for row in rows if row.startswith("installed ")]
        names = {p.name for p in family(OLD)}
        return {name: version for _, name, version in told if name in names}

    def held(self) -> set[str]:
        return set(self.machine.inside("apt-mark", "showhold").stdout.split())

    def loaded(self) -> str:
        return self.machine.inside("cat", "/sys/module/nvidia/version").stdout.strip()

    def is_at(self, upstream: str, *, held: bool = True) -> None:
        """The whole family has one version, each package is held, the module is built."""
        versions = self.versions()
        assert set(versions.values()) == {f"{upstream}-1"}, versions
        assert {"libcuda1", "nvidia-smi", "nvidia-persistenced"} < set(versions)
        assert self.held() == (set(versions) if held else set())
        built = self.machine.inside("modinfo", "-k", self.kernel, "-F", "version", "nvidia")
        assert built.stdout.strip() == upstream, built.stderr


@pytest.fixture(scope="module")
def host(
    engine: Engine, base_image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    for program in ("ssh", "gpg", "dpkg-deb"):
        if shutil.which(program) is None:
            skip_or_fail("system", f"there is no {program}")
    folder, home = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("gpg")
    with machine(engine, base_image("12"), folder, FROM_THE_START) as found:
        equip(found)
        kernels = found.inside("find", "/usr/src", "-name", "linux-headers-*-amd64").stdout
        try:
            yield Host(
                machine=found,
                kernel=kernels.split()[0].partition("linux-headers-")[2],
                repository=folder / "repository",
                keys={name: make_key(home, name) for name in ("vendor", "rotated")},
            )
        finally:
            stop_agent(home)


def failed(done: Completed) -> str:
    """What a run that had to fail said."""
    assert recap(done)[1] == 1, done.stdout
    return said(done)


def unchanged(done: Completed) -> None:
    assert recap(done) == (0, 0), done.stdout


def upgrade(host: Host, *options: str) -> str:
    """Really run the timer's program, over the repository's origin."""
    done = host.machine.inside("unattended-upgrade", "--debug", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_refused_before_anything_is_written(host: Host) -> None:
    host.publish(OLD, NEW, OTHER)
    before = host.machine.inside("dpkg-query", "-W").stdout

    checked = host.play("--check", "--diff", nvidia_driver_version=OLD)
    changed, bad = recap(checked)
    assert (changed > 0, bad) == (True, 0), checked.stdout
    for path in (PIN, SPARED, SOURCE):
        assert host.machine.inside("test", "-e", path).returncode == 1, path

    wrong = {"debian12": {"file": "vendor.pub", "fingerprint": host.keys["rotated"].fingerprint}}
    told = failed(host.play(nvidia_repository_keys=wrong))
    assert f"is not the one key {host.keys['rotated'].fingerprint}" in told
    assert host.keys["vendor"].fingerprint in told
    assert host.machine.inside("test", "-e", SOURCE).returncode == 1

    told = failed(host.play(nvidia_driver_kernels=["9.9.9-amd64"]))
    assert "linux-headers-9.9.9-amd64" in told
    told = failed(host.play(nvidia_driver_version="580.1.2"))
    assert "no source has version 580.1.2" in told
    assert host.machine.inside("test", "-e", PIN).returncode == 1
    assert host.machine.inside("dpkg-query", "-W").stdout == before


def test_an_exact_version_is_installed_pinned_held_and_loaded(host: Host) -> None:
    told = failed(host.play(nvidia_driver_version=OLD))
    assert f"Driver {OLD} is installed, none is loaded. Restart the host" in told
    host.is_at(OLD)
    # An expression in "Package:" would cost every call of apt on this host several seconds.
    assert "Package: /" not in host.machine.inside("cat", PIN).stdout

    # Nothing is left to install, and the restart that the failed run needed is not forgotten.
    again = host.play(nvidia_driver_version=OLD, nvidia_driver_reboot="if_needed")
    assert recap(again)[1] == 0, again.stdout
    assert host.loaded() == OLD
    daemon = host.machine.inside("systemctl", "is-active", "nvidia-persistenced")
    assert daemon.stdout.strip() == "active"

    unchanged(host.play(nvidia_driver_version=OLD, nvidia_driver_reboot="if_needed"))
    unchanged(host.play("--check", "--diff", nvidia_driver_version=OLD))


def test_unattended_upgrades_run_and_leave_the_driver_alone(host: Host) -> None:
    host.machine.inside("apt-get", "install", "-y", "nvidia-container-toolkit")
    host.publish(OLD, NEW, LATER, OTHER, toolkit="1.18.1-1")
    put(host.machine, {"/etc/apt/apt.conf.d/60test": UPGRADES.encode()})
    host.machine.inside("apt-get", "update")
    upgrade(host)
    toolkit = host.machine.inside("dpkg-query", "-Wf", "${Version}", "nvidia-container-toolkit")
    assert toolkit.stdout == "1.18.1-1"  # it ran, over this very source
    host.is_at(OLD)

    # Each of the three keeps the driver alone; without any of them it would go.
    moved = {PIN: "/var/tmp/pin", SPARED: "/var/tmp/spared"}
    host.machine.inside("apt-mark", "unhold", *host.versions())
    host.machine.inside("mv", PIN, moved[PIN])
    assert "nvidia-driver" not in packages_of(upgrade(host, "--dry-run"))
    host.machine.inside("mv", SPARED, moved[SPARED])
    assert "nvidia-driver" in packages_of(upgrade(host, "--dry-run"))
    host.machine.inside("mv", moved[PIN], PIN)
    assert "nvidia-driver" not in packages_of(upgrade(host, "--dry-run"))
    host.machine.inside("mv", moved[SPARED], SPARED)
    host.is_at(OLD, held=False)


def packages_of(told: str) -> Sequence[str]:
    """What a run of unattended-upgrades would upgrade; where that is nothing, it must say so."""
    found = re.search(r"Packages that will be upgraded: (.*)", told)
    assert found or "No packages found that can be upgraded unattended" in told, told
    return found[1].split() if found else []


def test_what_drifted_is_seen_and_mended(host: Host) -> None:
    checked = host.play("--check", nvidia_driver_version=OLD)
    assert recap(checked) == (1, 0), checked.stdout
    assert host.held() == set()
    mended = host.play(nvidia_driver_version=OLD)
    assert recap(mended) == (1, 0), mended.stdout
    host.is_at(OLD)
    # apt is content, and so is dpkg: only the module is gone.
    host.machine.inside("dkms", "remove", f"nvidia/{OLD}", "--all")
    told = failed(host.play(nvidia_driver_version=OLD))
    assert f"kernel {host.kernel} has no nvidia module" in told
    host.machine.inside("dkms", "install", f"nvidia/{OLD}", "-k", host.kernel)


def test_an_upgrade_in_the_branch_takes_the_whole_family(host: Host) -> None:
    unchanged(host.play())  # no version named: what is there of the branch stays
    told = failed(host.play(nvidia_driver_version="latest"))
    assert f"Driver {LATER} is installed, {OLD} is loaded." in told
    host.is_at(LATER)


def test_a_downgrade_takes_the_whole_family_and_needs_no_restart(host: Host) -> None:
    """Back to what is still loaded."""
    done = host.play(nvidia_driver_version=OLD)
    assert recap(done)[1] == 0, done.stdout
    host.is_at(OLD)


def test_a_broken_build_fails_and_is_repaired(host: Host) -> None:
    host.publish(OLD, NEW, LATER, BROKEN, OTHER)
    told = failed(host.play(nvidia_driver_version=BROKEN))
    assert BROKEN in told
    assert "make.log" in told
    done = host.play(nvidia_driver_version=OLD)
    assert recap(done)[1] == 0, done.stdout
    host.is_at(OLD)


def test_a_branch_is_left_only_when_asked(host: Host) -> None:
    told = failed(host.play(nvidia_driver_branch=595))
    assert f"{OLD} is installed, branch 595 is wanted." in told
    host.is_at(OLD)
    asked: dict[str, Any] = {"nvidia_driver_branch": 595, "nvidia_driver_branch_change": True}
    told = failed(host.play(**asked))
    assert f"Driver {OTHER} is installed, {OLD} is loaded." in told
    host.is_at(OTHER)
    back = host.play(nvidia_driver_version=OLD, nvidia_driver_branch_change=True)
    assert recap(back)[1] == 0, back.stdout
    host.is_at(OLD)


def test_a_key_that_changed_is_said_and_taken_over_on_request(host: Host) -> None:
    """apt-get update answers 0 for a key that it does not know, once it has older lists."""
    host.publish(OLD, NEW, LATER, OTHER, key="rotated")
    assert host.machine.inside("apt-get", "update").returncode == 0
    told = failed(host.play(nvidia_driver_version=OLD))
    assert f"apt does not take {URL}/{FOLDER}/" in told
    assert "NO_PUBKEY" in told
    done = host.play(key="rotated", nvidia_driver_version=OLD)
    assert recap(done)[1] == 0, done.stdout


def test_another_source_of_the_same_repository(host: Host) -> None:
    """With another Signed-By apt reads no source at all."""
    other = "/etc/apt/sources.list.d/cuda.list"
    line = f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {URL}/{FOLDER} /\n"
    put(host.machine, {other: line.encode()})
    told = failed(host.play(key="rotated", nvidia_driver_version=OLD))
    assert f"{other} names {URL}/{FOLDER}/, too" in told
    done = host.play(key="rotated", nvidia_driver_version=OLD, nvidia_repository_others="remove")
    assert recap(done)[1] == 0, done.stdout
    assert host.machine.inside("test", "-e", other).returncode == 1
    host.is_at(OLD)


def test_nothing_is_left_when_it_goes(host: Host) -> None:
    gone: dict[str, Any] = {"nvidia_driver_state": "absent", "nvidia_repository_state": "absent"}
    done = host.play(**gone)
    assert recap(done)[1] == 0, done.stdout
    assert host.versions() == {}
    assert host.held() == set()
    for path in (PIN, SPARED, SOURCE, "/etc/modprobe.d/provision-nvidia.conf"):
        assert host.machine.inside("test", "-e", path).returncode == 1, path
    unchanged(host.play(**gone))


def test_never_over_a_local_connection(host: Host) -> None:
    """The first task of the role, before it looks at anything."""
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    told = failed(host.play(ansible_become=False, **here))
    assert "never changed over a local connection" in told
