"""`provision render` as people and scripts use it: what is written, kept, refused and said."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.main import run
from provisioner.render.fileset import FileSet
from provisioner.render.journal import write

DEFAULT = "torch2.0.1-cu118-py310-ubuntu22.04"
FILES = {
    "docker-bake.json",
    f"docker/{DEFAULT}/Dockerfile",
    f"docker/{DEFAULT}/Dockerfile.dockerignore",
    f"docker/{DEFAULT}/conda-install.py",
    f"docker/{DEFAULT}/conda-install.txt",
    f"docker/{DEFAULT}/expect.json",
    f"docker/{DEFAULT}/probe.py",
    f"docker/{DEFAULT}/provision-verify",
    f"docker/{DEFAULT}/spec.json",
    f"lockfiles/{DEFAULT}/constraints.txt",
    f"lockfiles/{DEFAULT}/environment.yml",
    f"lockfiles/{DEFAULT}/requirements.in",
}


class Shell:
    """The command line in an output root, and what it said."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self.capsys.readouterr()
        status = run(["render", f"--out={self.root}", *words])
        self.out, self.err = self.capsys.readouterr()
        return status

    def json(self, *words: str) -> dict[str, Any]:
        self(*words, "--json")
        told: dict[str, Any] = json.loads(self.out)
        return told

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.startswith(".provision-")
        }


