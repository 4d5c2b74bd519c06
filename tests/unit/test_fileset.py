"""Paths, collisions, order and digest of a FileSet."""

from __future__ import annotations

import itertools

import pytest

from provisioner.errors import Exit, UsageError
from provisioner.render.fileset import FileSet, check_group, check_path

BAD_PATHS = {
    "": "empty",
    "/etc/passwd": "absolute",
    "//x": "absolute",
    "..": "segment ..",
    "../x": "segment ..",
    "a/../b": "segment ..",
    "a/..": "segment ..",
    ".": "segment .",
    "./a": "segment .",
    "a//b": "empty segment",
    "a/": "empty segment",
    "a\\b": "character",
    "C:/x": "character",
    "a\nb": "character",
    "a\x00b": "character",
    "a\x1b[31m": "character",
    "a b": "character",
    "a$b": "character",
    "a`b": "character",
    "a'b": "character",
    'a"b': "character",
    "{{a}}": "character",
    "a;b": "character",
    "a*": "character",
    "~/x": "character",
    "caf\u00e9": "character",
    "a\u202eb": "character",
    "\uff0e\uff0e/x": "character",
    "a\ud800b": "character",
    "-rf": "starts with -",
    "a/--help": "starts with -",
    "a.": "ends with a dot",
    "...": "ends with a dot",
    ".provision-manifest.json": "kept for the tool",
    ".provision-stage/journal": "kept for the tool",
    ".PROVISION-lock": "kept for the tool",
    "a" * 201: "201 characters",
    "/".join(["a" * 190] * 5): "954 characters",
    "/".join("abcdefghijklmnopq"): "17 levels",
}


@pytest.mark.parametrize(("path", "reason"), BAD_PATHS.items(), ids=ascii)
def test_unsafe_path_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        FileSet().add(path, "x", group="g")
    assert caught.value.code == "output.bad-path"
    assert caught.value.exit_status == Exit.USAGE
    assert reason in caught.value.message
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "path",
    [
        "docker-bake.json",
        "docker/torch2.0.1-cu118-py310-ubuntu22.04/Dockerfile",
        "lockfiles/mine--torch2.0.1+cu118/requirements.in",
        ".dockerignore",
        "a/.gitignore",
        "..a/b",
        "a" * 200,
        "/".join("abcdefghijklmnop"),
        "sub/.provision-stage",
    ],
)
def test_safe_path_is_kept_as_it_is(path: str) -> None:
    assert check_path(path) == path
    assert [file.path for file in FileSet([FileSet().add(path, "x", group="g")])] == [path]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", "a"),
        ("docker/x/Dockerfile", "docker/x/dockerfile"),
        ("docker/a", "Docker/b"),
        ("a", "a/b"),
        ("a/b", "a"),
        ("a/b/c", "A"),
        ("A", "a/b/c"),
        ("a/b", "a/b/c"),
    ],
)
def test_colliding_paths_are_refused(first: str, second: str) -> None:
    fileset = FileSet()
    fileset.add(first, "1", group="g")
    with pytest.raises(UsageError) as caught:
        fileset.add(second, "2", group="g")
    assert caught.value.code == "output.path-collision"
    assert f"path {second} collides with {first.partition('/')[0]}" in caught.value.message
    assert [file.content for file in fileset] == [b"1"]


@pytest.mark.parametrize("mode", [0o777, 0o600, 0o4755, 0])
def test_other_modes_are_refused(mode: int) -> None:
    with pytest.raises(UsageError, match=r"only 644 and 755"):
        FileSet().add("a", "x", group="g", mode=mode)


@pytest.mark.parametrize("group", ["", "a b", 'a"b', "a\n", "\u00e9", "x" * 201])
def test_bad_groups_are_refused(group: str) -> None:
    with pytest.raises(UsageError) as caught:
        FileSet().add("a", "x", group=group)
    assert caught.value.code == "output.bad-group"
    assert caught.value.message.isprintable()


def test_groups_may_name_cells_and_locks() -> None:
    cell = "mine--torch2.0.1-cu118-py310-ubuntu22.04"
    assert check_group(f"lock:{cell}") == f"lock:{cell}"
    assert check_group(f"docker/{cell}") == f"docker/{cell}"


def test_order_and_digest_do_not_depend_on_the_order_of_adding() -> None:
    files = [("b/x", "1"), ("a", "2"), ("b/a", "3")]
    seen = set()
    for order in itertools.permutations(files):
        fileset = FileSet()
        for path, text in order:
            fileset.add(path, text, group="g")
        assert [file.path for file in fileset] == ["a", "b/a", "b/x"]
        seen.add(fileset.digest())
    assert len(seen) == 1


def test_digest_sees_path_content_and_mode() -> None:
    def digest(path: str, content: bytes, mode: int = 0o644) -> str:
        fileset = FileSet()
        fileset.add(path, content, group="g", mode=mode)
        return fileset.digest()

    digests = [
        FileSet().digest(),
        digest("a", b"x"),
        digest("b", b"x"),
        digest("a", b"y"),
        digest("a", b""),
        digest("a", b"x", 0o755),
    ]
    assert len(set(digests)) == len(digests)
    assert digest("a", b"x") == digest("a", b"x")


def test_a_set_answers_what_it_holds() -> None:
    fileset = FileSet()
    fileset.add("a", "\u00e9", group="one")
    other = FileSet()
    other.add("b.sh", b"12345", group="two", mode=0o755)
    fileset.update(other)
    assert len(fileset) == 2
    assert "a" in fileset
    assert "c" not in fileset
    assert fileset.groups() == {"one", "two"}
    assert fileset.size() == 7
    found = fileset.get("a")
    assert found is not None
    assert found.content == b"\xc3\xa9"
    assert fileset.get("c") is None
    with pytest.raises(UsageError, match="collides"):
        fileset.update(other)
