"""No value gets into a rendered file unchecked, and a checked one means itself there."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import UsageError
from provisioner.render.quote import Safe, checked, comment, label_json, yaml_scalar

KINDS = ("name", "requirement", "conda", "package", "gate", "image", "url", "path")
GOOD = [
    ("name", "torch2.0.1-cu118-py310-ubuntu22.04"),
    ("name", "vision--torch2.6.0-cu124-py311-debian12-basepy"),
    ("name", "2.0.1+cu118"),
    ("requirement", "torch==2.0.1+cu118"),
    ("requirement", "numpy<2"),
    ("requirement", "transformers[torch]>=4.30,<5"),
    ("requirement", "tomli==2.0.1; python_version < '3.11'"),
    ("conda", "numpy<2"),
    ("conda", "scipy>=1.10,<2"),
    ("conda", "python=3.10.*"),
    ("package", "g++"),
    ("package", "libgl1"),
    ("package", "ffmpeg=7:5.1.6-0+deb12u1"),
    ("image", "ubuntu:22.04"),
    ("image", "registry.example:5000/hub/library/debian:12-slim@sha256:" + "a" * 64),
    ("url", "https://download.pytorch.org/whl/cu118"),
    ("path", "/opt/env/lib/python3.10/site-packages/nvidia/cuda_nvcc/bin/ptxas"),
]
HOSTILE = [
    "", " ", "a b", "a\n", "a\nRUN id", "a\r", "a\\", "a\\\nb", 'a"b', "a'b", "a`id`", "$(id)",
    "${HOME}", "$HOME", "a;id $(x)", "a|id", "a&id", "a>b c", "../a", "a/../b", "{{ a }}",
    "{% a %}",
    "a\0b", "a\x1bb", "a\u202eb", "a\u2028b", "é", "#a", "a #b", "--a", "!a", "*a", "&a", "[a]",
    "https://user:secret@mirror.example/x", "https://mirror.example/?a=b", "file:///etc/passwd",
    "git+https://mirror.example/x", "a @ https://mirror.example/x", "-r other.txt",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), GOOD)
def test_a_clean_value_stays_as_it_is(kind: str, value: str) -> None:
    assert checked(kind, value, "field") == value
    assert isinstance(checked(kind, value, "field"), Safe)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_refused_with_its_field_and_without_itself(
    kind: str, value: str
) -> None:
    with pytest.raises(UsageError) as refused:
        checked(kind, value, "the field")
    assert refused.value.code == "render.unsafe-value"
    assert refused.value.message.startswith("the field cannot be rendered")
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("value", ["git-", "a.+", "lib.+=1", "-git", "a_"])
def test_what_apt_takes_for_more_than_a_name_is_refused(value: str) -> None:
    with pytest.raises(UsageError):
        checked("package", value, "field")


def test_a_long_value_is_refused_in_a_short_message_and_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        checked("path", "a/" * 50_000 + "!", "field")
    assert len(refused.value.message) < 400


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=40))
def test_what_is_let_through_is_one_word_of_ascii_without_shell_or_jinja(
    kind: str, text: str
) -> None:
    try:
        value = checked(kind, text, "field")
    except UsageError:
        return
    # Markers of requirements alone may hold blanks, quotes and ;, and no shell reads those.
    forbidden = r"[^ -~]|[$`\\{}&|#]" if kind == "requirement" else r"[^!-~]|[$`\\{}&|#;'\"]"
    assert not re.search(forbidden, value)
    assert ".." not in value.split("/")


@given(text=st.text())
def test_a_comment_is_one_printable_line(text: str) -> None:
    assert all(" " <= char <= "~" for char in comment(text))


@pytest.mark.parametrize("kind", ["name", "conda"])
@given(data=st.data())
def test_a_yaml_scalar_is_read_back_as_the_same_string(kind: str, data: st.DataObject) -> None:
    pattern = r"[a-z0-9][a-z0-9._=<>!*,-]{0,20}"
    text = data.draw(st.one_of(st.from_regex(pattern, fullmatch=True), st.sampled_from(WORDS)))
    try:
        value = checked(kind, text, "field")
    except UsageError:
        return
    assert yaml.safe_load(f"- {yaml_scalar(value)}\n") == [text]


WORDS = ["true", "no", "on", "null", "y", "1", "1.10", "1e3", "0x1f", "2026-11-30", "1_000", "a"]


@given(st.recursive(st.none() | st.booleans() | st.text(), st.lists))
def test_label_json_is_inert_in_a_dockerfile_and_means_the_same(value: object) -> None:
    text = label_json(value)
    assert text[0] == text[-1] == "'"
    inner = text[1:-1]
    assert not re.search(r"['$`\n\r]", inner)
    assert inner.isascii()
    assert json.loads(inner) == value
