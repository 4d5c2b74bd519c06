"""What every role keeps to, read from its files; ansible-lint and Ansible's own syntax check."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.engine import PROJECT
from support.needs import needs

PLAYBOOKS = PROJECT / "playbooks"
ROLES = sorted(path for path in (PLAYBOOKS / "roles").iterdir() if path.is_dir())
BIN = PROJECT / ".venv" / "bin"
LINT = shutil.which("ansible-lint", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def tasks_of(role: Path) -> list[dict[str, Any]]:
    """Every task of a role, those in blocks too."""
    found: list[dict[str, Any]] = []
    waiting = [task for path in sorted((role / "tasks").glob("*.yml")) for task in load(path)]
    while waiting:
        task = waiting.pop(0)
        found.append(task)
        for part in ("block", "rescue", "always"):
            waiting += task.get(part, [])
    return found


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_is_specified_prefixed_and_documented(role: Path) -> None:
    defaults = load(role / "defaults/main.yml")
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    assert all(name.startswith(f"{role.name}_") for name in defaults)
    lines = (role / "defaults/main.yml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(rf"{role.name}_\w+:", line):
            assert lines[number - 1].startswith("#"), line


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_only_builtin_modules_no_shell_and_honest_changes(role: Path) -> None:
    for task in tasks_of(role):
        modules = [key for key in task if "." in key]
        assert all(key.startswith("ansible.builtin.") for key in modules), task
        assert "ansible.builtin.shell" not in task, task["name"]
        assert "ansible.builtin.raw" not in task, task["name"]
        for module in ("ansible.builtin.command", "ansible.builtin.script"):
            if module in task:
                honest = "changed_when" in task or "creates" in task[module]
                assert honest, task["name"]
        ignored = task.get("ignore_errors")
        assert ignored in (None, "{{ ansible_check_mode }}"), task["name"]


def test_no_handler_restarts_a_machine() -> None:
    """A failure after the notification would lose it, and the host would never restart."""
    for role in ROLES:
        for path in role.glob("handlers/*.yml"):
            assert "ansible.builtin.reboot" not in path.read_text(encoding="utf-8"), path


def test_the_hold_comes_after_every_change_of_held_packages() -> None:
    """allow_change_held_packages drops the hold."""
    tasks = load(PLAYBOOKS / "roles/nvidia_driver/tasks/apt.yml")
    changing = [
        n
        for n, task in enumerate(tasks)
        if task.get("ansible.builtin.apt", {}).get("allow_change_held_packages")
    ]
    holding = [n for n, t in enumerate(tasks) if "'apt-mark', 'hold'" in str(t)]
    assert changing
    assert holding == [len(tasks) - 1]


def test_the_reader_in_the_role_is_the_one_of_the_tool() -> None:
    inside = PLAYBOOKS / "roles/gpu_preflight/files/facts.py"
    assert inside.read_bytes() == (PROJECT / "provisioner/host/facts.py").read_bytes()


def environ(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def test_ansible_takes_the_playbook(tmp_path: Path) -> None:
    command = [str(BIN / "ansible-playbook"), "--syntax-check", "-i", "x,", "gpu_host.yml"]
    done = subprocess.run(
        command, cwd=PLAYBOOKS, env=environ(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs("system", missing=LINT is None, reason="no ansible-lint: tools/bootstrap.sh dev")
def test_the_production_profile_of_ansible_lint_passes(tmp_path: Path) -> None:
    assert LINT is not None
    done = subprocess.run(
        [LINT, "--offline", "--nocolor", "--profile", "production", "."],
        cwd=PLAYBOOKS,
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
