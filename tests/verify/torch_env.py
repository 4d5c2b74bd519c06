"""A real environment with torch for the CPU, kept in .cache/venvs, and runs of the probe in it."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine import PROJECT
from support.needs import UnavailableError
from support.pythons import has_headers, interpreter
from support.wheelhouse import TORCH_CPU, fetch_torch_cpu

from provisioner.verify import probe

VENVS = PROJECT / ".cache" / "venvs"
PROBE = Path(probe.__file__)
# Variables that would change what a run of the probe finds.
CLEARED = (*probe.WATCHED, *probe.WATCHED_NAMES, "PYTHON", "ATEN_")
# Saves the vector-unit probes and the precompiled header where they are not what is tested.
NO_PROBES = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
QUICK = NO_PROBES | {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
KEPT = ("HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build of torch that tests judge, and what an environment around it holds.

    `local` is its `__version__`, `cuda` the CUDA that it was built for, `other_torchvision` one
    that was built for another torch. Without `requirements` the CPU wheel of the tests is taken.
    """

    torch: str
    local: str
    cuda: str | None
    python: str
    requirements: tuple[str, ...] = ()
    other_torchvision: str

    @property
    def release(self) -> tuple[int, int]:
        """Its first two numbers."""
        return probe.release(self.torch)

    @property
    def promise(self) -> dict[str, Any]:
        """What a rendered cell would promise of it."""
        return {
            "name": f"torch{self.torch}-of-the-tests",
            "torch": self.torch,
            "local_version": self.local,
            "cuda": self.cuda,
            "python": self.python,
            "compile": self.release >= (2, 0),
            "device": "cuda" if self.cuda else "cpu",
            "torchvision": None,
            "torchaudio": None,
        }


_OLD = ("numpy<2", "setuptools<70")
_LATER = ("numpy", "setuptools<81")


def _built(torch: str, cuda: str, python: str, requirements: tuple[str, ...], other: str) -> Build:
    local = f"{torch}+cu{cuda.replace('.', '')}"
    return Build(
        torch=torch,
        local=local,
        cuda=cuda,
        python=python,
        requirements=requirements,
        other_torchvision=other,
    )


BUILDS = {
    build.torch: build
    for build in (
        Build(
            torch=TORCH_CPU,
            local=f"{TORCH_CPU}+cpu",
            cuda=None,
            python="3.11",
            other_torchvision="0.27.1",
        ),
        _built("1.13.1", "11.7", "3.9", _OLD, "0.15.2"),
        _built("2.0.1", "11.7", "3.9", _OLD, "0.16.2"),
        _built("2.1.2", "12.1", "3.10", _OLD, "0.15.2"),
        _built("2.4.1", "12.1", "3.11", _LATER, "0.18.1"),
        _built("2.6.0", "12.4", "3.12", _LATER, "0.20.1"),
        _built("2.15.0", "13.2", "3.13", ("numpy",), "0.28.0"),
    )
}
"""The package index's own builds, but for the CPU wheel; all are judged on the CPU."""


