#!/usr/bin/env python3
"""Driver and toolkit of Debian 12's own archive through the roles, on a machine of the test engine.

The module of nvidia-driver is compiled by DKMS against Debian's kernel headers, and a program by
nvcc of nvidia-cuda-toolkit. Loading the module needs a GPU and is left out. Takes 2 GB to fetch,
8 GB of disk and some 10 minutes; writes evidence/debian12-gpu-host/driver-and-toolkit.json.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "tests")]

from support.engine import base_image_name, find_engine  # noqa: E402
from support.gpumachine import lines_of, play_of_role  # noqa: E402
from support.machine import machine, recap  # noqa: E402

if TYPE_CHECKING:
    from support.machine import Machine

SCHEMA = "provision.host-evidence/1"
CELL = PROJECT / "playbooks/vars/torch2.0.1-cu118-py310-ubuntu22.04.yml"
TARGET = PROJECT / "evidence/debian12-gpu-host/driver-and-toolkit.json"
ROLES = ("nvidia_repository", "nvidia_driver", "cuda_toolkit")
PREFLIGHT = {"os": "debian12", "driver": {"gpu": True, "open": False, "nvswitch": False}}
# 535 has ended, so that no cell takes it: it is what the archive has, and what can be built here.
DRIVER = {
    "kind": "archive",
    "packages": ["nvidia-driver", "nvidia-smi", "nvidia-persistenced"],
    "components": ["contrib", "non-free", "non-free-firmware"],
    "signed": False,
}


class FailedError(Exception):
    """A run of a role that did not do what it has to; the message is its output."""


def code() -> str:
    """The hash of the roles that the evidence is about."""
    files = sorted(
        path for role in ROLES for path in (PROJECT / "playbooks/roles" / role).rglob("*.*")
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(PROJECT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def play(found: Machine, role: str, variables: dict[str, Any], *, again: bool = True) -> Any:
    """Run a role, then once more: the second run changes nothing. Returns what it took."""
    playbook = play_of_role(found, role, PREFLIGHT)
    took = []
    for number in range(2 if again else 1):
        begun = time.monotonic()
        done = found.play(variables=lines_of(variables), playbook=playbook, timeout=3000)
        took.append(round(time.monotonic() - begun, 1))
        changed, failed = recap(done)
        if failed or (number and changed):
            raise FailedError(done.stdout[-6000:] + done.stderr[-2000:])
        print(f"{role}: {changed} changed in {took[-1]} s", flush=True)
    return {"seconds": took, "second_run_changed": 0 if again else None}


def said(found: Machine, *command: str) -> str:
    """What a command says; raises FailedError when it fails."""
    done = found.inside(*command)
    if done.returncode:
        raise FailedError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def family(found: Machine) -> list[str]:
    """Installed packages of driver and toolkit, with their versions."""
    rows = said(found, "dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n")
    names = re.compile(r"^installed (\S*nvidia\S*|libcuda1) ")
    return [row.partition(" ")[2] for row in rows.splitlines() if names.match(row)]


def driver(found: Machine) -> dict[str, Any]:
    """Install it; what dkms built for which kernel, and what is held."""
    said(found, "apt-get", "update")
    told = said(found, "apt-cache", "depends", "linux-headers-amd64")
    kernel = str(re.search(r"Depends: linux-headers-(\S+)", told)[1])  # type: ignore[index]
    variables = {
        "nvidia_driver_branch": 535,
        "nvidia_driver_sources": {"debian12": {"535": DRIVER}},
        "nvidia_driver_kernels": [kernel],
        "nvidia_driver_load": False,
    }
    ran = play(found, "nvidia_driver", variables)
    held = said(found, "apt-mark", "showhold").split()
    missing = [p.split()[0] for p in family(found) if p.split()[0] not in held]
    return {
        "variables": variables,
        "kernel": kernel,
        "run": ran,
        "dkms": said(found, "dkms", "status"),
        "module": said(found, "modinfo", "-k", kernel, "-F", "vermagic", "nvidia-current"),
        "version": said(found, "modinfo", "-k", kernel, "-F", "version", "nvidia-current"),
        "held": len(held),
        "not_held": missing,
        "packages": family(found),
    }


def toolkit(found: Machine) -> dict[str, Any]:
    """Install it; the role itself compiles a program, and without its compiler that fails."""
    sources = yaml.safe_load(CELL.read_text(encoding="utf-8"))["cuda_toolkit_sources"]
    variables = {
        "cuda_toolkit_state": "present",
        "cuda_toolkit_series": "11.8",
        "cuda_toolkit_sources": {"debian12": sources["debian12"]},
    }
    ran = play(found, "cuda_toolkit", variables)
    program = "echo 'int main() { return 0; }' > /tmp/x.cu && {} nvcc /tmp/x.cu -o /tmp/x 2>&1"
    good = found.inside("bash", "-lc", program.replace("{}", ""))
    bare = found.inside("bash", "-lc", program.replace("{}", "NVCC_PREPEND_FLAGS="))
    if good.returncode or not bare.returncode:
        raise FailedError(f"with the compiler: {good.stdout}\nwithout: {bare.stdout}")
    return {
        "variables": variables,
        "run": ran,
        "nvcc": said(found, "bash", "-lc", "nvcc --version | tail -n 2"),
        "compiler": said(found, "bash", "-lc", "g++-11 -dumpfullversion"),
        "without_the_compiler_that_fits": bare.stdout.strip().splitlines()[:2],
    }


def main() -> int:
    """Run it all on one machine; 0 when everything was as it has to be."""
    engine = find_engine()
    with (
        tempfile.TemporaryDirectory() as folder,
        machine(engine, base_image_name(engine, "12"), Path(folder)) as found,
    ):
        try:
            seen = {"driver": driver(found), "toolkit": toolkit(found)}
            gone = {"cuda_toolkit_state": "absent"}
            variables = {**seen["toolkit"]["variables"], **gone}
            removed = {"toolkit": play(found, "cuda_toolkit", variables)}
            variables = {**seen["driver"]["variables"], "nvidia_driver_state": "absent"}
            removed["driver"] = play(found, "nvidia_driver", variables)
            left = family(found)
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
    document = {"schema": SCHEMA, "code": code(), **seen, "removed": removed, "left": left}
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(TARGET.relative_to(PROJECT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
