"""Any sequence of renders, edits and kills keeps the promises of write, check and recover."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from output_tools import AtCall, debris, failure, snapshot

from provisioner.errors import FindingError, OutsideError
from provisioner.render.fileset import FileSet, check_path
from provisioner.render.journal import apply, write
from provisioner.render.manifest import MANIFEST, encode_manifest, parse_manifest
from provisioner.render.plan import check, plan
from provisioner.render.recovery import recover

GROUPS = ("one", "two")
PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "f/a")
TEXTS = st.sampled_from(["", "1", "2", "two\nlines\n"])
# A path belongs to one group, as in real use; the first letter of the folder does not tell it.
OWNER = {path: GROUPS[index % 2] for index, path in enumerate(PATHS)}
CONTENT = st.dictionaries(st.sampled_from(PATHS), TEXTS)


class StoppedError(Exception):
    """Ends a write in its middle, as a kill would."""


def fileset_of(content: dict[str, str], groups: set[str]) -> FileSet:
    fileset = FileSet()
    for path, text in content.items():
        if OWNER[path] in groups:
            fileset.add(path, text, group=OWNER[path])
    return fileset


class Renders(RuleBasedStateMachine):
    """The model: what each path should hold (`disk`) and what of it is listed as ours."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.disk: dict[str, str] = {}
        self.listed: dict[str, str] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(content=CONTENT, groups=st.sets(st.sampled_from(GROUPS)), force=st.booleans())
    def render(self, content: dict[str, str], groups: set[str], force: bool) -> None:
        fileset = fileset_of(content, groups)
        wanted = {file.path: file.content.decode() for file in fileset}
        stale = {p for p in self.listed if OWNER[p] in groups and p not in wanted}
        clashes = {
            path
            for path in stale | set(wanted)
            if path in self.disk
            and self.disk[path] != wanted.get(path)
            and self.disk[path] != self.listed.get(path)
        }
        before = snapshot(self.root)
        if clashes and not force:
            with pytest.raises(FindingError) as caught:
                write(self.root, fileset, groups)
            assert set(caught.value.facts["conflicts"]) == clashes
            assert snapshot(self.root) == before
            assert check(self.root, fileset, groups) != []
            return
        outcome = write(self.root, fileset, groups, force=force)
        assert set(outcome.created) == set(wanted) - set(self.disk)
        assert set(outcome.pruned) == stale & set(self.disk)
        for path in stale:
            self.disk.pop(path, None)
            del self.listed[path]
        self.disk |= wanted
        self.listed |= wanted
        assert check(self.root, fileset, groups) == []
        assert not plan(self.root, fileset, groups).writes

    @rule(path=st.sampled_from(PATHS), text=TEXTS)
    def edit_by_hand(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        self.disk[path] = text

    @rule(path=st.sampled_from(PATHS))
    def delete_by_hand(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)
        self.disk.pop(path, None)

    @rule(content=CONTENT, call=st.integers(min_value=1, max_value=160))
    def stop_in_the_middle(self, content: dict[str, str], call: int) -> None:
        groups = set(GROUPS)
        fileset = fileset_of(content, groups)
        planned = plan(self.root, fileset, groups, force=True)

        def stop() -> None:
            raise StoppedError

        with AtCall(call, stop, frozenset({"rename", "link", "mkdir", "fsync"})) as at:
            try:
                apply(self.root, planned)
            except StoppedError:
                assert at.fired
        recover(self.root)
        if not at.fired:
            self.disk = {file.path: file.content.decode() for file in fileset} | {
                path: text for path, text in self.disk.items() if path not in self.listed
                and path not in fileset
            }  # fmt: skip
            self.listed = {file.path: file.content.decode() for file in fileset}

    @invariant()
    def disk_and_manifest_are_as_expected(self) -> None:
        found = {path: data for path, data in snapshot(self.root).items() if data is not None}
        raw = found.pop(MANIFEST, (b"", 0))[0]
        assert {path: data[0].decode() for path, data in found.items()} == self.disk
        entries = parse_manifest(raw, self.root).files if raw else {}
        assert set(entries) == set(self.listed)
        assert {path: entry.group for path, entry in entries.items()} == {
            path: OWNER[path] for path in self.listed
        }
        assert raw == b"" or raw == encode_manifest(entries)
        assert debris(self.root) == []


Renders.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRenders = Renders.TestCase


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.one_of(
        st.text(max_size=30),
        st.text(alphabet="ab./-_ \\\n\0\u202e~$", max_size=12),
        st.lists(st.sampled_from(["..", ".", "", "a", "etc", "-x", "~"]), max_size=5).map("/".join),
    )
)
def test_an_accepted_path_stays_inside_and_is_plain(path: str) -> None:
    error = failure(lambda: check_path(path))
    if error is not None:
        assert error.code == "output.bad-path"
        assert error.message.isascii()
        assert error.message.isprintable()
        return
    root = Path("/some/root")
    inside = Path(root, path)
    assert inside.is_relative_to(root)
    assert inside != root
    assert ".." not in inside.parts
    assert str(inside.relative_to(root)) == path
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(" '\"\\$`;&|<>*?[]{}()!#%^~=:,")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_one_clear_error(raw: bytes) -> None:
    error = failure(lambda: parse_manifest(raw, Path("/x")))
    if error is not None:
        assert error.code in {"output.manifest-damaged", "output.manifest-schema"}
        return
    manifest = parse_manifest(raw, Path("/x"))
    assert parse_manifest(encode_manifest(manifest.files), Path("/x")) == manifest


@settings(max_examples=60, deadline=None, derandomize=True)
@given(raw=st.binary(max_size=60))
def test_any_journal_is_one_clear_error_or_harmless(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("out")
    (root / "mine").write_text("mine")
    (root / ".provision-stage").mkdir()
    (root / ".provision-stage/journal").write_bytes(raw)
    with pytest.raises(OutsideError) as caught:
        recover(root)
    assert caught.value.code == "output.journal-damaged"
    assert (root / "mine").read_text() == "mine"
