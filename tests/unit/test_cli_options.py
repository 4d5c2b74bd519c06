"""Where options come from: command line > environment > provision.yaml > matrix."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.matrices import SMALL, line_of

from provisioner.cli.options import CELL, FILE, MATRIX, MIRROR
from provisioner.cli.settings import Settings, Source, mirror_url, redacted, settings_from
from provisioner.errors import UsageError
from provisioner.matrix.model import Origins
from provisioner.matrix.problems import DocumentError

ALL = (*CELL, FILE, MIRROR, *MATRIX)


def merged(environment: dict[str, str] | None = None, **line: Any) -> Settings:
    """The settings of a command line; options that are not named were not given."""
    lists = {"list", "paths", "pairs"}
    given = {
        option.name: line.pop(option.name, () if option.kind in lists else None) for option in ALL
    }
    assert not line
    return settings_from(ALL, given, environment or {})


def project(tmp_path: Path, text: str) -> str:
    path = tmp_path / "provision.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_nothing_said_is_an_open_request() -> None:
    settings = merged()
    assert settings.request.torch is None
    assert settings.request.compile is True
    assert settings.chosen == {}
    assert settings.where("torch") == "the matrix"
    assert settings.explain() == []


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    file = project(tmp_path, "torch: 2.0.1\ncuda: '11.8'\npython: '3.10'\nos: debian12\n")
    settings = merged(
        {"PROVISION_TORCH": "2.1.2", "PROVISION_CUDA": "12.1"}, file=file, torch="2.4.1"
    )
    request = settings.request
    assert (request.torch, request.cuda, request.python) == ("2.4.1", "12.1", "3.10")
    assert settings.chosen["torch"].source is Source.COMMAND_LINE
    assert settings.where("torch") == "--torch"
    assert settings.where("cuda") == "PROVISION_CUDA"
    assert settings.where("python") == f"{file}:3"
    assert settings.where("driver") == "the matrix"
    assert settings.chosen["python"].source < settings.chosen["cuda"].source


@pytest.mark.parametrize(
    ("environment", "line", "expected"),
    [
        ({}, {}, True),
        ({}, {"compile": False}, False),
        ({"PROVISION_NO_COMPILE": "1"}, {}, False),
        ({"PROVISION_NO_COMPILE": "yes"}, {"compile": True}, True),
        ({"PROVISION_NO_COMPILE": "0"}, {}, True),
        ({"PROVISION_NO_COMPILE": ""}, {}, True),
    ],
)
def test_the_compile_switch(
    environment: dict[str, str], line: dict[str, Any], expected: bool
) -> None:
    assert merged(environment, **line).request.compile is expected


def test_lists_are_joined_within_a_source_and_replaced_between(tmp_path: Path) -> None:
    file = project(tmp_path, "gpu: [V100, A100]\nwithout: torchaudio\n")
    assert merged(file=file).request.gpu == ("V100", "A100")
    assert merged(file=file).request.without == ("torchaudio",)
    settings = merged(file=file, gpu=("H100, A100", "8.0", "H100"))
    assert settings.request.gpu == ("H100", "A100", "8.0")
    assert merged({"PROVISION_GPU": "T4,L4"}).request.gpu == ("T4", "L4")


def test_paths_of_a_project_are_relative_to_its_folder(tmp_path: Path) -> None:
    file = project(tmp_path, "matrix: own.yaml\noverlay: [a.yaml, /b.yaml]\n")
    settings = merged(file=file)
    assert settings.matrix == tmp_path / "own.yaml"
    assert settings.overlays == (tmp_path / "a.yaml", Path("/b.yaml"))
    settings = merged({"PROVISION_OVERLAY": "x.yaml:y.yaml", "PROVISION_MATRIX": "m.yaml"})
    assert settings.overlays == (Path("x.yaml"), Path("y.yaml"))
    assert settings.matrix == Path("m.yaml")


def test_the_file_may_come_from_the_environment(tmp_path: Path) -> None:
    file = project(tmp_path, "torch: 2.0.1\n")
    assert merged({"PROVISION_FILE": file}).request.torch == "2.0.1"


def test_packages_and_name_reach_the_request(tmp_path: Path) -> None:
    text = """
name: our-project
packages:
  pip: [einops, 'transformers>=4.30,<5', 'x[a,b]==1.0; python_version < "3.11"']
  conda: [ffmpeg=6, 'scipy>=1.10']
  apt: [git, libgl1=1.6.0-1]
