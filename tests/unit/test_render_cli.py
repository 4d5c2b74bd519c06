"""`provision render` as people and scripts use it: what is written, kept, refused and said."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell, without_variables

DEFAULT = "torch2.0.1-cu118-py310-ubuntu22.04"
FILES = {
    "docker-bake.json",
    f"docker/{DEFAULT}/Dockerfile",
    f"docker/{DEFAULT}/Dockerfile.dockerignore",
    f"docker/{DEFAULT}/conda-install.py",
    f"docker/{DEFAULT}/conda-install.txt",
    f"docker/{DEFAULT}/expect.json",
    f"docker/{DEFAULT}/guard.py",
    f"docker/{DEFAULT}/probe.py",
    f"docker/{DEFAULT}/provision-verify",
    f"docker/{DEFAULT}/spec.json",
    f"lockfiles/{DEFAULT}/constraints.txt",
    f"lockfiles/{DEFAULT}/environment.yml",
    f"lockfiles/{DEFAULT}/requirements.in",
    f"playbooks/vars/{DEFAULT}.yml",
}


@pytest.fixture
def render(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    without_variables(monkeypatch)
    return Shell(tmp_path / "root", capsys)


def test_a_cell_is_written_and_the_next_command_named(render: Shell) -> None:
    assert render("--cuda", "11.8") == 0
    assert render.files() == FILES
    assert render.out.startswith(f"{DEFAULT}\n")
    assert "14 created, 0 updated, 0 unchanged, 0 pruned" in render.out
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
    assert (told["created"], told["updated"]) == ([], [])
    assert set(told["unchanged"]) == FILES


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
