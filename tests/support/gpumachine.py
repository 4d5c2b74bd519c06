"""A test machine with a GPU on its PCI bus, a repository of NVIDIA's and a mirror's kernel headers.

Below the line of facts nothing is real: the PCI bus is a folder, and "loading the module" is a file
in /sys/module that only a start of the machine writes, from the module that dkms really built.
Everything above it is: packages, apt, dkms, its compiler, systemd, ssh.
"""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support.aptrepo import Key
from support.engine import Completed
from support.machine import Machine

URL = "http://127.0.0.1:8080"
FOLDER = "debian12/x86_64"
REPOSITORY_UNIT = """\
[Unit]
Description=Stand-in for the vendor's repository
[Service]
ExecStart=/usr/bin/python3 -m http.server --bind 127.0.0.1 --directory /srv/vendor 8080
[Install]
WantedBy=multi-user.target
"""
GPU_UNIT = """\
[Unit]
Description=Stand-in for a GPU and its loaded module
DefaultDependencies=no
After=local-fs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/stand-in-gpu
[Install]
WantedBy=basic.target
"""
GPU_SCRIPT = """\
#!/bin/sh -e
gpu=/run/stand-in/pci/0000:17:00.0
mkdir -p $gpu /run/stand-in/module
echo 0x10de > $gpu/vendor; echo 0x20b2 > $gpu/device; echo 0x030200 > $gpu/class
mount --bind /run/stand-in/pci /sys/bus/pci/devices
mount --bind /run/stand-in/module /sys/module
for kernel in /lib/modules/*-amd64; do
  version=$(modinfo -k "${kernel##*/}" -F version nvidia 2>/dev/null) || continue
  mkdir -p /run/stand-in/module/nvidia; echo "$version" > /run/stand-in/module/nvidia/version
done
"""


def put(found: Machine, files: dict[str, bytes]) -> None:
    """Write files of root's into a machine; those below sbin are programs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755 if "/sbin/" in path else 0o644
            archive.addfile(entry, io.BytesIO(content))
    packed = found.folder / "put.tar"
    packed.write_bytes(stream.getvalue())
    found.engine.docker("cp", str(packed), f"{found.name}:/var/tmp/put.tar")
    done = found.inside("tar", "-C", "/", "-xf", "/var/tmp/put.tar")
    assert done.returncode == 0, done.stderr
    found.inside("rm", "/var/tmp/put.tar")


def publish(found: Machine, folder: Path, key: Key, key_file: str = "vendor.pub") -> None:
    """Serve the repository of `folder`, with a key beside it, as the vendor does."""
    place = f"/srv/vendor/{FOLDER}"
    files = {f"{place}/{p.name}": p.read_bytes() for p in folder.iterdir() if p.is_file()}
    put(found, {**files, f"{place}/{key_file}": key.armoured()})


def equip(found: Machine) -> None:
    """Give the machine its GPU, and the server of its repository."""
    put(
        found,
        {
            "/etc/systemd/system/vendor.service": REPOSITORY_UNIT.encode(),
            "/etc/systemd/system/stand-in-gpu.service": GPU_UNIT.encode(),
            "/usr/local/sbin/stand-in-gpu": GPU_SCRIPT.encode(),
        },
    )
    done = found.inside("systemctl", "enable", "--now", "vendor", "stand-in-gpu")
    assert done.returncode == 0, done.stderr


def play_of_role(found: Machine, role: str, preflight: dict[str, Any]) -> str:
    """Write a playbook of one role, told what preflight found out; returns its path."""
    gathered = {"gather_subset": ["!all", "!min", "distribution", "pkg_mgr", "kernel"]}
    play = {
        "name": "One role",
        "hosts": "gpu_hosts",
        "gather_facts": False,
        "become": True,
        "vars": {"gpu_preflight_result": preflight},
        "tasks": [
            {"name": "Facts", "ansible.builtin.setup": gathered},
            {"name": "Role", "ansible.builtin.import_role": {"name": role}},
        ],
    }
    path = found.folder / f"{role}.yml"
    path.write_text(yaml.safe_dump([play]), encoding="utf-8")
    return str(path)


def lines_of(values: dict[str, Any]) -> Sequence[str]:
    """Variables as lines of an inventory."""
    return [f"{name}: {json.dumps(value)}" for name, value in values.items()]


def said(done: Completed) -> str:
    """What a run said, without the breaks that a narrow screen puts in."""
    return " ".join((done.stdout + done.stderr).split())
