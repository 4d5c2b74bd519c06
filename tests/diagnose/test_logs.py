"""Whole logs of real runs: provoked failures are recognised, ordinary logs are left alone."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from provisioner.diagnose.model import Diagnosis

HERE = Path(__file__).parent
# Failures that were provoked on real installs of torch: beginning of the file's name -> class.
PROVOKED = {
    "bad_backend": "invalid_backend",
    "broken_cxx": "c_compiler_missing",
    "cache_from_other_cpu": "cpu_isa_mismatch",
    "compile_disable_fullgraph": "compile_switched_off",
    "corrupt": "stale_compile_cache",
    "cuda_on_cpu_build": "extra_index_wins_cpu",
    "disk_full": "tmp_small_or_noexec",
    "dynamo_not_imported": "torch_without_compile",
    "foreign_site_packages": "torch_files_mixed",
    "fullgraph": "graph_break_fullgraph",
    "half_overwritten": "torch_files_mixed",
    "item": "graph_break_fullgraph",
    "missing_cxx": "c_compiler_missing",
    "missing_libcublas": "cuda_library_missing",
    "missing_libcudart": "cuda_library_missing",
    "missing_libcudnn": "cuda_library_missing",
    "no_compile_in": "torch_without_compile",
    "no_deps_install": "pip_cublas_preload",
    "no_driver": "nvidia_driver_missing",
    "no_python_h": "python_headers_missing",
    "noexec_cache": "tmp_small_or_noexec",
    "numpy2": "numpy2_old_torch",
    "python311": "dynamo_python_version",
    "readonly_cache": "cache_read_only",
    "recompile_limit": "dynamic_shapes_recompile",
    "suppress_errors": "c_compiler_missing",
    "torchvision_mismatch": "torchvision_torch_mismatch",
    "triton_no_cc": "c_compiler_missing",
    "triton_no_libcuda": "libcuda_not_found",
    "triton_no_python_h": "python_headers_missing",
    "uid_without_passwd": "uid_without_passwd",
}
# Nothing in these logs is an error: torch said nothing at all.
SILENT = {"compile_disable_zero", "dynamo_disable_silent", "two_torch_on_path"}


def members(name: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(HERE / name) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None
            yield member.name, stream.read()


def test_provoked_failures_are_recognised(examine: Callable[[bytes], Diagnosis]) -> None:
    wrong, count = [], 0
    for name, content in members("provoked.tar.xz"):
        count += 1
        causes = examine(content).causes
        expected = next((cls for head, cls in PROVOKED.items() if name.startswith(head)), None)
        if expected is None:
            assert any(name.startswith(head) for head in SILENT), name
        if (causes[0].cls if causes else None) != expected:
            wrong.append((name, expected, [cause.cls for cause in causes]))
    assert count > 60
    assert not wrong


def test_ordinary_logs_have_no_cause(examine: Callable[[bytes], Diagnosis]) -> None:
    found = {}
    count = 0
    for name, content in members("ordinary.tar.xz"):
        count += 1
        if causes := examine(content).causes:
            found[name] = [(cause.cls, cause.lines[0].text) for cause in causes]
    assert count >= 200
    assert len(found) <= count * 0.01, found
