"""A fleet of small machines reached over ssh: containers, each with its own files and sshd."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.engine import PROJECT, Completed, Engine
from support.machine import DOCKERFILE, PREFIX, free_port

CELL = "torch2.13.0-cpu-py311-debian12-basepy"
STEP = PROJECT / "tests" / "fleet" / "data" / "step.yml"
SITE = "/opt/site"
# The drain of the tests: what it did is in the log, and a file makes it fail.
HOOKS: dict[str, Any] = {
    "provision_fleet_drain": "command",
    "provision_fleet_drained_command": ["test", "-e", f"{SITE}/drained"],
    "provision_fleet_drain_command": [
        "sh",
        "-c",
        (
            f"mkdir -p {SITE} && cd {SITE} && test ! -e drain-fails && touch drained"
            " && echo drain >> log"
        ),
    ],
    "provision_fleet_undrain_command": [
        "sh",
        "-c",
        f"rm -f {SITE}/drained && echo undrain >> {SITE}/log",
    ],
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """One machine: its name in the inventory, its container and port."""

    name: str
    container: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Machines that run, and the folder of their key."""

    engine: Engine
    boxes: tuple[Box, ...]
    folder: Path

    def inside(self, name: str, script: str) -> Completed:
        """Run a shell script as root on a machine, past ssh."""
        return self.engine.docker("exec", self.container(name), "sh", "-c", script)

    def container(self, name: str) -> str:
        """The container of a machine."""
        return next(box.container for box in self.boxes if box.name == name)

    def reset(self) -> None:
        """Everything that rollouts leave is gone from all machines, which run."""
        for box in self.boxes:
            self.engine.docker("start", box.container)
            gone = f"{SITE} /etc/ansible /var/lib/provision-rollout"
            self.inside(box.name, f"pkill -u ops; rm -rf {gone}; mkdir -p {SITE}")

    def inventory(self, path: Path, **variables: Any) -> Path:
        """Write an inventory of all machines; `variables` are set for all."""
        hosts = {
            box.name: {"ansible_host": "127.0.0.1", "ansible_port": box.port} for box in self.boxes
        }
        told = {
            "ansible_user": "ops",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_become": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            "provision_fleet_step": str(STEP),
            **HOOKS,
            **variables,
        }
        tree = {"all": {"children": {"gpu_hosts": {"hosts": hosts}}, "vars": told}}
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return path

    def state(self, name: str) -> dict[str, Any]:
        """What a rollout left on a machine, without what differs from run to run."""
        script = f"""cat /etc/ansible/facts.d/provision_rollout.fact 2>/dev/null || echo '{{}}'
            echo; cat {SITE}/cell 2>/dev/null; ls {SITE} /var/lib/provision-rollout 2>/dev/null"""
        fact, _, rest = self.inside(name, script).stdout.partition("\n")
        found = json.loads(fact)
        kept = {key: found.get(key) for key in ("state", "cell", "digest", "previous", "reason")}
        return {**kept, "rest": rest}

    def log(self, name: str) -> list[str]:
        """What was done to a machine, one line each."""
        return self.inside(name, f"cat {SITE}/log 2>/dev/null").stdout.splitlines()


@dataclass(frozen=True, kw_only=True)
class Site:
    """A fleet folder with its inventory: where `provision fleet` works."""

    boxes: Boxes
    fleet: Path
    inventory: Path

    def call(self, *words: str, inventory: bool = True, timeout: float = 180) -> Completed:
        """Run `provision fleet` to its end."""
        return subprocess.run(
            self._words(*words, inventory=inventory),
            cwd=PROJECT,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `provision fleet` and hand back its process."""
        return subprocess.Popen(
            self._words(*words, inventory=True),
            cwd=PROJECT,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _words(self, *words: str, inventory: bool) -> list[str]:
        program = [sys.executable, "-m", "provisioner", "fleet", *words, "--fleet", str(self.fleet)]
        return [*program, "-i", str(self.inventory)] if inventory else program

    def environ(self) -> Mapping[str, str]:
        """Settings of Ansible for machines that live minutes."""
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "playbooks" / "ansible.cfg"),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_SSH_ARGS": "-o UserKnownHostsFile=/dev/null -o ControlMaster=auto "
            "-o ControlPersist=60s -o ServerAliveInterval=2 -o ServerAliveCountMax=2",
            "ANSIBLE_TIMEOUT": "5",
            "ANSIBLE_LOCAL_TEMP": str(self.boxes.folder / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.boxes.folder / "cp"),
        }

    def plan(self, *options: str) -> str:
        """Plan; returns the name of the plan."""
        words = ["plan", "--cell", CELL, "--lab", "--first", "1", *options, "--json"]
        done = self.call(*words, inventory=False)
        assert done.returncode == 0, done.stdout + done.stderr
        name: str = json.loads(done.stdout)["id"]
        return name

    @property
    def plan_file(self) -> str:
        """Where the plan is."""
        return str(self.fleet / "plan.json")

    def records(self, name: str) -> list[dict[str, Any]]:
        """The ledger of a rollout, none where it was not begun."""
        path = self.fleet / name / "ledger.jsonl"
        if not path.exists():
            return []
        whole = path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def states(self, name: str) -> dict[str, str]:
        """The last state of each host in a ledger."""
        return {r["host"]: r["state"] for r in self.records(name) if r["kind"] == "host"}


@contextmanager
def running(engine: Engine, base: str, folder: Path, names: Sequence[str]) -> Iterator[Boxes]:
    """Start machines, one for each name; remove them after."""
    image = f"localhost/{PREFIX}:{base.rpartition(':')[2]}"
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base, packages=""), encoding="utf-8")
    built = engine.build(folder, "--tag", image)
    assert built.returncode == 0, built.stderr[-2000:]
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True
    )
    public = (folder / "key.pub").read_text(encoding="ascii").strip()
    script = (
        "mkdir -p /run/sshd && install -d -o ops -m 700 /home/ops/.ssh"
        ' && echo "$1" > /home/ops/.ssh/authorized_keys && exec /usr/sbin/sshd -D'
    )
    boxes = []
    try:
        for name in names:
            port, container = free_port(), f"{PREFIX}-fleet-{uuid.uuid4().hex[:10]}"
            options = ["--detach", "--init", "--name", container, "--hostname", name]
            options += [f"--publish=127.0.0.1:{port}:22"]
            boxes.append(Box(name=name, container=container, port=port))
            started = engine.docker("run", *options, image, "sh", "-c", script, "sh", public)
            assert started.returncode == 0, started.stderr
        yield Boxes(engine=engine, boxes=tuple(boxes), folder=folder)
    finally:
        for box in boxes:
            engine.docker("rm", "--force", "--volumes", box.container)


def site_of(boxes: Boxes, folder: Path, facts: Path | None, **variables: Any) -> Site:
    """A fleet folder of its own, with facts that were read before."""
    fleet = folder / "fleet"
    fleet.mkdir()
    if facts is not None:
        shutil.copy(facts, fleet / "facts.jsonl")
    return Site(
        boxes=boxes, fleet=fleet, inventory=boxes.inventory(folder / "hosts.yml", **variables)
    )


def wait_for(condition: Any, seconds: float = 60) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
