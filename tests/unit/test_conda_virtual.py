"""What the solver is told about a target, and what conda-lock makes of it."""

import json
from pathlib import Path

import pytest
from support.cells import cell_of

from provisioner.conda import virtual


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            {"cuda": "11.8"},
            "__archspec=1=x86_64 __cuda=11.8 __glibc=2.35 __linux=5.15 __unix=0",
        ),
        (
            {"torch": "2.13.0", "cuda": "cpu", "os": "debian12"},
            "__archspec=1=x86_64 __glibc=2.36 __linux=6.1 __unix=0",
        ),
        (
            {"torch": "2.0.1", "cuda": "cpu", "arch": "aarch64"},
            "__archspec=1=aarch64 __glibc=2.35 __linux=5.15 __unix=0",
        ),
    ],
)
def test_a_cell_alone_decides(request_: dict[str, str], expected: str) -> None:
    packages = virtual.of_cell(*cell_of(**request_))
    assert " ".join(map(str, packages)) == expected


def test_the_file_for_conda_lock_quotes_versions() -> None:
    packages = virtual.of_cell(*cell_of(cuda="11.8"))
    text = virtual.to_yaml(packages, "linux-64", "Made by: us").decode()
    assert text == (
        "# Made by: us\nsubdirs:\n  linux-64:\n    packages:\n"
        '      __archspec: "1 x86_64"\n      __cuda: "11.8"\n      __glibc: "2.35"\n'
        '      __linux: "5.15"\n      __unix: "0"\n'
    )


def test_conda_locks_made_up_channel_is_told_from_a_real_one(tmp_path: Path) -> None:
    made_up, real = tmp_path / "made-up", tmp_path / "real"
    record = {"name": "__glibc", "version": "2.35", "build": "0", "package_type": "virtual_system"}
    for channel, records in ((made_up, {"a": record}), (real, {"b": {"name": "zlib"}})):
        (channel / "linux-64").mkdir(parents=True)
        (channel / "linux-64" / "repodata.json").write_text(json.dumps({"packages": records}))
    assert virtual.is_virtual_channel(f"file://{made_up}")
    assert not virtual.is_virtual_channel(f"file://{real}")
    assert not virtual.is_virtual_channel("https://conda.anaconda.org/conda-forge")
    found = virtual.from_channel(f"file://{made_up}", "linux-64")
    assert found == (virtual.VirtualPackage("__glibc", "2.35"),)
    assert virtual.from_channel(f"file://{made_up}", "linux-aarch64") == ()


def test_overrides_are_read_and_empty_ones_are_absent() -> None:
    environ = {
        "CONDA_OVERRIDE_CUDA": "",
        "CONDA_OVERRIDE_GLIBC": "2.28",
        "CONDA_OVERRIDE_ARCHSPEC": "x86_64",
        "CONDA_SUBDIR": "linux-64",
    }
    assert virtual.from_overrides(environ) == (
        virtual.VirtualPackage("__archspec", "1", "x86_64"),
        virtual.VirtualPackage("__glibc", "2.28"),
    )
