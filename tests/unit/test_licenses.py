"""Declared licenses: what metadata says, in SPDX where it does, guessed never."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from support.engine import PROJECT
from support.locking import CPU_CELL, Indexes, locked

from provisioner.cli.main import run
from provisioner.lock.licenses import License, Licensed, Licenses, of_metadata, of_repodata
from provisioner.lock.metadata import parse_metadata

OSI = "Classifier: License :: OSI Approved :: "
CELL = "torch2.0.1-cu118-py310-ubuntu22.04"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("License-Expression: mit or Apache-2.0\nLicense: BSD",
         License(expression="MIT OR Apache-2.0", said_in="License-Expression")),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License",
         License(expression="BSD-3-Clause", said_in="License")),
        ("Classifier: License :: OSI Approved :: MIT License\nClassifier: Topic :: Text",
         License(expression="MIT", said_in="Classifier")),
        (f"License: BSD\nClassifier: License :: OSI Approved\n{OSI}BSD License",
         License(names=("BSD License",), said_in="Classifier")),
        (f"{OSI}MIT License\n{OSI}Apache Software License",
         License(names=("Apache Software License", "MIT License"), said_in="Classifier")),
        ("License: Some  Words", License(names=("Some Words",), said_in="License")),
        ("License: UNKNOWN", None),
        (f"License: {'words ' * 200}", None),
        ("Summary: nothing said", None),
    ],
)  # fmt: skip
def test_what_metadata_declares(fields: str, expected: License | None) -> None:
    raw = f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{fields}\n\nLicense: MIT\n".encode()
    assert parse_metadata(raw).license == expected


def test_a_channel_is_read_the_same_way() -> None:
    text = "GPL-3.0-only WITH GCC-exception-3.1"
    assert of_repodata(text) == License(expression=text, said_in="repodata")
    odd = "LGPL-2.1 with some exceptions"
    assert of_repodata(odd) == License(names=(odd,), said_in="repodata")
    assert of_repodata("None") is of_repodata(None) is of_metadata(None, None, ()) is None


def test_a_declaration_counts_for_its_version_alone() -> None:
    mit = License(expression="MIT", said_in="License")
    here = Licenses(cell="c", pip={"a": Licensed(version="1", license=mit)})
    there = Licenses(
        cell="c",
        conda={"a": Licensed(version="1", license=mit)},
        pip={"a": Licensed(version="2", license=mit), "b": Licensed(version="2", license=mit)},
    )
    both = here.beside(there)
    assert both.of("pip", "a", "1") == both.of("pip", "b", "2") == mit
    assert both.of("pip", "a", "2") is both.of("pip", "c", "1") is both.of("conda", "b", "2")


@pytest.fixture
def indexes() -> Iterator[Indexes]:
    both = Indexes()
    both.torch.add("torch", "2.0.1+cpu", "filelock", uploaded=None)
    both.package.add("filelock", "3.12.2")
    with both.package.serve(), both.torch.serve():
        yield both


def test_a_lock_keeps_what_the_metadata_it_read_declares(indexes: Indexes) -> None:
    (wheel,) = indexes.package.projects["filelock"]
    wheel.metadata = wheel.metadata.replace(b"\n\n", b"\nLicense-Expression: Unlicense\n\n", 1)
    wheel.metadata_sha256 = hashlib.sha256(wheel.metadata).hexdigest()
    unlicense = License(expression="Unlicense", said_in="License-Expression")
    found = locked(CPU_CELL, indexes).licenses
    assert found == {"filelock": Licensed(version="3.12.2", license=unlicense)}


def declared(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """Component name -> its licenses in the document, which is held against the schema."""
    capsys.readouterr()
    assert run(["sbom", CELL, f"--root={root}", *more]) == 0
    text = capsys.readouterr().out
    invalid = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert invalid is None, invalid
    return {part["name"]: part.get("licenses") for part in json.loads(text)["components"]}


def test_the_bill_of_materials_tells_them_for_both_halves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = declared(PROJECT, capsys)
    python = [{"expression": "Python-2.0", "acknowledgement": "declared"}]
    assert found["python"] == python
    gcc = "GPL-3.0-only WITH GCC-exception-3.1"
    assert found["libstdcxx"] == [{"expression": gcc, "acknowledgement": "declared"}]
    assert found["sympy"] == [{"license": {"name": "BSD License", "acknowledgement": "declared"}}]
    assert found["torch"] is None  # from records alone: nobody has read its metadata
    without = sorted(name for name, licenses in found.items() if licenses is None)
    assert without == ["torch", "torchaudio", "torchvision"]


def test_an_environment_fills_in_what_the_locks_do_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "env" / "lib" / "python3.10" / "site-packages"
    (tmp_path / "env" / "bin").mkdir(parents=True)
    versions = {"torch": "2.0.1+cu118", "torchvision": "9.9", "sympy": "1.12"}
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Name: {name}\nVersion: {version}\nLicense-Expression: BSD-3-Clause\n"
        (info / "METADATA").write_text(text)
        (info / "RECORD").write_text("")
    found = declared(PROJECT, capsys, f"--prefix={tmp_path / 'env'}")
    assert found["torch"] == [{"expression": "BSD-3-Clause", "acknowledgement": "declared"}]
    assert found["torchvision"] is None  # another version lies there
    assert found["sympy"][0]["license"]["name"] == "BSD License"  # the lock knows it


def test_without_the_file_there_are_none_and_a_damaged_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / kind / CELL, tmp_path / kind / CELL)
    kept = tmp_path / "lockfiles" / CELL / "licenses.json"
    kept.write_text("{}")
    assert run(["sbom", CELL, f"--root={tmp_path}"]) == 1
    assert "licenses.json" in capsys.readouterr().err
    kept.unlink()
    assert set(map(str, declared(tmp_path, capsys).values())) == {"None"}
