"""Decisions about environments, without one: paths, variants, pins, manifests."""

from pathlib import Path

import msgspec
import pytest
from support.cells import cell_of

from provisioner.env import pip
from provisioner.env.create import CreateOptions, torch_index
from provisioner.env.expected import Expected, expected_of, read_expected
from provisioner.env.importing import Imports, foreign_findings, torch_findings
from provisioner.env.manifest import manifest_findings, manifest_of
from provisioner.errors import FindingError

CELL = expected_of(cell_of(torch="2.0.1", cuda="11.8")[0])
SHA = "a" * 64


def imports(*path: str, prefix: str = "/env", base: str = "/env", **fields: object) -> Imports:
    known = {
        "prefix": prefix,
        "base_prefix": base,
        "path": path,
        "stdlib": (f"{base}/lib/python3.10",),
        "user_site": "/home/ann/.local/lib/python3.10/site-packages",
        "pythonpath": "/srv/lib",
        "torch": (),
        "distributions": (),
    }
    return Imports(**(known | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "base", "why"),
    [
        ("/env/lib/python3.10/site-packages", "/env", None),
        ("/env/lib/python310.zip", "/env", None),
        ("/usr/lib/python310.zip", "/usr", None),
        ("/usr/lib/python3.10", "/usr", None),
        ("/usr/lib/python3.10/lib-dynload", "/usr", None),
        ("/usr/lib/python3/dist-packages", "/usr", "something in the environment"),
        ("/usr/lib/python3.10/site-packages", "/usr", "something in the environment"),
        ("/home/ann/.local/lib/python3.10/site-packages", "/env", "user's own site folder"),
        ("/srv/lib", "/env", "PYTHONPATH"),
        ("/envious/lib", "/env", "something in the environment"),
    ],
)
def test_only_what_is_of_the_environment_may_be_on_the_path(
    entry: str, base: str, why: str | None
) -> None:
    found = foreign_findings(imports(entry, base=base))
    assert len(found) == (why is not None)
    assert why is None or why in found[0].message


@pytest.mark.parametrize(
    ("versions", "codes"),
    [
        ({"torch": "2.0.1+cu118", "torchvision": "0.15.2+cu118", "torchaudio": "2.0.2+cu118"}, []),
        # What the package index calls 2.0.1 is the build for CUDA 11.7.
        (
            {"torch": "2.0.1", "torchvision": "0.15.2", "torchaudio": "2.0.2"},
            ["env.torch-variant", "env.family-variant", "env.family-variant"],
        ),
        (
            {"torch": "2.0.1+cu118", "torchvision": "0.15.2+cu117", "torchaudio": "2.0.2+cpu"},
            ["env.family-variant", "env.family-variant"],
        ),
        (
            {"torch": "2.0.1+cu118", "torchvision": "0.15.2", "torchaudio": "2.0.2+cu118"},
            ["env.family-variant"],
        ),
        ({"torch": "2.0.1+cu118", "torchaudio": "2.0.1+cu118"},
         ["env.family-missing", "env.family-version"]),
    ],
)  # fmt: skip
def test_the_family_is_of_one_release_and_one_variant(
    versions: dict[str, str], codes: list[str]
) -> None:
    told = tuple((name, version, "") for name, version in versions.items())
    found = torch_findings(imports(torch=("/env/torch",), distributions=told), CELL)
    assert [finding.code for finding in found] == codes


def test_pins_are_read_with_their_hashes() -> None:
    text = (
        "# a comment\n\n"
        f"Torch==2.0.1+cu118 \\\n    --hash=sha256:{SHA} \\\n    --hash=sha256:{'b' * 64}\n"
        f"typing_extensions==4.12.2 --hash=sha256:{SHA}\n"
    )
    pins = pip.read_pins(text, "requirements.txt")
    assert [(pin.name, pin.version) for pin in pins] == [
        ("torch", "2.0.1+cu118"),
        ("typing-extensions", "4.12.2"),
    ]
    assert pins[0].text.count("--hash") == 2


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.0.1",
        f"torch>=2 --hash=sha256:{SHA}",
        "--index-url https://somewhere",
        "-r other.txt",
        "-e .",
        f"torch @ https://x/torch.whl --hash=sha256:{SHA}",
        f"torch==2.0.1 --hash=md5:{'c' * 32}",
    ],
)
def test_a_line_that_is_no_pin_with_a_hash_is_refused(line: str) -> None:
    with pytest.raises(FindingError) as caught:
        pip.read_pins(f"# lock\n{line}\n", "requirements.txt")
    assert caught.value.code == "env.lock-line"
    assert "requirements.txt" in caught.value.message


