"""Public reports: the accepted cause comes first, also inside other output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Diagnosis

HERE = Path(__file__).parent
REPORTS: list[dict[str, str]] = yaml.safe_load((HERE / "reports.yaml").read_text())
WORDINGS: dict[str, list[list[str]]] = yaml.safe_load((HERE / "wordings.yaml").read_text())
# The same line stands for either cause, and nothing else is in the report: both are named.
AMBIGUOUS = {
    "https://github.com/pytorch/audio/issues/3335": "a bare undefined symbol of torch",
    "https://github.com/pytorch/test-infra/pull/6307": "pip's hash message without a file name",
}
TIME = "2026-05-06T10:20:30.1234567Z "


def first(diagnosis: Diagnosis) -> str | None:
    return diagnosis.causes[0].cls if diagnosis.causes else None


def each(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def colours(text: str) -> str:
    return "".join(f"\x1b[31;1m{line}\x1b[0m\x1b[K\n" for line in text.splitlines())


def ansible(text: str) -> str:
    result = {"changed": True, "msg": "non-zero return code", "rc": 1, "stderr": text}
    return f"TASK [run] ****\nfatal: [gpu-01]: FAILED! => {json.dumps(result)}\nPLAY RECAP ****\n"


def embedded(text: str) -> str:
    before = "".join(f"step {n}: loss {n / 7:.4f}\n" for n in range(300))
    after = "".join(f"worker {n} stopped with status 1\n" for n in range(200))
    return before + text + after


def compose(text: str) -> str:
    return each("trainer-1  | ", text)


VARIANTS: dict[str, Callable[[str], str]] = {
    "buildkit": lambda text: each("#12 34.56 ", text),
    "timestamps": lambda text: each(TIME, text),
    "ci": lambda text: each(f"{TIME}##[error]", text),
    "syslog": lambda text: each("Nov 30 12:00:01 gpu-01 trainer[812]: ", text),
    "rank": lambda text: each("[rank3]: ", text),
    "pytest": lambda text: each("E   ", text),
    "compose": compose,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "progress": lambda text: "".join(f" 12% |##  | 3 MB\r{line}\n" for line in text.splitlines()),
    "colours": colours,
    "ansible": ansible,
    "embedded": embedded,
}


def test_the_accepted_cause_comes_first(examine: Callable[[str], Diagnosis]) -> None:
    missed = {r["source"] for r in REPORTS if first(examine(r["log"])) != r["class"]}
    assert len(REPORTS) >= 73
    assert missed <= set(AMBIGUOUS)


@pytest.mark.parametrize("source", AMBIGUOUS)
def test_an_ambiguous_report_names_its_cause_too(
    source: str, examine: Callable[[str], Diagnosis]
) -> None:
    report = next(r for r in REPORTS if r["source"] == source)
    found = examine(report["log"])
    assert report["class"] in {c.cls for c in (*found.causes, *found.hints)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_wrapped_output_gives_the_same_cause(
    variant: str, examine: Callable[[str], Diagnosis]
) -> None:
    missed = []
    for report in REPORTS:
        plain, wrapped = examine(report["log"]), examine(VARIANTS[variant](report["log"]))
        if first(plain) != first(wrapped):
            missed.append((report["source"], first(wrapped)))
    assert not missed


def test_utf16_of_a_windows_redirection_is_read(examine: Callable[[Any], Diagnosis]) -> None:
    for report in REPORTS[:20]:
        assert first(examine(report["log"].encode("utf-16"))) == first(examine(report["log"]))


def test_wordings_that_no_rule_has_as_example(examine: Callable[[str], Diagnosis]) -> None:
    total, missed = 0, []
    for cls, items in WORDINGS.items():
        for source, log in items:
            total += 1
            if first(examine(log)) != cls:
                missed.append((cls, source))
    assert total >= 120
    assert len(missed) <= total * 0.05, missed


def test_no_wording_is_a_rule_s_example(book: Any) -> None:
    examples = {example.strip() for rule in book.rules for example in rule.matches}
    for items in WORDINGS.values():
        for _, log in items:
            assert log.strip() not in examples, log


def test_a_test_that_passed_is_no_cause(examine: Callable[[str], Diagnosis]) -> None:
    message = "libcuda.so cannot found!"
    assert examine(f"PASSED tests/test_x.py::test_it[{message}]\n").unknown
    assert examine(f"tests/test_x.py::test_it[{message}] PASSED\n").unknown
    assert first(examine(f"FAILED tests/test_x.py::test_it[{message}]\n")) == "libcuda_not_found"
