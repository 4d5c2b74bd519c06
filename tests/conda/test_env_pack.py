"""An environment packed here and unpacked by an old Python with nothing but its own library."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import conda_channel as cc
from support.cells import cell_of
from support.contentwheel import content_wheel, pin, torch_wheel
from support.locking import python
from support.needs import skip_or_fail

from provisioner.cli.main import run
from provisioner.env.check import CheckOptions, check_env
from provisioner.env.create import CreateOptions, create_env
from provisioner.env.pack import Packed, pack_env
from provisioner.env.versions import Versions
from provisioner.errors import OutsideError, UsageError

TORCH = "2.0.1+cu118"


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, installing: dict[str, str], archives: list[Path]
) -> Path:
    """The link of a whole environment with conda's half and pip's."""
    root = tmp_path_factory.mktemp("pack")
    cell: dict[str, Any] = msgspec.to_builtins(cell_of(torch="2.0.1", cuda="11.8")[0])
    cell |= {"python": cc.SERIES, "torchvision": None, "torchaudio": None, "name": "cell"}
    cell |= {"arch": os.uname().machine, "requirements": [f"torch=={TORCH}"]}
    spec = {"schema": "provision.spec/1", "made_by": "x", "mirrors": {}, "request": {}}
    locks = root / "lockfiles" / "cell"
    for folder in (root / "docker" / "cell", locks):
        folder.mkdir(parents=True)
    (root / "docker" / "cell" / "spec.json").write_text(json.dumps(spec | {"cell": cell}))
    entries = "".join(
        f"- name: {record['name']}\n  version: '{record['version']}'\n  manager: conda\n"
        f"  platform: {cc.SUBDIR}\n  dependencies: {{}}\n"
        f"  url: https://conda.anaconda.org/conda-forge/{path.parent.name}/{path.name}\n"
        f"  hash:\n    md5: {record['md5']}\n    sha256: {record['sha256']}\n"
        for path in archives
        for record in [cc.record_of(path)]
    )
    (locks / "conda-lock.yml").write_text("version: 1\npackage:\n" + entries)
    tiny = content_wheel(root / "wheels", "tiny", "1.0", {"tiny.py": b"VALUE = 1\n"})
    (locks / "requirements.txt").write_text(pin(tiny))
    torch = torch_wheel(root / "wheels", TORCH, "11.8")
    (locks / "requirements-torch.txt").write_text(pin(torch))
    link = root / "opt" / "torch"
    options = CreateOptions(root=root, wheels=root / "wheels", environ=installing, engine="uv")
    create_env("cell", link, options)
    return link


@pytest.fixture(scope="module")
def packed(made: Path) -> tuple[Path, Packed]:
    target = made.parents[1] / "torch.tar"
    return target, pack_env(made, target, "2.17")


@pytest.fixture
def gone(made: Path) -> Callable[[], None]:
    """Takes the environment away: here is the host now."""

    def away() -> None:
        made.unlink(missing_ok=True)
        shutil.rmtree(Versions(made).folder, ignore_errors=True)

    away()
    return away


@pytest.fixture
def back(made: Path, packed: tuple[Path, Packed]) -> None:
    """The environment is where it was made, whatever a test before did."""
    if not made.is_symlink():
        assert unpack(packed[0], series=cc.SERIES).returncode == 0


def unpack(
    archive: Path, *words: str, series: str = "3.8", **environ: str
) -> subprocess.CompletedProcess[str]:
    """As the manual says: the program comes out of the archive."""
    interpreter = python(series)
    if interpreter is None:
        skip_or_fail("pythons", f"no Python {series} here")
    with tarfile.open(archive) as tar:
        first = tar.next()
        assert first is not None
        body = tar.extractfile(first)
        assert body is not None
        program = body.read().decode()
    return subprocess.run(
        [interpreter, "-", str(archive), *words],
        input=program,
        env={"PATH": os.defpath, **environ},
        capture_output=True,
        text=True,
    )


def altered(archive: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy of an archive in which `change` decided about the content of each member."""
    with tarfile.open(archive) as old, tarfile.open(target, "w") as new:
        for member in old:
            body = old.extractfile(member)
            assert body is not None
            data = change(member.name, body.read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    return target


def manifest_of(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:
        body = tar.extractfile("manifest.json")
        assert body is not None
        found: dict[str, Any] = json.loads(body.read())
        return found


def test_the_same_environment_gives_the_same_bytes_and_nothing_of_its_user(
    made: Path, packed: tuple[Path, Packed], back: None, tmp_path: Path
) -> None:
    archive, about = packed
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == about.sha256
    pack_env(made, tmp_path / "small.tar.gz", "2.17")
    assert gzip.decompress((tmp_path / "small.tar.gz").read_bytes()) == archive.read_bytes()
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members[:2]] == ["unpack.py", "manifest.json"]
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, "", "")}
    names = [member.name for member in members[2:]]
    assert names == sorted(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.tar.gz"]


@pytest.mark.parametrize("series", ["3.6", "3.8"])
def test_an_old_python_puts_it_where_it_was_and_our_check_finds_nothing(
    made: Path, packed: tuple[Path, Packed], gone: Callable[[], None], series: str
) -> None:
    archive, about = packed
    done = unpack(archive, "--sha256", about.sha256, series=series)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{made} is the environment of cell: {about.prefix}\n"
    assert made.resolve() == about.prefix
    clean = {"PATH": os.defpath, "PYTHONNOUSERSITE": "1"}
    assert check_env(made, CheckOptions(environ=clean)) == []
    again = unpack(archive, series=series)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert sorted(path.name for path in about.prefix.parent.iterdir()) == [
        about.prefix.name,
        "lock",
    ]


def test_the_environment_before_stays(
    made: Path, packed: tuple[Path, Packed], gone: Callable[[], None]
) -> None:
    archive, about = packed
    old = about.prefix.parent / "0123"
    old.mkdir(parents=True)
    made.symlink_to(f"{old.parent.name}/0123")
    assert unpack(archive).returncode == 0
    assert Versions(made).current == about.prefix
    assert Versions(made).previous == old


def flipped(name: str, data: bytes) -> bytes:
    return data[:-1] + b"?" if name.endswith("/tiny.py") else data


def lying(name: str, data: bytes) -> bytes:
    """A file and its hash were changed: all is as the manifest says, but torch is another."""
    if name == "env/" + _VERSION:
        return data.replace(b"2.0.1+cu118", b"2.0.1+cu117")
    if name != "manifest.json":
        return data
    manifest = json.loads(data)
    entry = manifest["files"][_VERSION]
    entry["sha256"] = hashlib.sha256(_INIT.replace(b"cu118", b"cu117")).hexdigest()
    return json.dumps(manifest).encode()


_VERSION = f"{cc.SITE_PACKAGES}/torch/__init__.py"
_INIT = f"from . import version\n__version__ = {TORCH!r}\n".encode()


def leading_out(name: str, data: bytes) -> bytes:
    return data.replace(b'"bin/python"', b'"../../python"') if name == "manifest.json" else data


def through_a_link(name: str, data: bytes) -> bytes:
    if name != "manifest.json":
        return data
    manifest = json.loads(data)
    manifest["links"]["lib"] = "/tmp"
    return json.dumps(manifest).encode()


def field(**values: object) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | values).encode() if name == "manifest.json" else data

    return change


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (flipped, 1, "tiny.py is not what was packed"),
        (lambda n, d: None if n.endswith("/tiny.py") else d, 1, "tiny.py is missing"),
        (lambda n, d: None if n == "manifest.json" else d, 1, "no archive of `provision env pack`"),
        (lying, 1, f"{cc.SERIES} 2.0.1+cu117, not {cc.SERIES} {TORCH}"),
        (leading_out, 1, "leads out of it"),
        (through_a_link, 1, "leads out of it"),
        (field(schema="provision.env-pack/9"), 1, "another version"),
        (field(prefix="opt/../x"), 1, "no place for an environment"),
        (field(arch="riscv64"), 4, "The environment is for riscv64"),
        (field(glibc="9.99"), 4, "It needs glibc 9.99"),
    ],
    ids=range(10),
)
def test_what_is_not_right_leaves_nothing_behind(
    made: Path,
    packed: tuple[Path, Packed],
    gone: Callable[[], None],
    tmp_path: Path,
    change: Callable[[str, bytes], bytes | None],
    status: int,
    said: str,
) -> None:
    archive = altered(packed[0], tmp_path / "bad.tar", change)
    done = unpack(archive)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("unpack: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    folder = Versions(made).folder
    assert not os.path.lexists(made)
    assert not folder.exists() or [path.name for path in folder.iterdir()] == ["lock"]


def test_a_wrong_digest_a_cut_archive_and_what_is_in_the_way(
    made: Path, packed: tuple[Path, Packed], gone: Callable[[], None], tmp_path: Path
) -> None:
    archive, about = packed
    done = unpack(archive, "--sha256", "0" * 64)
    assert (done.returncode, "has the sha256" in done.stderr) == (1, True)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(archive.read_bytes()[: about.size // 2])
    done = unpack(cut)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    made.mkdir(parents=True)
    done = unpack(archive)
    assert (done.returncode, "is in the way" in done.stderr) == (4, True)
    made.rmdir()
    assert unpack(archive).returncode == 0
    (about.prefix / cc.SITE_PACKAGES / "tiny.py").write_text("VALUE = 2\n")
    done = unpack(archive)
    assert (done.returncode, "Remove it, then try again" in done.stderr) == (1, True)
    gone()


def test_only_a_proved_environment_of_ours_is_packed(
    made: Path, back: None, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as usage:
        pack_env(made, tmp_path / "torch.zip", None)
    assert usage.value.code == "env.pack-name"
    with pytest.raises(OutsideError) as outside:
        pack_env(Path(sys.prefix), tmp_path / "torch.tar", None)
    assert outside.value.code == "env.not-made-here"
    with pytest.raises(OutsideError) as outside:
        pack_env(made, tmp_path / "no" / "torch.tar", None)
    assert outside.value.code == "env.pack-not-written"
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_what_to_type_there(
    made: Path, back: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "torch.tar"
    assert run(["env", "pack", str(made), f"--out={target}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "provision.env-pack-run/1"
    assert told["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    assert manifest_of(target)["glibc"] == "2.35"
    assert run(["env", "pack", str(made), f"--out={target}"]) == 0
    assert f"python3 - torch.tar --sha256 \\\n    {told['sha256']}" in capsys.readouterr().out
