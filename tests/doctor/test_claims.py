"""docs/claims.md, and the links to it from doctor and diagnose."""

import re
from pathlib import Path

from doctor.conditions import CONDITIONS
from doctor.test_checks import result_of
from provisioner.diagnose.load import load_book

CLAIMS = Path(__file__).parents[2] / "docs" / "claims.md"
TEXT = CLAIMS.read_text(encoding="utf-8")
ANCHORS = re.findall(r'^<a id="([a-z0-9-]+)"></a>$', TEXT, re.MULTILINE)
VERDICT = re.compile(
    r"\"\*\* (False|True|Partly|Half true|Unsupported|Out of date|Not with that text"
    r"|There is no single number|The (first|samples))"
)
EVIDENCE = re.compile(r"\b(run|source|matrix|public reports)\b|[Uu]nsupported|not verified")


def test_every_claim_has_an_anchor_a_verdict_and_its_evidence() -> None:
    parts = re.split(r'^<a id="[a-z0-9-]+"></a>\n', TEXT, flags=re.MULTILINE)[1:]
    assert len(parts) == len(ANCHORS) >= 52  # 42 of guides and scripts, 10 of NVIDIA hosts
    for anchor, part in zip(ANCHORS, parts, strict=True):
        said = " ".join(part.partition("\n\n")[0].split())
        assert said.startswith('**"'), anchor
        assert VERDICT.search(said) or VERDICT.search(said.replace('."**', '"**')), anchor
        assert EVIDENCE.search(said), anchor


def test_no_anchor_is_there_twice() -> None:
    assert len(set(ANCHORS)) == len(ANCHORS)


def test_the_doctor_links_to_claims_that_are_there() -> None:
    linked = {result_of(c).claim for c in CONDITIONS if c.status == "fail"} - {None}
    assert len(linked) >= 15
    assert linked <= set(ANCHORS)


def test_diagnose_links_to_claims_that_are_there() -> None:
    linked = {about.claim for about in load_book().classes.values()} - {None}
    assert len(linked) >= 15
    assert linked <= set(ANCHORS)
