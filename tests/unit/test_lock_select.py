"""Which files count: platform, day, Python, yanked, version; and what a page may look like."""

from typing import Any

import pytest

from provisioner.errors import OutsideError
from provisioner.lock.model import Target
from provisioner.lock.pages import IndexFile, PageError, parse_page
from provisioner.lock.select import Rules, reasons, select
from provisioner.lock.tags import WheelName, rank

PY39 = Target(python="3.9", arch="x86_64", glibc="2.31")
ARM = Target(python="3.9", arch="aarch64", glibc="2.31")


def file(name: str, uploaded: str | None = "2023-01-01T00:00:00Z", **more: Any) -> IndexFile:
    return IndexFile(
        filename=name, url=f"http://x/{name}", sha256="0" * 64, uploaded=uploaded, **more
    )


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("a-1-cp39-cp39-manylinux1_x86_64.whl", True),
        ("a-1-cp39-cp39-linux_x86_64.whl", True),
        ("a-1-cp39-cp39-manylinux_2_31_x86_64.whl", True),
        ("a-1-cp39-cp39-manylinux_2_32_x86_64.whl", False),
        ("a-1-cp39-cp39-manylinux2014_aarch64.whl", False),
        ("a-1-cp39-cp39-musllinux_1_1_x86_64.whl", False),
        ("a-1-cp310-cp310-manylinux1_x86_64.whl", False),
        ("a-1-cp36-abi3-manylinux1_x86_64.whl", True),
        ("a-1-cp310-abi3-manylinux1_x86_64.whl", False),
        ("a-1-cp39-cp39-win_amd64.whl", False),
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-2-cp39-cp39-manylinux1_x86_64.whl", True),
    ],
)
def test_tags_of_a_target(wheel: str, fits: bool) -> None:
    assert (rank(WheelName(wheel), PY39) is not None) is fits


def test_aarch64_takes_its_own_wheels_and_no_older_platform_than_2_17() -> None:
    assert rank(WheelName("a-1-cp39-cp39-manylinux2014_aarch64.whl"), ARM) is not None
    assert rank(WheelName("a-1-cp39-cp39-manylinux1_aarch64.whl"), ARM) is None
    assert rank(WheelName("a-1-cp39-cp39-manylinux1_x86_64.whl"), ARM) is None


def test_a_specific_wheel_is_liked_better_than_a_general_one() -> None:
    specific = rank(WheelName("a-1-cp39-cp39-manylinux_2_17_x86_64.whl"), PY39)
    general = rank(WheelName("a-1-py3-none-any.whl"), PY39)
    assert specific is not None
    assert general is not None
    assert specific < general
    several = WheelName("a-1-py2.py3-none-manylinux1_x86_64.manylinux_2_17_x86_64.any.whl")
    best = rank(WheelName("a-1-py3-none-manylinux_2_17_x86_64.whl"), PY39)
    assert rank(several, PY39) == best


def test_the_highest_build_number_is_taken_first_but_all_builds_are_kept() -> None:
    wheels = [file(f"a-1-{build}-cp39-cp39-linux_x86_64.whl") for build in ("9", "10", "2b")]
    found = select("a", "package-index", wheels, Rules(target=PY39)).candidates["1"]
    assert found.best.filename == "a-1-10-cp39-cp39-linux_x86_64.whl"
    assert len(found.files) == 3


def test_the_day_counts_to_its_end_and_not_beyond() -> None:
    wheels = [
        file("a-1-py3-none-any.whl", "2023-07-07T23:59:59Z"),
        file("a-2-py3-none-any.whl", "2023-07-08T00:00:00Z"),
    ]
    found = select("a", "package-index", wheels, Rules(target=PY39, until="2023-07-07"))
    assert list(found.candidates) == ["1"]


def test_a_later_file_of_an_early_version_does_not_count() -> None:
    """torch 2.10.0 got second files two months after its release."""
    wheels = [
        file("a-1-cp39-cp39-linux_x86_64.whl", "2023-01-01T00:00:00Z"),
        file("a-1-3-cp39-cp39-linux_x86_64.whl", "2023-03-01T00:00:00Z"),
    ]
    found = select("a", "package-index", wheels, Rules(target=PY39, until="2023-02-01"))
    assert [f.filename for f in found.candidates["1"].files] == ["a-1-cp39-cp39-linux_x86_64.whl"]


def test_an_index_without_times_is_refused_only_where_a_day_is_asked_for() -> None:
    undated = [file("a-1-py3-none-any.whl", None)]
    assert select("a", "package-index", undated, Rules(target=PY39)).candidates
    kept = select("a", "own-index", undated, Rules(target=PY39, until="2023-01-01", dated=False))
    assert kept.candidates
    with pytest.raises(OutsideError) as caught:
        select("a", "package-index", undated, Rules(target=PY39, until="2023-01-01"))
    assert caught.value.code == "lock.undated-index"


