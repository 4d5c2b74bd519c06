"""`provision bundle`: what it gathers, keeps, refuses; what a checked bundle lets through."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.locking import Indexes
from support.needs import needs
from support.simpleindex import Wheel

from provisioner.bundle import own, store
from provisioner.bundle.model import MANIFEST, SUMS, Bundle, bundle_bytes, read_bundle
from provisioner.bundle.wanted import Pin, read_pins, wheel_of_pin, wheels_of
from provisioner.cli.main import run
from provisioner.errors import FindingError, OutsideError, ProvisionError
from provisioner.lock.model import Choices, Lock, LockedFile, LockedPackage, Target
from provisioner.lock.pages import IndexFile

CELL = "torch2.0.1-cpu-py39-debian11-basepy"
OPTIONS = ["--torch", "2.0.1", "--cuda", "cpu", "--python-from", "base", "--os", "debian11"]
SECRET = "s3cr3t-4f1d7c"
A, B = "a" * 64, "b" * 64
TARGET = Target(python="3.11", arch="x86_64", glibc="2.36")


# --- which files: pure ---


def locked(*filenames: str) -> Lock:
    files = tuple(
        LockedFile(filename=name, sha256=A, confirmed_by=1, where=("x",)) for name in filenames
    )
    package = LockedPackage(
        name="thing", version="1", origin="package-index", requires=(), files=files
    )
    return Lock(
        cell="cell",
        inputs=A,
        as_of=None,
        chosen=Choices(),
        platforms=(TARGET,),
        packages=(package,),
    )


def test_the_wheel_that_an_installer_would_take_is_gathered() -> None:
    name = "thing-1{}-cp311-cp311-manylinux_2_{}_x86_64.whl"
    lock = locked(
        "thing-1-py3-none-any.whl", name.format("", 17), name.format("", 28), name.format("-2", 28),
        name.format("", 39),
    )  # fmt: skip
    assert [each.filename for each in wheels_of(lock)] == [name.format("-2", 28)]


def test_a_lock_without_a_wheel_for_its_own_platform_is_refused() -> None:
    with pytest.raises(FindingError) as caught:
        wheels_of(locked("thing-1-cp39-cp39-manylinux_2_17_x86_64.whl"))
    assert caught.value.code == "bundle.no-wheel"


PINS = f"""\
click==8.5.1 \\
    --hash=sha256:{A}
old==1.0 ; python_full_version < '3.11' \\
    --hash=sha256:{A}
Some_Thing==2.0 ; sys_platform == 'linux' \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
"""


def test_pins_of_another_python_or_system_are_left_out() -> None:
    pins = read_pins(PINS, TARGET)
    assert [(pin.name, pin.version, len(pin.hashes)) for pin in pins] == [
        ("click", "8.5.1", 1),
        ("some-thing", "2.0", 2),
    ]


def test_a_file_whose_hash_is_not_pinned_is_never_taken() -> None:
    pin = Pin(name="click", version="8.5.1", hashes=frozenset({A}))
    good = IndexFile(filename="click-8.5.1-py3-none-any.whl", url="", sha256=A)
    better = IndexFile(filename="click-8.5.1-cp311-cp311-linux_x86_64.whl", url="", sha256=B)
    assert wheel_of_pin(pin, [better, good], TARGET, "tool").path == f"tool/{good.filename}"
    with pytest.raises(FindingError) as caught:
        wheel_of_pin(pin, [better], TARGET, "tool")
    assert caught.value.code == "bundle.no-wheel"


# --- a real run: rendered, locked and gathered from indexes on the loopback ---

Provision = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PROVISION_* variable of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("PROVISION_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Indexes]:
    """What the cell needs; the package index wants a password, which netrc has."""
    both = Indexes()
    for name, version in (("torch", "2.0.1"), ("torchvision", "0.15.2"), ("torchaudio", "2.0.2")):
        both.torch.add(name, f"{version}+cpu", "numpy", uploaded=None)
    both.package.add("numpy", "1.25.0")
    both.package.add("setuptools", "68.0.0")
    both.package.user = ("reader", SECRET)
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login reader password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with both.package.serve(), both.torch.serve():
        both.torch.url = both.torch.url.removesuffix("/simple")
        yield both


@pytest.fixture
def provision(indexes: Indexes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Provision:
    """Runs a command with --json: provision("bundle", CELL, ...) -> (status, object)."""

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        status = run([*words, "--json"])
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        return status, json.loads(out)

    place = f"--out={tmp_path / 'root'}"
    mirrors = [f"--mirror=package_index={indexes.package.url}"]
    mirrors += [f"--mirror=torch_index={indexes.torch.url}"]
    assert call("render", *OPTIONS, *mirrors, place)[0] == 0
    assert call("lock", CELL, place)[0] == 0
    return call


@pytest.fixture
def gather(provision: Provision, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Gathers the cell without image and tool into `bundle`."""

    def call(*words: str, out: str = "bundle") -> tuple[int, dict[str, Any]]:
        place = [f"--out={tmp_path / out}", f"--root={tmp_path / 'root'}"]
        return provision("bundle", CELL, *place, "--no-image", "--no-tool", *words)

    return call


