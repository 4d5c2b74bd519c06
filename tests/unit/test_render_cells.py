"""What holds for the files of every cell of the shipped matrix, and for bent ones."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import PROJECT
from support.rendering import bent, every_cell, facts, rendered, resolved

from provisioner.cli.options import CELL
from provisioner.errors import UsageError
from provisioner.matrix.cell import Cell, Request, Resolution
from provisioner.matrix.resolve import resolve
from provisioner.render.context import CellContext, cell_options, pinned_request
from provisioner.render.fileset import FileSet
from provisioner.render.job import every_cell_job

EVERY = every_cell()
STAGES = ["lock", "base", "environment", "verify", "final"]
by_name = pytest.mark.parametrize("cell", EVERY, ids=lambda found: found.cell.name)


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, continued lines joined, comments gone."""
    lines = [line for line in dockerfile.split("\n") if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [line for line in joined.split("\n") if line.strip()]


def keywords(dockerfile: str) -> list[str]:
    return [line.split(None, 1)[0] for line in instructions(dockerfile)]


@by_name
def test_a_dockerfile_keeps_what_the_design_promises(cell: Resolution) -> None:
    files = rendered(cell)
    text = files["docker/Dockerfile"]
    lines = instructions(text)
    stages = [line.split(" AS ")[1] for line in lines if line.startswith("FROM")]
    assert [stage for stage in stages if stage != "builder"] == STAGES
    assert ("builder" in stages) == (cell.cell.python_from == "conda")
    assert not re.search(r"^# *syntax=|<<|--link|EXPOSE|ADD ", text, flags=re.MULTILINE)
    assert ("LD_LIBRARY_PATH=" in text) == (cell.cell.flavour == "devel")
    final = lines[lines.index("FROM environment AS final") :]
    assert any(line.startswith("COPY --from=verify") for line in final)
    assert "USER 10001:10001" in lines
    for line in lines:
        if "pip install" in line:
            assert "--require-hashes" in line
            assert "--only-binary :all:" in line
        if "/run/secrets/" in line:
            assert line.startswith("RUN --mount=type=secret")
    # BuildKit refuses lines of 64 KiB and more.
    assert max(map(len, text.split("\n"))) < 32_000


@by_name
def test_gpu_settings_stand_in_cuda_cells_alone(cell: Resolution) -> None:
    text = rendered(cell)["docker/Dockerfile"]
    found = re.search(r'NVIDIA_REQUIRE_CUDA="driver>=(\d+)"', text)
    if cell.cell.device == "cpu":
        assert "NVIDIA_" not in text
        return
    floor = cell.cell.driver.compile_floor or cell.cell.driver.run_floor
    assert found is not None
    assert floor is not None
    assert found[1] == floor.split(".")[0]


@by_name
def test_the_lock_check_asks_for_every_lock_that_the_build_reads(cell: Resolution) -> None:
    text = rendered(cell)["docker/Dockerfile"]
    wanted = set(re.findall(r"\[ ! -s /lock/(\S+) \]", text))
    assert ("requirements-torch.txt" in wanted) == ("+" in cell.cell.requirements[0])
    assert ("conda-linux-64.lock" in wanted) == (cell.cell.python_from == "conda")
    # From the lock stage alone: a missing file in the context would end the build in a worse way.
    assert set(re.findall(r"/lock/([a-z0-9.-]+)", text)) == wanted
    assert f"run 'provision lock {cell.cell.name}'" in text


@by_name
def test_the_label_and_the_spec_hold_the_cell(cell: Resolution) -> None:
    files = rendered(cell)
    label = re.search(r"io\.provision\.spec='(.*)'$", files["docker/Dockerfile"], re.MULTILINE)
    assert label is not None
    plain = json.loads(msgspec.json.encode(cell.cell))
    assert json.loads(label[1]) == {"schema": "provision.spec/1", "cell": plain}
    spec = json.loads(files["docker/spec.json"])
    assert spec["cell"] == plain
    assert spec["decisions"]
    assert msgspec.convert(spec["request"], Request) == pinned_request(cell)
    expect = json.loads(files["docker/expect.json"])
    floors = expect.pop("compile_floor_by_arch", None)
    if cell.cell.compile and cell.cell.ptxas is None:
        assert floors == (plain["driver"]["compile_floor_by_arch"] or None)
    assert {key: plain[key] for key in expect if key != "made_by"} == {
        key: value for key, value in expect.items() if key != "made_by"
    }


@by_name
def test_every_file_names_the_command_that_makes_it_again(cell: Resolution) -> None:
    files = rendered(cell)
    command = shlex.join(["provision", "render", *cell_options(cell)])
    for path, text in files.items():
        if path.endswith(".py"):
            continue  # a copy: reports name the hash of the very bytes
        if path.endswith(".json"):
            assert json.loads(text)["made_by"] == command
        else:
            assert f"# Made by: {command}\n" in "\n".join(text.split("\n")[:2]) + "\n"
    again = resolve(facts().matrix, request_from(cell_options(cell)))
    assert isinstance(again, Resolution)
    assert again.cell == cell.cell


def request_from(words: tuple[str, ...]) -> Request:
    """The request of a command line, without the command line's own code."""
    kinds = {option.flag: option.name for option in CELL}
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        values[kinds[word]] = rest.pop(0)
    return Request(**values)


@by_name
def test_requirements_and_constraints_hold_the_cells_pins(cell: Resolution) -> None:
    files = rendered(cell)

    def lines(name: str) -> list[str]:
        return [line for line in files[name].splitlines() if not line.startswith("#")]

    wanted = lines("lockfiles/requirements.in")
    assert wanted == [*cell.cell.requirements, *cell.cell.companions]
    assert lines("lockfiles/constraints.txt") == list(cell.cell.constraints)
    assert not any(line.startswith("-") for line in wanted)
    if cell.cell.python_from == "conda":
        document = yaml.safe_load(files["lockfiles/environment.yml"])
        assert set(document) == {"channels", "dependencies"}
        assert document["channels"][-1] == "nodefaults"
        assert document["dependencies"][0] == f"python={cell.cell.python}.*"
        for bound in cell.cell.constraints:
            if bound.startswith(("numpy", "setuptools")):
                assert bound in document["dependencies"]


def test_the_builder_installs_what_our_own_locks_pin() -> None:
    text = rendered(EVERY[0])["docker/conda-install.txt"]
    ours = (PROJECT / "requirements" / "run.txt").read_text(encoding="ascii")
    pins = re.findall(r"(?m)^[a-z-]+==\S+ \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text)
    assert len(pins) == 1
    assert pins[0] in ours


def test_copies_are_the_bytes_of_this_package() -> None:
    files = rendered(EVERY[0])
    for name, source in (
        ("probe.py", "verify/probe.py"),
        ("guard.py", "lock/installed.py"),
        ("conda-install.py", "conda/worker.py"),
    ):
        source_text = (PROJECT / "provisioner" / source).read_text(encoding="utf-8")
        assert files[f"docker/{name}"] == source_text


# --- one request, the same bytes ---


WORDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cuda": "11.8"}, {"torch": "2.0.1+cu118", "python": "3.10", "os": "ubuntu22.04"}),
    ({"cuda": "11.8", "torch": "2.0"}, {"cuda": "cu118", "torch": "2.0.1", "flavour": "slim"}),
    ({"torch": "2.7.1", "cuda": "cpu"}, {"torch": ">=2.7.1,<2.8", "cuda": "cpu", "arch": "amd64"}),
    ({"torch": "1.13.1", "cuda": "11.7"}, {"torch": "1.13.1", "cuda": "11.7", "compile": False}),
    (
        {"torch": "2.6.0", "cuda": "12.4", "gpu": ("A100", "H100"), "driver": "550.54.15"},
        {"torch": "2.6.0", "cuda": "12.4", "gpu": ("H100", "A100"), "driver": "550.54.15"},
    ),
    ({"torch": "latest"}, {"torch": "2.15.0"}),
]


@pytest.mark.parametrize(("some", "other"), WORDS, ids=" ".join)
def test_the_way_of_asking_changes_no_byte(some: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = resolved(**some), resolved(**other)
    assert first.cell == second.cell
    assert rendered(first) == rendered(second)


ASKED: list[dict[str, Any]] = [
    {"torch": "latest", "gpu": ("RTX 5090",)},
    {"gpu": ("A100",), "driver": "470", "torch": "2.0.1", "compile": False},
    {"gpu": ("T4",), "driver": "535"},
    {"torch": "2.2.2", "gpu": ("A100",), "ptxas": "ptxas118", "driver": "470.256.02"},
    {"torch": "2.0.1", "cuda": "11.7", "index": "torch"},
    {"torch": "2.0.1", "cuda": "11.7", "index": "package"},
    {"torch": "2.0.1", "python": "3.11", "compile": False},
    {"torch": "2.7.1", "arch": "aarch64", "cuda": "cpu"},
    {"torch": "2.7.1", "cuda": "cpu", "os": "debian12", "python_from": "base"},
    {"torch": "2.7.1", "cuda": "12.6", "flavour": "devel", "without": ("torchvision",)},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_what_is_recorded_of_a_cell_names_it_alone(asked: dict[str, Any]) -> None:
    resolution = resolved(**asked)
    context = CellContext(resolution, facts())
    assert context.recorded.request == pinned_request(resolution)
    assert context.recorded.cell == resolution.cell
    again = CellContext(context.recorded, facts())
    assert again.recorded == context.recorded
    assert again.command == context.command


DIGEST = """
import os, sys
os.umask(int(sys.argv[1], 8))
from provisioner.matrix.load import load_matrix
from provisioner.render.context import Facts
from provisioner.render.job import every_cell_job
loaded = load_matrix(cache=False)
print(every_cell_job(Facts(loaded.matrix, loaded.sha256), {}).files.digest())
"""


def test_bytes_do_not_depend_on_the_machine(tmp_path: Path) -> None:
    def digest(umask: str, folder: Path, **variables: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), **variables}
        command = [sys.executable, "-c", DIGEST, umask]
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    plain = digest("022", PROJECT, PYTHONHASHSEED="0", LC_ALL="C", TZ="UTC")
    other = {"PYTHONHASHSEED": "4711", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"}
    assert digest("077", tmp_path, **other, COLUMNS="20", HOME=str(tmp_path)) == plain
    assert len(plain) == 64


def test_every_cell_has_files_of_its_own() -> None:
    job = every_cell_job(facts(), {})
    names = [str(context.name) for context in job.cells]
    assert len(names) == len(set(names)) == len(EVERY)
    assert job.files.groups() == {"bake", *(f"cell/{name}" for name in names)}
    bake = json.loads(FileSet(job.files).get("docker-bake.json").content)  # type: ignore[union-attr]
    assert bake["group"]["default"]["targets"] == list(bake["target"])
    assert len(bake["target"]) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", target) for target in bake["target"])


# --- hostile cells ---

BASES = [
    resolved(cuda="11.8"),
    resolved(torch="2.0.1", cuda="11.8", python_from="base", ptxas="ptxas118"),
    resolved(torch="2.6.0", cuda="12.4", os="el9", flavour="devel"),
]
PIECES = st.sampled_from(
    ["\n", "\r", "\\", '"', "'", "`id`", "$(id)", "${X}", "$X", "../", "{{ x }}", "{% x %}", ";",
     "|", "&", ">", " ", "#", "\nRUN id\n", "\0", "\u2028", "é", "<<EOF", "\t", "a", "1", ".", "-"]
)  # fmt: skip
TEXTS = st.lists(PIECES, min_size=1, max_size=5).map("".join)


def spoilt(value: object, text: str) -> object:
    """A value of the same shape with the text appended to its strings."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, tuple):
        return tuple(spoilt(item, text) for item in value) or (text,)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(
            value, **{name: spoilt(field, text) for name, field in fields.items()}
        )
    if value is None:
        return text
    return value


def acted_on(files: Mapping[str, str]) -> object:
    """What builders, shells and YAML readers act on: no comment, no label."""
    environment = yaml.safe_load(files.get("lockfiles/environment.yml", "{}"))
    lines = instructions(files["docker/Dockerfile"])
    return (
        [line for line in lines if not line.startswith("LABEL")],
        len(lines),
        instructions(files["docker/provision-verify"]),
        instructions(files["docker/Dockerfile.dockerignore"]),
        sorted(environment),
        [type(spec) for spec in environment.get("dependencies", [])][:5],
    )


FIELDS = [
    field
    for field in Cell.__struct_fields__
    if field not in {"os", "arch", "device", "flavour", "python_from", "compile", "verified"}
]


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=25, deadline=None)
@given(base=st.sampled_from(BASES), text=TEXTS)
def test_a_hostile_field_is_refused_or_inert(field: str, base: Resolution, text: str) -> None:
    if field == "ptxas" and base.cell.ptxas is None:
        return
    value = spoilt(getattr(base.cell, field), text)
    hostile = bent(base, **{field: value})
    refused: str | None = None
    try:
        files = rendered(hostile)
    except UsageError as error:
        refused = error.code
    if refused is not None:
        assert refused in {"render.unsafe-value", "output.bad-path"}
        return
    for path, content in files.items():
        if path.endswith(".json"):
            assert isinstance(json.loads(content), dict)
    if set(text) - set("a1.-/"):
        assert acted_on(files) == acted_on(rendered(base))


@pytest.mark.parametrize("field", ["torch", "driver", "gpu"])
def test_a_hostile_request_stays_in_its_comment(field: str) -> None:
    base = BASES[0]
    value: Any = ("x\nRUN id",) if field == "gpu" else "x\nRUN id"
    request = msgspec.structs.replace(base.request, **{field: value})
    hostile = msgspec.structs.replace(base, request=request)
    assert keywords(rendered(hostile)["docker/Dockerfile"]) == keywords(
        rendered(base)["docker/Dockerfile"]
    )
    assert CellContext(hostile, facts()).command.isprintable()
