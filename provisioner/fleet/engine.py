"""Runs one playbook through ansible-runner and hands on its events. No decision is made here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.errors import OutsideError
from provisioner.fleet.inventory import STRICT, program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHILDREN = "ansible.lock"
"""The file in the folder of a run on which every living Ansible process holds a shared lock."""
_TAIL = 2000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `folder` is where its files lie meanwhile; `timeout_s` ends it (null: never)."""

    playbook: Path
    inventory: tuple[str, ...]
    folder: Path
    variables: dict[str, Any] = {}
    forks: int = 10
    vault_password_file: str | None = None
    environ: dict[str, str] = {}
    timeout_s: int | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a playbook ended: Ansible's status, whether it was stopped by us, its last words."""

    status: int
    canceled: bool
    timed_out: bool
    said: str


def playbooks(root: Path) -> Path:
    """The folder of the playbooks: below the output root, in the checkout, in the package."""
    package = Path(__file__).resolve().parents[1]
    for place in (root / "playbooks", package.parent / "playbooks", package / "data" / "playbooks"):
        if (place / "fleet").is_dir():
            return place
    raise OutsideError(
        "fleet.no-playbooks",
        f"There are no playbooks below {root}, nor in this installation.",
        next_step="Name the folder that holds docker/ and playbooks/ with --out.",
    )


def run(
    job: Job, on_event: Callable[[Mapping[str, Any]], None], cancel: Callable[[], bool]
) -> Ended:
    """Runs the playbook to its end; `on_event` gets each event of ansible-runner in order."""
    from ansible_runner.interface import init_runner

    work = job.folder / "runner"
    shutil.rmtree(work, ignore_errors=True)  # a killed controller left it
    work.mkdir(parents=True, mode=0o700)
    try:
        return _run(init_runner, job, work, on_event, cancel)
    finally:
        # It holds the environment, which may hold secrets.
        shutil.rmtree(work, ignore_errors=True)


def _run(
    init_runner: Callable[..., Any],
    job: Job,
    work: Path,
    on_event: Callable[[Mapping[str, Any]], None],
    cancel: Callable[[], bool],
) -> Ended:
    binary = work / "ansible-playbook"
    child = Path(__file__).with_name("child.py")
    words = [sys.executable, "-I", str(child), str(job.folder / CHILDREN), str(os.getpid())]
    line = shlex.join([*words, program("ansible-playbook")])
    binary.write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
    binary.chmod(0o700)
    variables = work / "variables.json"
    variables.write_bytes(msgspec.json.encode(job.variables))
    options = ["--extra-vars", f"@{variables}"]
    if job.vault_password_file:
        options += ["--vault-password-file", str(Path(job.vault_password_file).resolve())]
    # The programs that the playbooks call on the controller lie beside our interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own_checking = "ANSIBLE_HOST_KEY_CHECKING" in os.environ

    broken: list[BaseException] = []

    def keep(event: Mapping[str, Any]) -> bool:
        try:
            if not broken:
                on_event(event)
        except BaseException as error:  # noqa: BLE001 - raised again below, once Ansible has ended
            broken.append(error)
        return False  # nothing of it is written to disk

    runner = init_runner(
        private_data_dir=str(work),
        playbook=str(job.playbook.resolve()),
        inventory=[os.path.abspath(s) if "," not in s else s for s in job.inventory],  # noqa: PTH100
        cmdline=shlex.join(options),
        forks=job.forks,
        envvars={**STRICT, "PATH": path, **job.environ},
        quiet=True,
        host_cwd=os.getcwd(),  # noqa: PTH109 - the user's own ansible.cfg
        timeout=job.timeout_s,
        settings={"pexpect_timeout": 1},
        suppress_env_files=True,
        event_handler=keep,
        cancel_callback=lambda: bool(broken) or cancel(),
    )
    if not own_checking and "ANSIBLE_HOST_KEY_CHECKING" not in job.environ:
        # ansible-runner would switch it off; it is the user's to say.
        runner.config.env.pop("ANSIBLE_HOST_KEY_CHECKING", None)
    # With its own option for another program ansible-runner would send no events.
    runner.config.command[0] = str(binary)
    runner.run()
    if broken:
        raise broken[0]
    return Ended(
        status=runner.rc if runner.rc is not None else 254,
        canceled=runner.canceled,
        timed_out=runner.timed_out,
        said=_last_words(work),
    )


def _last_words(work: Path) -> str:
    texts = []
    for path in sorted(work.glob("artifacts/*/std*")):
        text = path.read_text("utf-8", "replace").strip()
        if text:
            texts.append(text[-_TAIL:])
    return "\n".join(texts)


def result_of(event: Mapping[str, Any]) -> tuple[str, str, str, Mapping[str, Any]]:
    """Kind, host, task and result of an event; empty where it has none."""
    data = event.get("event_data") or {}
    result = data.get("res")
    return (
        str(event.get("event", "")),
        str(data.get("host") or ""),
        str(data.get("task") or ""),
        result if isinstance(result, dict) else {},
    )
