"""The switch between environments: one step, the one before kept, nothing of others lost."""

import multiprocessing
from pathlib import Path

import pytest

from provisioner.conda import prefix as prefixes
from provisioner.env import versions
from provisioner.env.versions import Versions
from provisioner.errors import OutsideError, UsageError


@pytest.fixture
def env(tmp_path: Path) -> Versions:
    found = Versions(tmp_path / "torch")
    found.folder.mkdir()
    return found


def made(env: Versions, name: str) -> Path:
    """A whole version with one file that says its name."""
    path = env.folder / name
    prefixes.claim(path, {})
    (path / "name").write_text(name)
    prefixes.finish(path)
    return path


def seen(env: Versions) -> str:
    return (env.link / "name").read_text()


def test_the_link_leads_to_the_newest_and_back(env: Versions) -> None:
    one, two = made(env, "one"), made(env, "two")
    versions.switch(env, one)
    assert (seen(env), env.current, env.previous) == ("one", one, None)
    versions.switch(env, two)
    assert (seen(env), env.current, env.previous) == ("two", two, one)
    assert versions.rollback(env) == one
    assert (seen(env), env.previous) == ("one", two)
    assert versions.rollback(env) == two
    assert not env.link.readlink().is_absolute()


def test_only_the_current_and_the_one_before_are_kept(env: Versions) -> None:
    for name in ("one", "two", "three"):
        versions.switch(env, made(env, name))
    prefixes.claim(env.folder / "interrupted", {})
    versions.prune(env)
    assert {p.name for p in env.folder.iterdir() if p.is_dir()} == {"two", "three", "previous"}
    assert seen(env) == "three"


def test_a_version_in_use_is_never_built_over(env: Versions) -> None:
    versions.switch(env, made(env, "abc"))
    versions.switch(env, made(env, "abc-2"))
    assert env.fresh("abc").name == "abc-3"
    assert env.fresh("other").name == "other"


def test_an_empty_folder_is_replaced(env: Versions) -> None:
    env.link.mkdir()
    assert not env.foreign()
    versions.switch(env, made(env, "one"))
    assert seen(env) == "one"


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_is_not_ours_is_taken_over_only_when_asked_and_comes_back(
    env: Versions, kind: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "name").write_text("theirs")
    if kind == "folder":
        elsewhere.rename(env.link)
    elif kind == "link":
        env.link.symlink_to(elsewhere)
    else:
        env.link.write_text("theirs")
    one = made(env, "one")
    with pytest.raises(UsageError) as caught:
        versions.switch(env, one)
    assert caught.value.code == "env.not-ours"
    versions.switch(env, one, replace=True)
    assert seen(env) == "one"
    versions.prune(env)
    versions.rollback(env)
    assert (env.link.read_text() if kind == "file" else seen(env)) == "theirs"
    assert versions.rollback(env) == one  # and forward again
    assert seen(env) == "one"


def test_there_is_nothing_to_go_back_to(env: Versions) -> None:
    for _ in range(2):
        with pytest.raises(OutsideError) as caught:
            versions.rollback(env)
        assert caught.value.code == "env.no-previous"
        versions.switch(env, env.current or made(env, "one"))


def test_a_broken_version_is_not_gone_back_to(env: Versions) -> None:
    one, two = made(env, "one"), made(env, "two")
    versions.switch(env, one)
    versions.switch(env, two)
    prefixes.write_marker(one, {"state": "building", "prefix": str(one)})
    with pytest.raises(OutsideError) as caught:
        versions.rollback(env)
    assert caught.value.code == "env.previous-broken"
    assert seen(env) == "two"


def hold(env: Versions) -> None:
    with pytest.raises(OutsideError) as caught, versions.held(env):
        pass
    assert caught.value.code == "env.busy"


def test_two_at_once_are_refused(env: Versions) -> None:
    context = multiprocessing.get_context("fork")
    with versions.held(env):
        other = context.Process(target=hold, args=(env,))
        other.start()
        other.join(30)
    assert other.exitcode == 0
    with versions.held(env):
        pass


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutsideError) as caught, versions.held(Versions(tmp_path / "file" / "env")):
        pass
    assert caught.value.code == "env.not-writable"


@pytest.mark.parametrize("state", ["whole", "building"])
def test_the_marker_decides_what_may_be_taken_away(tmp_path: Path, state: str) -> None:
    prefix = tmp_path / "env"
    prefixes.claim(prefix, {})
    (prefix / "file").write_text("x")
    if state == "whole":
        prefixes.finish(prefix)
        with pytest.raises(OutsideError):
            prefixes.claim(prefix, {})
        assert prefixes.is_whole(prefix)
        return
    assert not prefixes.is_whole(prefix)
    prefixes.claim(prefix, {})  # an interrupted one is begun anew
    assert not (prefix / "file").exists()


def test_what_a_killed_claim_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    left = tmp_path / ".provision-new-abc"
    (left / ".provision").mkdir(parents=True)
    prefixes.write_marker(left, {"state": "building", "prefix": str(prefix)})
    others = tmp_path / ".provision-new-xyz"
    (others / ".provision").mkdir(parents=True)
    prefixes.write_marker(others, {"state": "building", "prefix": "/another"})
    prefixes.claim(prefix, {})
    assert not left.exists()
    assert others.exists()
