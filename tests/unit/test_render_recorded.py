"""`provision render` on cells that are there: again, check, diff, remove, and two at once."""

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell, without_variables

from provisioner.render import journal
from provisioner.render.fileset import FileSet
from provisioner.render.journal import write

DEFAULT = "torch2.0.1-cu118-py310-ubuntu22.04"
CPU = "torch2.7.1-cpu-py310-ubuntu22.04"


@pytest.fixture
def render(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    without_variables(monkeypatch)
    return Shell(tmp_path / "root", capsys)


def test_a_mirror_given_to_again_replaces_the_recorded_one(
    render: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = "https://old.example/t", "https://new.example/t"
    render("--torch", "2.7.1", "--cuda", "cpu", "--mirror", f"torch_index={old}")
    # What a machine's environment says must not turn a check of the same files.
    monkeypatch.setenv("PROVISION_MIRROR_TORCH_INDEX", "https://machine.example/t")
    assert render("--check") == 0
    monkeypatch.delenv("PROVISION_MIRROR_TORCH_INDEX")
    assert render("--check", "--mirror", f"torch_index={new}") == 1
    assert render("--again", "--mirror", f"torch_index={new}") == 0
    text = (render.root / "docker/torch2.7.1-cpu-py310-ubuntu22.04/Dockerfile").read_text("ascii")
    assert new in text
    assert old not in text
    assert render("--check") == 0


def test_diff_alone_shows_what_would_change_in_every_cell(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    name = "docker/torch2.7.1-cpu-py310-ubuntu22.04/Dockerfile"
    (render.root / name).write_text("FROM mine\n", encoding="ascii")
    assert render("--diff") == 0
    assert f"a/{name}" in render.out
    assert "-FROM mine" in render.out


def test_equal_requests_in_other_words_are_the_same_bytes(render: Shell, tmp_path: Path) -> None:
    render("--torch", "2.6.0", "--cuda", "12.4", "--gpu", "H100,A100", "--driver", "550.54.15")
    first = {path: (render.root / path).read_bytes() for path in render.files()}
    render.root = tmp_path / "other"
    words = ["--torch=2.6.0+cu124", "--gpu=NVIDIA A100-SXM4-80GB", "--gpu=H100 SXM"]
    render(*words, "--driver=550.54.15")
    second = {path: (render.root / path).read_bytes() for path in render.files()}
    assert {path for path in first if first[path] != second.get(path)} == set()


def test_a_deleted_cell_is_noticed_and_again_takes_the_rest_away(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    shutil.rmtree(render.root / f"docker/{DEFAULT}")
    assert render("--check") == 1
    assert f"docker/{DEFAULT} was deleted; --again takes the rest away" in render.out
    assert render("--again") == 0
    assert not (render.root / f"lockfiles/{DEFAULT}").exists()
    assert DEFAULT not in (render.root / "docker-bake.json").read_text(encoding="ascii")
    assert render("--check") == 0
    assert "1 cell " in render.out


def test_a_cell_is_removed_with_its_locks_unless_they_were_edited(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    files = FileSet()
    lock = f"lockfiles/{DEFAULT}/requirements.txt"
    files.add(lock, b"torch==2.0.1\n", group=f"lock:{DEFAULT}")
    write(render.root, files, {f"lock:{DEFAULT}"})
    (render.root / lock).write_text("mine\n", encoding="ascii")
    assert render("--remove", DEFAULT) == 1
    assert f"{lock} (edited by hand)" in " ".join(render.err.split())
    assert (render.root / f"docker/{DEFAULT}/Dockerfile").is_file()
    (render.root / lock).write_text("torch==2.0.1\n", encoding="ascii")
    told = render.json("--remove", DEFAULT)
    assert lock in told["pruned"]
    assert not [path for path in render.files() if DEFAULT in path]
    assert DEFAULT not in (render.root / "docker-bake.json").read_text(encoding="ascii")
    assert render("--check") == 0
    assert render("--remove", DEFAULT) == 2
    assert "[cell.not-rendered]" in render.err
    assert render("--remove", DEFAULT, "--again") == 2


def test_what_only_reads_leaves_an_interrupted_write_alone(render: Shell) -> None:
    render("--cuda", "11.8")
    stage = render.root / ".provision-stage"
    stage.mkdir()
    for words in (["--check"], ["--diff"], ["--check", "--cuda", "11.8"]):
        assert render(*words) == 1
        assert "[output.interrupted]" in render.err
        assert stage.is_dir()
    assert render("--again") == 0
    assert "was cleared" in render.err
    assert not stage.exists()
    assert render("--check") == 0


@pytest.mark.parametrize("turn", range(3))
def test_two_renders_at_once_both_find_themselves_in_the_bake_file(
    render: Shell, turn: int
) -> None:
    cells = [("2.7.1", "cpu"), ("2.6.0", "cpu"), ("2.0.1", "cu118"), ("2.1.2", "cu118")]
    command = [sys.executable, "-m", "provisioner", "render", f"--out={render.root}"]
    running = [
        subprocess.Popen(
            [*command, "--torch", torch, "--cuda", cuda],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for torch, cuda in cells
    ]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(cells), said
    targets = json.loads((render.root / "docker-bake.json").read_text(encoding="ascii"))["target"]
    named = {folder.name for folder in (render.root / "docker").iterdir()}
    assert len(named) == len(cells)
    assert {target["dockerfile"].split("/")[-2] for target in targets.values()} == named
    manifest = json.loads((render.root / ".provision-manifest.json").read_text(encoding="ascii"))
    assert named == {path.split("/")[1] for path in manifest["files"] if path.startswith("docker/")}
    assert render("--check") == 0
    assert f"{len(cells)} cells" in render.out


def test_an_overlay_is_named_in_what_it_made(render: Shell, tmp_path: Path) -> None:
    overlay = tmp_path / "our.yaml"
    overlay.write_text("meta: {title: ours}\n", encoding="ascii")
    assert render("--cuda", "11.8", "--overlay", str(overlay)) == 0
    spec = json.loads((render.root / f"docker/{DEFAULT}/spec.json").read_bytes())
    assert spec["made_by"].endswith("--overlay our.yaml")
    assert str(tmp_path) not in json.dumps(spec)
    assert render("--check", "--overlay", str(overlay)) == 0
    assert render("--check") == 1
    assert "rendered with --overlay our.yaml (" in render.out
    assert "Next: give --overlay our.yaml too" in render.out
    told = render.json("--check")["other_matrix"]
    digest = hashlib.sha256(overlay.read_bytes()).hexdigest()
    own = [{"option": "--overlay", "name": "our.yaml", "sha256": digest}]
    assert (told[0]["cells"], told[0]["recorded"]["own"]) == ([DEFAULT], own)
    assert "own" not in told[0]["now"]


def test_again_does_not_drop_an_overlay_in_silence(render: Shell, tmp_path: Path) -> None:
    overlay = tmp_path / "our.yaml"
    overlay.write_text("meta: {title: ours}\n", encoding="ascii")
    render("--cuda", "11.8", f"--overlay={overlay}")
    before = (render.root / f"docker/{DEFAULT}/spec.json").read_bytes()
    assert render("--again") == 1
    assert "[render.other-matrix]" in render.err
    assert (render.root / f"docker/{DEFAULT}/spec.json").read_bytes() == before
    overlay.write_text("meta: {title: ours, warn_after_days: 5}\n", encoding="ascii")
    assert render("--check", f"--overlay={overlay}") == 1
    assert "rendered with --overlay our.yaml" in render.out
    assert render("--again", f"--overlay={overlay}") == 0
    assert render("--again", "--force") == 0
    assert render("--check") == 0


def test_a_project_file_is_recorded_by_its_own_name(render: Shell, tmp_path: Path) -> None:
    project = tmp_path / "my project.yaml"
    project.write_text(
        "name: ours\ntorch: 2.7.1\ncuda: cpu\npackages: {pip: [einops]}\n"
        "mirrors: {apt: 'http://mirror.example/u'}\n",
        encoding="ascii",
    )
    assert render("-f", str(project)) == 0
    folder = render.root / f"docker/ours--{CPU}"
    spec = json.loads((folder / "spec.json").read_bytes())
    assert spec["project"] == "my project.yaml"
    assert str(tmp_path) not in json.dumps(spec)
    words = shlex.split(spec["made_by"])
    assert words[words.index("--file") + 1] == "my project.yaml"
    assert words[words.index("--mirror") + 1] == "apt=http://mirror.example/u"
    assert f"# Made by: {spec['made_by']}\n" in (folder / "Dockerfile").read_text(encoding="ascii")
    assert render("--check") == 0
    whole = {path: (render.root / path).read_bytes() for path in render.files()}
    assert render(*(w if w != "my project.yaml" else str(project) for w in words[2:])) == 0
    assert {path: (render.root / path).read_bytes() for path in render.files()} == whole


def test_a_cell_asked_for_again_with_another_mirror_is_the_same_cell(render: Shell) -> None:
    words = ["--torch=2.7.1", "--cuda=cpu"]
    render(*words, "--mirror=torch_index=https://one.example/t")
    assert render(*words, "--mirror=torch_index=https://two.example/t") == 0
    spec = json.loads((render.root / f"docker/{CPU}/spec.json").read_bytes())
    assert spec["mirrors"] == {"torch_index": "https://two.example/t"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--check", "--force"], "render.force-and-check"),
        (["--diff", "--force", "--cuda=11.8"], "render.force-and-check"),
        (["--remove=x", "--mirror=apt=http://mirror.example/u"], "render.remove-and-options"),
        (["--remove=x", "--overlay=our.yaml"], "render.remove-and-options"),
        (["--again", "--gpu=A100"], "render.all-and-options"),
        (["--again", "-f", "our.yaml"], "render.all-and-options"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_no_option_is_left_out_of_account_in_silence(
    render: Shell, tmp_path: Path, words: list[str], code: str
) -> None:
    project = tmp_path / "our.yaml"
    project.write_text("torch: 2.7.1\n", encoding="ascii")
    words = [str(project) if word == "our.yaml" else word for word in words]
    assert render(*words, "--json") == 2
    assert json.loads(render.out)["error"]["code"] == code
    assert not render.root.exists()


def locked(root: Path, cell: str) -> str:
    """A lock of a cell, as `provision lock` writes it."""
    files = FileSet()
    path = f"lockfiles/{cell}/requirements.txt"
    files.add(path, b"torch==2.0.1\n", group=f"lock:{cell}")
    write(root, files, {f"lock:{cell}"})
    return path


def test_a_lost_lock_is_reported_though_a_render_makes_none(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    lock = locked(render.root, DEFAULT)
    assert render("--check") == 0
    (render.root / lock).unlink()
    for words in ((), ("--cuda=11.8",)):
        told = render.json("--check", *words)
        assert told["differences"] == [{"path": lock, "kind": "missing"}]
        assert render("--check", *words) == 1
        assert f"Next: provision lock {DEFAULT} --out {render.root}\n" in render.out
        assert "--again" not in render.out
    assert render("--check", "--torch=2.7.1", "--cuda=cpu") == 0
    shutil.rmtree(render.root / f"lockfiles/{DEFAULT}")
    assert render("--check") == 1
    assert f"lockfiles/{DEFAULT}/environment.yml: missing" in render.out
    assert f"{lock}: missing" in render.out


def test_locks_of_a_deleted_cell_stay_and_are_named(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    lock = locked(render.root, DEFAULT)
    shutil.rmtree(render.root / f"docker/{DEFAULT}")
    said = f"lockfiles/{DEFAULT} is left of a cell; --remove {DEFAULT} takes it away"
    assert render("--again") == 0
    assert said in render.out
    assert (render.root / lock).is_file()
    assert render("--check") == 0
    assert said in render.out
    assert render("--remove", DEFAULT) == 0
    assert not (render.root / f"lockfiles/{DEFAULT}").exists()
    assert render("--check") == 0
    assert DEFAULT not in render.out


def test_a_lock_that_comes_during_a_removal_goes_with_its_cell(
    render: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the turn to write, another process may lock the cell."""
    render("--cuda", "11.8")
    real = journal.write_made

    def late(root: Path, *rest: Any, **named: Any) -> Any:
        files = FileSet()
        files.add(f"lockfiles/{DEFAULT}/requirements.txt", b"x\n", group=f"lock:{DEFAULT}")
        real(root, lambda: (files, files.groups()))
        return real(root, *rest, **named)

    monkeypatch.setattr(journal, "write_made", late)
    assert render("--remove", DEFAULT) == 0
    assert not (render.root / f"lockfiles/{DEFAULT}").exists()


def test_check_of_a_removal_says_what_would_go(render: Shell) -> None:
    render("--cuda", "11.8")
    assert render("--check", "--remove", DEFAULT) == 1
    assert f"docker/{DEFAULT}/Dockerfile: extra" in render.out
    assert f"Next: provision render --remove {DEFAULT} --out {render.root} takes" in render.out
    assert (render.root / f"docker/{DEFAULT}/Dockerfile").is_file()


@pytest.mark.parametrize("name", ["a b", "new\nline", "it's", "$(touch x)", "tab\tand\\"])
def test_the_next_command_can_be_pasted_wherever_the_files_are(render: Shell, name: str) -> None:
    render.root = render.root.parent / name
    assert render("--cuda", "11.8") == 0
    last = render.out.rstrip("\n").rpartition("\n")[2]
    assert last.startswith(f"Next: provision lock {DEFAULT} --out ")
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {last.removeprefix('Next: ')}"],
        capture_output=True,
        check=True,
        cwd=render.root,
    )
    assert said.stdout.decode().split("\0")[-2] == str(render.root)
    (render.root / f"docker/{DEFAULT}/expect.json").unlink()
    assert render("--check") == 1
    assert "--out " in render.out
    assert {path.name for path in render.root.iterdir()} == {
        ".provision-manifest.json", "docker", "docker-bake.json", "lockfiles", "playbooks",
    }  # fmt: skip
