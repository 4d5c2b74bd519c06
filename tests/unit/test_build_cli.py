"""`provision build` up to the point where an engine is needed, and what it hands the builder."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from probe_facts import Seen, compiler, cpu_cell
from support.engine import PROJECT

from provisioner.build.engine import Client, Engine
from provisioner.build.image import BuildOptions, build_command, judge
from provisioner.cli.build import build_arguments
from provisioner.cli.main import run
from provisioner.errors import FindingError, UsageError
from provisioner.render.bake import image_tag
from provisioner.render.dockerfile import lock_names
from provisioner.verify import probe

NAME = "torch2.7.1-cpu-py310-ubuntu22.04"
CELL = {
    "name": NAME, "variant": "cu118", "python_from": "conda", "arch": "x86_64",
    "requirements": ["torch==2.0.1+cu118"], "base_image": "ubuntu:22.04",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output root with one cell that is not locked; no docker client anywhere."""
    for name in list(os.environ):
        if name.startswith("PROVISION_") or name == "DOCKER_HOST":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    root = tmp_path / "root"
    assert run(["render", "--torch=2.7.1", "--cuda=cpu", f"--out={root}"]) == 0
    return root


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = run(["build", *words, "--json"])
    error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return status, error


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        ((NAME, "--locked"), 1, "build.not-locked"),
        (("--torch=2.7.1", "--cuda=cpu", "--locked"), 1, "build.not-locked"),
        (("torch9.9.9",), 2, "cell.not-rendered"),
        (("--cuda=11.8", "--locked"), 2, "cell.not-rendered"),
        ((NAME,), 4, "build.no-client"),
        (("--cuda=11.8",), 4, "build.no-client"),
        ((), 2, "build.no-cell"),
        ((NAME, "--secret=ca"), 2, "build.secret-syntax"),
        ((NAME, "--secret=token=/dev/null"), 2, "build.unknown-secret"),
        ((NAME, "--secret=ca=/nowhere/ca.pem"), 2, "build.secret-file"),
    ],
)
def test_what_stops_a_build_before_it_starts(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, code: str
) -> None:
    found, error = error_of(capsys, f"--out={root}", *words)
    assert (found, error["code"]) == (status, code)
    assert error["next_step"] or status == 2


def test_a_locked_cell_without_a_client_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in lock_names({**CELL, "requirements": ["torch==2.7.1+cpu"]}):
        (root / "lockfiles" / NAME / name).write_text("x", encoding="ascii")
    status, error = error_of(capsys, NAME, f"--out={root}")
    assert (status, error["code"]) == (4, "build.no-client")


def test_a_request_without_a_cell_is_refused_by_the_matrix(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["build", "--torch=2.0.1", "--cuda=12.4", f"--out={root}"]) == 3
    assert "provision build --torch" in capsys.readouterr().err


def test_mirrors_become_build_arguments_of_the_right_cells() -> None:
    mirrors = {
        "package_index": "https://mirror.example/simple",
        "torch_index": "https://mirror.example/whl/",
        "apt": "http://mirror.example/ubuntu",
        "image_registry": "https://registry.example:5000",
        "cuda_repository": "https://mirror.example/cuda",
    }
    assert build_arguments(CELL, mirrors, None) == {
        "PACKAGE_INDEX": "https://mirror.example/simple",
        "TORCH_INDEX": "https://mirror.example/whl/cu118",
        "APT_MIRROR": "http://mirror.example/ubuntu",
        "BASE_IMAGE": "registry.example:5000/library/ubuntu:22.04",
    }
    plain = {**CELL, "requirements": ["torch==2.0.1"]}
    assert "TORCH_INDEX" not in build_arguments(plain, mirrors, None)
    assert build_arguments(CELL, mirrors, "mine:1")["BASE_IMAGE"] == "mine:1"
    with pytest.raises(UsageError, match="--base-image cannot be rendered"):
        build_arguments(CELL, {}, "mine:1 --privileged")


class FakeApi:
    """An engine's answer to `version`, for another machine than most tests run on."""

    def version(self) -> dict[str, str]:
        return {"Arch": "amd64"}


def command(cell: dict[str, Any], options: BuildOptions, *, loads: bool) -> list[str]:
    client = Client(path=Path("/usr/bin/docker"), loads=loads)
    engine = Engine(client=client, api=FakeApi(), host="unix:///x", version="1", free_bytes=None)  # type: ignore[arg-type]
    return build_command(engine, Path("/root/of it"), cell, "tag:1", options)


