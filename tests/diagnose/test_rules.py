"""The rules as data: each example matches its rule, each counter-example does not."""

from __future__ import annotations

import io
import shlex
from typing import TYPE_CHECKING

import pytest

from provisioner.diagnose.literals import MIN_LITERAL, literals
from provisioner.diagnose.load import load_book
from provisioner.diagnose.model import CERTAIN
from provisioner.diagnose.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Book, Diagnosis, Rule

BOOK = load_book(cache=False)
CERTAIN_RULES = [rule for rule in BOOK.rules if rule.weight >= CERTAIN]


def by_id(rule: Rule) -> str:
    return rule.id


@pytest.mark.parametrize("rule", BOOK.rules, ids=by_id)
def test_examples_match_and_counter_examples_do_not(
    rule: Rule, book: Book, examine: Callable[[str], Diagnosis]
) -> None:
    scanner = Scanner(book)
    assert rule.matches, "a rule without an example"
    assert rule.spares, "a rule without a counter-example"
    for example in rule.matches:
        hits = scanner.scan(io.BytesIO(example.encode()), "log").hits
        assert rule.id in {book.rules[hit.rule].id for hit in hits}, example
    for example in rule.spares:
        causes = examine(example).causes
        assert rule.id not in {name for cause in causes for name in cause.rules}, example


@pytest.mark.parametrize("rule", CERTAIN_RULES, ids=by_id)
def test_no_other_rule_claims_an_example_without_precedence(
    rule: Rule, examine: Callable[[str], Diagnosis]
) -> None:
    for example in rule.matches:
        causes = examine(example).causes
        assert causes, example
        assert causes[0].cls == rule.cls, (example, [c.cls for c in causes])
        assert len(causes) == 1 or causes[0].confidence > causes[1].confidence, example


def test_names_are_known_and_unique(book: Book) -> None:
    ids = [rule.id for rule in book.rules]
    assert len(ids) == len(set(ids))
    for rule in book.rules:
        assert {rule.cls, *rule.also} <= set(book.classes), rule.id
        assert rule.source.startswith("https://"), rule.id
    for name, about in book.classes.items():
        assert set(about.over) <= set(book.classes), name
    unused = set(book.classes) - {name for rule in book.rules for name in (rule.cls, *rule.also)}
    assert not unused


def test_every_pattern_has_literals_for_the_prefilter(book: Book) -> None:
    for pattern in book.patterns:
        least = 3 if pattern.fact else MIN_LITERAL
        assert pattern.literals, pattern.regex
        assert min(map(len, pattern.literals)) >= least, (pattern.regex, pattern.literals)


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("no kernel image", ("no kernel image",)),
        (r"x(?:first text|another)[0-9]y", ("another", "first text")),
        (r"abcd?ef", ("abc",)),
        (r"a.*(?:one text|another)", ("another", "one text")),
        (r"(?:optional)?[0-9]+", ()),
        (r"first thing|second thing", ("first thing", "second thing")),
    ],
)
def test_literals_are_in_every_match(regex: str, expected: tuple[str, ...]) -> None:
    assert literals(regex) == expected


def test_every_regular_expression_is_one_of_re2(book: Book) -> None:
    scanner = Scanner(book)
    for pattern in book.patterns:
        scanner.search(pattern.regex, "")
    for rule in book.rules:
        for regex in (*rule.needs, *rule.unless):
            scanner.search(regex, "")


PROGRAMS = {
    "apt-cache", "cat", "conda", "conda-lock", "curl", "df", "dkms", "docker", "export",
    "findmnt", "grep", "journalctl", "ldconfig", "ldd", "ls", "lsmod", "lscpu", "lspci",
    "mokutil", "nvcc", "nvidia-smi", "poetry", "provision", "python", "rm", "strings", "sudo",
    "systemctl", "uname", "unset", "uv", "/usr/local/cuda/bin/ptxas",
}  # fmt: skip
UNDER_SUDO = {
    "apt-get", "apt-key", "apt-mark", "dkms", "dmesg", "dpkg", "ldconfig", "ln", "modprobe",
    "mokutil", "nvidia-ctk", "nvidia-modprobe", "reboot", "snap", "systemctl",
    "update-alternatives", "update-initramfs",
}  # fmt: skip


def check_command(command: str) -> None:
    """A command that a shell can read, of a program that exists, with options that it knows."""
    words = shlex.split(command)
    while words and "=" in words[0] and words[0].split("=")[0].isupper():
        words = words[1:]
    assert words[0] in PROGRAMS, command
    if words[0] == "sudo":
        assert words[1] in UNDER_SUDO, command
    if words[0] == "provision":
        check_provision(words[1:], command)
    if words[:2] == ["python", "-c"]:
        compile(words[2], "<command>", "exec")
    if words[:3] == ["python", "-m", "pip"]:
        check_pip(words[3:], command)


def check_provision(words: list[str], command: str) -> None:
    import click

    from provisioner.cli.main import cli

    context = click.Context(cli, info_name="provision")
    found: click.Command = cli
    while isinstance(found, click.Group):
        name, child, words = found.resolve_command(context, words)
        assert child is not None, command
        context = click.Context(child, info_name=name, parent=context)
        found = child
    found.make_parser(context).parse_args(list(words)) if hasattr(found, "make_parser") else None
    found.parse_args(context, list(words))


def check_pip(words: list[str], command: str) -> None:
    import sys

    from pip._internal.commands import create_command

    assert sys.version_info >= (3, 10)
    pip = create_command(words[0])
    options = [word for word in words[1:] if word.startswith("-")]
    known = {text for option in pip.parser.option_list_all for text in option._long_opts}
    known |= {text for option in pip.parser.option_list_all for text in option._short_opts}
    assert {option.split("=")[0] for option in options} <= known, command


def test_every_command_of_a_remedy_is_one(book: Book) -> None:
    commands = [c for about in book.classes.values() for c in (*about.commands, *about.collect)]
    assert len(commands) > 100
    for command in commands:
        check_command(command)


def test_a_wrong_command_is_noticed() -> None:
    for command in (
        "provision resolve --no-such-option",
        "python -m pip install --nonsense x",
        "fix-it",
    ):
        with pytest.raises(BaseException):  # noqa: B017, PT011 - click, pip and assert each have theirs
            check_command(command)


def test_the_manual_lists_the_whole_vocabulary(book: Book) -> None:
    from pathlib import Path

    manual = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    for name, about in book.classes.items():
        assert f"| `{name}` | {about.meaning} | {about.remedy} |" in manual
    vocabulary = manual.partition("## Vocabulary")[2]
    assert vocabulary.count("\n| `") == len(book.classes)