def test_yanked_files_count_only_where_a_version_has_no_other() -> None:
    wheels = [
        file("a-1-py3-none-any.whl", yanked=True),
        file("a-1-cp39-cp39-linux_x86_64.whl"),
        file("a-2-py3-none-any.whl", yanked=True),
    ]
    found = select("a", "package-index", wheels, Rules(target=PY39)).candidates
    assert [f.filename for f in found["1"].files] == ["a-1-cp39-cp39-linux_x86_64.whl"]
    assert not found["1"].yanked
    assert found["2"].yanked


def test_only_the_pinned_version_counts_by_its_label() -> None:
    wheels = [
        file("torch-2.0.1-cp39-cp39-linux_x86_64.whl"),
        file("torch-2.0.1+cu118-cp39-cp39-linux_x86_64.whl"),
        file("torch-2.0.1+rocm5.4-cp39-cp39-linux_x86_64.whl"),
    ]
    for pin in ("2.0.1", "2.0.1+cu118"):
        rules = Rules(target=PY39, only=pin)
        assert list(select("torch", "torch-index", wheels, rules).candidates) == [pin]


@pytest.mark.parametrize("name", ["a-1.whl", "b-1-py3-none-any.whl", "a-x-py3-none-any.whl", "a"])
def test_a_file_with_a_name_of_nothing_is_left_out(name: str) -> None:
    assert not select("a", "package-index", [file(name)], Rules(target=PY39)).candidates


def test_reasons_tell_for_each_version_why_it_is_no_candidate() -> None:
    listed = [
        file("a-1-py3-none-any.whl"),
        file("a-1-cp310-cp310-linux_x86_64.whl"),
        file("a-2-py3-none-any.whl", "2024-01-01T00:00:00Z"),
        file("a-3.tar.gz"),
        file("a-4-cp310-cp310-linux_x86_64.whl"),
        file("a-5-py3-none-any.whl", requires_python=">=3.10"),
    ]
    project = select("a", "package-index", listed, Rules(target=PY39, until="2023-07-07"))
    assert list(project.candidates) == ["1"]
    assert {str(number): why for number, why in reasons(project).items()} == {
        "2": "uploaded after the day of the lock",
        "3": "a source archive",
        "4": "a wheel for another platform",
        "5": "for another Python",
    }


def test_requires_python_is_held_against_the_oldest_patch_release() -> None:
    wheels = [
        file("a-1-py3-none-any.whl", requires_python=">=3.9.2"),
        file("a-2-py3-none-any.whl", requires_python=">=3.9.3"),
        file("a-3-py3-none-any.whl", requires_python="nonsense"),
    ]
    found = select("a", "package-index", wheels, Rules(target=PY39))
    assert list(found.candidates) == ["1", "3"]


PAGE_JSON = b"""{"meta": {"api-version": "1.1"}, "name": "a", "files": [
  {"filename": "a-1-py3-none-any.whl", "url": "../f/a-1-py3-none-any.whl",
   "hashes": {"sha256": "%s"}, "upload-time": "2023-01-01T00:00:00Z", "yanked": "bad",
   "requires-python": ">=3.8", "core-metadata": {"sha256": "%s"}, "size": 12, "more": 1}]}"""
PAGE_HTML = b"""<html><base href="https://files.example/x/"><a href="a-1-py3-none-any.whl#sha256=%s"
  data-yanked="bad" data-requires-python="&gt;=3.8" data-dist-info-metadata="sha256=%s">a</a>"""


def test_both_kinds_of_page_give_the_same_file() -> None:
    digests = (b"A" * 64, b"b" * 64)
    url = "https://index.example/simple/a/"
    (from_json,) = parse_page(PAGE_JSON % digests, "application/vnd.pypi.simple.v1+json", url)
    (from_html,) = parse_page(PAGE_HTML % digests, "text/html; charset=utf-8", url)
    assert from_json.url == "https://index.example/simple/f/a-1-py3-none-any.whl"
    assert from_html.url == "https://files.example/x/a-1-py3-none-any.whl"
    for found in (from_json, from_html):
        assert found.filename == "a-1-py3-none-any.whl"
        assert found.sha256 == "a" * 64
        assert found.metadata_sha256 == "b" * 64
        assert found.yanked
        assert found.metadata
        assert found.requires_python == ">=3.8"
    assert from_json.uploaded == "2023-01-01T00:00:00Z"
    assert from_html.uploaded is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b'{"files": 3}', "application/vnd.pypi.simple.v1+json"),
        (b'{"meta": {"api-version": "2.0"}, "files": []}', "application/json"),
        (b"Sign in here", "text/html"),
        (b'{"files": [{"filename": 1, "url": "x"}]}', "application/json"),
    ],
)
def test_anything_else_is_no_page(body: bytes, kind: str) -> None:
    with pytest.raises(PageError):
        parse_page(body, kind, "https://index.example/simple/a/")


def test_a_hash_that_is_none_is_not_believed() -> None:
    page = (
        b'<a href="a-1-py3-none-any.whl#sha256=zz">a</a><a href="a-2-py3-none-any.whl#md5=00">a</a>'
    )
    assert [f.sha256 for f in parse_page(page, "text/html", "http://x/")] == [None, None]
