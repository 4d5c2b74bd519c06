"""What resolve answers: a table of requests, and properties that hold for every request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from support import driver_oracle

from provisioner.cli.resolve import summary_lines
from provisioner.errors import UsageError
from provisioner.matrix.cell import Cell, Refusal, Request, Resolution, UserPackages
from provisioner.matrix.index import index_of
from provisioner.matrix.load import load_matrix
from provisioner.matrix.resolve import resolve

MATRIX = load_matrix().matrix
BY_TORCH = {r.torch: r for r in MATRIX.releases}
GPUS = {g.name: g for g in MATRIX.gpus}


def cell_of(**axes: Any) -> Cell:
    answer = resolve(MATRIX, Request(**axes))
    assert isinstance(answer, Resolution), answer
    return answer.cell


def refusal_of(**axes: Any) -> Refusal:
    answer = resolve(MATRIX, Request(**axes))
    assert isinstance(answer, Refusal), answer.cell.name
    return answer


# --- answers ---


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({}, "torch2.0.1-cu118-py310-ubuntu22.04"),
        ({"cuda": "11.8"}, "torch2.0.1-cu118-py310-ubuntu22.04"),
        ({"cuda": "11.7"}, "torch2.0.1-cu117-py310-ubuntu22.04"),
        ({"torch": "2.0.1+cu118"}, "torch2.0.1-cu118-py310-ubuntu22.04"),
        ({"torch": "2.0.1+cu117", "index": "torch"}, "torch2.0.1-cu117-py310-ubuntu22.04-idx"),
        ({"torch": "2.0.1", "cuda": "cpu"}, "torch2.0.1-cpu-py310-ubuntu22.04"),
        ({"torch": "1.13.1"}, "torch1.13.1-cu117-py310-ubuntu22.04"),
        ({"torch": "1.13.1", "compile": False}, "torch1.13.1-cu117-py310-ubuntu22.04"),
        ({"torch": "2.0.1", "compile": False}, "torch2.0.1-cu118-py310-ubuntu22.04-eager"),
        ({"torch": "latest"}, "torch2.15.0-cu132-py311-ubuntu22.04"),
        ({"torch": ">=2.1,<2.5"}, "torch2.4.1-cu121-py310-ubuntu22.04"),
        ({"torch": ">=1.13,<2.0"}, "torch1.13.1-cu117-py310-ubuntu22.04"),
        ({"cuda": "12.4"}, "torch2.6.0-cu124-py310-ubuntu22.04"),
        ({"gpu": ("H100",)}, "torch2.0.1-cu118-py310-ubuntu22.04"),
        ({"gpu": ("RTX 5090",)}, "torch2.15.0-cu132-py311-ubuntu22.04"),
        ({"gpu": ("DGX Spark",)}, "torch2.15.0-cu132-py311-ubuntu22.04-aarch64"),
        ({"gpu": ("GB200", "B200")}, "torch2.15.0-cu132-py311-ubuntu22.04-aarch64"),
        ({"gpu": ("V100", "RTX 5090")}, "torch2.10.0-cu128-py310-ubuntu22.04"),
        (
            {"gpu": ("GTX 1080",), "torch": "latest", "compile": False},
            "torch2.14.1-cu126-py310-ubuntu22.04-eager",
        ),
        (
            {"torch": "2.0.1", "cuda": "11.7", "os": "debian11", "python_from": "base"},
            "torch2.0.1-cu117-py39-debian11-basepy",
        ),
        (
            {"torch": "2.13.0", "cuda": "cpu", "os": "debian12", "python_from": "base"},
            "torch2.13.0-cpu-py311-debian12-basepy",
        ),
        ({"flavour": "devel"}, "torch2.0.1-cu118-py310-ubuntu22.04-devel"),
        ({"arch": "arm64", "torch": "2.13.0"}, "torch2.13.0-cu130-py310-ubuntu22.04-aarch64"),
        (
            {"driver": "470.82", "ptxas": "ptxas118"},
            "torch2.0.1-cu118-py310-ubuntu22.04-ptxas118",
        ),
        ({"torch": "2.5.1", "python": "3.12"}, "torch2.5.1-cu124-py312-ubuntu22.04"),
        ({"name": "mine", "cuda": "11.8"}, "mine--torch2.0.1-cu118-py310-ubuntu22.04"),
    ],
)
def test_cell_name(axes: dict[str, Any], name: str) -> None:
    assert cell_of(**axes).name == name


def test_default_cell_in_full() -> None:
    cell = cell_of(cuda="11.8")
    assert cell.requirements == (
        "torch==2.0.1+cu118",
        "torchvision==0.15.2+cu118",
        "torchaudio==2.0.2+cu118",
    )
    assert cell.index_url == "https://download.pytorch.org/whl/cu118"
    assert cell.local_version == "2.0.1+cu118"
    assert (cell.triton, cell.cuda, cell.device) == ("2.0.0", "11.8", "cuda")
    assert cell.constraints == ("numpy<2", "setuptools<70")
    assert "setuptools" in cell.companions
    assert cell.driver.run_floor == "450.80.02"
    assert cell.driver.compile_floor == "525.60.13"
    assert cell.driver.native == "520"
    assert cell.driver.install == 580


def test_package_index_build_has_no_label_but_calls_itself_by_it() -> None:
    cell = cell_of(cuda="11.7")
    assert cell.requirements[0] == "torch==2.0.1"
    assert cell.index_url is None
    assert cell.local_version == "2.0.1+cu117"


@pytest.mark.parametrize(
    ("torch", "cuda", "gpu", "run_floor", "compile_floor"),
    [
        ("2.0.1", "11.7", (), "450.80.02", "525.60.13"),
        ("2.7.1", "11.8", ("A100",), "450.80.02", "525.60.13"),
        ("2.13.0", "12.9", ("A100",), "525.60.13", "525.60.13"),
        ("2.13.0", "12.9", ("B200",), "525.60.13", "580.65.06"),
        ("2.13.0", "12.9", ("A100", "B200"), "525.60.13", "580.65.06"),
        ("2.13.0", "13.0", (), "580.65.06", "580.65.06"),
        ("1.13.1", "11.7", (), "450.80.02", None),
        ("2.0.1", "cpu", (), None, None),
    ],
)
def test_driver_floors(
    torch: str, cuda: str, gpu: tuple[str, ...], run_floor: str | None, compile_floor: str | None
) -> None:
    driver = cell_of(torch=torch, cuda=cuda, gpu=gpu).driver
    assert (driver.run_floor, driver.compile_floor) == (run_floor, compile_floor)


def test_compile_floor_differs_by_architecture_where_a_second_ptxas_serves_blackwell() -> None:
    floors = cell_of(torch="2.13.0", cuda="12.9").driver.compile_floor_by_arch
    assert floors["9.0"] == "525.60.13"
    assert floors["12.0"] == "580.65.06"


@pytest.mark.parametrize(
    ("gpu", "branch"),
    [("GTX 1080", 580), ("V100", 580), ("A100", 580), ("B200", 580), ("K80", 470)],
)
def test_driver_to_install(gpu: str, branch: int) -> None:
    cell = (
        cell_of(torch="2.0.1", cuda="11.8", gpu=(gpu,), compile=False)
        if gpu != "B200"
        else (cell_of(torch="latest", gpu=(gpu,)))
    )
    assert cell.driver.install == branch


@pytest.mark.parametrize(
    ("spoken", "plain"),
    [
        ({"gpu": ("NVIDIA A100-SXM4-80GB",)}, {"gpu": ("A100",)}),
        ({"gpu": ("nvidia geforce rtx 3090",)}, {"gpu": ("RTX 3090",)}),
        ({"gpu": ("sm_9.0",)}, {"gpu": ("9.0",)}),
        ({"gpu": ("sm_90a",)}, {"gpu": ("9.0",)}),
        ({"gpu": ("90",)}, {"gpu": ("9.0",)}),
        ({"cuda": "cu118"}, {"cuda": "11.8"}),
        ({"cuda": "11.8.0"}, {"cuda": "11.8"}),
        ({"python": "py310"}, {"python": "3.10"}),
        ({"python": "3.10.14"}, {"python": "3.10"}),
        ({"os": "Ubuntu 22.04"}, {"os": "ubuntu22.04"}),
        ({"os": "jammy"}, {"os": "ubuntu22.04"}),
        ({"os": "rocky9"}, {"os": "el9"}),
        ({"os": "rockylinux:9.4"}, {"os": "el9"}),
        ({"arch": "amd64"}, {"arch": "x86_64"}),
        ({"torch": "torch==2.0.1"}, {"torch": "2.0.1"}),
        ({"torch": "2.1"}, {"torch": "2.1.2"}),
        ({"gpu": ("NVIDIA GeForce RTX 4090 Laptop GPU",)}, {"gpu": ("RTX 4090",)}),
        ({"gpu": ("GeForce RTX 2080 with Max-Q Design",)}, {"gpu": ("RTX 2080",)}),
        ({"gpu": ("NVIDIA GH200 144G HBM3e",)}, {"gpu": ("GH200",)}),
        ({"gpu": ("Tesla V100-DGXS-32GB",)}, {"gpu": ("V100",)}),
        ({"gpu": ("NVIDIA RTX PRO 5000 Blackwell",)}, {"gpu": ("RTX PRO 5000",)}),
        ({"gpu": ("NVIDIA RTX 5000 Ada Generation",)}, {"gpu": ("RTX 5000 Ada",)}),
        ({"gpu": ("TITAN Xp",), "compile": False}, {"gpu": ("6.1",), "compile": False}),
    ],
)
def test_ways_of_saying_the_same(spoken: dict[str, Any], plain: dict[str, Any]) -> None:
    assert cell_of(**spoken).name == cell_of(**plain).name


def test_bare_branch_means_its_newest_driver() -> None:
    assert cell_of(torch="2.5.1", driver="525").name == "torch2.5.1-cu124-py310-ubuntu22.04"


def test_a_gpu_that_a_cpu_build_does_not_use_is_said() -> None:
    answer = resolve(MATRIX, Request(torch="2.7.1", cuda="cpu", gpu=("H100",)))
    assert isinstance(answer, Resolution)
    assert any("uses no GPU (H100)" in warning for warning in answer.warnings)


def test_unverified_facts_are_said() -> None:
    answer = resolve(MATRIX, Request(torch="2.7.1", cuda="11.8", gpu=("A100",)))
    assert isinstance(answer, Resolution)
    assert any("arch list of torch 2.7.1+cu118" in w for w in answer.warnings)
    assert not next(d for d in answer.decisions if d.part == "gpu").verified
    answer = resolve(MATRIX, Request(gpu=("R200",)))
    assert isinstance(answer, Resolution)
    assert any("what is told of the R200" in w for w in answer.warnings)
    assert not next(d for d in answer.decisions if d.part == "gpu").verified


def test_every_gpu_has_a_source_and_its_facts_are_marked() -> None:
    ids = set(driver_oracle.RAW["sources"])
    for name in driver_oracle.GPUS:
        fact = index_of(MATRIX).gpu(name)
        assert fact is not None
        assert fact.label == name
        assert fact.source
        assert all(source in ids or source.startswith("http") for source in fact.source), name


@pytest.mark.parametrize(
    ("axes", "parts"),
    [
        ({"torch": "2.7.1", "cuda": "11.8", "gpu": ("A100",)}, {"arch_list"}),
        ({"torch": "2.7.1", "cuda": "11.8", "gpu": ("RTX A4500",)}, {"arch_list", "gpu"}),
        ({"gpu": ("R200",)}, {"torchaudio", "gpu", "gpu_floor"}),
        ({"gpu": ("R200",), "without": ("torchaudio",)}, {"gpu", "gpu_floor"}),
        ({"gpu": ("RTX 4060",)}, {"gpu_floor"}),
        ({"gpu": ("L4",)}, set()),
        ({"gpu": ("8.9",)}, set()),
        ({"cuda": "11.8"}, set()),
        ({"torch": "2.9.1", "cuda": "12.9"}, {"variant"}),
    ],
)
def test_parts_that_are_not_confirmed_are_marked(axes: dict[str, Any], parts: set[str]) -> None:
    answer = resolve(MATRIX, Request(**axes))
    assert isinstance(answer, Resolution)
    assert set(answer.unverified) == parts
    summary = summary_lines(answer.cell, answer.unverified)
    marked = sum(line.endswith(" ?") or " ? from " in line for line in summary)
    assert bool(marked) == bool(parts)
    if "gpu_floor" in parts:
        floor = next(line for line in summary if "driver for the GPU" in line)
        assert floor.endswith(" ?")
    assert any("Not confirmed" in text for text in answer.warnings) == bool(parts)


def test_a_host_driver_through_compat_that_nobody_confirmed_is_marked() -> None:
    index = index_of(MATRIX)
    toolkit = msgspec.structs.replace(
        index.toolkits["13.2"], forward_compat_from=(535,), forward_compat_verified=False
    )
    toolkits = tuple(toolkit if t.series == "13.2" else t for t in MATRIX.toolkits)
    other = msgspec.structs.replace(MATRIX, toolkits=toolkits)
    answer = resolve(other, Request(torch="2.15.0", gpu=("A100",), driver="535.183.01"))
    assert isinstance(answer, Resolution)
    assert answer.cell.forward_compat == "cuda-compat-13-2"
    assert "forward_compat" in answer.unverified
    assert not next(d for d in answer.decisions if d.part == "host driver").verified
    # and where nothing is known at all, that is said
    refusal = refusal_of(torch="2.15.0", gpu=("A100",), driver="535.183.01")
    assert "whether a cuda-compat of CUDA 13.2 bridges it is not confirmed" in refusal.message


def test_forward_compatibility_is_for_data_center_gpus_only() -> None:
    cell = cell_of(torch="2.13.0", cuda="13.0", gpu=("A100",), driver="535.183.01")
    assert cell.forward_compat == "cuda-compat-13-0"
    assert cell.base_image == "nvidia/cuda:13.0.2-base-ubuntu22.04"
    refusal = refusal_of(torch="2.13.0", cuda="13.0", gpu=("RTX 3090",), driver="535.183.01")
    assert refusal.code == "driver.run-floor"
    # not chosen by itself: what runs without a compatibility package comes first
    plain = cell_of(torch="latest", gpu=("A100",), driver="535.183.01")
    assert (plain.name, plain.forward_compat) == ("torch2.14.1-cu126-py310-ubuntu22.04", None)
    # where nothing else of what was asked for runs, it is
    bridged = cell_of(torch="2.13.0", index="package", gpu=("A100",), driver="535.183.01")
    assert (bridged.variant, bridged.forward_compat) == ("cu130", "cuda-compat-13-0")
    bridged = cell_of(torch="latest", gpu=("A100",), driver="470.82")
    assert (bridged.torch, bridged.forward_compat) == ("2.14.1", "cuda-compat-12-6")
    # a driver that runs the build but not what torch.compile makes of it is told so
    refusal = refusal_of(torch="2.0.1", gpu=("A100",), driver="470.82")
    assert refusal.code == "driver.compile-floor"
    # 555 stands in no whitelist: a data-center GPU does not help there
    refusal = refusal_of(torch="2.13.0", cuda="13.0", gpu=("A100",), driver="555.42.06")
    assert refusal.code == "driver.run-floor"


def test_gpus_that_need_different_kernel_modules_are_told_apart() -> None:
    answer = resolve(MATRIX, Request(gpu=("V100", "RTX 5090")))
    assert isinstance(answer, Resolution)
    assert any("different kernel modules" in text for text in answer.warnings)


def test_decisions_explain_each_part_with_a_source() -> None:
    answer = resolve(MATRIX, Request(cuda="11.8", gpu=("A100",), driver="535.104.05"))
    assert isinstance(answer, Resolution)
    parts = [d.part for d in answer.decisions]
    assert parts == [
        "torch", "variant", "python", "os", "gpu", "run floor", "compile floor", "host driver",
    ]  # fmt: skip
    assert all(d.because and d.source for d in answer.decisions)
    assert "ptxas 12.0.76" in answer.decisions[6].because


def test_what_was_passed_over_is_kept_with_its_reason() -> None:
    answer = resolve(MATRIX, Request(gpu=("RTX 5090",)))
    assert isinstance(answer, Resolution)
    over = answer.decisions[0].passed_over
    assert over[0].value == "2.0.1+cu118"
    assert "no code for the RTX 5090" in over[0].because


def test_the_compile_floor_of_a_gpu_that_the_build_has_no_code_of_its_own_for() -> None:
    """A GPU of 8.9 runs the code for 8.6: its floor is told under its own name as well."""
    answer = resolve(MATRIX, Request(torch="2.0.1", cuda="11.8", gpu=("RTX 4090",)))
    assert isinstance(answer, Resolution)
    assert "8.9" not in answer.cell.arch_list
    floors = answer.cell.driver.compile_floor_by_arch
    assert floors["8.9"] == answer.cell.driver.compile_floor == "525.60.13"


# --- refusals ---


@pytest.mark.parametrize(
    ("axes", "code", "nearest"),
    [
        (
            {"torch": "2.0.1", "cuda": "12.4"},
            "variant.unavailable",
            {"torch2.4.1-cu124-py310-ubuntu22.04", "torch2.0.1-cu118-py310-ubuntu22.04"},
        ),
        (
            {"torch": "1.13.1", "cuda": "11.8"},
            "variant.unavailable",
            {"torch1.13.1-cu117-py310-ubuntu22.04", "torch2.0.1-cu118-py310-ubuntu22.04"},
        ),
        (
            {"torch": "2.0.1", "python": "3.11"},
            "python.compile-ceiling",
            {"torch2.0.1-cu118-py310-ubuntu22.04", "torch2.0.1-cu118-py311-ubuntu22.04-eager"},
        ),
        ({"torch": "2.9.1", "python": "3.14"}, "python.compile-ceiling", None),
        ({"torch": "2.5.1", "python": "3.8"}, "python.no-wheel", None),
        (
            {"torch": "1.13.1", "python": "3.11"},
            "python.no-torchvision",
            {"torch1.13.1-cu117-py310-ubuntu22.04"},
        ),
        ({"gpu": ("GTX 1080",)}, "gpu.no-compile", {"torch2.14.1-cu126-py310-ubuntu22.04-eager"}),
        (
            {"gpu": ("H100",), "cuda": "11.7"},
            "gpu.no-kernels",
            {"torch2.0.1-cu118-py310-ubuntu22.04"},
        ),
        (
            {"gpu": ("V100",), "torch": "2.15.0"},
            "gpu.no-kernels",
            {"torch2.14.1-cu126-py310-ubuntu22.04"},
        ),
        ({"gpu": ("V100",), "torch": "2.7.1", "cuda": "12.8"}, "gpu.no-kernels", None),
        (
            {"driver": "470.82"},
            "driver.compile-floor",
            {
                "torch2.0.1-cu118-py310-ubuntu22.04-eager",
                "torch2.0.1-cu118-py310-ubuntu22.04-ptxas118",
            },
        ),
        (
            {"driver": "470.82", "torch": "2.4.1", "cuda": "11.8", "ptxas": "ptxas118"},
            "ptxas.not-possible",
            None,
        ),
        (
            {"torch": "latest", "driver": "470.82", "gpu": ("RTX 3090",)},
            "driver.run-floor",
            {
                "torch2.7.1-cu118-py310-ubuntu22.04-eager",
                "torch2.3.1-cu118-py310-ubuntu22.04-ptxas118",
                "torch2.15.0-cu132-py311-ubuntu22.04",
            },
        ),
        ({"torch": "1.13.1", "ptxas": "ptxas118"}, "ptxas.not-possible", None),
        ({"torch": "2.0.1", "cuda": "cpu", "ptxas": "ptxas118"}, "ptxas.not-possible", None),
        ({"torch": "2.0.1", "compile": False, "ptxas": "ptxas118"}, "ptxas.not-possible", None),
        ({"driver": "440.33"}, "driver.run-floor", None),
        (
            {"gpu": ("GB200",), "arch": "x86_64"},
            "gpu.host-arch",
            {"torch2.15.0-cu132-py311-ubuntu22.04-aarch64"},
        ),
        ({"driver": "535.104.05", "torch": "2.15.0"}, "driver.run-floor", None),
        ({"driver": "590.48.01", "gpu": ("V100",)}, "driver.gpu-dropped", None),
        (
            {"driver": "515.105.01", "gpu": ("H100",), "cuda": "11.8", "compile": False},
            "driver.gpu-too-new",
            None,
        ),
        (
            {"driver": "575.57.08", "gpu": ("B200",), "torch": "2.13.0", "cuda": "12.9"},
            "driver.compile-floor",
            {"torch2.13.0-cu129-py310-ubuntu22.04-eager"},
        ),
        (
            {"torch": "2.6.0", "cuda": "12.6"},
            "known-bad.torch-2.6.0-cu126-metadata",
            {"torch2.6.0-cu124-py310-ubuntu22.04"},
        ),
        (
            {"torch": "2.15.0", "cuda": "13.0"},
            "variant.unpublished",
            {"torch2.15.0-cu132-py311-ubuntu22.04"},
        ),
        ({"torch": "2.0.5"}, "torch.unknown", {"torch2.0.1-cu118-py310-ubuntu22.04"}),
        ({"torch": ">=3"}, "torch.unknown", None),
        ({"torch": "2.0.1+rocm5.4.2"}, "platform.unsupported", set()),
        ({"cuda": "rocm6.0"}, "platform.unsupported", set()),
        ({"gpu": ("Jetson Orin",)}, "platform.unsupported", set()),
        ({"gpu": ("8.7",)}, "platform.unsupported", set()),
        ({"python_from": "base", "os": "debian12", "python": "3.10"}, "python.not-base", None),
        ({"flavour": "devel", "os": "debian12"}, "flavour.no-image", None),
        ({"flavour": "devel", "cuda": "cpu", "torch": "2.0.1"}, "flavour.devel-cpu", None),
        (
            {"arch": "aarch64", "torch": "2.0.1", "cuda": "11.8"},
            "variant.unavailable",
            {"torch2.11.0-cu130-py310-ubuntu22.04-aarch64"},
        ),
    ],
)
def test_refusal(axes: dict[str, Any], code: str, nearest: set[str] | None) -> None:
    refusal = refusal_of(**axes)
    assert refusal.code == code
    names = {n.name for n in refusal.nearest}
    assert len(refusal.nearest) <= 3
    if nearest is None:
        assert names
    else:
        assert nearest <= names
        assert nearest or not names
    assert refusal.message.endswith(".")
    assert refusal.have
    assert refusal.need


def test_a_refusal_names_everything_that_would_have_to_change() -> None:
    refusal = refusal_of(
        torch="2.15.0", driver="535.104.05", gpu=("RTX 3090",), os="ubuntu20.04", python="3.10"
    )
    assert refusal.code == "driver.run-floor"
    assert set(refusal.have) == {"driver", "python"}
    assert ">=580.65.06" in refusal.need["driver"]
    assert any("no x86_64 wheel for Python 3.10" in text for text in refusal.also)


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (
            {"torch": "latest", "driver": "470.82"},
            ["eager mode only", "another ptxas", "driver 580.65.06 or newer on the host"],
        ),
        (
            {"torch": "2.4.1", "driver": "470.82"},
            [
                "eager mode only",
                "another torch, another ptxas",
                "driver 525.60.13 or newer on the host",
            ],
        ),
        (
            {"torch": "2.15.0", "driver": "470.82"},
            [
                "another torch, eager mode only",
                "another torch, another ptxas",
                "driver 580.65.06 or newer on the host",
            ],
        ),
        ({"torch": "2.14.1", "cuda": "13.0", "driver": "535.104.05"}, ["another CUDA"]),
        ({"torch": "2.15.0", "driver": "535.104.05"}, ["another torch"]),
        ({"flavour": "devel", "os": "debian12"}, ["another OS", "another flavour"]),
        (
            {"gpu": ("GTX 1080",), "driver": "590.48.01", "compile": False},
            ["an older driver on the host, of branch 580 or before"],
        ),
        (
            {"torch": "2.4.1", "ptxas": "ptxas118"},
            ["another torch", "triton's own ptxas", "another torch"],
        ),
    ],
)
def test_what_the_nearest_cells_change(axes: dict[str, Any], told: list[str]) -> None:
    differs = [n.differs.replace(" (unverified)", "") for n in refusal_of(**axes).nearest]
    assert differs[: len(told)] == told


@pytest.mark.parametrize(
    ("axes", "code", "have"),
    [
        # nobody asked for a Python, and some would do
        ({"torch": "2.15.0", "flavour": "devel", "os": "debian11"}, "flavour.no-image", "flavour"),
        ({"flavour": "devel", "os": "debian12"}, "flavour.no-image", "os gcc"),
        (
            {"flavour": "devel", "os": "debian13", "cuda": "12.4"},
            "flavour.no-image",
            "os gcc glibc",
        ),
        # what the OS ships was asked for with it
        ({"torch": "2.0.1", "python_from": "base", "os": "debian12"}, None, "python"),
        # a build whose files were never seen is not the one to tell of
        ({"cuda": "13.0", "driver": "535.104.05"}, "driver.run-floor", "driver"),
        ({"torch": "latest", "cuda": "13.0", "driver": "525.60.13"}, "driver.run-floor", "driver"),
        ({"torch": "2.15.0", "cuda": "13.0"}, "variant.unpublished", "cuda"),
    ],
)
def test_a_refusal_blames_what_is_to_blame(
    axes: dict[str, Any], code: str | None, have: str
) -> None:
    refusal = refusal_of(**axes)
    assert code is None or refusal.code == code
    assert list(refusal.have) == have.split()
    assert list(refusal.need) == have.split()


@pytest.mark.parametrize(
    ("axes", "sure"),
    [
        ({"python_from": "base", "os": "ubuntu24.04", "python": "3.10"}, False),
        ({"python_from": "base", "os": "debian12", "python": "3.10"}, True),
        ({"torch": "2.7.1", "cuda": "11.8", "gpu": ("RTX 5090",)}, False),
        ({"gpu": ("R200",), "driver": "580.65.06"}, False),
        ({"gpu": ("VR200",), "arch": "x86_64"}, False),
        ({"gpu": ("GB200",), "arch": "x86_64"}, True),
        ({"driver": "440.33"}, True),
    ],
)
def test_a_refusal_on_what_nobody_confirmed_says_so(axes: dict[str, Any], sure: bool) -> None:
    assert refusal_of(**axes).verified is sure


def test_numbers_are_in_the_message() -> None:
    refusal = refusal_of(driver="470.82", torch="2.0.1", cuda="11.8", gpu=("A100",))
    for number in ("470.82", "525.60.13", "12.0.76", "2.0.1+cu118"):
        assert number in refusal.message


@pytest.mark.parametrize(
    "axes",
    [
        {"cuda": "1.18"},
        {"torch": "two"}, {"torch": ">=2,<x"}, {"torch": "2.0.1+weird!"}, {"cuda": "eleven"},
        {"python": "2.7"}, {"os": "windows95"}, {"os": "ubuntu23.04"}, {"arch": "ppc64le"},
        {"gpu": ("Voodoo 2",)}, {"gpu": ("$(id)",)}, {"driver": "new"}, {"driver": "5"},
        {"torch": f"2.0.{'9' * 5000}"}, {"torch": f">=2.0.{'9' * 5000}"},
        {"torch": f"2.0.1+{'9' * 5000}"}, {"driver": f"535.{'1' * 5000}"},
        {"cuda": "cu118\n9"}, {"gpu": ("9" * 5000,)}, {"python": "3.10\n1"},
        {"flavour": "huge"}, {"python_from": "brew"}, {"torch": "2.0.1+cu118", "cuda": "11.7"},
    ],
)  # fmt: skip
def test_words_that_make_no_sense(axes: dict[str, Any]) -> None:
    if axes.get("os", "").startswith("windows"):
        assert refusal_of(**axes).code == "platform.unsupported"
        return
    with pytest.raises(UsageError) as caught:
        resolve(MATRIX, Request(**axes))
    assert caught.value.code.startswith("request.")


def test_apt_packages_want_a_system_with_apt() -> None:
    packages = UserPackages(apt=("git",))
    refusal = refusal_of(os="el9", packages=packages, name="ours")
    assert refusal.code == "packages.apt"
    assert refusal.nearest[0].name.endswith("ubuntu22.04")


def test_conda_packages_do_not_vanish_from_a_cell_without_conda() -> None:
    packages = UserPackages(conda=("ffmpeg=6",))
    with pytest.raises(UsageError) as caught:
        resolve(MATRIX, Request(name="mine", python_from="base", packages=packages))
    assert "ffmpeg=6" in caught.value.message


@pytest.mark.parametrize(
    ("axes", "axis"),
    [({"os": "windows"}, "os"), ({"gpu": ("jetson nano",)}, "gpu"), ({"cuda": "rocm6.0"}, "cuda")],
)
def test_what_is_out_of_scope_is_told_on_its_own_axis(axes: dict[str, Any], axis: str) -> None:
    assert set(refusal_of(**axes).have) == {axis}


# --- properties ---

PYTHONS = ["3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
TOOLKITS = sorted({v.toolkit for r in MATRIX.releases for v in r.variants if v.toolkit})
DRIVERS = [b.latest for b in MATRIX.driver_branches if b.latest] + ["450.80.02", "525.60.13"]


def maybe(values: list[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.sampled_from(values))


requests = st.builds(
    Request,
    torch=maybe([*BY_TORCH, "latest", ">=2.1,<2.6", "<2", "2.0.1+cu118"]),
    cuda=maybe([*TOOLKITS, "cpu"]),
    python=maybe(PYTHONS),
    os=maybe([o.id for o in MATRIX.operating_systems]),
    arch=maybe(["x86_64", "aarch64"]),
    gpu=st.lists(st.sampled_from([*GPUS, "6.1", "8.6", "12.0"]), max_size=2).map(tuple),
    driver=maybe(DRIVERS),
    flavour=maybe(["slim", "devel"]),
    compile=st.booleans(),
    python_from=maybe(["conda", "base"]),
    index=maybe(["package", "torch"]),
    ptxas=maybe(["ptxas118"]),
    without=st.sampled_from([(), ("torchvision",), ("torchaudio", "torchvision")]),
)


def oracle(cell: Cell, request: Request) -> list[str]:
    """What is wrong with a cell, read straight off the facts and independent of the resolver."""
    wrong: list[str] = []
    release = BY_TORCH[cell.torch]
    variant = next(v for v in release.variants if v.tag == cell.variant)
    system = next(o for o in MATRIX.operating_systems if o.id == cell.os)
    wheels = release.python.aarch64 if cell.arch == "aarch64" else release.python.x86_64
    if cell.python not in wheels:
        wrong.append("no wheel")
    for companion in (release.torchvision, release.torchaudio):
        kept = companion.version in (cell.torchvision, cell.torchaudio)
        if kept and companion.python != "any" and cell.python not in companion.python:
            wrong.append("no companion wheel")
    if cell.compile and Version(cell.python) > Version(release.compile.python_max or "0"):
        wrong.append("compile ceiling")
    if Version(system.glibc) < Version(release.glibc):
        wrong.append("glibc")
    if cell.python_from == "base" and system.python != cell.python:
        wrong.append("not the base Python")
    if variant.published != "yes":
        wrong.append("not published")
    if cell.cuda is not None:
        wrong += driver_wrong(cell, request)
    return wrong


def driver_wrong(cell: Cell, request: Request) -> list[str]:
    """What the driver's side of a cell has wrong, by the oracle on the raw document."""
    wrong: list[str] = []
    run_floor = driver_oracle.run_floor(cell.cuda or "")
    if Version(cell.driver.run_floor or "0") != run_floor:
        wrong.append("run floor")
    for text in request.gpu:
        board = driver_oracle.GPUS.get(text, {}).get("host_arch")
        if board is not None and cell.arch != board:
            wrong.append("a GPU that no machine of this type has")
    if cell.arch == "aarch64":
        return wrong  # another arch list; its driver side is that of the same build
    compiles = cell.compile and cell.ptxas is None
    wrong += driver_oracle.against(
        cell.torch, cell.variant, request.gpu, request.driver, compiles=compiles
    )
    if compiles:
        floor = driver_oracle.compile_floor(cell.torch, cell.cuda or "", request.gpu)
        told = cell.driver.compile_floor
        if (Version(told) if told else None) != floor:
            wrong.append("compile floor")
    if request.driver is not None:
        level = driver_oracle.level(cell.cuda or "", request.driver, request.gpu)
        if (level == "compat") != (cell.forward_compat is not None):
            wrong.append("forward compatibility")
    return wrong