"""
    request = merged(file=project(tmp_path, text)).request
    assert request.name == "our-project"
    assert request.packages.pip[1] == "transformers>=4.30,<5"
    assert request.packages.conda == ("ffmpeg=6", "scipy>=1.10")
    assert request.packages.apt == ("git", "libgl1=1.6.0-1")


def test_mirrors_come_from_three_places_and_reach_the_matrix(tmp_path: Path) -> None:
    file = project(
        tmp_path,
        "mirrors:\n  conda: http://lan/conda/\n  torch_index: http://lan/torch\n"
        "  apt: http://lan/debian\n",
    )
    settings = merged(
        {"PROVISION_MIRROR_TORCH_INDEX": "https://env/torch"},
        file=file,
        matrix=str(SMALL),
        mirror=("apt=https://line/debian", "image-registry=registry.lan:5000/hub"),
    )
    assert settings.mirrors == {
        "apt": "https://line/debian",
        "conda": "http://lan/conda",
        "image_registry": "https://registry.lan:5000/hub",
        "torch_index": "https://env/torch",
    }
    assert settings.where("mirror.conda") == f"{file}:2"
    assert settings.where("mirror.torch_index") == "PROVISION_MIRROR_TORCH_INDEX"
    assert settings.where("mirror.apt") == "--mirror apt"
    opened = settings.open(cache=False)
    assert opened.matrix.origins.conda.url == "http://lan/conda"
    assert opened.matrix.origins.cuda_runfile.url == "https://cuda.example"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"torch": ""}, "request.torch"),
        ({"torch": "2.0.1\n"}, "request.torch"),
        ({"torch": "$(id)"}, "request.torch"),
        ({"os": "ubuntu22.04; id"}, "request.os"),
        ({"python": "`id`"}, "request.python"),
        ({"cuda": "../11.8"}, "request.cuda"),
        ({"arch": "{{ x }}"}, "request.arch"),
        ({"driver": "'535'"}, "request.driver"),
        ({"gpu": ("A100,,H100",)}, "request.gpu"),
        ({"gpu": ("A\x00100",)}, "request.gpu"),
        ({"ptxas": "-rf"}, "request.ptxas"),
        ({"index": "pypi"}, "request.index"),
        ({"without": ("torch",)}, "request.without"),
        ({"python_from": '"'}, "request.python-from"),
        ({"flavour": "x" * 81}, "request.flavour"),
        ({"mirror": ("conda",)}, "mirror.syntax"),
        ({"mirror": ("condor=https://x",)}, "mirror.unknown-origin"),
        ({"mirror": ("conda=https://me:pw@x",)}, "mirror.credentials"),
        ({"mirror": ("conda=file:///srv/conda",)}, "mirror.url"),
        ({"mirror": ("conda=https://x/?token=1",)}, "mirror.url"),
        ({"mirror": ("conda=https://x/$(id)",)}, "mirror.url"),
        ({"mirror": ("conda=",)}, "mirror.url"),
        ({"file": "/nowhere/provision.yaml"}, "project.unreadable"),
    ],
)
def test_values_that_no_file_may_hold_are_refused(line: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(**line)
    assert caught.value.code == code
    assert "pw" not in caught.value.message


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"PROVISION_TORCH": "2.0.1;id"}, "request.torch"),
        ({"PROVISION_NO_COMPILE": "perhaps"}, "request.compile"),
        ({"PROVISION_MIRROR_CONDOR": "https://x"}, "mirror.unknown-origin"),
        ({"PROVISION_MIRROR_CONDA": "https://me:pw@x"}, "mirror.credentials"),
    ],
)
def test_the_environment_is_held_to_the_same(environment: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(environment)
    assert caught.value.code == code
    assert next(iter(environment)) in caught.value.message


def test_an_unknown_origin_has_a_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        merged(mirror=("torch_indx=https://x",))
    assert caught.value.next_step == "Did you mean torch_index?"


def test_the_example_of_the_manual_is_a_project(tmp_path: Path) -> None:
    manual = (SMALL.parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
    example = manual[manual.index("    name: our-project") : manual.index("Packages are named")]
    settings = merged(file=project(tmp_path, dedent(example)))
    assert settings.request.gpu == ("A100", "H100")
    assert settings.mirrors == {"conda": "https://mirror.example/conda"}


def test_every_option_is_in_the_manual() -> None:
    manual = (SMALL.parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
    for option in ALL:
        assert option.flag in manual, option.flag
    for origin in Origins.__struct_fields__:
        assert f"`{origin}`" in manual, origin


BAD_PROJECTS = [
    ("cuda: 11.8\n", "unquoted-number", "cuda", "$.cuda", "quote it: YAML reads 11.8"),
    ("python: 3.10\n", "unquoted-number", "python", "$.python", "the number 3.1"),
    ("driver: 535\n", "unquoted-number", "driver", "$.driver", "quote it"),
    ("pyton: '3.10'\n", "unknown-key", "pyton", "$.pyton", "did you mean 'python'?"),
    ("python-from: base\n", "unknown-key", "python-from", "$.python-from", "'python_from'?"),
    ("verify: {imports: [x]}\n", "unknown-key", "verify", "$.verify", "unknown key"),
    ("torch: [2.0.1]\n", "wrong-type", "torch", "$.torch", "found a list"),
    ("compile: yes\n", "wrong-type", "compile", "$.compile", "true or false"),
    ("torch: '2.0.1 $(id)'\n", "value", "torch", "$.torch", "$(id)"),
    ("name: Our Project\n", "value", "name", "$.name", "Our Project"),
    ("name: a--b\n", "value", "name", "$.name", "a--b"),
    ("packages: {pip: [x]}\n", "missing-key", "packages", "$.packages", "'name'"),
    (
        "name: a\npackages: {pip: ['x @ https://e/x.whl']}\n",
        "value",
        "x @",
        "$.packages.pip[0]",
        "a requirement",
    ),
    ("name: a\npackages: {pip: [-r, x]}\n", "value", "-r", "$.packages.pip[0]", "a requirement"),
    (
        "name: a\npackages: {pip: ['x; $(id)']}\n",
        "value",
        "id",
        "$.packages.pip[0]",
        "a requirement",
    ),
    (
        "name: a\npackages: {pip: [torch>=2]}\n",
        "inconsistent",
        "torch>=2",
        "$.packages.pip[0]",
        "the key 'torch'",
    ),
    (
        "name: a\npackages: {conda: [pytorch]}\n",
        "inconsistent",
        "pytorch",
        "$.packages.conda[0]",
        "the key 'torch'",
    ),
    ("name: a\npackages: {apt: ['git && id']}\n", "value", "&&", "$.packages.apt[0]", "&&"),
    ("name: a\npackages: {apt: [-o, git]}\n", "value", "-o", "$.packages.apt[0]", "-o"),
    ("name: a\npackages: {apt: [git-]}\n", "value", "git-", "$.packages.apt[0]", "git-"),
    ("name: a\npackages: {apt: ['a.+']}\n", "value", "a.+", "$.packages.apt[0]", "a.+"),
    (
        "name: a\npackages: {pip: ['x; not a marker']}\n",
        "value",
        "not a marker",
        "$.packages.pip[0]",
        "a requirement that pip can read",
    ),
    (
        "name: a\npackages: {conda: [pytorch-gpu]}\n",
        "inconsistent",
        "pytorch-gpu",
        "$.packages.conda[0]",
        "the key 'torch'",
    ),
    (
        "name: a\npackages: {pip: [Pytorch.Triton]}\n",
        "inconsistent",
        "Pytorch",
        "$.packages.pip[0]",
        "the key 'torch'",
    ),
    (
        "name: a\npackages: {conda: [python=3.9]}\n",
        "inconsistent",
        "python=",
        "$.packages.conda[0]",
        "the key 'python'",
    ),
    (
        "name: a\npackages: {conda: [cuda-compat-impl]}\n",
        "inconsistent",
        "cuda-compat",
        "$.packages.conda[0]",
        "a driver's libraries",
    ),
    (
        "name: a\npackages: {pip: [--index-url=https://x/y]}\n",
        "value",
        "--index",
        "$.packages.pip[0]",
        "a requirement such as",
    ),
    (
        "name: a\npackages: {pip: ['x @ https://x/y.whl']}\n",
        "value",
        "@",
        "$.packages.pip[0]",
        "a requirement such as",
    ),
    ("- torch\n", "wrong-type", "torch", "$", "a mapping"),
    ("a: &a 1\n", "alias", "&a", "$.a", "anchor"),
]


@pytest.mark.parametrize(("text", "kind", "at", "path", "says"), BAD_PROJECTS)
def test_a_bad_project_is_named_with_its_line(
    text: str, kind: str, at: str, path: str, says: str, tmp_path: Path
) -> None:
    file = project(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        merged(file=file)
    told = [problem.to_dict("project") for problem in caught.value.problems]
    wanted = (f"project.{kind}", path, file, line_of(text, at))
    matching = [
        entry
        for entry in told
        if (entry["code"], entry["path"], entry["file"], entry["line"]) == wanted
    ]
    assert matching, (wanted, told)
    assert says in matching[0]["message"]


def test_a_gpu_named_here_is_not_overruled_by_a_cpu_build_from_further_away() -> None:
    with pytest.raises(UsageError) as caught:
        merged(environment={"PROVISION_CUDA": "cpu"}, gpu=("H100",))
    assert caught.value.code == "request.conflict"
    assert "PROVISION_CUDA" in caught.value.message
    assert merged(cuda="cpu", gpu=("H100",)).request.cuda == "cpu"
    assert merged(environment={"PROVISION_CUDA": "cpu", "PROVISION_GPU": "H100"}).request.gpu


def test_a_mirror_of_a_project_is_checked_and_named(tmp_path: Path) -> None:
    file = project(tmp_path, "mirrors:\n\n  conda: https://me:pw@x\n")
    with pytest.raises(UsageError) as caught:
        merged(file=file)
    assert caught.value.code == "mirror.credentials"
    assert f"{file}:3" in caught.value.message
    assert "pw" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@x/y", "https://***@x/y"),
        ("me:pw@x", "***@x"),
        ("https://a@b@c/d", "https://***@c/d"),
        ("https://x/y", "https://x/y"),
    ],
)
def test_what_may_be_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_registry_may_be_written_as_container_tools_write_it() -> None:
    assert mirror_url("image_registry", "r.lan:5000", "x") == "https://r.lan:5000"
    with pytest.raises(UsageError):
        mirror_url("conda", "r.lan:5000", "x")
