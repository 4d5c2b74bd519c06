"""The toolkit's role on a Debian 12 machine: repository, run file, several side by side, removal.

What compiles for real is Debian's own toolkit, in `make acceptance`. Here the files are stand-ins:
they show which are installed, chosen, named to shells and taken away again, and that an nvcc which
tells its version and cannot compile is found out.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.aptrepo import Key, Package, build, make_key, sign, stop_agent
from support.engine import PROJECT, Completed, Engine
from support.gpumachine import FOLDER, URL, equip, lines_of, play_of_role, publish, said
from support.machine import Machine, machine, recap
from support.needs import skip_or_fail

NVCC = """\
#!/bin/sh
case "$*" in *--version*) echo release {series} ;; *) echo no g++ >&2; exit 1 ;; esac
"""
RUN = """\
#!/bin/sh -e
for word; do case $word in --toolkitpath=*) home=${word#*=};; esac; done
mkdir -p $home/bin
echo "$@" > $home/arguments
"""
PROFILE = "/etc/profile.d/provision-cuda.sh"


@dataclass(frozen=True, kw_only=True)
class Host:
    machine: Machine
    key: Key

    def play(self, series: str, source: dict[str, Any], *options: str, **more: Any) -> Completed:
        known = {"file": "vendor.pub", "fingerprint": self.key.fingerprint}
        told = {
            "nvidia_repository_url": URL,
            "nvidia_repository_keys": {"debian12": known},
            "cuda_toolkit_state": "present",
            "cuda_toolkit_series": series,
            "cuda_toolkit_sources": {"debian12": source},
            "cuda_toolkit_runfile_url": f"{URL}/{FOLDER}",
            "cuda_toolkit_verify": False,
            **more,
        }
        playbook = play_of_role(self.machine, "cuda_toolkit", {"os": "debian12"})
        return self.machine.play(*options, variables=lines_of(told), playbook=playbook)

    def shell(self, command: str) -> str:
        """What a login shell says."""
        return self.machine.inside("bash", "-lc", command).stdout.strip()

    def chosen(self) -> list[str]:
        """nvcc, /usr/local/cuda and CUDA_HOME of a login shell."""
        return self.shell("nvcc --version; readlink -f /usr/local/cuda; echo $CUDA_HOME").split(
            "\n"
        )


@pytest.fixture(scope="module")
def host(
    engine: Engine, base_image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    for program in ("ssh", "gpg", "dpkg-deb"):
        if shutil.which(program) is None:
            skip_or_fail("system", f"there is no {program}")
    folder, home = tmp_path_factory.mktemp("toolkit"), tmp_path_factory.mktemp("gpg")
    with machine(engine, base_image("12"), folder, ("g++", "gpg")) as found:
        equip(found)
        try:
            key = make_key(home, "vendor")
            build([toolkit("12.6"), toolkit("13.0")], folder / "repository")
            (folder / "repository/cuda.run").write_text(RUN, encoding="utf-8")
            sign(folder / "repository", key)
            publish(found, folder / "repository", key)
            yield Host(machine=found, key=key)
        finally:
            stop_agent(home)


def toolkit(series: str) -> Package:
    """NVIDIA's package of one series, which makes itself an alternative of /usr/local/cuda."""
    home = f"/usr/local/cuda-{series}"
    link = f"/usr/local/cuda cuda {home} {series.replace('.', '')}"
    installed = f"chmod 755 {home}/bin/nvcc\nupdate-alternatives --install {link}\n"
    return Package(
        name=f"cuda-toolkit-{series.replace('.', '-')}",
        version=f"{series}.1-1",
        files={f"{home}/bin/nvcc": NVCC.format(series=series)},
        scripts={
            "postinst": f"#!/bin/sh -e\n{installed}",
            "prerm": f"#!/bin/sh -e\nupdate-alternatives --remove cuda {home}\n",
        },
    )


def packaged(series: str) -> dict[str, Any]:
    return {
        "kind": "repository",
        "packages": [f"cuda-toolkit-{series.replace('.', '-')}"],
        "repository": FOLDER,
        "home": f"/usr/local/cuda-{series}",
    }


def from_run_file(sha256: str) -> dict[str, Any]:
    home = "/usr/local/cuda-11.8"
    return {"kind": "runfile", "home": home, "file": "cuda.run", "sha256": sha256}


@pytest.mark.images
def test_several_stand_side_by_side_and_one_is_the_default(host: Host) -> None:
    first = host.play("13.0", packaged("13.0"))
    assert recap(first)[1] == 0, first.stdout
    assert host.chosen() == ["release 13.0", "/usr/local/cuda-13.0", "/usr/local/cuda-13.0"]
    # An older one beside it that becomes the default, against the order of the alternatives.
    second = host.play("12.6", packaged("12.6"))
    assert recap(second)[1] == 0, second.stdout
    assert host.chosen() == ["release 12.6", "/usr/local/cuda-12.6", "/usr/local/cuda-12.6"]
    for options in ((), ("--check", "--diff")):
        again = host.play("12.6", packaged("12.6"), *options)
        assert recap(again) == (0, 0), again.stdout


@pytest.mark.images
def test_a_version_that_is_told_proves_no_compiler(host: Host) -> None:
    assert host.shell("nvcc --version") == "release 12.6"
    done = host.play("12.6", packaged("12.6"), cuda_toolkit_verify=True)
    assert recap(done)[1] == 1
    assert "CUDA 12.6 is installed, and cannot compile: no g++" in said(done)


@pytest.mark.images
def test_a_run_file_is_taken_by_its_digest(host: Host) -> None:
    wrong = host.play("11.8", from_run_file("0" * 64), cuda_toolkit_default=False)
    assert recap(wrong)[1] == 1
    assert "checksum" in said(wrong)
    assert host.machine.inside("test", "-e", "/usr/local/cuda-11.8").returncode == 1

    source = from_run_file(hashlib.sha256(RUN.encode()).hexdigest())
    done = host.play("11.8", source, cuda_toolkit_default=False)
    assert recap(done)[1] == 0, done.stdout
    given = host.machine.inside("cat", "/usr/local/cuda-11.8/arguments").stdout.split()
    assert "--toolkit" in given
    assert not any("driver" in word for word in given)
    assert host.shell("nvcc --version") == "release 12.6"
    again = host.play("11.8", source, cuda_toolkit_default=False)
    assert recap(again) == (0, 0), again.stdout


@pytest.mark.images
def test_one_goes_and_the_others_stay(host: Host) -> None:
    gone = host.play("12.6", packaged("12.6"), cuda_toolkit_state="absent")
    assert recap(gone)[1] == 0, gone.stdout
    left = host.shell("ls -d /usr/local/cuda-*; readlink -f /usr/local/cuda")
    assert left.split() == ["/usr/local/cuda-11.8", "/usr/local/cuda-13.0", "/usr/local/cuda-13.0"]
    assert host.machine.inside("test", "-e", PROFILE).returncode == 1
    again = host.play("12.6", packaged("12.6"), cuda_toolkit_state="absent")
    assert recap(again) == (0, 0), again.stdout


@pytest.mark.images
def test_a_system_without_a_source_is_refused_with_the_reason(host: Host) -> None:
    shipped = PROJECT / "playbooks/vars/torch2.0.1-cu118-py310-ubuntu22.04.yml"
    sources = yaml.safe_load(shipped.read_text(encoding="utf-8"))["cuda_toolkit_sources"]
    done = host.play("11.8", sources["debian13"])
    assert recap(done)[1] == 1
    assert "glibc 2.41" in said(done)


def test_where_each_system_gets_11_8_from() -> None:
    """cuda-toolkit-11-8 is in no repository of debian12, ubuntu2404 or rhel9."""
    shipped = PROJECT / "playbooks/vars/torch2.0.1-cu118-py310-ubuntu22.04.yml"
    sources = yaml.safe_load(shipped.read_text(encoding="utf-8"))["cuda_toolkit_sources"]
    assert {system: source["kind"] for system, source in sources.items()} == {
        "ubuntu20.04": "repository",
        "ubuntu22.04": "repository",
        "ubuntu24.04": "runfile",
        "ubuntu26.04": "refused",
        "debian11": "repository",
        "debian12": "distribution",
        "debian13": "refused",
        "el8": "refused",
        "el9": "runfile",
        "el10": "refused",
    }
    for source in sources.values():
        assert not {"cuda", "cuda-11-8"} & set(source.get("packages", []))
    assert sources["debian12"]["gcc"] == 11
    assert Path(sources["ubuntu24.04"]["file"]).name == "cuda_11.8.0_520.61.05_linux.run"