NAMED = [
    (r.torch, v.tag)
    for r in MATRIX.releases
    for v in r.variants
    if v.published == "yes" and v.toolkit is not None and (r.torch, v.tag) != ("2.6.0", "cu126")
]
CARDS = [
    n for n, g in driver_oracle.GPUS.items() if g["kind"] != "embedded" and "host_arch" not in g
]
CARDS += [n for n, c in driver_oracle.CAPABILITIES.items() if not c.get("embedded")]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(NAMED),
    st.lists(st.sampled_from(CARDS), max_size=2, unique=True).map(tuple),
    st.one_of(st.none(), st.sampled_from(DRIVERS)),
    st.booleans(),
)
def test_a_host_is_refused_exactly_where_the_procedure_says_so(
    build: tuple[str, str], gpus: tuple[str, ...], driver: str | None, compiles: bool
) -> None:
    torch, tag = build
    request = Request(torch=torch, cuda=tag, gpu=gpus, driver=driver, compile=compiles)
    against = driver_oracle.against(torch, tag, gpus, driver, compiles=compiles)
    answer = resolve(MATRIX, request)
    assert isinstance(answer, Resolution) == (not against), (against, answer)


@pytest.mark.parametrize(
    ("torch", "tag", "gpus", "driver", "compiles", "said"),
    [
        ("2.0.1", "cu118", ("A100",), "470.82", True, "below the compile floor"),
        ("2.0.1", "cu118", ("A100",), "470.82", False, None),
        ("2.0.1", "cu118", ("A100",), "440.33", False, "below the run floor"),
        ("2.13.0", "cu130", ("A100",), "535.183.01", True, None),
        ("2.13.0", "cu130", ("RTX 3090",), "535.183.01", True, "below the run floor"),
        ("2.13.0", "cu129", ("B200",), "575.57.08", True, "below the compile floor"),
        ("2.0.1", "cu117", ("H100",), None, True, "no code for H100"),
        ("2.14.1", "cu126", ("GTX 1080",), None, True, "triton does not compile for GTX 1080"),
        ("2.7.1", "cu128", ("RTX 5090",), "565.57.01", True, "RTX 5090 unknown to the driver"),
        ("2.14.1", "cu126", ("V100",), "590.48.01", True, "V100 unknown to the driver"),
    ],
)
def test_the_oracle_itself(
    torch: str,
    tag: str,
    gpus: tuple[str, ...],
    driver: str | None,
    compiles: bool,
    said: str | None,
) -> None:
    names = tuple({"V100": "Tesla V100"}.get(g, g) for g in gpus)
    found = driver_oracle.against(torch, tag, names, driver, compiles=compiles)
    assert [text.replace("Tesla ", "") for text in found] == ([] if said is None else [said])


