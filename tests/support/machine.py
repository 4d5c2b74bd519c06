"""A Debian machine with systemd, as a container that is reached over ssh on 127.0.0.1."""

import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.engine import PROJECT, Completed, Engine

PREFIX = "provision-host-test"
DOCKERFILE = """\
FROM {base}
RUN apt-get update -qq \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \\
    ca-certificates dbus iproute2 openssh-server procps python3 python3-apt sudo systemd \\
    systemd-sysv >/dev/null \\
 && rm -f /usr/sbin/policy-rc.d && ssh-keygen -A \\
 && useradd --create-home --shell /bin/bash ops \\
 && echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops
STOPSIGNAL SIGRTMIN+3
CMD ["/lib/systemd/systemd"]
"""
# systemd needs SYS_ADMIN and a cgroup namespace of its own, dockerd inside the rest.
OPTIONS = (
    "--cgroupns=private", "--cap-add=SYS_ADMIN", "--cap-add=SYS_BOOT", "--cap-add=NET_ADMIN",
    "--security-opt=seccomp=unconfined", "--volume=/var/lib/docker", "--tmpfs=/run",
    "--tmpfs=/run/lock", "--publish=127.0.0.1::22",
)  # fmt: skip
_RECAP = re.compile(
    r"^(\S+)\s*: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A running machine, with the folder that holds its key and inventory."""

    engine: Engine
    name: str
    port: int
    folder: Path

    def inside(self, *command: str) -> Completed:
        """Run a command as root, past ssh."""
        return self.engine.docker("exec", self.name, *command)

    def play(self, *options: str, variables: Sequence[str] = ()) -> Completed:
        """Run playbooks/gpu_host.yml on it as an ordinary user with become."""
        inventory = self.folder / "hosts.yml"
        lines = "".join(f"    {line}\n" for line in variables)
        inventory.write_text(
            "gpu_hosts:\n  hosts:\n    target:\n      ansible_host: 127.0.0.1\n"
            f"      ansible_port: {self.port}\n      ansible_user: ops\n"
            f"      ansible_ssh_private_key_file: {self.folder}/key\n  vars:\n{lines}",
            encoding="utf-8",
        )
        bin_folder = PROJECT / ".venv" / "bin"
        environ = {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "playbooks" / "ansible.cfg"),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_SSH_ARGS": "-o UserKnownHostsFile=/dev/null -o ControlMaster=auto "
            "-o ControlPersist=60s",
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        }
        command = ["ansible-playbook", "-i", str(inventory), "gpu_host.yml", *options]
        return subprocess.run(
            command,
            cwd=PROJECT / "playbooks",
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )


def recap(done: Completed) -> tuple[int, int]:
    """How many tasks changed and failed, from the last lines of a run."""
    found = _RECAP.search(done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert found[4] == "0", done.stdout
    return int(found[3]), int(found[5])


@contextmanager
def machine(engine: Engine, base: str, folder: Path) -> Iterator[Machine]:
    """Build the image if need be, start a machine, wait until systemd is up; remove it after."""
    image = f"localhost/{PREFIX}:{base.rpartition(':')[2]}"
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base), encoding="utf-8")
    built = engine.build(folder, "--tag", image)
    assert built.returncode == 0, built.stderr[-2000:]
    name = f"{PREFIX}-{uuid.uuid4().hex[:10]}"
    started = engine.docker("run", "--detach", "--name", name, "--hostname=target", *OPTIONS, image)
    try:
        assert started.returncode == 0, started.stderr
        port = int(engine.docker("port", name, "22/tcp").stdout.split(":")[-1])
        _give_key(engine, name, folder)
        found = Machine(engine=engine, name=name, port=port, folder=folder)
        _wait(found)
        yield found
    finally:
        engine.docker("rm", "--force", "--volumes", name)


def _give_key(engine: Engine, name: str, folder: Path) -> None:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text(encoding="ascii").strip()
    script = 'install -d -o ops -m 700 /home/ops/.ssh && echo "$1" > /home/ops/.ssh/authorized_keys'
    given = engine.docker("exec", name, "sh", "-c", script, "sh", public)
    assert given.returncode == 0, given.stderr


def _wait(found: Machine) -> None:
    for _ in range(60):
        state = found.inside("systemctl", "is-system-running", "--wait").stdout.strip()
        if state in ("running", "degraded"):
            return
        time.sleep(1)
    raise AssertionError("systemd did not come up in a minute")
