"""Locks from real local indexes: one index per name, days, hashes, guards, both engines alike."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.locking import (
    CPU_CELL,
    GPU_CELL,
    Indexes,
    files,
    locked,
    pins,
    pip_tools,
    uv,
)
from support.simpleindex import make

from provisioner.errors import OutsideError, ProvisionError, RefusedError
from provisioner.lock.engines import Engine
from provisioner.lock.model import LockInput
from provisioner.lock.recorded import RecordedFile, RecordedProject, Records
from provisioner.lock.writer import lock_bytes, lock_files, read_lock, requirements_texts

ENGINES = [pytest.param(uv, id="uv"), pytest.param(pip_tools, id="pip-tools")]


@pytest.fixture
def indexes() -> Iterator[Indexes]:
    """A package index and a torch index that serve; torch is on the torch index."""
    both = Indexes()
    both.torch.add("torch", "2.0.1+cpu", "filelock", uploaded=None)
    both.package.add("filelock", "3.12.2")
    with both.package.serve(), both.torch.serve():
        yield both


def with_user(*requirements: str, cell: LockInput = CPU_CELL) -> LockInput:
    return msgspec.structs.replace(cell, user=requirements)


def refused(cell: LockInput, indexes: Indexes) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        locked(cell, indexes)
    return caught.value


# --- engines ---


def full_example(indexes: Indexes) -> LockInput:
    """A graph with extras, markers, bounds, a prerelease, a yanked and a late file in it."""
    package = indexes.package
    package.add("numpy", "1.25.0", tag="py3-none-any")
    package.add("numpy", "1.25.0", tag="cp36-abi3-manylinux1_x86_64")
    package.add("numpy", "2.0.0")
    package.add("late", "1.0")
    package.add("late", "2.0", uploaded="2024-01-01T00:00:00Z")
    package.add("fresh", "1.0")
    package.add("fresh", "2.0rc1")
    package.add("drawn", "1.0")
    package.add("drawn", "1.1", yanked=True)
    package.add("Under_Score.Name", "1.0", "late")
    package.add("windows-only", "1.0")
    package.add("extra-thing", "0.5")
    package.add(
        "mine",
        "1.0",
        "numpy",
        "fresh",
        "drawn",
        "under-score-name",
        'windows-only; sys_platform == "win32"',
        'extra-thing>=0.1; extra == "more"',
        'old-python-only; python_version < "3.0"',
    )
    return msgspec.structs.replace(
        CPU_CELL, user=("mine[more]>=1",), constraints=("numpy<2",), beside=("late",)
    )


def test_both_engines_give_the_same_bytes(indexes: Indexes) -> None:
    cell = full_example(indexes)
    by_uv, by_pip_tools = locked(cell, indexes, uv()), locked(cell, indexes, pip_tools())
    assert pins(by_uv) == {
        "drawn": "1.0",
        "extra-thing": "0.5",
        "filelock": "3.12.2",
        "fresh": "1.0",
        "late": "1.0",
        "mine": "1.0",
        "numpy": "1.25.0",
        "torch": "2.0.1+cpu",
        "under-score-name": "1.0",
    }
    assert lock_bytes(by_uv.lock) == lock_bytes(by_pip_tools.lock)
    assert [f.content for f in lock_files(by_uv.lock)] == [
        f.content for f in lock_files(by_pip_tools.lock)
    ]
    assert (by_uv.engine, by_pip_tools.engine) == ("uv", "pip-tools")
    assert read_lock(lock_bytes(by_uv.lock)) == by_uv.lock


def test_the_lock_has_every_file_that_fits_and_who_needs_whom(indexes: Indexes) -> None:
    result = locked(full_example(indexes), indexes)
    assert files(result, "numpy") == [
        "numpy-1.25.0-cp36-abi3-manylinux1_x86_64.whl",
        "numpy-1.25.0-py3-none-any.whl",
    ]
    mine = next(package for package in result.lock.packages if package.name == "mine")
    assert mine.requires == ("drawn", "extra-thing", "fresh", "numpy", "under-score-name")


@pytest.mark.parametrize("engine", ENGINES)
def test_no_wheel_is_fetched_to_lock(indexes: Indexes, engine: type[Engine]) -> None:
    locked(full_example(indexes), indexes, engine())
    fetched = [path for path in indexes.package.asked if path.endswith(".whl")]
    assert fetched == []


def test_requirements_text(indexes: Indexes) -> None:
    texts = requirements_texts(locked(CPU_CELL, indexes).lock)
    filelock, torch = indexes.package.projects["filelock"][0], indexes.torch.projects["torch"][0]
    head = (
        "# Written by `provision lock torch2.0.1-cpu-test`. Do not edit: run it again.\n"
        f"# CPython {CPU_CELL.target.python}, Linux {CPU_CELL.target.arch}, glibc 2.36 or newer; "
        "packages as of 2023-07-07.\n"
    )
    how = "# Install: pip install --no-deps --only-binary :all: --require-hashes -r FILE\n"
    assert texts == {
        "requirements.txt": f"{head}# From the package index.\n{how}"
        f"filelock==3.12.2 \\\n    --hash=sha256:{filelock.sha256}\n",
        "requirements-torch.txt": f"{head}# From the torch index of the cell's variant.\n{how}"
        f"torch==2.0.1+cpu \\\n    --hash=sha256:{torch.sha256}\n",
    }


# --- one index per name ---


def test_a_torch_planted_on_the_package_index_does_not_win(indexes: Indexes) -> None:
    for version in ("2.0.1", "2.0.1+cpu", "99.0"):
        indexes.package.add("torch", version)
    result = locked(CPU_CELL, indexes)
    torch = next(package for package in result.lock.packages if package.name == "torch")
    assert (torch.version, torch.origin) == ("2.0.1+cpu", "torch-index")
    assert torch.files[0].sha256 == indexes.torch.projects["torch"][0].sha256
    assert not any("/torch/" in path for path in indexes.package.asked)


def test_another_name_planted_on_the_torch_index_does_not_win(indexes: Indexes) -> None:
    indexes.torch.add("filelock", "99.0")
    assert pins(locked(CPU_CELL, indexes))["filelock"] == "3.12.2"
    assert not any("filelock" in path for path in indexes.torch.asked)


def test_a_labelled_torch_on_a_merged_package_index_does_not_win(indexes: Indexes) -> None:
    """A mirror of both indexes sorts 2.0.1+cpu above 2.0.1; the GPU cell must not get it."""
    for version in ("2.0.1", "2.0.1+cpu", "2.0.1+cu118"):
        indexes.package.add("torch", version)
    assert pins(locked(GPU_CELL, indexes)) == {"torch": "2.0.1"}


@pytest.mark.parametrize("cell", [CPU_CELL, GPU_CELL], ids=["torch index", "package index"])
def test_torchtriton_never_comes_from_the_package_index(indexes: Indexes, cell: LockInput) -> None:
    """The name was hijacked there once."""
    indexes.package.add("torchtriton", "3.0")
    indexes.package.add("torch", "2.0.1")
    indexes.package.add("mine", "1.0", "torchtriton")
    error = refused(with_user("mine", cell=cell), indexes)
    assert error.code in ("index.no-package", "index.no-project")
    assert not any("torchtriton" in path for path in indexes.package.asked)


def test_an_own_name_comes_from_its_own_index_alone(indexes: Indexes) -> None:
    own = Indexes().package
    own.add("acme-internal", "1.0", uploaded=None)
    indexes.package.add("acme-internal", "99.0")
    cell = msgspec.structs.replace(with_user("acme-internal"), own=("acme-internal",))
    with own.serve() as url:
        result = locked(cell, indexes, own={"acme-internal": url})
        assert pins(result)["acme-internal"] == "1.0"
        assert not any("acme" in path for path in indexes.package.asked)
        assert url not in lock_bytes(result.lock).decode()
    internal = next(p for p in result.lock.packages if p.name == "acme-internal")
    assert internal.origin == "own-index"


# --- days ---


def test_the_day_of_one_name_can_be_later(indexes: Indexes) -> None:
    indexes.package.add("mine", "1.0")
    indexes.package.add("mine", "2.0", uploaded="2024-01-01T00:00:00Z")
    indexes.package.add("filelock", "4.0", uploaded="2024-01-01T00:00:00Z")
    cell = with_user("mine")
    assert pins(locked(cell, indexes))["mine"] == "1.0"
    upgraded = msgspec.structs.replace(cell, upgrades={"mine": "2024-01-01"})
    assert pins(locked(upgraded, indexes)) == {
        "torch": "2.0.1+cpu", "mine": "2.0", "filelock": "3.12.2",
    }  # fmt: skip
    open_ended = msgspec.structs.replace(cell, as_of=None)
    assert pins(locked(open_ended, indexes))["filelock"] == "4.0"


def test_what_is_too_late_is_named_with_the_way_out(indexes: Indexes) -> None:
    indexes.package.add("mine", "1.0", uploaded="2024-01-01T00:00:00Z")
    error = refused(with_user("mine"), indexes)
    assert isinstance(error, RefusedError)
    assert error.code == "lock.no-candidate"
    assert "the newest of 1 that it lists, 1.0, is uploaded after the day" in error.message
    assert error.next_step is not None
    assert "--upgrade mine" in error.next_step


def test_an_index_that_tells_no_times_is_refused(indexes: Indexes) -> None:
    indexes.package.json = False
    error = refused(CPU_CELL, indexes)
    assert error.code == "lock.undated-index"
    undated = msgspec.structs.replace(CPU_CELL, as_of=None)
    assert pins(locked(undated, indexes))["filelock"] == "3.12.2"


# --- guards ---


@pytest.mark.parametrize("engine", ENGINES)
def test_a_package_that_would_replace_torch_is_refused_with_the_chain(
    indexes: Indexes, engine: type[Engine]
) -> None:
    indexes.package.add("mine", "1.0", "their-vision>=2")
    indexes.package.add("their-vision", "2.1", "torch>=2.1")
    with pytest.raises(RefusedError) as caught:
        locked(with_user("mine"), indexes, engine())
    assert caught.value.code == "lock.replaces-torch"
    assert caught.value.facts["chain"] == [
        "mine",
        "mine 1.0 asks for their-vision>=2",
        "their-vision 2.1 asks for torch>=2.1",
    ]
    assert "the cell has torch 2.0.1+cpu" in caught.value.message


def test_an_older_version_that_takes_this_torch_is_found(indexes: Indexes) -> None:
    indexes.package.add("mine", "1.0", "torch>=1.13,<2.1")
    indexes.package.add("mine", "2.0", "torch>=2.1")
    assert pins(locked(with_user("mine"), indexes))["mine"] == "1.0"


@pytest.mark.parametrize(
    ("cell", "name", "version", "code"),
    [
        (CPU_CELL, "nvidia-cublas-cu11", "11.10.3.66", "lock.other-cuda"),
        (CPU_CELL, "nvidia-cublas", "13.0", "lock.other-cuda"),
        (CPU_CELL, "cupy-cuda12x", "12.0", "lock.other-cuda"),
        (GPU_CELL, "nvidia-cublas-cu12", "12.1", "lock.other-cuda"),
        (GPU_CELL, "cuda-toolkit", "13.0.1", "lock.other-cuda"),
        (GPU_CELL, "torch-nightly", "1.0", "lock.second-torch"),
        (GPU_CELL, "pytorch", "1.0.2", "lock.second-torch"),
        (GPU_CELL, "torchvision", "0.15.2", "lock.uncalled-family"),
    ],
)
def test_what_no_lock_may_hold_is_refused_with_the_chain(
    indexes: Indexes, cell: LockInput, name: str, version: str, code: str
) -> None:
    indexes.package.add("torch", "2.0.1")
    indexes.package.add(name, version)
    indexes.package.add("mine", "1.0", name)
    error = refused(with_user("mine", cell=cell), indexes)
    assert error.code == code
    assert error.facts["chain"] == ["mine", name]
    assert f"mine -> {name}" in error.message


def test_cuda_of_the_cell_is_welcome(indexes: Indexes) -> None:
    indexes.package.add("torch", "2.0.1", "nvidia-cublas-cu11==11.10.3.66")
    indexes.package.add("nvidia-cublas-cu11", "11.10.3.66")
    assert set(pins(locked(GPU_CELL, indexes))) == {"torch", "nvidia-cublas-cu11"}


# --- beside conda ---


@pytest.mark.parametrize("engine", ENGINES)
def test_what_conda_owns_bounds_the_lock_and_is_not_in_it(
    indexes: Indexes, engine: type[Engine]
) -> None:
    for version in ("1.0", "2.0"):
        indexes.package.add("mine", version, f"numpy<{version[0]}.5")
    indexes.package.add("numpy", "1.4")
    cell = msgspec.structs.replace(with_user("mine"), provided={"numpy": "1.2.post1"})
    result = locked(cell, indexes, engine())
    assert pins(result) == {"torch": "2.0.1+cpu", "filelock": "3.12.2", "mine": "2.0"}
    assert not any("/numpy/" in path for path in indexes.package.asked)
    assert result.lock.provided == {"numpy": "1.2.post1"}
    assert next(p for p in result.lock.packages if p.name == "mine").requires == ("numpy",)


def test_what_does_not_go_with_conda_says_so(indexes: Indexes) -> None:
    indexes.package.add("mine", "1.0", "numpy>=2")
    cell = msgspec.structs.replace(with_user("mine"), provided={"numpy": "1.2"})
    error = refused(cell, indexes)
    assert error.code == "lock.no-candidate"
    assert "The conda half has nothing for numpy>=2" in error.message


# --- another machine ---


def test_uv_locks_for_another_machine(indexes: Indexes) -> None:
    indexes.package.add("for-arm", "1.0", tag="cp36-abi3-manylinux2014_aarch64")
    indexes.package.add("for-intel", "1.0", tag="cp36-abi3-manylinux2014_x86_64")
    cell = with_user(
        'for-arm; platform_machine == "aarch64"', 'for-intel; platform_machine == "x86_64"'
    )
    for arch, name in (("aarch64", "for-arm"), ("x86_64", "for-intel")):
        target = msgspec.structs.replace(CPU_CELL.target, arch=arch)
        result = locked(msgspec.structs.replace(cell, target=target), indexes)
        assert set(pins(result)) == {"torch", "filelock", name}


# --- what cannot be had ---


def test_a_name_that_is_nowhere_is_named_with_its_chain(indexes: Indexes) -> None:
    indexes.package.add("mine", "1.0", "no-such-thing")
    error = refused(with_user("mine"), indexes)
    assert error.code == "index.no-package"
    assert "The package index has no package no-such-thing" in error.message
    assert error.facts["chain"] == ["mine", "mine 1.0 asks for no-such-thing"]


def test_a_source_archive_is_not_taken(indexes: Indexes) -> None:
    indexes.package.add_source("mine", "1.0")
    error = refused(with_user("mine"), indexes)
    assert error.code == "lock.no-candidate"
    assert "a source archive" in error.message
    indexes.package.add("mine", "0.9")
    assert pins(locked(with_user("mine"), indexes))["mine"] == "0.9"


def test_what_does_not_go_together_shows_the_resolver_without_the_loopback(
    indexes: Indexes,
) -> None:
    indexes.package.add("mine", "1.0", "filelock<1")
    indexes.package.add("filelock", "0.5")
    error = refused(with_user("mine", "filelock>1"), indexes)
    assert error.code == "lock.unsatisfiable"
    assert "filelock" in error.facts["resolver"]
    assert "127.0.0.1" not in error.facts["resolver"]


# --- hashes ---


def test_metadata_that_is_not_what_the_page_promises_is_refused(indexes: Indexes) -> None:
    indexes.package.projects["filelock"][0].metadata_sha256 = "0" * 64
    assert refused(CPU_CELL, indexes).code == "index.metadata-hash"


@pytest.mark.parametrize("ranges", [True, False], ids=["by ranges", "whole"])
def test_without_metadata_files_the_wheel_is_asked(indexes: Indexes, ranges: bool) -> None:
    for index in (indexes.package, indexes.torch):
        index.beside, index.ranges = False, ranges
    assert pins(locked(CPU_CELL, indexes)) == {"torch": "2.0.1+cpu", "filelock": "3.12.2"}


def test_a_whole_wheel_with_a_wrong_hash_is_refused(indexes: Indexes) -> None:
    indexes.package.beside = indexes.package.ranges = False
    indexes.package.projects["filelock"][0].sha256 = "0" * 64
    assert refused(CPU_CELL, indexes).code == "index.file-hash"


def test_a_wheel_that_is_no_archive_is_refused(indexes: Indexes) -> None:
    indexes.package.beside = False
    indexes.package.projects["filelock"][0].body = b"<html>Sorry</html>"
    assert refused(CPU_CELL, indexes).code == "index.damaged-file"


def test_a_page_without_hashes_makes_us_hash(indexes: Indexes) -> None:
    wheel = indexes.package.projects["filelock"][0]
    wheel.sha256 = None
    result = locked(CPU_CELL, indexes)
    filelock = next(package for package in result.lock.packages if package.name == "filelock")
    assert filelock.files[0].sha256 == hashlib.sha256(wheel.body).hexdigest()
    assert filelock.files[0].where == ("package index, hashed here",)


def install(index_url: str, requirements: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    """What the images do with a lock."""
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--index-url", index_url]
    command += ["--target", str(target), "--requirement", str(requirements)]
    environ = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environ)


def test_what_was_locked_installs_and_a_tampered_wheel_does_not(
    indexes: Indexes, tmp_path: Path
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(requirements_texts(locked(CPU_CELL, indexes).lock)["requirements.txt"])
    good = install(indexes.package.url, requirements, tmp_path / "good")
    assert good.returncode == 0, good.stderr
    assert (tmp_path / "good" / "filelock.py").is_file()
    wheel = indexes.package.projects["filelock"][0]
    tampered = make("filelock", "3.12.2", ("evil",), "-py3-none-any")[2]
    wheel.body, wheel.sha256 = tampered, hashlib.sha256(tampered).hexdigest()
    bad = install(indexes.package.url, requirements, tmp_path / "bad")
    assert bad.returncode != 0
    assert "HASH" in bad.stderr.upper()
    assert not (tmp_path / "bad" / "filelock.py").exists()


# --- recorded hashes ---


def records(*seen_in: str, sha256: str = "a" * 64, version: str = "2.0.1+cpu") -> Records:
    wheel = RecordedFile(
        filename=f"torch-{version}-py3-none-any.whl", sha256=sha256, seen_in=seen_in
    )
    project = RecordedProject(
        name="torch", version=version, origin="torch-index", files=(wheel,), requires=("filelock",)
    )
    return Records(schema="x", read_on="2026-01-01", how="", projects=(project,))


def test_recorded_hashes_stand_in_for_an_index_that_is_away(indexes: Indexes) -> None:
    indexes.torch.status["/torch/"] = 503
    result = locked(CPU_CELL, indexes, records=records("one", "two"))
    torch = next(package for package in result.lock.packages if package.name == "torch")
    assert torch.origin == "recorded"
    assert torch.files[0].sha256 == "a" * 64
    assert (torch.files[0].confirmed_by, torch.files[0].where) == (2, ("one", "two"))
    assert result.lock.warnings == (
        "torch: hashes from written records, not read from the torch index",
    )
    assert "HTTP 503" in result.notes[0]
    assert "requirements-torch.txt" in result.lock.requirements


def test_recorded_only_asks_no_torch_index(indexes: Indexes) -> None:
    result = locked(CPU_CELL, indexes, records=records("one", "two"), recorded_only=True)
    assert indexes.torch.asked == []
    assert result.notes == ()


def test_a_single_source_is_not_enough_unless_accepted(indexes: Indexes) -> None:
    with pytest.raises(RefusedError) as caught:
        locked(CPU_CELL, indexes, records=records("one"), recorded_only=True)
    assert caught.value.code == "lock.single-source"
    assert "one source alone" in caught.value.message.replace("1 source", "one source")
    accepting = msgspec.structs.replace(CPU_CELL, single_source=True)
    result = locked(accepting, indexes, records=records("one"), recorded_only=True)
    assert any("one source alone vouches" in text for text in result.lock.warnings)


def test_an_index_that_is_away_without_a_record_is_the_error(indexes: Indexes) -> None:
    indexes.torch.status["/torch/"] = 503
    error = refused(CPU_CELL, indexes)
    assert error.code == "index.server"
    assert "No hash of torch 2.0.1+cpu for this cell is recorded either" in error.message


def test_an_index_that_contradicts_confirmed_records_is_refused(indexes: Indexes) -> None:
    with pytest.raises(RefusedError) as caught:
        locked(CPU_CELL, indexes, records=records("one", "two"))
    assert caught.value.code == "lock.hash-conflict"
    served = indexes.torch.projects["torch"][0].sha256 or ""
    result = locked(CPU_CELL, indexes, records=records("one", "two", sha256=served))
    torch = next(package for package in result.lock.packages if package.name == "torch")
    assert torch.files[0].where == ("torch index", "one", "two")


# --- indexes that fail ---


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "index.credentials", "netrc"),
        (403, "index.credentials", "netrc"),
        (500, "index.server", "mirror"),
        (502, "index.server", "mirror"),
        (400, "index.status", "address"),
    ],
)
def test_what_an_index_answers_becomes_one_error(
    indexes: Indexes, status: int, code: str, says: str
) -> None:
    indexes.package.status["/filelock/"] = status
    error = refused(CPU_CELL, indexes)
    assert isinstance(error, OutsideError)
    assert error.code == code
    assert says in (error.next_step or "")
    assert "package index" in error.message


def test_a_slow_index_is_given_up(indexes: Indexes) -> None:
    indexes.package.delay_s = 3.0
    with pytest.raises(OutsideError) as caught:
        locked(CPU_CELL, indexes, timeout_s=0.2)
    assert caught.value.code == "index.timeout"
    assert "0.2 s" in caught.value.message


def test_a_page_that_is_none_is_told(indexes: Indexes) -> None:
    indexes.package.projects["filelock"] = []
    indexes.package.redirect["/filelock/"] = indexes.package.url + "/login"
    indexes.package.status["/login"] = 200
    assert refused(CPU_CELL, indexes).code == "index.bad-page"


def test_nobody_listens(indexes: Indexes) -> None:
    indexes.package.url = "http://127.0.0.1:9/simple"
    assert refused(CPU_CELL, indexes).code == "index.connection"