@settings(max_examples=400, deadline=None)
@given(requests)
def test_no_cell_breaks_a_rule_and_every_suggestion_resolves(request: Request) -> None:
    try:
        answer = resolve(MATRIX, request)
    except UsageError as exc:
        if exc.code != "request.conflict":
            raise
        return
    assert resolve(MATRIX, request) == answer
    if isinstance(answer, Resolution):
        assert oracle(answer.cell, request) == []
        return
    for near in answer.nearest:
        again = resolve(MATRIX, request_of(near.options))
        assert isinstance(again, Resolution), (near, again)
        assert again.cell.name == near.name
        assert near.differs
        assert truly_differs(request, again.cell, near.differs), (request, near)
        assert given_up_for_nothing(request, request_of(near.options)) == []


HARD = ("driver", "os", "arch", "python_from", "compile", "python", "flavour", "index")


def given_up_for_nothing(request: Request, near: Request) -> list[str]:
    """What a suggestion changes of the request although its cell could do without the change."""
    found = []
    for axis in HARD:
        asked = getattr(request, axis)
        if asked is None or asked == getattr(near, axis):
            continue
        closer = resolve(MATRIX, msgspec.structs.replace(near, **{axis: asked}))
        if isinstance(closer, Resolution) and (axis != "compile" or closer.cell.compile):
            found.append(axis)
    return found


