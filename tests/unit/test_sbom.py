"""`provision sbom`: a CycloneDX document of both halves, held against the official schema."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from support.engine import PROJECT

from provisioner.cli.main import run

CONDA = "torch2.0.1-cu118-py310-ubuntu22.04"
LOCKED = sorted(path.parent.name for path in (PROJECT / "lockfiles").glob("*/lock.json"))


def document(capsys: pytest.CaptureFixture[str], cell: str, root: Path = PROJECT) -> Any:
    capsys.readouterr()
    assert run(["sbom", cell, f"--root={root}"]) == 0
    text = capsys.readouterr().out
    invalid = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert invalid is None, invalid
    return json.loads(text)


def copy_of(cell: str, root: Path) -> Path:
    for kind in ("docker", "lockfiles"):
        shutil.copytree(PROJECT / kind / cell, root / kind / cell)
    return root / "lockfiles" / cell


def test_the_schema_check_can_fail() -> None:
    text = json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{}]})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is not None


@pytest.mark.parametrize("cell", LOCKED)
def test_every_locked_package_is_in_it_with_its_hashes(
    cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, cell)
    folder = PROJECT / "lockfiles" / cell
    lock = json.loads((folder / "lock.json").read_bytes())
    hashes = {file["sha256"] for package in lock["packages"] for file in package["files"]}
    if (folder / "conda-linux-64.lock").exists():
        lines = (folder / "conda-linux-64.lock").read_text().splitlines()
        hashes |= {line.split()[2] for line in lines if line.startswith("# sha256 ")}
    told = {
        entry["content"]
        for part in found["components"]
        for reference in part["externalReferences"]
        for entry in reference["hashes"]
        if entry["alg"] == "SHA-256"
    }
    assert told == hashes
    for part in found["components"]:
        purl = PackageURL.from_string(part["purl"])
        assert (purl.name, purl.version) == (part["name"], part["version"])
        assert purl.to_string() == part["purl"]
    graph = {entry["ref"]: entry["dependsOn"] for entry in found["dependencies"]}
    refs = {part["bom-ref"] for part in found["components"]}
    assert graph.keys() == {cell, *refs}
    reached, ahead = set(), [cell]
    while ahead:
        ref = ahead.pop()
        if ref not in reached:
            reached.add(ref)
            ahead += graph[ref]
    assert reached == graph.keys()


def test_both_halves_say_where_they_come_from_and_what_they_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, CONDA)
    parts = {part["name"]: part for part in found["components"]}
    index = "https://download.pytorch.org/whl/cu118"
    assert parts["torch"]["purl"] == f"pkg:pypi/torch@2.0.1%2Bcu118?repository_url={index}"
    (file,) = parts["torch"]["externalReferences"]
    assert file["url"] == f"{index}/torch-2.0.1%2Bcu118-cp310-cp310-linux_x86_64.whl"
    numpy = PackageURL.from_string(parts["numpy"]["purl"])
    assert (numpy.type, numpy.qualifiers["channel"]) == ("conda", "conda-forge")
    (file,) = parts["numpy"]["externalReferences"]
    assert file["url"].startswith("https://conda.anaconda.org/conda-forge/linux-64/numpy-")
    # Two wheels may be taken for pillow, so that it has no hash of its own.
    assert len(parts["pillow"]["externalReferences"]) == 2
    assert "hashes" not in parts["pillow"]
    graph = {entry["ref"]: entry["dependsOn"] for entry in found["dependencies"]}
    assert parts["triton"]["bom-ref"] in graph[parts["torch"]["bom-ref"]]
    # From pip's half into conda's.
    assert parts["numpy"]["bom-ref"] in graph[parts["torchvision"]["bom-ref"]]
    assert parts["python"]["bom-ref"] in graph[parts["numpy"]["bom-ref"]]


def test_the_same_lock_gives_the_same_bytes_and_another_one_another_serial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(CONDA, tmp_path)
    first = document(capsys, CONDA)
    assert document(capsys, CONDA, tmp_path) == first
    lock = json.loads((folder / "lock.json").read_bytes())
    assert first["metadata"]["timestamp"] == f"{lock['as_of']}T00:00:00Z"
    lock["packages"][0]["version"] += ".1"
    lock["as_of"] = None
    (folder / "lock.json").write_text(json.dumps(lock))
    other = document(capsys, CONDA, tmp_path)
    assert other["serialNumber"] != first["serialNumber"]
    assert "timestamp" not in other["metadata"]


def test_a_file_is_written_whole_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "sbom.json"
    words = ["sbom", CONDA, f"--root={PROJECT}", f"--out={target}", "--json"]
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["components"] == len(json.loads(target.read_bytes())["components"])
    assert [path.name for path in tmp_path.iterdir()] == ["sbom.json"]
    assert run([*words[:3], f"--out={tmp_path}/no/sbom.json"]) == 4
    assert "sbom.not-written" in capsys.readouterr().err


def test_what_is_missing_or_damaged_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(CONDA, tmp_path)
    words = ["sbom", CONDA, f"--root={tmp_path}"]
    (folder / "lock.json").write_text("{")
    assert run(words) == 1
    assert "lock.damaged" in capsys.readouterr().err
    (folder / "conda-lock.yml").unlink()
    assert run(words) == 1
    error = capsys.readouterr().err
    assert "holds no conda-lock.yml. [lock.not-locked]" in error
    assert run(["sbom", "no-such-cell", f"--root={tmp_path}"]) == 2
    assert "cell.not-rendered" in capsys.readouterr().err
