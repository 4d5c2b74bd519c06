"""The small matrix of tests/data, and ways to change its text."""

from pathlib import Path

import yaml

DATA = Path(__file__).resolve().parents[1] / "data" / "matrix"
SMALL = DATA / "small.yaml"


class TextDates(yaml.SafeLoader):
    """Dates without quotes stay the text that was written, as the tool reads them."""


TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def replaced(text: str, find: str, put: str) -> str:
    """Return the text with one place replaced; the place must be there exactly once."""
    assert text.count(find) == 1, f"{text.count(find)} places for {find!r}"
    return text.replace(find, put)


def line_of(text: str, at: str) -> int:
    """Return the number of the first line that holds `at`."""
    for number, line in enumerate(text.splitlines(), start=1):
        if at in line:
            return number
    raise AssertionError(f"no line holds {at!r}")


def without(text: str, first_line: str) -> str:
    """Return a matrix text without the entry of a top-level list that begins with this line."""
    lines = text.splitlines(keepends=True)
    start = lines.index(first_line + "\n")
    end = start + 1
    while end < len(lines) and lines[end].startswith("  "):
        end += 1
    return "".join([*lines[:start], *lines[end:]])


def before_2_15(shipped: Path) -> str:
    """Return the shipped matrix as it was before torch 2.15.0 and its triton came out."""
    text = without(shipped.read_text(encoding="utf-8"), "- torch: 2.15.0")
    return without(text, "- version: 3.9.0")