def test_pip_never_replaces_what_conda_owns() -> None:
    pins = pip.read_pins(
        f"numpy==1.26.4 --hash=sha256:{SHA}\nsix==1.17.0 --hash=sha256:{SHA}\n", "r.txt"
    )
    pip.refuse_overwrites(pins, {"numpy": "1.26.4"})
    with pytest.raises(FindingError) as caught:
        pip.refuse_overwrites(pins, {"numpy": "1.26.4", "six": "1.16.0"})
    assert caught.value.facts["clashes"] == ["six 1.17.0 (conda has 1.16.0)"]


def spec_of(cell: dict[str, object]) -> bytes:
    return msgspec.json.encode(
        {"schema": "provision.spec/1", "made_by": "us", "mirrors": {}, "request": {}, "cell": cell}
    )


def test_a_spec_of_another_version_is_read_as_far_as_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(spec_of({**msgspec.to_builtins(CELL), "of_the_future": 1}))
    assert read_expected(path) == CELL
    path.write_bytes(spec_of({"name": "x"}))
    with pytest.raises(FindingError) as caught:
        read_expected(path)
    assert caught.value.code == "env.spec-damaged"
    assert isinstance(CELL, Expected)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    prefix = tmp_path / "env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / ".provision").mkdir()
    (prefix / ".provision" / "prefix.json").write_text("{}")
    (prefix / "bin" / "a b").write_text("one")
    (prefix / "bin" / "c.pyc").write_text("compiled")
    (prefix / "bin" / "link").symlink_to("a b")
    return prefix


def test_a_manifest_is_what_sha256sum_reads(tree: Path) -> None:
    import subprocess

    manifest = manifest_of(tree)
    assert manifest == manifest_of(tree)
    assert b"c.pyc" not in manifest
    assert b"prefix.json" not in manifest
    (tree.parent / "manifest").write_bytes(manifest)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "../manifest"],
        cwd=tree,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "./bin/a b: OK\n")
    assert manifest_findings(tree, manifest) == []


def test_what_differs_from_a_manifest_is_named(tree: Path) -> None:
    manifest = manifest_of(tree)
    (tree / "bin" / "a b").write_text("two")
    (tree / "bin" / "new").write_text("new")
    (tree / "bin" / "link").unlink()
    found = {f.code: f.paths for f in manifest_findings(tree, manifest)}
    assert found == {
        "env.manifest-missing": ("bin/link",),
        "env.manifest-changed": ("bin/a b",),
        "env.manifest-added": ("bin/new",),
    }
    (tree / "bin" / "link").symlink_to("new")
    codes = {f.code: f.paths for f in manifest_findings(tree, manifest)}
    assert codes["env.manifest-changed"] == ("bin/a b", "bin/link")
    moved = tree.rename(tree.with_name("moved"))
    assert "env.moved" in [f.code for f in manifest_findings(moved, manifest)]
    with pytest.raises(FindingError):
        manifest_findings(moved, b"no line of a manifest\n")


@pytest.mark.parametrize(
    ("asked", "environ", "url"),
    [
        (None, {}, "https://download.pytorch.org/whl/cu118"),
        (None, {"PROVISION_MIRROR_TORCH_INDEX": "https://m.corp/whl/"}, "https://m.corp/whl/cu118"),
        ("https://x/y", {"PROVISION_MIRROR_TORCH_INDEX": "https://m.corp/whl"}, "https://x/y"),
    ],
)
def test_the_torch_family_has_one_index(
    asked: str | None, environ: dict[str, str], url: str
) -> None:
    options = CreateOptions(root=Path(), torch_index=asked, environ=environ)
    assert torch_index(CELL, options) == url
