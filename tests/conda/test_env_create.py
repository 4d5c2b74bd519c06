"""`env create` for real, on both kinds of Python: built beside, proved, switched, kept."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import conda_channel as cc
from support.cells import cell_of
from support.contentwheel import content_wheel, pin, torch_wheel
from support.wheelhouse import serve_wheels

from provisioner.cli.env import group
from provisioner.conda import prefix as prefixes
from provisioner.env.check import check_env
from provisioner.env.create import Created, CreateOptions, create_env
from provisioner.env.versions import Versions
from provisioner.errors import FindingError, OutsideError, ProvisionError, UsageError

TORCH = "2.0.1+cu118"


@dataclass
class Yard:
    """An output root with one locked cell, a folder of wheels, and a place for environments."""

    root: Path
    cell: str
    environ: dict[str, str]
    link: Path
    fields: dict[str, Any]

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def locks(self) -> Path:
        return self.root / "lockfiles" / self.cell

    def lock(self, *wheels: Path, name: str = "requirements.txt", extra: str = "") -> None:
        self.locks.mkdir(parents=True, exist_ok=True)
        (self.locks / name).write_text("# a lock\n" + "".join(map(pin, wheels)) + extra)

    def create(self, **options: Any) -> Created:
        known = {"root": self.root, "wheels": self.wheels, "environ": self.environ, "engine": "uv"}
        return create_env(self.cell, self.link, CreateOptions(**{**known, **options}))

    def failing(self, **options: Any) -> ProvisionError:
        with pytest.raises(ProvisionError) as caught:
            self.create(**options)
        return caught.value

    def run(self, code: str) -> str:
        done = subprocess.run(
            [self.link / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


def yard_of(tmp_path: Path, environ: dict[str, str], python_from: str) -> Yard:
    cell, _ = cell_of(torch="2.0.1", cuda="11.8", python_from=python_from)
    plain: dict[str, Any] = msgspec.to_builtins(cell)
    plain |= {"python": cc.SERIES, "torchvision": None, "torchaudio": None, "name": "cell"}
    plain |= {"arch": os.uname().machine, "requirements": [f"torch=={TORCH}"]}
    root = tmp_path / "root"
    (root / "docker" / "cell").mkdir(parents=True)
    spec = {"schema": "provision.spec/1", "made_by": "x", "mirrors": {}, "request": {}}
    (root / "docker" / "cell" / "spec.json").write_text(json.dumps(spec | {"cell": plain}))
    yard = Yard(root, "cell", environ, tmp_path / "envs" / "torch", plain)
    yard.lock(
        content_wheel(yard.wheels, "tiny", "1.0", {"tiny.py": b"VALUE = 1\n"}),
    )
    yard.lock(torch_wheel(yard.wheels, TORCH, "11.8"), name="requirements-torch.txt")
    return yard


@pytest.fixture
def base(tmp_path: Path, clean_environ: dict[str, str]) -> Yard:
    """A cell on the Python of this machine."""
    return yard_of(tmp_path, clean_environ, "base")


@pytest.fixture
def conda(tmp_path: Path, installing: dict[str, str], archives: list[Path]) -> Yard:
    """A cell on conda's Python, whose numpy and six are conda's."""
    yard = yard_of(tmp_path, installing, "conda")
    entries = []
    for path in archives:
        record = cc.record_of(path)
        url = f"https://conda.anaconda.org/conda-forge/{path.parent.name}/{path.name}"
        entries.append(
            f"- name: {record['name']}\n  version: '{record['version']}'\n  manager: conda\n"
            f"  platform: {cc.SUBDIR}\n  dependencies: {{}}\n  url: {url}\n  hash:\n"
            f"    md5: {record['md5']}\n    sha256: {record['sha256']}\n"
        )
    (yard.locks / "conda-lock.yml").write_text("version: 1\npackage:\n" + "".join(entries))
    return yard


PYTHON = Path(getattr(sys, "_base_executable", sys.executable))


def test_a_base_cell_is_built_proved_and_left_alone_when_nothing_changed(base: Yard) -> None:
    made = base.create(python=PYTHON)
    assert made.changed
    assert base.run("import torch, tiny; print(torch.__version__, tiny.VALUE)") == f"{TORCH} 1"
    assert check_env(base.link) == []
    events: list[str] = []
    again = base.create(python=PYTHON, progress=lambda event, facts: events.append(event))
    assert (again.changed, again.prefix, events) == (False, made.prefix, ["checking"])
    kept = base.link / ".provision" / "requirements-torch.txt"
    assert kept.read_bytes() == (base.locks / "requirements-torch.txt").read_bytes()


def test_a_conda_cell_leaves_to_conda_what_conda_owns(conda: Yard, tmp_path: Path) -> None:
    """The lock names numpy and six at conda's versions; no wheel of them is even there."""
    conda.environ = conda.environ | {  # none of these moves the target
        "PIP_TARGET": str(tmp_path / "elsewhere"),
        "PIP_USER": "1",
        "PYTHONPATH": str(tmp_path),
        "PIP_CONSTRAINT": "/no/such/file",
    }
    shared = f"numpy==1.26.4 --hash=sha256:{'a' * 64}\nsix==1.16.0 --hash=sha256:{'b' * 64}\n"
    tiny = next(conda.wheels.glob("tiny-*"))
    conda.lock(tiny, extra=shared)
    events: list[str] = []
    conda.create(engine="pip", progress=lambda event, facts: events.append(event))
    assert conda.run("import torch, numpy; print(torch.__version__, numpy.__version__)") == (
        f"{TORCH} 1.26.4"
    )
    assert check_env(conda.link) == []
    assert not (tmp_path / "elsewhere").exists()
    assert events[0] == "conda"
    assert events[-2:] == ["pip", "checking"]
    program = conda.link / "bin" / "greet"
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert told == f"{Versions(conda.link).current}/share\n"