def truly_differs(request: Request, cell: Cell, told: str) -> bool:
    """Whether nothing is called another that is what was asked for."""
    torch, _, label = (request.torch or "").partition("+")
    tag = (request.cuda or "").replace(".", "")
    asked = {
        "torch": (torch or None, cell.torch),
        "CUDA": (label or (f"cu{tag}" if tag.isdigit() else tag) or None, cell.variant),
        "Python": (request.python, cell.python),
        "OS": (request.os, cell.os),
        "flavour": (request.flavour, cell.flavour),
        "index": (request.index, None),
    }
    words = told.replace(",", " ").split()
    assert not {"python", "os", "GPU"} & set(words) or "machine" in words
    if "driver" in words and request.driver is not None:
        major = int(request.driver.split(".")[0])
        lasts = [driver_oracle.CAPABILITIES[driver_oracle.capability(g)] for g in request.gpu]
        old = any(fact.get("driver_branch_last", major) < major for fact in lasts)
        assert ("older" if old else "newer") in words
    named = {word for word in asked if "another" in words and word in words}
    return all(asked[word][0] not in {None, asked[word][1]} for word in named) and (
        "driver" not in words or request.driver is not None
    )


def request_of(options: tuple[str, ...]) -> Request:
    """A request from the command line that a suggestion gives."""
    axes: dict[str, Any] = {"gpu": (), "without": ()}
    words = list(options)
    while words:
        option = words.pop(0)
        if option == "--no-compile":
            axes["compile"] = False
            continue
        key = option.removeprefix("--").replace("-", "_")
        if key in {"gpu", "without"}:
            axes[key] = (*axes[key], words.pop(0))
        else:
            axes[key] = words.pop(0)
    return Request(**axes)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(BY_TORCH)),
    st.sampled_from(TOOLKITS),
    st.sampled_from(PYTHONS),
    st.sampled_from([o.id for o in MATRIX.operating_systems]),
)
def test_a_point_is_refused_exactly_where_the_facts_speak_against_it(
    torch: str, cuda: str, python: str, os: str
) -> None:
    answer = resolve(MATRIX, Request(torch=torch, cuda=cuda, python=python, os=os))
    release = BY_TORCH[torch]
    system = next(o for o in MATRIX.operating_systems if o.id == os)
    fits = (
        any(v.toolkit == cuda and v.published == "yes" for v in release.variants)
        and python in release.python.x86_64
        and all(
            c.python == "any" or python in c.python
            for c in (release.torchvision, release.torchaudio)
        )
        and Version(system.glibc) >= Version(release.glibc)
        and (
            release.compile.python_max is None
            or Version(python) <= Version(release.compile.python_max)
        )
        and (torch, cuda) != ("2.6.0", "12.6")
    )
    assert isinstance(answer, Resolution) == fits