@pytest.fixture
def render(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    for name in list(os.environ):
        if name.startswith("PROVISION_"):
            monkeypatch.delenv(name)
    return Shell(tmp_path / "root", capsys)


def test_a_cell_is_written_and_the_next_command_named(render: Shell) -> None:
    assert render("--cuda", "11.8") == 0
    assert render.files() == FILES
    assert render.out.startswith(f"{DEFAULT}\n")
    assert "12 created, 0 updated, 0 unchanged, 0 pruned" in render.out
    assert f"Next: provision lock {DEFAULT}" in render.out
    assert (render.root / f"docker/{DEFAULT}/provision-verify").stat().st_mode & 0o777 == 0o755


def test_once_locked_the_next_command_is_the_build(render: Shell) -> None:
    render("--cuda", "11.8")
    for name in ("requirements.txt", "requirements-torch.txt", "conda-linux-64.lock"):
        assert f"provision lock {DEFAULT}" in render.json("--cuda", "11.8")["next"]
        (render.root / "lockfiles" / DEFAULT / name).write_text("x", encoding="ascii")
    assert f"provision build {DEFAULT}" in render.json("--cuda", "11.8")["next"]


def test_a_second_time_nothing_changes(render: Shell) -> None:
    render("--cuda", "11.8")
    before = {path: (render.root / path).stat().st_mtime_ns for path in FILES}
    told = render.json("--cuda", "11.8")
    assert (told["created"], told["updated"], told["pruned"]) == ([], [], [])
    assert set(told["unchanged"]) == FILES
    assert {path: (render.root / path).stat().st_mtime_ns for path in FILES} == before
    assert told["cell"]["name"] == DEFAULT
    assert told["decisions"]


def test_a_stale_file_of_a_cell_is_pruned_and_the_lock_is_not(render: Shell) -> None:
    render("--cuda", "11.8")
    manifest = render.root / ".provision-manifest.json"
    document = json.loads(manifest.read_text(encoding="ascii"))
    stale = render.root / f"docker/{DEFAULT}/old-name.sh"
    stale.write_text("x", encoding="ascii")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    document["files"][f"docker/{DEFAULT}/old-name.sh"] = {
        "group": f"cell/{DEFAULT}", "sha256": digest,
    }  # fmt: skip
    manifest.write_text(json.dumps(document), encoding="ascii")
    lock = render.root / "lockfiles" / DEFAULT / "requirements.txt"
    lock.write_text("x", encoding="ascii")
    assert render.json("--cuda", "11.8")["pruned"] == [f"docker/{DEFAULT}/old-name.sh"]
    assert not stale.exists()
    assert lock.exists()


def test_an_edited_file_is_kept_until_forced(render: Shell) -> None:
    render("--cuda", "11.8")
    path = render.root / f"docker/{DEFAULT}/Dockerfile"
    path.write_text("FROM mine\n", encoding="ascii")
    assert render("--cuda", "11.8") == 1
    assert "edited by hand" in " ".join(render.err.split())
    assert path.read_text(encoding="ascii") == "FROM mine\n"
    assert render("--cuda", "11.8", "--force") == 0
    assert path.read_text(encoding="ascii") != "FROM mine\n"


def test_another_request_with_the_same_name_is_refused_until_forced(render: Shell) -> None:
    render("--cuda", "11.8")
    assert render("--cuda", "11.8", "--gpu", "A100") == 1
    assert "[render.other-request]" in render.err
    assert "gpu" in render.err
    assert render.json("--check")["differences"] == []
    assert render("--cuda", "11.8", "--gpu", "A100", "--force") == 0
    assert render.json("--check")["differences"] == []


def test_the_same_cell_asked_for_in_other_words_is_no_other_request(render: Shell) -> None:
    render("--cuda", "11.8")
    told = render.json("--torch", "2.0.1+cu118", "--python", "3.10")
    assert told["updated"] == [f"docker/{DEFAULT}/spec.json"]


def test_a_second_cell_joins_the_bake_file(render: Shell) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu")
    bake = json.loads((render.root / "docker-bake.json").read_text(encoding="ascii"))
    assert bake["group"]["default"]["targets"] == [
        "torch2_0_1-cu118-py310-ubuntu22_04", "torch2_7_1-cpu-py310-ubuntu22_04",
    ]  # fmt: skip
    target = bake["target"]["torch2_0_1-cu118-py310-ubuntu22_04"]
    assert (render.root / target["dockerfile"]).is_file()
    assert target["platforms"] == ["linux/amd64"]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda path: path.write_text("FROM mine\n", encoding="ascii"), "edited"),
        (lambda path: path.unlink(), "missing"),
    ],
)
def test_check_alone_looks_at_every_cell_that_is_there(
    render: Shell, damage: Any, kind: str
) -> None:
    render("--cuda", "11.8")
    render("--torch", "2.7.1", "--cuda", "cpu", "--mirror", "torch_index=https://mirror.example/t")
    assert render("--check") == 0
    assert "2 cells" in render.out
    damage(render.root / f"docker/{DEFAULT}/Dockerfile")
    told = render.json("--check")
    assert told["differences"] == [{"path": f"docker/{DEFAULT}/Dockerfile", "kind": kind}]
    assert render("--check") == 1
    assert render("--diff", "--cuda", "11.8") == 0
    assert "+FROM environment AS final" in render.out


def test_again_writes_every_cell_that_is_there_from_its_own_request(render: Shell) -> None:
    render("--cuda", "11.8", "--gpu", "A100")
    mirror = "torch_index=https://mirror.example/t"
    render("--torch", "2.7.1", "--cuda", "cpu", "--mirror", mirror)
    whole = {path: (render.root / path).read_bytes() for path in render.files()}
    gone = render.root / f"docker/{DEFAULT}/expect.json"
    gone.unlink()
    assert render("--check") == 1
    assert "Next: provision render --again" in render.out
    assert render("--again", "--diff") == 0
    assert not gone.exists()
    assert render.json("--again")["created"] == [f"docker/{DEFAULT}/expect.json"]
    assert {path: (render.root / path).read_bytes() for path in render.files()} == whole
    assert render("--again", "--cuda", "11.8") == 2
    assert render("--again", "--all") == 2


def test_check_writes_nothing(render: Shell) -> None:
    assert render("--check", "--cuda", "11.8") == 1
    assert not render.root.exists()


