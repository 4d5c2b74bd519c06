"""Environment, compile check and state on a Debian 12 machine, over ssh as an ordinary user.

torch is the real one for the CPU, from an index that the machine reaches over the connection of
the playbook. A lab without a GPU, so that nothing is installed for one.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.engine import Engine
from support.hostwheels import CELL, fetch_cell, served
from support.machine import Machine, machine, recap
from support.needs import UnavailableError, skip_or_fail

FACT = "/etc/ansible/facts.d/provision.fact"
PREFIX = "/opt/provision/env"


@pytest.fixture(scope="module")
def debian12(
    engine: Engine, base_image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    if shutil.which("ssh") is None:
        skip_or_fail("system", "there is no ssh client: apt-get install openssh-client")
    with machine(engine, base_image("12"), tmp_path_factory.mktemp("debian12")) as found:
        yield found


@pytest.fixture(scope="module")
def lab(debian12: Machine) -> Iterator[list[str]]:
    try:
        folder = fetch_cell()
    except UnavailableError as error:
        skip_or_fail("network", str(error))
    with served(folder) as variables:
        yield [
            *variables,
            f"gpu_host_cell: {CELL}",
            "gpu_preflight_lab: true",
            "container_runtime_engine: none",
            f"compile_check_reports: {debian12.folder}/reports",
        ]


def fact(found: Machine) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(found.inside("cat", FACT).stdout)
    return told


def named(play: str, task: str) -> str:
    """What a run says of one task."""
    return play.split(f" : {task}]", 1)[1].split("\nTASK", 1)[0]


@pytest.mark.images
@pytest.mark.timeout(1500)
def test_a_host_comes_to_its_cell_and_stays_there(debian12: Machine, lab: Sequence[str]) -> None:
    """Checked bare, run, run again, checked, broken, mended: in this order on one machine."""
    before = debian12.play("--check", "--diff", variables=lab)
    changed, failed = recap(before)
    assert (failed, changed > 0) == (0, True), before.stdout
    assert debian12.inside("test", "-e", "/opt/provision").returncode == 1

    first = debian12.play(variables=lab)
    assert recap(first)[1] == 0, first.stdout
    owner = debian12.inside("stat", "-Lc", "%U", f"{PREFIX}/bin", "/usr/local/lib/provision/tool")
    assert owner.stdout.split() == ["provision", "root"]
    report = json.loads((debian12.folder / "reports/target.json").read_bytes())
    assert (report["verdict"], report["device"]) == ("verified", "cpu")
    assert report["details"]["user"]["name"] == "provision"
    kept = fact(debian12)
    assert (kept["state"], kept["cell"], kept["result"]) == ("done", CELL, "verified")
    assert kept["versions"]["torch"] == "2.13.0+cpu"
    assert kept["live"]["environment"].startswith(f"{PREFIX}.d/")

    second = debian12.play(variables=lab)
    assert recap(second) == (0, 0), second.stdout
    assert "Hold it against the cell" not in second.stdout  # it ended before

    recheck = debian12.play(variables=[*lab, "gpu_host_recheck: true"])
    assert recap(recheck) == (0, 0), recheck.stdout
    assert "Prove that torch.compile works" in recheck.stdout
    assert fact(debian12) == kept

    after = debian12.play("--check", "--diff", variables=[*lab, "gpu_host_recheck: true"])
    assert recap(after) == (0, 0), after.stdout


@pytest.mark.images
@pytest.mark.timeout(1500)
def test_what_differs_is_seen_and_mended(debian12: Machine, lab: Sequence[str]) -> None:
    kept = fact(debian12)
    site = f"{PREFIX}/lib/python3.11/site-packages"
    debian12.inside("sh", "-c", f"echo >> {site}/filelock/__init__.py")
    told = debian12.play(
        "--check", "--tags", "environment", variables=[*lab, "gpu_host_recheck: true"]
    )
    assert recap(told) == (1, 0), told.stdout
    debian12.inside("rm", PREFIX)  # the link alone: the state on the host still says done
    mended = debian12.play(variables=[*lab, "compile_check_state: unmanaged"])
    changed, failed = recap(mended)
    assert (failed, changed > 0) == (0, True), mended.stdout
    now = fact(debian12)
    assert now["state"] == "done"
    assert now["digest"] != kept["digest"]
    assert now["previous"]["digest"] == kept["digest"]
    assert debian12.inside(f"{PREFIX}/bin/python", "-c", "import filelock, torch").returncode == 0
