"""A Debian machine with systemd, as a container that is reached over ssh on 127.0.0.1."""

import hashlib
import os
import re
import socket
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
    systemd-sysv {packages} >/dev/null \\
 && rm -f /usr/sbin/policy-rc.d && ssh-keygen -A \\
 && useradd --create-home --shell /bin/bash ops \\
 && echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops
STOPSIGNAL SIGRTMIN+3
CMD ["/lib/systemd/systemd"]
"""
# systemd needs SYS_ADMIN and a cgroup namespace of its own, dockerd inside the rest. A machine that
# restarts itself comes back, as one does.
OPTIONS = (
    "--cgroupns=private", "--cap-add=SYS_ADMIN", "--cap-add=SYS_BOOT", "--cap-add=NET_ADMIN",
    "--security-opt=seccomp=unconfined", "--volume=/var/lib/docker", "--tmpfs=/run",
    "--tmpfs=/run/lock", "--restart=unless-stopped",
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

    def play(
        self,
        *options: str,
        variables: Sequence[str] = (),
        playbook: str = "gpu_host.yml",
        timeout: float = 500,
    ) -> Completed:
        """Run a playbook of playbooks/ on it as an ordinary user with become."""
        command, environ = self.invocation(*options, variables=variables, playbook=playbook)
        return subprocess.run(
            command,
            cwd=PROJECT / "playbooks",
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def invocation(
        self, *options: str, variables: Sequence[str] = (), playbook: str = "gpu_host.yml"
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and environment of such a run; writes its inventory."""
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
        return ["ansible-playbook", "-i", str(inventory), playbook, *options], environ


def recap(done: Completed) -> tuple[int, int]:
    """How many tasks changed and failed, from the last lines of a run."""
    found = _RECAP.search(done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert found[4] == "0", done.stdout
    return int(found[3]), int(found[5])


def free_port() -> int:
    """A port that was free a moment ago. Docker would choose another one at every restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def machine(
    engine: Engine, base: str, folder: Path, packages: Sequence[str] = ()
) -> Iterator[Machine]:
    """Build the image if need be, start a machine, wait until systemd is up; remove it after.

    `packages` are there from the start, where fetching them is not what the test is about.
    """
    kind = f"-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}" if packages else ""
    image = f"localhost/{PREFIX}:{base.rpartition(':')[2]}{kind}"
    dockerfile = DOCKERFILE.format(base=base, packages=" ".join(packages))
    (folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    built = engine.build(folder, "--tag", image)
    assert built.returncode == 0, built.stderr[-2000:]
    name = f"{PREFIX}-{uuid.uuid4().hex[:10]}"
    port = free_port()
    publish = f"--publish=127.0.0.1:{port}:22"
    started = engine.docker(
        "run", "--detach", "--name", name, "--hostname=target", publish, *OPTIONS, image
    )
    try:
        assert started.returncode == 0, started.stderr
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
