"""Facts of a log and what the matrix makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Diagnosis

COLLECT_ENV = """\
PyTorch version: 2.5.1+cu124
CUDA used to build PyTorch: 12.4
OS: Ubuntu 22.04.4 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Libc version: glibc-2.35
Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)
GPU models and configuration: GPU 0: NVIDIA GeForce RTX 5090
Nvidia driver version: 570.86.16
[pip3] numpy==1.26.4
[pip3] triton==3.1.0
"""
OLD_BANNER = "| NVIDIA-SMI 535.86.05    Driver Version: 535.86.05    CUDA Version: 12.2 |\n"
NEW_BANNER = "| NVIDIA-SMI 610.43.02   KMD Version: 610.43.02   CUDA UMD Version: 13.3 |\n"
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def test_collect_env_is_read(examine: Callable[[str], Diagnosis]) -> None:
    assert examine(COLLECT_ENV).environment == {
        "torch": "2.5.1+cu124",
        "driver": "570.86.16",
        "gpu": "NVIDIA GeForce RTX 5090",
        "python": "3.10",
        "triton": "3.1.0",
        "numpy": "1.26.4",
        "os": "Ubuntu 22.04.4 LTS (x86_64)",
        "glibc": "2.35",
        "gcc": "11",
    }


@pytest.mark.parametrize(
    ("banner", "driver", "cuda"),
    [(OLD_BANNER, "535.86.05", "12.2"), (NEW_BANNER, "610.43.02", "13.3")],
)
def test_both_generations_of_the_banner_are_read(
    banner: str, driver: str, cuda: str, examine: Callable[[str], Diagnosis]
) -> None:
    found = examine(banner).environment
    assert (found["driver"], found["driver_cuda"]) == (driver, cuda)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (COLLECT_ENV, "gpu_newer_than_wheel"),
        ("torch 2.8.0+cu128\nGPU 0: NVIDIA GeForce GTX 1080\n", "gpu_arch_dropped_from_wheel"),
        ("torch 2.0.1+cu117\nGPU 0: NVIDIA H100 80GB HBM3\n", "gpu_newer_than_wheel"),
        ("compute_cap: 6.1\n", "gpu_arch_dropped_from_wheel"),
        ("compute_cap: 12.0\n", "gpu_newer_than_wheel"),
    ],
)
def test_no_kernel_image_is_decided_by_the_gpu(
    facts: str, expected: str, examine: Callable[[str], Diagnosis]
) -> None:
    assert examine(facts + NO_KERNEL).causes[0].cls == expected


def test_the_remedy_names_builds_for_this_gpu_and_driver(
    examine: Callable[[str], Diagnosis],
) -> None:
    cause = examine(COLLECT_ENV + NO_KERNEL).causes[0]
    assert "capability 12.0" in cause.remedy
    # a 570 driver runs CUDA 12 builds only
    assert "whl/cu12" in cause.commands[0]
    pascal = examine("compute_cap: 6.1\ntorch 2.8.0+cu128\n" + NO_KERNEL).causes[0]
    assert "torch 2.8.0 holds code for it as cu126" in pascal.remedy
    assert "--no-compile" in pascal.commands[1]


def test_the_companions_of_the_log_s_torch(examine: Callable[[str], Diagnosis]) -> None:
    cause = examine(
        "PyTorch version: 2.0.1+cu118\nRuntimeError: operator torchvision::nms does not exist\n"
    ).causes[0]
    assert "torch 2.0.1 goes with torchvision 0.15.2 and torchaudio 2.0.2" in cause.remedy


def test_python_of_the_log_s_torch(examine: Callable[[str], Diagnosis]) -> None:
    cause = examine(
        "PyTorch version: 2.0.1+cu118\n"
        "RuntimeError: Python 3.11+ not yet supported for torch.compile\n"
    ).causes[0]
    assert "torch.compile works up to Python 3.10" in cause.remedy


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("whl/cu131\nERROR: No matching distribution found for torch", "index_does_not_exist"),
        (
            "whl/cu118\nERROR: No matching distribution found for torch==2.9.0",
            "index_lacks_version",
        ),
        (
            (
                "Python 3.13.1\nwhl/cu118\nERROR: Could not find a version that satisfies the"
                " requirement torch==2.0.1 (from versions: none)"
            ),
            "no_wheel_for_python",
        ),
        (
            (
                "ERROR: Could not find a version that satisfies the requirement torch==1.13.1"
                " (from versions: 2.2.0, 2.2.1, 2.3.0)"
            ),
            "no_wheel_for_python",
        ),
        (
            (
                "ERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu118"
                " (from versions: 2.0.0, 2.1.0, 2.2.0)"
            ),
            "index_lacks_version",
        ),
        (
            (
                "whl/cu126\nERROR: Could not find a version that satisfies the requirement"
                " tqdm>=4 (from versions: none)"
            ),
            "dependency_not_mirrored_on_index",
        ),
    ],
)
def test_what_pip_did_not_find(
    log: str, expected: str, examine: Callable[[str], Diagnosis]
) -> None:
    log = log.replace("whl/", "Looking in indexes: https://download.pytorch.org/whl/")
    assert examine(log).causes[0].cls == expected


def test_a_cause_stands_before_its_consequence(examine: Callable[[str], Diagnosis]) -> None:
    found = examine(
        "UserWarning: CUDA initialization: Error 802: system not yet initialized\n"
        "nv-fabricmanager: fabric manager NVIDIA GPU driver interface version 535.183.01"
        " don't match with driver version 535.216.03\n"
    )
    assert [cause.cls for cause in found.causes] == [
        "fabric_manager_mismatch",
        "fabric_manager_missing",
    ]


def test_an_index_that_does_not_exist_is_told_what_does(
    examine: Callable[[str], Diagnosis],
) -> None:
    cause = examine(
        "Looking in indexes: https://download.pytorch.org/whl/cu131\n"
        "ERROR: Could not find a version that satisfies the requirement torch==2.10.0"
        " (from versions: none)\n"
    ).causes[0]
    assert cause.cls == "index_does_not_exist"
    assert "torch 2.10.0 is published as cu126, cu128, cu129, cu130" in cause.remedy
    assert "whl/cu130" in cause.commands[0]


def test_a_weak_sign_counts_where_somebody_chose_the_lines(
    examine: Callable[[str], Diagnosis],
) -> None:
    sign = "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:742)\n"
    assert examine(sign).causes[0].cls == "open_modules_required"
    whole = examine(sign + "kernel: eth0: link is up\n" * 20)
    assert whole.unknown
    assert whole.hints[0].cls == "open_modules_required"
    assert "sudo dmesg" in whole.collect
