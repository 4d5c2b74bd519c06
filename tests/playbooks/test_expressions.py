"""Expressions of the roles on what apt, dpkg and the cell say, evaluated by Ansible itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.engine import PROJECT

ROLES = PROJECT / "playbooks/roles"
VARS = PROJECT / "playbooks/vars/torch2.0.1-cu118-py310-ubuntu22.04.yml"
APT = """\
Reading package lists...
The following NEW packages will be installed:
  libcuda1 nvidia-driver
Inst libcuda1 (580.95.05-1 NVIDIA CUDA:590 [amd64])
Inst nvidia-driver [535.261.03-1~deb12u1] (580.95.05-1 NVIDIA CUDA:590 [amd64]) []
Inst libnvidia-ml1:i386 (1:580.95.05-1 NVIDIA CUDA:590 [i386])
Inst firmware-nvidia-gsp (595.45.04-1 NVIDIA CUDA:590 [amd64])
Inst dkms (3.0.10-8+deb12u1 Debian:12/stable [all])
Remv nvidia-alternative [535.261.03-1~deb12u1]
Remv site-tool [1.0]
Conf libcuda1 (580.95.05-1 NVIDIA CUDA:590 [amd64])
""".splitlines()
DPKG = """\
install installed libcuda1:amd64 580.95.05-1
hold installed nvidia-driver 580.95.05-1
install installed libnvidia-ml1:amd64 535.261.03-1
install installed linux-modules-nvidia-580-server-generic 5.15.0-1
install installed nvidia-container-toolkit 1.18.0-1
install installed libnvidia-container1:amd64 1.18.0-1
install installed nvidia-cuda-toolkit 11.8.89~11.8.0-5
install installed linux-headers-6.1.0-50-amd64 6.1.1-1
deinstall config-files nvidia-kernel-dkms 535.261.03-1
install unpacked nvidia-smi 580.95.05-1
install installed libc6:amd64 2.36-9
""".splitlines()


def role_values(role: str) -> dict[str, Any]:
    """Defaults and internal variables of a role, unevaluated."""
    found: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        path = ROLES / role / part / "main.yml"
        if path.is_file():
            found.update(yaml.safe_load(path.read_text(encoding="utf-8")))
    return found


def evaluated(names: list[str], values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What Ansible makes of some variables, given the others."""
    answer = {name: f"{{{{ {name} }}}}" for name in names}
    copied = {
        "dest": str(folder / "answer.json"),
        "content": "{{ answer | to_json }}",
        "mode": "0600",
    }
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "connection": "local",
        "vars": {**values, "answer": answer, "ansible_python_interpreter": sys.executable},
        "tasks": [{"ansible.builtin.copy": copied}],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    done = subprocess.run(
        [str(PROJECT / ".venv/bin/ansible-playbook"), "-i", "localhost,", "play.yml"],
        cwd=folder,
        env={**os.environ, "ANSIBLE_HOME": str(folder / "home"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return found


def on(system: str, *, opened: bool = False, switch: bool = False) -> dict[str, Any]:
    """The roles' values on a system, with the variables of the shipped cell."""
    cell = yaml.safe_load(VARS.read_text(encoding="utf-8"))
    told = {"os": system, "driver": {"gpu": True, "open": opened, "nvswitch": switch}}
    manager = "dnf" if system.startswith("el") else "apt"
    return {
        **role_values("nvidia_repository"),
        **role_values("nvidia_driver"),
        **cell,
        "gpu_preflight_result": told,
        "ansible_facts": {"pkg_mgr": manager, "kernel": "5.15.0-100-generic"},
    }


def test_the_closure_is_pinned_as_a_whole_and_strays_are_seen(tmp_path: Path) -> None:
    values = {
        **on("debian12"),
        "__nvidia_driver_plan": {"stdout_lines": APT},
        "__nvidia_driver_upstream": "580.95.06",
    }
    names = ["comes", "astray", "amiss", "goes"]
    found = evaluated([f"__nvidia_driver_{name}" for name in names], values, tmp_path)
    assert found == {
        "__nvidia_driver_comes": [
            "libcuda1=580.95.05-1",
            "nvidia-driver=580.95.05-1",
            "libnvidia-ml1:i386=1:580.95.05-1",
            "firmware-nvidia-gsp=595.45.04-1",
        ],
        "__nvidia_driver_astray": ["firmware-nvidia-gsp=595.45.04-1"],
        "__nvidia_driver_amiss": ["nvidia-driver=580.95.05-1"],
        "__nvidia_driver_goes": ["site-tool"],
    }


def test_the_whole_family_is_held_and_nothing_else(tmp_path: Path) -> None:
    values = {**on("debian12"), "__nvidia_driver_dpkg": {"stdout_lines": DPKG}}
    values["nvidia_driver_kernels"] = ["6.1.0-50-amd64", "6.1.0-51-amd64"]
    names = ["unheld", "there", "other_branch", "unfinished", "headers_missing"]
    found = evaluated([f"__nvidia_driver_{name}" for name in names], values, tmp_path)
    assert found == {
        "__nvidia_driver_unheld": [
            "libcuda1:amd64",
            "libnvidia-ml1:amd64",
            "linux-modules-nvidia-580-server-generic",
        ],
        "__nvidia_driver_there": ["580.95.05"],
        "__nvidia_driver_other_branch": ["libnvidia-ml1:amd64 535.261.03-1"],
        "__nvidia_driver_unfinished": ["nvidia-smi 580.95.05-1"],
        "__nvidia_driver_headers_missing": ["linux-headers-6.1.0-51-amd64"],
    }


RPM = """\
install installed kmod-nvidia-open-dkms 580.95.05
install installed nvidia-driver 580.95.05
install installed nvidia-driver-libs 580.95.05
install installed libnvidia-ml 580.95.05
install installed libnvidia-container1 1.18.0
install installed nvidia-container-toolkit 1.18.0
""".splitlines()


@pytest.mark.parametrize(("opened", "stream"), [(False, "580-dkms"), (True, "580-open")])
def test_el9_takes_a_stream_and_reads_rpm_alike(opened: bool, stream: str, tmp_path: Path) -> None:
    values = {**on("el9", opened=opened), "__nvidia_driver_dpkg": {"stdout_lines": RPM}}
    names = ["__nvidia_driver_stream", "__nvidia_driver_there", "__nvidia_driver_targets"]
    assert evaluated(names, values, tmp_path) == {
        "__nvidia_driver_stream": stream,
        "__nvidia_driver_there": ["580.95.05"],
        "__nvidia_driver_targets": ["5.15.0-100-generic"],
    }


def test_the_fabric_manager_comes_where_switches_are(tmp_path: Path) -> None:
    values = on("debian12", opened=True, switch=True)
    source = values["nvidia_driver_sources"]["debian12"]["580"]
    source["fabric_manager"] = "nvidia-fabricmanager"
    found = evaluated(["__nvidia_driver_names"], values, tmp_path)
    assert found["__nvidia_driver_names"] == ["nvidia-open", "nvidia-fabricmanager"]


SERVER = ["nvidia-driver-580-server", "nvidia-utils-580-server"]


@pytest.mark.parametrize(
    ("system", "opened", "kind", "packages"),
    [
        ("ubuntu20.04", False, "refused", None),
        ("ubuntu22.04", False, "archive", ["linux-modules-nvidia-580-server-generic", *SERVER]),
        (
            "ubuntu24.04",
            True,
            "archive",
            [
                "linux-modules-nvidia-580-server-open-generic",
                "nvidia-driver-580-server-open",
                "nvidia-utils-580-server",
            ],
        ),
        ("debian12", True, "repository", ["nvidia-open"]),
        ("debian13", False, "repository", ["cuda-drivers"]),
        ("el8", False, "refused", None),
        ("el9", False, "module", ["cuda-drivers"]),
        ("el9", True, "module", ["nvidia-open"]),
        ("el10", False, "refused", None),
    ],
)
def test_each_system_gets_its_own_packages(
    system: str, opened: bool, kind: str, packages: list[str] | None, tmp_path: Path
) -> None:
    """By the variables of the shipped cell; the names are facts of the matrix with their source."""
    names = ["__nvidia_driver_source"] + (["__nvidia_driver_names"] if packages else [])
    found = evaluated(names, on(system, opened=opened), tmp_path)
    assert found["__nvidia_driver_source"]["kind"] == kind
    assert found.get("__nvidia_driver_names") == packages
    if packages is None:
        assert found["__nvidia_driver_source"]["reason"]
