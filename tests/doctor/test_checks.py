"""Every check by table: a condition in which it fails, one in which it passes."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cells import cell_of, shipped

from doctor.conditions import CONDITIONS, GOOD, Condition, changed_facts
from provisioner.doctor.facts import facts_from, read_facts
from provisioner.doctor.model import Result
from provisioner.doctor.registry import CHECKS, examine
from provisioner.doctor.seen import Seen
from provisioner.errors import UsageError
from provisioner.matrix.index import index_of


def seen(facts: dict[str, Any], cell: dict[str, str] | None = None) -> Seen:
    found = None if cell is None else cell_of(**cell)[0]
    return Seen(facts_from(facts), index_of(shipped()), found)


def result_of(condition: Condition) -> Result:
    (found,) = examine(seen(changed_facts(condition.changed), condition.cell), [condition.id])
    return found


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: f"{c.id}-{c.status}-{c.severity}")
def test_a_check_answers_as_its_condition_asks(condition: Condition) -> None:
    found = result_of(condition)
    assert (found.status, found.severity) == (condition.status, condition.severity), found


def test_every_check_has_been_seen_to_fail_and_to_pass() -> None:
    for check in CHECKS:
        told = {c.status for c in CONDITIONS if c.id == check.id}
        assert {"fail", "pass"} <= told, check.id


def test_nothing_is_wrong_with_a_good_host() -> None:
    failed = [result for result in examine(seen(GOOD)) if result.status == "fail"]
    assert failed == []


def failures() -> Iterator[Result]:
    for condition in CONDITIONS:
        if condition.status == "fail":
            yield result_of(condition)


def test_a_failure_has_all_that_a_reader_needs() -> None:
    for found in failures():
        for part in (found.evidence, found.reason, found.remedy):
            assert part, found.id
        assert found.commands, found.id
        assert found.source, found.id


PROGRAMS = {
    "cat", "chmod", "conda", "docker", "echo", "env", "export", "grep", "id", "ls", "lscpu",
    "mkdir", "mokutil", "nvidia-smi", "provision", "strings", "sudo", "unset", "which",
    "/opt/env/bin/python",
}  # fmt: skip
UNDER_SUDO = {
    "apt-get", "apt-mark", "dkms", "dmesg", "dnf", "ldconfig", "ln", "modprobe", "mokutil", "mount",
    "nvidia-ctk", "nvidia-modprobe", "reboot", "rm", "systemctl", "tee", "update-initramfs",
}  # fmt: skip


def parse_provision(words: list[str], command: str) -> None:
    import click

    from provisioner.cli.main import cli

    context = click.Context(cli, info_name="provision")
    found: click.Command = cli
    while isinstance(found, click.Group):
        name, child, words = found.resolve_command(context, words)
        assert child is not None, command
        context = click.Context(child, info_name=name, parent=context)
        found = child
    found.parse_args(context, list(words))


def test_every_remedy_is_a_command() -> None:
    """The shell reads it, its program is one that exists, and our own know their options."""
    commands = {command for found in failures() for command in found.commands}
    assert len(commands) > 60
    script = "\n".join(sorted(commands))
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in commands:
        for part in command.replace("2>&1", "").split("|" if "|" in command else "&&"):
            words = shlex.split(part)
            assert words[0] in PROGRAMS, command
            if words[0] == "sudo":
                assert words[1] in UNDER_SUDO, command
            if words[0] == "provision":
                parse_provision(words[1:], command)


def test_harmless_remedies_alone_may_be_run() -> None:
    from provisioner.doctor.fix import HARMLESS

    offered = [argv for found in failures() for argv in found.fix]
    assert offered
    for argv in offered:
        assert argv[0] in HARMLESS
        assert "--" in argv[:-1], "a path that begins with a dash is no option"


def test_what_cannot_be_read_is_never_a_finding() -> None:
    """Facts that say nothing at all, as of a host that tells nothing."""
    nothing = {"schema": "provision.host-facts/1"}
    for result in examine(seen(nothing)):
        assert result.status in ("unknown", "skip"), result


def test_the_worst_comes_first() -> None:
    facts = changed_facts(
        {
            "environment.traced_by": 1,
            "environment.cache.noexec": True,
            "environment.shm": {"present": False, "total": 0, "free": 0},
        }
    )
    found = [r.severity for r in examine(seen(facts)) if r.status == "fail"]
    assert found == ["error", "warn", "note"]


def test_a_quoted_path_stays_one_word() -> None:
    evil = "/tmp/a b; rm -rf $HOME"
    facts = changed_facts(
        {
            "environment.variables.TORCHINDUCTOR_CACHE_DIR": evil,
            "environment.cache.path": evil,
            "environment.cache.exists": False,
            "environment.python.executable": evil,
            "environment.imported": {"died": "x"},
        }
    )
    for result in examine(seen(facts), ["cache.missing", "packages.import"]):
        assert evil in shlex.split(result.commands[0]), result.commands


def test_only_takes_ids_and_groups() -> None:
    assert {r.id for r in examine(seen(GOOD), ["cache.shm"])} == {"cache.shm"}
    assert {r.id.partition(".")[0] for r in examine(seen(GOOD), ["cache", "gpu"])} == {
        "cache",
        "gpu",
    }
    with pytest.raises(UsageError) as raised:
        examine(seen(GOOD), ["cache.shn"])
    assert "cache.shm" in str(raised.value.next_step)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'{"schema": "other/1"}', b"[" * 100_000, b"\xff\xfe", b'{"environment": 3}'],
)
def test_a_file_without_facts_is_one_message(raw: bytes) -> None:
    with pytest.raises(UsageError) as raised:
        read_facts(raw, "x.json")
    assert raised.value.code == "doctor.bad-facts"


def test_a_plain_record_of_the_host_reader_is_enough(tmp_path: Path) -> None:
    """What `ssh HOST python3 - < facts.py` prints: all of the environment is then unknown."""
    from support.hosts import facts_of

    facts = facts_of("ubuntu22.04-a100-535", tmp_path)
    found = {r.id: r for r in examine(seen(json.loads(json.dumps(facts))))}
    assert found["driver.loaded"].status == "pass"
    assert found["host.upgrades"].severity == "warn"
    assert found["cache.noexec"].status == "unknown"


def test_the_manual_lists_every_check() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[a-z]+\.[a-z-]+` \|.*\|$", text, re.MULTILINE)
    assert rows == [f"| `{check.id}` | {check.title} |" for check in CHECKS]
