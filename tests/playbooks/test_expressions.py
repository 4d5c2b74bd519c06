"""Expressions of the driver role on what apt and dpkg say, evaluated by Ansible itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support.engine import PROJECT

TASKS = PROJECT / "playbooks/roles/nvidia_driver/tasks/apt.yml"
APT = """\
Reading package lists...
The following NEW packages will be installed:
  libcuda1 nvidia-driver
Inst libcuda1 (580.95.05-1 NVIDIA CUDA:590 [amd64])
Inst nvidia-driver [535.261.03-1~deb12u1] (580.95.05-1 NVIDIA CUDA:590 [amd64]) []
Inst libnvidia-ml1:i386 (1:580.95.05-1 NVIDIA CUDA:590 [i386])
Remv nvidia-alternative [535.261.03-1~deb12u1]
Conf libcuda1 (580.95.05-1 NVIDIA CUDA:590 [amd64])
""".splitlines()
DPKG = [
    "installed libcuda1:amd64",
    "installed nvidia-driver",
    "installed libnvidia-ml1:amd64",
    "installed linux-modules-nvidia-580-server-generic",
    "installed nvidia-container-toolkit",
    "installed libnvidia-container1:amd64",
    "installed nvidia-cuda-toolkit",
    "config-files nvidia-kernel-dkms",
    "installed libc6:amd64",
]


def task(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        t for t in yaml.safe_load(TASKS.read_text(encoding="utf-8")) if t["name"] == name
    )
    return found


def evaluated(expression: str, values: dict[str, Any], folder: Path) -> Any:
    """What Ansible makes of an expression, given some variables."""
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "connection": "local",
            "vars": {
                **values,
                "answer": expression,
                "ansible_python_interpreter": sys.executable,
            },
            "tasks": [
                {
                    "ansible.builtin.copy": {
                        "dest": str(folder / "answer.json"),
                        "content": "{{ answer | to_json }}",
                        "mode": "0600",
                    }
                }
            ],
        }
    ]
    (folder / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    done = subprocess.run(
        [str(PROJECT / ".venv/bin/ansible-playbook"), "-i", "localhost,", "play.yml"],
        cwd=folder,
        env={**os.environ, "ANSIBLE_HOME": str(folder / "home"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "answer.json").read_text(encoding="utf-8"))


def test_the_closure_is_pinned_as_a_whole(tmp_path: Path) -> None:
    expression = task("Install the closure")["vars"]["__nvidia_driver_closure"]
    assert evaluated(expression, {"__nvidia_driver_plan": {"stdout_lines": APT}}, tmp_path) == [
        "libcuda1=580.95.05-1",
        "nvidia-driver=580.95.05-1",
        "libnvidia-ml1:i386=1:580.95.05-1",
    ]


def test_the_whole_family_is_held_and_nothing_else(tmp_path: Path) -> None:
    expression = task("Hold the family")["loop"]
    held = evaluated(expression, {"__nvidia_driver_installed": {"stdout_lines": DPKG}}, tmp_path)
    assert held == [
        "libcuda1:amd64",
        "nvidia-driver",
        "libnvidia-ml1:amd64",
        "linux-modules-nvidia-580-server-generic",
    ]


def test_an_exact_version_goes_to_every_named_package(tmp_path: Path) -> None:
    asked = task("Ask apt what the driver brings")
    names = asked["vars"]["__nvidia_driver_names"]
    values = {
        "__nvidia_driver_source": {"packages": ["cuda-drivers"], "packages_open": ["nvidia-open"]},
        "__nvidia_driver_names": names,
        "gpu_preflight_result": {"driver": {"open": True}},
        "nvidia_driver_version": "580.95.05-1",
    }
    argv = evaluated(asked["ansible.builtin.command"]["argv"], values, tmp_path)
    assert argv[:2] == ["apt-get", "--simulate"]
    assert argv[-2:] == ["install", "nvidia-open=580.95.05-1"]