def make_environment(torch: str = TORCH_CPU) -> Path:
    """Return the interpreter of a venv with a build of torch and numpy, without pip.

    Made once and kept; its name carries a hash of what is in it. Raises UnavailableError.
    """
    build = BUILDS[torch]
    python = interpreter(f"python{build.python}")
    if python is None or not has_headers(python):
        raise UnavailableError(
            f"no Python {build.python} with its headers (Python.h) is on this machine"
        )
    if build.requirements:
        wanted = [f"torch=={torch}", *build.requirements]
    else:
        wanted = [str(fetch_torch_cpu(PROJECT / ".cache" / "wheelhouse")), "numpy"]
    named = [Path(word).name for word in wanted]
    content = " ".join([*named, str(Path(python).resolve())])
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    folder = VENVS / f"torch{torch}-{'cuda' if build.cuda else 'cpu'}-{key}"
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([python, "-m", "venv", "--without-pip", str(folder)], torch)
            install(folder / "bin" / "python", wanted)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def install(python: Path, requirements: Sequence[str], *options: str) -> None:
    """Install into the environment of `python`, or elsewhere by `--target`."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--quiet", "--no-cache", f"--python={python}", *options]
    _run([*command, *requirements], " ".join(requirements))


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise UnavailableError(f"an environment with {what} cannot be made: {last}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of the probe ended with."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    def check(self, name: str) -> dict[str, Any]:
        """The record of one check."""
        return next(check for check in self.report["checks"] if check["id"] == name)

    @property
    def decided(self) -> str:
        """The id of the check that decided, empty where none failed."""
        failed = [check["id"] for check in self.report["checks"] if check["status"] == "fail"]
        return failed[0] if failed else ""


@dataclass(frozen=True, kw_only=True)
class TorchEnv:
    """An interpreter with torch, and how to run the probe with it."""

    python: Path
    scratch: Path
    build: Build = BUILDS[TORCH_CPU]
    site: Path = field(init=False)
    include: Path = field(init=False)

    def __post_init__(self) -> None:
        script = "import sysconfig as s; print(s.get_path('purelib'), s.get_path('include'))"
        done = subprocess.run(
            [str(self.python), "-c", script], capture_output=True, text=True, check=True
        )
        site, include = done.stdout.split()
        object.__setattr__(self, "site", Path(site))
        object.__setattr__(self, "include", Path(include))

    def probe(
        self,
        *options: str,
        env: Mapping[str, str | None] | None = None,
        inside: tuple[str, ...] = (),
    ) -> Outcome:
        """Run the probe on the CPU; `inside` is a command that runs it, `env` changes variables."""
        report = self.scratch / f"report-{len(list(self.scratch.iterdir()))}.json"
        command = [*inside, str(self.python), str(PROBE), "--device", "cpu"]
        done = subprocess.run(
            [*command, "--report", str(report), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=_environment(env or {}),
            check=False,
        )
        assert report.is_file(), done.stderr
        return Outcome(
            code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            report=json.loads(report.read_text(encoding="utf-8")),
        )

    def run(self, code: str, env: Mapping[str, str | None]) -> str:
        """Run a piece of Python in this environment; what it prints."""
        command = [str(self.python), "-c", code]
        done = subprocess.run(
            command, env=_environment(env), capture_output=True, text=True, check=True
        )
        return done.stdout

    def start_up(self, name: str, code: str) -> dict[str, str | None]:
        """Variables that make every Python of the probe run `code` first, with `phase` set.

        `phase` is "cold" or "warm" in a child and empty in the parent.
        """
        folder = self.scratch / name
        folder.mkdir()
        head = (
            "words = open('/proc/self/cmdline').read().split(chr(0))\n"
            "phase = words[words.index('_child') + 1] if '_child' in words else ''\n"
        )
        (folder / "sitecustomize.py").write_text(head + code)
        return {"PYTHONPATH": str(folder)}


@contextmanager
def copy_of(torch: TorchEnv, scratch: Path) -> Iterator[TorchEnv]:
    """Lend an environment of the same files, by hard links: add and remove files, change none."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=VENVS) as folder:
        other = Path(folder) / "env"
        shutil.copytree(torch.python.parents[1], other, symlinks=True, copy_function=os.link)
        yield TorchEnv(python=other / "bin" / "python", scratch=scratch, build=torch.build)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(CLEARED)
    }
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def mounted(options: str, folder: Path, *command: str) -> tuple[str, ...]:
    """A command prefix: in a mount namespace of its own, with a tmpfs over `folder`."""
    script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    return ("unshare", "-Urm", "sh", "-c", script, "sh", options, str(folder), *command)


def without_namespaces() -> str | None:
    """Why no namespaces can be made here, None where they can."""
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() or None if done.returncode else None
