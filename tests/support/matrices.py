"""The small matrix of tests/data, and ways to change its text."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data" / "matrix"
SMALL = DATA / "small.yaml"


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
