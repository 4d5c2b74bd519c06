"""The playbook on a Debian 12 machine with systemd, over ssh, as an ordinary user with become.

Preflight and container runtime are real here; without a GPU there is no driver to install.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import PROJECT, Engine
from support.machine import Machine, machine, recap
from support.needs import skip_or_fail

CELL = "torch2.0.1-cu118-py310-ubuntu22.04"
LAB = (
    f"gpu_host_cell: {CELL}",
    "gpu_preflight_lab: true",
    "torch_env_state: absent",
    "compile_check_state: absent",
)


@pytest.fixture(scope="module")
def debian12(
    engine: Engine, base_image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    if shutil.which("ssh") is None:
        skip_or_fail("system", "there is no ssh client: apt-get install openssh-client")
    with machine(engine, base_image("12"), tmp_path_factory.mktemp("debian12")) as found:
        yield found


def packages(found: Machine) -> str:
    return found.inside("dpkg-query", "-W").stdout


@pytest.mark.images
def test_a_lab_machine_is_set_up_once_and_checked_truthfully(debian12: Machine) -> None:
    """Refused, checked, run, run again, checked again: in this order on one machine."""
    bare = packages(debian12)
    assert "docker.io" not in bare

    refused = debian12.play(variables=[line for line in LAB if "lab" not in line])
    assert recap(refused) == (0, 1)
    assert "The host was left untouched." in refused.stdout
    assert "gpu.none" in refused.stdout
    assert packages(debian12) == bare

    before = debian12.play("--check", "--diff", variables=LAB)
    changed, failed = recap(before)
    assert failed == 0, before.stdout
    assert changed >= 1, before.stdout
    assert packages(debian12) == bare

    first = debian12.play(variables=LAB)
    assert recap(first)[1] == 0, first.stdout
    assert recap(first)[0] >= 1
    assert debian12.inside("systemctl", "is-active", "docker").stdout.strip() == "active"
    answered = debian12.inside("docker", "version", "--format", "{{.Server.Version}}")
    assert answered.returncode == 0, answered.stderr
    # A host without a GPU gets neither driver nor NVIDIA's toolkit for containers.
    assert "nvidia" not in packages(debian12)

    second = debian12.play(variables=LAB)
    assert recap(second) == (0, 0), second.stdout

    after = debian12.play("--check", "--diff", variables=LAB)
    assert recap(after) == (0, 0), after.stdout


@pytest.mark.images
def test_a_wrong_value_stops_before_the_first_change(debian12: Machine) -> None:
    before = packages(debian12)
    wrong = debian12.play(variables=[*LAB, "container_runtime_engine: dockr"])
    assert wrong.returncode == 2
    assert "dockr" in wrong.stdout
    assert packages(debian12) == before


def test_every_rendered_cell_is_known_to_the_playbook() -> None:
    """The sample inventory names a cell that is there."""
    sample = (PROJECT / "playbooks/inventory/hosts.yml.example").read_text(encoding="utf-8")
    assert f"gpu_host_cell: {CELL}" in sample
    assert Path(PROJECT, "playbooks/vars", f"{CELL}.yml").is_file()
