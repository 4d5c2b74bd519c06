"""No message shows a pattern: each has its words."""

import re

import pytest
from support.engine import PROJECT

from provisioner.matrix.expectations import _WORDS, expectation, pattern_of


@pytest.mark.parametrize("words", [words for _, words in _WORDS])
def test_the_words_hold_no_pattern(words: str) -> None:
    assert not re.search(r"[\^$\\]|\[[a-zA-Z]-", words)


def test_a_known_pattern_is_said_in_words() -> None:
    for annotated, words in _WORDS:
        assert expectation(pattern_of(annotated)) == words


def test_every_pattern_of_a_users_file_has_words() -> None:
    """The types of provision.yaml; a new one without words would show its pattern."""
    text = (PROJECT / "provisioner/matrix/project_types.py").read_text(encoding="utf-8")
    names = re.findall(r"^([A-Z][A-Za-z]+) = Annotated", text, re.MULTILINE)
    from provisioner.matrix import project_types

    assert len(names) >= 4
    for name in names:
        said = expectation(pattern_of(getattr(project_types, name)))
        assert "matches" not in said