def test_the_builders_command_line_holds_each_value_as_one_word(tmp_path: Path) -> None:
    options = BuildOptions(
        no_cache=True,
        network="host",
        arguments={"TORCH_INDEX": "https://mirror.example/whl"},
        secrets={"ca": tmp_path / "a b.pem"},
    )
    words = command(CELL, options, loads=True)
    assert words[:3] == ["/usr/bin/docker", "build", "--progress=plain"]
    assert words[-1] == "/root/of it"
    assert words[words.index("--file") + 1] == f"/root/of it/docker/{NAME}/Dockerfile"
    assert words[words.index("--secret") + 1] == f"id=ca,src={tmp_path}/a b.pem"
    assert words[words.index("--build-arg") + 1] == "TORCH_INDEX=https://mirror.example/whl"
    assert {"--load", "--no-cache"} <= set(words)
    assert "--platform" not in words


def test_another_machines_cell_is_built_for_its_platform() -> None:
    words = command({**CELL, "arch": "aarch64"}, BuildOptions(), loads=False)
    assert words[words.index("--platform") + 1] == "linux/arm64"
    assert "--load" not in words


def test_an_image_is_named_after_its_cell() -> None:
    assert image_tag("torch2.0.1-cu118") == "provision/torch2.0.1-cu118:latest"
    with pytest.raises(UsageError):
        image_tag("a b")


SHIPPED = "torch2.0.1-cu117-py39-debian11-basepy"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped cells; no docker client anywhere."""
    for name in list(os.environ):
        if name.startswith("PROVISION_") or name == "DOCKER_HOST":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    root = tmp_path / "shipped"
    for name in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / name, root / name)
    for name in (".provision-manifest.json", "docker-bake.json"):
        shutil.copy(PROJECT / name, root / name)
    return root


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        (f"docker/{SHIPPED}/Dockerfile", "FROM mine\n", "build.edited"),
        (f"docker/{SHIPPED}/probe.py", None, "build.edited"),
        (f"lockfiles/{SHIPPED}/requirements.txt", "torch==2.0.1\n", "build.edited"),
        (f"docker/{SHIPPED}/spec.json", None, "cell.not-rendered"),
    ],
)
def test_a_cell_whose_files_were_edited_is_not_built_unless_asked(
    shipped: Path, capsys: pytest.CaptureFixture[str], path: str, text: str | None, code: str
) -> None:
    assert error_of(capsys, SHIPPED, f"--out={shipped}")[1]["code"] == "build.no-client"
    if text is None:
        (shipped / path).unlink()
    else:
        (shipped / path).write_text(text, encoding="ascii")
    status, error = error_of(capsys, SHIPPED, f"--out={shipped}")
    assert (status, error["code"]) == (1 if code == "build.edited" else 2, code)
    if code == "build.edited":
        assert path in error["facts"]["files"]
        words = (SHIPPED, f"--out={shipped}", "--edited")
        assert error_of(capsys, *words)[1]["code"] == "build.no-client"


def test_a_lock_that_was_made_for_other_inputs_is_not_built(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shipped / "lockfiles" / SHIPPED / "lock.json"
    lock = json.loads(path.read_bytes())
    path.write_text(json.dumps({**lock, "inputs": "0" * 64}), encoding="ascii")
    # As a lock of another commit would be: the manifest agrees with it.
    listed = shipped / ".provision-manifest.json"
    manifest = json.loads(listed.read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest["files"][f"lockfiles/{SHIPPED}/lock.json"]["sha256"] = digest
    listed.write_text(json.dumps(manifest), encoding="ascii")
    status, error = error_of(capsys, SHIPPED, f"--out={shipped}")
    assert (status, error["code"]) == (1, "build.lock-not-current")
    assert error["facts"] == {"state": "changed-inputs"}


def report_of(seen: Seen, name: str) -> bytes:
    results = [pair for stage in probe.STAGES for pair in probe.judge_stage(seen, stage)]
    document = probe.build_report(seen, results)
    document["details"]["expect"]["name"] = name
    return json.dumps(document).encode()


def test_a_finished_build_is_believed_by_its_own_passed_report_alone() -> None:
    good = report_of(cpu_cell(), NAME)
    judge(good, {"name": NAME}, "tag")
    cases = {
        "build.other-report": report_of(cpu_cell(), "another"),
        "build.not-verified": report_of(cpu_cell(cxx=compiler(problem="missing")), NAME),
        "report.invalid": good[:-9],
    }
    for code, raw in cases.items():
        with pytest.raises(FindingError) as caught:
            judge(raw, {"name": NAME}, "tag")
        assert caught.value.code == code


def test_the_next_command_names_the_folder(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, error = error_of(capsys, f"--out={root}", NAME, "--locked")
    assert error["next_step"] == f"provision lock {NAME} --out {root}"
    monkeypatch.chdir(root)
    _, error = error_of(capsys, NAME, "--locked")
    assert error["next_step"] == f"provision lock {NAME}"
