"""Wheels that a test machine installs, served to it over the ssh connection of the playbook."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.engine import PROJECT
from support.needs import UnavailableError
from support.wheelhouse import TORCH_CPU, fetch_torch_cpu, serve_wheels

CELL = "torch2.13.0-cpu-py311-debian12-basepy"
TOOL_LOCK = PROJECT / "provisioner" / "host" / "requirements.txt"
_FOLDER = PROJECT / ".cache" / "wheelhouse-hosts"
_PIN = re.compile(r"^([a-z0-9-]+)==([^ ;\\]+)", re.MULTILINE)


def fetch(locks: Sequence[Path], python: str) -> Path:
    """Return a folder with the wheels of locks for a Python series, fetched by hash where missing.

    Raises UnavailableError.
    """
    folder = _FOLDER / python
    for lock in locks:
        pins = _PIN.findall(lock.read_text(encoding="utf-8"))
        if all(any(folder.glob(f"{n.replace('-', '_')}-{v}-*.whl")) for n, v in pins):
            continue
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--quiet",
        ]
        command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir"]
        command += [f"--python-version={python}", "--implementation=cp", f"--dest={folder}"]
        command += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)]
        done = subprocess.run(
            [*command, f"--requirement={lock}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
            raise UnavailableError(f"pip does not fetch what {lock.name} names: {last}")
    return folder


def fetch_cell() -> Path:
    """Return a folder with all that a host needs for the CPU cell of Python 3.11."""
    locks = [TOOL_LOCK, PROJECT / "lockfiles" / CELL / "requirements.txt"]
    folder = fetch(locks, "3.11")
    torch = fetch_torch_cpu(PROJECT / ".cache" / "wheelhouse", TORCH_CPU)
    link = folder / torch.name
    if not link.exists():
        link.hardlink_to(torch)
    return folder


@contextmanager
def served(folder: Path) -> Iterator[list[str]]:
    """Serve wheels; yields inventory variables that let a host reach them as both indexes."""
    with serve_wheels(folder) as url:
        place = urlsplit(url).netloc
        yield [
            f"torch_env_mirrors: {{package_index: '{url}', torch_index: '{url}'}}",
            f"ansible_ssh_extra_args: -R {place}:{place}",
        ]