def test_check_where_no_cell_is_does_not_pass(render: Shell) -> None:
    assert render("--check") == 1
    assert "[render.no-cells]" in render.err


def test_a_recorded_cell_that_the_matrix_has_no_more_is_a_finding(
    render: Shell, tmp_path: Path
) -> None:
    render("--torch", "2.7.1", "--cuda", "cu126")
    path = render.root / "docker/torch2.7.1-cu126-py310-ubuntu22.04/spec.json"
    text = path.read_text(encoding="ascii")
    path.write_text(text.replace('"cuda": "cu126"', '"cuda": "cu116"'), encoding="ascii")
    told = render.json("--check")
    assert told["refused"][0]["refusal"]["code"]
    assert render("--check") == 1
    assert "no cell any more" in render.out
    before = (render.root / "docker-bake.json").read_bytes()
    assert render("--again") == 1
    assert "[render.no-cell-any-more]" in render.err
    assert (render.root / "docker-bake.json").read_bytes() == before


def test_a_damaged_spec_is_a_finding(render: Shell) -> None:
    render("--cuda", "11.8")
    (render.root / f"docker/{DEFAULT}/spec.json").write_text("{", encoding="ascii")
    assert render("--check") == 1
    assert "[render.spec-damaged]" in render.err


def test_a_refused_request_writes_nothing(render: Shell) -> None:
    assert render("--torch", "2.0.1", "--cuda", "12.4") == 3
    assert not render.root.exists()
    assert "provision render --torch" in render.err


def test_all_writes_every_cell_and_counts_what_was_refused(render: Shell) -> None:
    told = render.json("--all")
    assert len(told["cells"]) >= 100
    assert told["refused"]
    assert DEFAULT in told["cells"]
    assert set(told["created"]) >= FILES
    assert render("--all") == 0
    assert f"{len(told['cells'])} cells" in render.out
    for code, count in told["refused"].items():
        assert f"  {count} x {code}" in render.out


def test_all_and_an_option_that_selects_a_cell_do_not_go_together(render: Shell) -> None:
    assert render("--all", "--cuda", "11.8") == 2
    assert "[render.all-and-options]" in render.err


def test_mirrors_are_rendered_and_no_password_ever(render: Shell) -> None:
    assert render("--cuda", "11.8", "--mirror", "apt=http://mirror.example/ubuntu") == 0
    text = (render.root / f"docker/{DEFAULT}/Dockerfile").read_text(encoding="ascii")
    assert "ARG APT_MIRROR=http://mirror.example/ubuntu\n" in text
    assert render("--cuda", "11.8", "--mirror", "apt=http://u:s3cr3t@mirror.example/x") == 2
    assert "s3cr3t" not in render.out + render.err


def test_a_deletable_base_image_is_warned_about(render: Shell) -> None:
    told = render.json("--cuda", "11.8", "--flavour", "devel")
    assert any("deleted at any time" in warning for warning in told["warnings"])


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
    assert "[render.no-such-cell]" in render.err
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
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    targets = json.loads((render.root / "docker-bake.json").read_text(encoding="ascii"))["target"]
    named = {folder.name for folder in (render.root / "docker").iterdir()}
    assert len(named) == len(cells)
    assert {target["dockerfile"].split("/")[-2] for target in targets.values()} == named
    assert render("--check") == 0


def test_an_overlay_is_named_in_what_it_made(render: Shell, tmp_path: Path) -> None:
    overlay = tmp_path / "our.yaml"
    overlay.write_text("meta: {title: ours}\n", encoding="ascii")
    assert render("--cuda", "11.8", "--overlay", str(overlay)) == 0
    spec = json.loads((render.root / f"docker/{DEFAULT}/spec.json").read_bytes())
    assert spec["made_by"].endswith("--overlay our.yaml")
    assert str(tmp_path) not in json.dumps(spec)
    assert render("--check", "--overlay", str(overlay)) == 0
    assert render("--check") == 1