Gather = Callable[..., tuple[int, dict[str, Any]]]


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def code_of(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def test_one_folder_has_wheels_locks_and_playbooks_with_checksums(
    gather: Gather, provision: Provision, tmp_path: Path
) -> None:
    status, told = gather()
    assert (status, told["fetched_files"], told["kept_files"]) == (0, 5, 0)
    folder = tmp_path / "bundle"
    lock = json.loads((folder / "lockfiles" / CELL / "lock.json").read_bytes())
    for package in lock["packages"]:
        for file in package["files"]:
            data = (folder / "wheels" / file["filename"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"]
    found = content(folder)
    assert f"docker/{CELL}/spec.json" in found
    assert f"docker/{CELL}/Dockerfile" not in found
    assert f"playbooks/vars/{CELL}.yml" in found
    assert b"def " in found["playbooks/roles/gpu_preflight/files/facts.py"]
    listed = {file.path for file in read_bundle(folder).files}
    assert listed == set(found) - {MANIFEST, SUMS}
    sums = subprocess.run(
        ["sha256sum", "--check", "--quiet", SUMS], cwd=folder, capture_output=True, text=True
    )
    assert (sums.returncode, sums.stderr) == (0, "")
    assert not any(SECRET.encode() in data for data in found.values())
    status, told = provision("bundle", "--check", str(folder), "--sha256", told["sha256"])
    assert (status, told["files"], told["cell"]) == (0, len(listed), CELL)


def test_the_same_lock_gives_the_same_bytes_and_nothing_is_fetched_twice(
    gather: Gather, indexes: Indexes, tmp_path: Path
) -> None:
    gather()
    gather(out="other")
    folder = tmp_path / "bundle"
    assert content(folder) == content(tmp_path / "other")
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.whl")}
    indexes.package.asked.clear()
    indexes.torch.asked.clear()
    status, told = gather()
    assert (status, told["fetched_files"], told["kept_files"]) == (0, 0, 5)
    assert indexes.package.asked + indexes.torch.asked == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.whl")} == times
    assert content(folder) == content(tmp_path / "other")


def numpy_of(indexes: Indexes) -> Wheel:
    return indexes.package.projects["numpy"][0]


def test_an_interrupted_run_is_no_bundle_and_the_next_one_goes_on(
    gather: Gather, provision: Provision, indexes: Indexes, tmp_path: Path
) -> None:
    indexes.torch.status["torchvision-"] = 403
    assert code_of(gather()) == (4, "index.credentials")
    folder = tmp_path / "bundle"
    have = {path.name.split("-")[0] for path in (folder / "wheels").iterdir()}
    assert have == {"numpy", "setuptools", "torch", "torchaudio"}
    assert code_of(provision("bundle", "--check", str(folder))) == (1, "bundle.unfinished")
    (folder / "wheels" / ".part-torchvision-x").write_bytes(b"of a killed run")
    (folder / "wheels" / next(p.name for p in folder.rglob("numpy-*"))).write_bytes(b"half")
    indexes.torch.status.clear()
    status, told = gather()
    assert (status, told["fetched_files"], told["kept_files"]) == (0, 2, 3)
    assert provision("bundle", "--check", str(folder))[0] == 0


def test_bytes_that_were_not_locked_never_get_a_name(
    gather: Gather, indexes: Indexes, tmp_path: Path
) -> None:
    wheel = numpy_of(indexes)
    wheel.body = wheel.body[:-1] + b"x"  # the page goes on to tell the right hash
    assert code_of(gather()) == (1, "bundle.wrong-hash")
    assert not list((tmp_path / "bundle").rglob("*numpy*"))
    wheel.sha256 = B
    status, told = gather()
    assert (status, told["error"]["code"]) == (1, "bundle.wrong-hash")
    assert told["error"]["facts"]["found"] == B


def test_a_file_that_left_its_index_is_named(gather: Gather, indexes: Indexes) -> None:
    indexes.package.projects["numpy"].clear()
    status, told = gather()
    assert (status, told["error"]["code"]) == (4, "bundle.not-there")
    assert "numpy-1.25.0" in told["error"]["message"]


def test_sizes_that_a_page_does_not_tell_are_asked_for_before_the_download(
    provision: Provision, indexes: Indexes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indexes.torch.json = indexes.package.json = False
    place = [f"--out={tmp_path / 'bundle'}", f"--root={tmp_path / 'root'}"]
    assert run(["bundle", CELL, *place, "--no-image", "--no-tool"]) == 0
    sizes = [
        len(wheel.body)
        for index in (indexes.torch, indexes.package)
        for wheels in index.projects.values()
        for wheel in wheels
    ]
    assert f"To fetch: 5 files, {sum(sizes) / 1e3:.0f} kB." in capsys.readouterr().err


def test_a_folder_of_somebody_is_not_gathered_into(gather: Gather, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "precious").write_text("data")
    assert code_of(gather()) == (2, "bundle.not-ours")
    (folder / "precious").unlink()
    gather()
    (folder / "wheels" / "extra.txt").write_text("data")
    assert code_of(gather()) == (2, "bundle.foreign-file")
    assert (folder / "wheels" / "extra.txt").read_text() == "data"


def test_a_lock_that_was_edited_is_not_gathered(gather: Gather, tmp_path: Path) -> None:
    path = tmp_path / "root" / "lockfiles" / CELL / "requirements.txt"
    path.write_text(path.read_text() + "# mine\n")
    assert code_of(gather()) == (1, "bundle.edited")
    assert not (tmp_path / "bundle").exists()


def spoil_change(folder: Path) -> None:
    path = next(folder.rglob("numpy-*"))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


def spoil_link(folder: Path) -> None:
    """The right bytes, but behind a link that leads out."""
    path = next(folder.rglob("numpy-*"))
    shutil.move(path, folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def spoil_folder(folder: Path) -> None:
    (folder / "wheels" / "more").symlink_to(folder.parent)


SPOILED: list[tuple[str, Callable[[Path], Any], str]] = [
    ("changed", spoil_change, "wheels/numpy-1.25.0-py3-none-any.whl (changed)"),
    ("missing", lambda f: next(f.rglob("numpy-*")).unlink(), "numpy-1.25.0-py3-none-any.whl (mis"),
    ("extra", lambda f: (f / "wheels" / "torch-9.whl").touch(), "wheels/torch-9.whl (extra)"),
    ("link", spoil_link, "numpy-1.25.0-py3-none-any.whl (changed)"),
    ("folder", spoil_folder, "wheels/more (extra)"),
    ("sums", lambda f: (f / SUMS).write_text(""), "SHA256SUMS (changed)"),
    ("no sums", lambda f: (f / SUMS).unlink(), "SHA256SUMS (missing)"),
    ("hidden", lambda f: (f / ".pip.conf").touch(), ".pip.conf (extra)"),
]  # fmt: skip


def test_whatever_is_not_as_gathered_is_refused_in_one_message(
    gather: Gather, provision: Provision, tmp_path: Path
) -> None:
    gather()
    for name, spoil, said in SPOILED:
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "bundle", folder)
        spoil(folder)
        status, told = provision("bundle", "--check", str(folder))
        assert (status, told["error"]["code"]) == (1, "bundle.not-whole"), name
        assert said in told["error"]["message"], name
        assert told["error"]["message"].startswith("1 file is not as gathered"), name
        prefix = tmp_path / "env"
        create = ["env", "create", CELL, f"--prefix={prefix}", f"--bundle={folder}"]
        assert code_of(provision(*create)) == (1, "bundle.not-whole"), name
        assert not prefix.exists()
        shutil.rmtree(folder)


def test_a_list_that_was_changed_along_is_another_bundle(
    gather: Gather, provision: Provision, tmp_path: Path
) -> None:
    """Who can change the files can change the list: the digest that was printed tells."""
    digest = gather()[1]["sha256"]
    folder = tmp_path / "bundle"
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"complete": true', b'"complete": false'))
    assert code_of(provision("bundle", "--check", str(folder))) == (1, "bundle.unfinished")
    path.write_bytes(path.read_bytes().replace(b'"complete": false', b'"complete":  true'))
    assert code_of(provision("bundle", "--check", str(folder))) == (1, "bundle.damaged")
    path.write_bytes(path.read_bytes().replace(b'"complete":  true', b'"complete": true'))
    answer = provision("bundle", "--check", str(folder), "--sha256", digest[:-1] + "!")
    assert code_of(answer) == (1, "bundle.other-bundle")
    path.write_bytes(path.read_bytes().replace(b'"wheels/num', b'"../els/num'))
    assert code_of(provision("bundle", "--check", str(folder))) == (1, "bundle.damaged")


def test_a_bundle_serves_its_own_cell_and_lock_alone(
    gather: Gather, provision: Provision, tmp_path: Path
) -> None:
    gather()
    folder = tmp_path / "bundle"
    create = ["env", "create", "--prefix", str(tmp_path / "env"), f"--bundle={folder}"]
    assert code_of(provision(*create, "other")) == (1, "bundle.other-cell")
    root = tmp_path / "root"
    lock = root / "lockfiles" / CELL / "lock.json"
    lock.write_bytes(lock.read_bytes() + b"\n")
    assert code_of(provision(*create, CELL, f"--out={root}")) == (1, "bundle.other-lock")
    assert code_of(provision(*create, CELL, "--wheels=x")) == (2, "bundle.alone")
    assert code_of(provision(*create, CELL, "--mirror=conda=http://x/")) == (2, "bundle.alone")
    build = ["build", CELL, f"--bundle={folder}"]
    assert code_of(provision(*build, "--network=host")) == (2, "bundle.alone")
    assert code_of(provision(*build)) == (1, "bundle.no-image")


def test_without_an_engine_nothing_is_fetched_and_no_image_is_offered(
    provision: Provision, indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_DOCKER", str(tmp_path / "no-docker"))
    indexes.package.asked.clear()
    place = [f"--out={tmp_path / 'bundle'}", f"--root={tmp_path / 'root'}"]
    status, told = provision("bundle", CELL, *place, "--no-tool")
    assert (status, told["error"]["code"]) == (4, "build.no-client")
    assert "--no-image" in told["error"]["next_step"]
    assert indexes.package.asked == []
    assert not (tmp_path / "bundle").exists()


# --- the disk, and the tool itself ---


@needs("system", missing=os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_full_disk_is_one_message_and_leaves_no_half_file(tmp_path: Path) -> None:
    point = tmp_path / "disk"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", point], check=True)
    try:
        with pytest.raises(OutsideError) as caught:
            store.require_room(point, 2 << 20)
        assert (caught.value.code, caught.value.facts["needed_bytes"]) == (
            "bundle.no-space", 2 << 20,
        )  # fmt: skip
        with pytest.raises(OutsideError) as caught:
            store.write_stream(point, "wheels/big.whl", [bytes(1 << 18)] * 8, None)
        assert caught.value.code == "bundle.no-space"
        assert content(point) == {}
    finally:
        subprocess.run(["umount", point], check=True)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with store.held(tmp_path), pytest.raises(ProvisionError) as caught, store.held(tmp_path):
        pass
    assert caught.value.code == "bundle.busy"


def test_a_bundle_json_has_one_form() -> None:
    one = Bundle(provision="0", cell="c", lock=A, complete=True, files=())
    assert bundle_bytes(one) == bundle_bytes(one)
    assert b'"schema": "provision.bundle/1"' in bundle_bytes(one)


def test_an_installed_tool_becomes_its_wheel_again(tmp_path: Path) -> None:
    """Built from the checkout, installed, and packed from what was installed: the same files."""
    import sys
    import zipfile

    name, data = own.own_wheel()
    (tmp_path / name).write_bytes(data)
    site = tmp_path / "site"
    pip = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "install"]
    pip += ["--quiet", "--no-deps", "--no-index", f"--target={site}", str(tmp_path / name)]
    subprocess.run(pip, check=True)
    code = "from provisioner.bundle import own; n, d = own.own_wheel(); print(n); "
    code += "open('again.whl', 'wb').write(d); own.shipped('requirements/run.txt'); "
    code += "print(len(own.playbook_files()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name, str(len(own.playbook_files()))]
    with zipfile.ZipFile(tmp_path / name) as first, zipfile.ZipFile(tmp_path / "again.whl") as then:
        record = next(entry for entry in first.namelist() if entry.endswith("/RECORD"))
        inside = {entry: first.read(entry) for entry in first.namelist() if entry != record}
        assert {entry: then.read(entry) for entry in then.namelist() if entry != record} == inside