def test_a_lock_that_would_replace_condas_package_is_refused(conda: Yard) -> None:
    other = content_wheel(conda.wheels, "six", "1.17.0", {"six.py": b""})
    conda.lock(other)
    error = conda.failing()
    assert (error.code, error.facts["clashes"]) == (
        "env.pip-over-conda",
        ["six 1.17.0 (conda has 1.16.0)"],
    )
    assert not conda.link.exists()
    assert leftovers(conda) == []


def leftovers(yard: Yard) -> list[str]:
    """Versions and hidden files beside the link."""
    folder = Versions(yard.link).folder
    inside = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return inside + [path.name for path in yard.link.parent.iterdir() if path.name[0] == "."]


def test_versions_come_and_go_beside_each_other(base: Yard) -> None:
    first = base.create(python=PYTHON)
    # A wheel that is not the locked one: refused, and the environment stays as it is.
    base.lock(content_wheel(base.wheels, "tiny", "2.0", {"tiny.py": b"VALUE = 2\n"}))
    good = next(base.wheels.glob("tiny-2.0-*")).read_bytes()
    content_wheel(base.wheels, "tiny", "2.0", {"tiny.py": b"VALUE = 666\n"})
    error = base.failing(python=PYTHON)
    assert isinstance(error, FindingError)
    assert error.code == "env.wheel-hash"
    assert base.run("import tiny; print(tiny.VALUE)") == "1"
    assert leftovers(base) == [first.prefix.name]
    # The right one: a new version, the old one kept.
    next(base.wheels.glob("tiny-2.0-*")).write_bytes(good)
    second = base.create(python=PYTHON)
    assert (second.changed, second.previous) == (True, first.prefix)
    assert base.run("import tiny; print(tiny.VALUE)") == "2"
    # Back, and creating again finds the other version still right and only switches.
    group.main(["rollback", "--prefix", str(base.link)], "env", standalone_mode=False)
    assert base.run("import tiny; print(tiny.VALUE)") == "1"
    third = base.create(python=PYTHON)
    assert (third.prefix, third.changed) == (second.prefix, True)
    # A damaged version is not mended in place.
    site = next(third.prefix.glob("lib/python3*/site-packages"))
    (site / "torch" / "version.py").write_text("cuda = None\n")
    fourth = base.create(python=PYTHON)
    assert fourth.prefix.name == f"{third.prefix.name}-2"
    assert fourth.previous == third.prefix
    assert check_env(base.link) == []
    assert set(leftovers(base)) == {fourth.prefix.name, third.prefix.name, "previous"}


def test_pip_refuses_a_changed_wheel_as_uv_does(conda: Yard) -> None:
    content_wheel(conda.wheels, "tiny", "1.0", {"tiny.py": b"VALUE = 666\n"})
    error = conda.failing(engine="pip")
    assert error.code == "env.wheel-hash"
    assert not conda.link.exists()


def test_a_torch_of_another_variant_never_becomes_current(base: Yard) -> None:
    """Its wheel says what the lock says, its content does not."""
    wheel = torch_wheel(base.wheels, "2.0.1+cpu", None, metadata=TORCH)
    base.lock(wheel, name="requirements-torch.txt")
    error = base.failing(python=PYTHON, engine="pip")
    assert error.code == "env.check-failed"
    assert [f["code"] for f in error.facts["findings"]] == ["env.torch-variant"]
    assert not base.link.exists()
    assert leftovers(base) == []


@pytest.mark.parametrize(
    ("name", "version", "code"),
    [
        ("torch", "2.0.1+cpu", "env.torch-variant"),
        ("torch", "2.0.1", "env.torch-variant"),
        ("torch", "2.1.2+cu118", "env.family-version"),
        ("torchvision", "0.15.2+cu118", "env.family-uncalled"),
        ("nvidia_cublas_cu12", "12.1.3.1", "env.other-cuda"),
        ("torch_nightly", "2.1.0", "env.second-torch"),
    ],
)
def test_a_lock_that_breaks_a_guard_is_refused_before_anything_is_fetched(
    base: Yard, name: str, version: str, code: str
) -> None:
    torch = torch_wheel(base.wheels, TORCH, "11.8")
    odd = content_wheel(base.wheels, name, version, {f"{name}.py": b""})
    base.lock(*([odd] if name == "torch" else [torch, odd]), name="requirements-torch.txt")
    error = base.failing(python=PYTHON)
    assert error.code == "env.lock-guard"
    assert [f["code"] for f in error.facts["findings"]] == [code]
    assert "provision lock cell" in (error.next_step or "")
    assert not base.link.parent.exists()


def test_a_lock_with_two_torches_is_refused(base: Yard) -> None:
    base.lock(torch_wheel(base.wheels, TORCH, "11.8"))
    error = base.failing(python=PYTHON)
    assert [f["code"] for f in error.facts["findings"]] == ["env.torch-twice"]


def test_what_is_missing_is_named_before_anything_is_made(base: Yard) -> None:
    for path, code, step in (
        (base.locks / "requirements.txt", "env.lock-missing", "provision lock cell"),
        (base.root / "docker" / "cell" / "spec.json", "cell.not-rendered", "render"),
    ):
        path.unlink()
        error = base.failing(python=PYTHON)
        assert isinstance(error, (OutsideError, UsageError))
        assert error.code == code
        assert step in (error.next_step or "")
    assert not base.link.parent.exists()


def test_a_python_of_another_series_is_no_base(base: Yard, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.6\n")
    other.chmod(0o755)
    error = base.failing(python=other)
    assert error.code == "env.no-python"
    assert f"needs Python {cc.SERIES}" in error.message


def test_a_folder_of_somebody_is_refused_before_anything_is_made(base: Yard) -> None:
    base.link.mkdir(parents=True)
    (base.link / "precious").write_text("data")
    error = base.failing(python=PYTHON)
    assert isinstance(error, UsageError)
    assert error.code == "env.not-ours"
    assert [path.name for path in base.link.parent.iterdir()] == ["torch"]


CREATE = """
import sys
from pathlib import Path
from provisioner.env.create import CreateOptions, create_env
def told(event, facts):
    print(event, flush=True)
root, link = map(Path, sys.argv[1:])
known = {"root": root, "wheels": root / "wheels", "engine": "uv"}
create_env("cell", link, CreateOptions(progress=told, **known))
"""


def test_a_killed_creation_leaves_no_environment_and_the_next_one_works(conda: Yard) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CREATE, conda.root, conda.link],
        env=conda.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "pip":  # conda's half is complete by now
                break
        process.kill()
    assert not conda.link.exists()
    (half,) = Versions(conda.link).folder.glob("*/conda-meta")
    assert not prefixes.is_whole(half.parent)
    made = conda.create()
    assert check_env(conda.link) == []
    assert leftovers(conda) == [made.prefix.name]


def test_the_commands_answer_people_and_programs(
    base: Yard, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["create", "cell", "--prefix", str(base.link), "--out", str(base.root), "--engine"]
    words += ["uv", "--wheels", str(base.wheels), "--python", str(PYTHON)]

    def run(*arguments: str) -> tuple[int, str]:
        status = group.main(list(arguments), "env", standalone_mode=False)
        return status, capsys.readouterr().out

    status, text = run(*words, "--json")
    assert status == 0
    assert json.loads(text)["changed"]
    assert run(*words) == (0, f"{base.link} is the environment of cell already.\n")
    status, manifest = run("manifest", str(base.link))
    assert status == 0
    (tmp_path / "manifest").write_text(manifest)
    check = ["check", str(base.link), "--manifest", str(tmp_path / "manifest")]
    assert run(*check) == (0, f"{base.link}: no finding.\n")
    site = next(base.link.resolve().glob("lib/python3*/site-packages"))
    (site / "tiny.py").unlink()
    status, text = run(*check, "--json")
    codes = [finding["code"] for finding in json.loads(text)["findings"]]
    assert (status, codes) == (1, ["env.file-missing", "env.manifest-missing"])
    status, text = run("check", str(base.link))
    assert "1 file of pip's tiny 1.0 is missing" in text
    assert "Next: Build the environment anew" in text


def test_wheels_come_from_the_mirrors_that_the_command_line_names(
    base: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    nowhere = "http://127.0.0.1:9/simple"
    monkeypatch.setenv("PROVISION_MIRROR_PACKAGE_INDEX", nowhere)  # the command line wins
    words = ["create", "cell", "--prefix", str(base.link), "--out", str(base.root)]
    words += ["--engine", "uv", "--python", str(PYTHON)]
    with serve_wheels(base.wheels) as url:
        mirrors = [f"--mirror=package_index={url}", f"--mirror=torch_index={url}"]
        assert group.main([*words, *mirrors], "env", standalone_mode=False) == 0
    assert base.run("import torch, tiny; print(torch.__version__, tiny.VALUE)") == f"{TORCH} 1"
    with pytest.raises(UsageError) as caught:
        group.main([*words, "--mirror=torch=http://x/"], "env", standalone_mode=False)
    assert caught.value.code == "mirror.unknown-origin"
