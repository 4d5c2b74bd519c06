"""A project's own packages that no version can give beside a torch are refused before a lock."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from support.shell import Shell, without_variables

from provisioner.matrix.cell import Refusal, Request, Resolution, UserPackages
from provisioner.matrix.load import load_matrix
from provisioner.matrix.own_packages import meet
from provisioner.matrix.resolve import resolve

MATRIX = load_matrix(None).matrix


def answer(torch: str | None, **packages: tuple[str, ...]) -> Resolution | Refusal:
    own = UserPackages(**packages)
    return resolve(MATRIX, Request(torch=torch, name="mine", packages=own))


@pytest.mark.parametrize(
    ("torch", "packages", "need"),
    [
        ("2.0.1", {"pip": ("numpy>=2",)}, "numpy<2"),
        ("2.0.1", {"pip": ("timm", "NumPy==2.*")}, "numpy<2"),
        ("2.0.1", {"conda": ("numpy=2",)}, "numpy<2"),
        ("2.0.1", {"pip": ("setuptools>=75",)}, "setuptools<70"),
        ("2.6.0", {"pip": ("sympy<1.13",)}, "sympy==1.13.1"),
        ("2.13.0", {"pip": ("typing_extensions==4.9.0",)}, "typing-extensions>=4.10.0"),
    ],
)
def test_refused(torch: str, packages: dict[str, Any], need: str) -> None:
    refused = answer(torch, **packages)
    assert isinstance(refused, Refusal)
    assert refused.code == "packages.bound"
    assert refused.have["packages"] == next(iter(packages.values()))[-1]
    assert refused.need["packages"].startswith(need)
    assert f"torch {torch}" in refused.message
    assert refused.source
    for near in refused.nearest:
        assert "--torch" in near.options


@pytest.mark.parametrize(
    ("torch", "packages"),
    [
        ("2.0.1", {"pip": ("numpy>=1.26", "setuptools>=60,<75")}),
        ("2.0.1", {"conda": ("numpy=1.26",)}),
        ("2.0.1", {"pip": ('numpy>=2; python_version >= "3.12"',)}),
        ("2.6.0", {"pip": ("sympy>=1.13",)}),
        ("2.13.0", {"pip": ("numpy>=2",)}),
        ("2.0.1", {"pip": ("transformers<5",)}),
    ],
)
def test_borne(torch: str, packages: dict[str, Any]) -> None:
    assert isinstance(answer(torch, **packages), Resolution)


def test_without_a_torch_named_the_newest_that_bears_them_is_taken() -> None:
    found = answer(None, pip=("numpy>=2",))
    assert isinstance(found, Resolution)
    over = found.decisions[0].passed_over[0]
    assert over.value == "2.0.1+cu118"
    assert "numpy>=2" in over.because


NUMBER = st.sampled_from(["1", "1.2", "1.2.3", "2", "2.0.1", "1.9999", "0", "3.0"])
CLAUSE = st.builds(
    lambda op, v: f"{op}{v}", st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "~="]), NUMBER
).filter(lambda c: not (c.startswith("~=") and "." not in c))
SPECIFIER = st.lists(CLAUSE, min_size=1, max_size=3).map(",".join)
MANY = [f"{a}.{b}.{c}" for a in range(5) for b in (*range(12), 9998, 9999) for c in range(5)]


@given(SPECIFIER, SPECIFIER)
def test_what_is_said_not_to_meet_does_not(one: str, other: str) -> None:
    """Against every version of a large set: one that fulfils both must be found by `meet`."""
    both = SpecifierSet(f"{one},{other}")
    if any(both.contains(version) for version in MANY):
        assert meet(SpecifierSet(one), SpecifierSet(other))


def test_the_command_names_the_bound_and_commands_that_keep_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_variables(monkeypatch)
    file = tmp_path / "provision.yaml"
    file.write_text('name: mine\npackages:\n  pip: ["numpy>=2"]\n')
    render = Shell(tmp_path / "root", capsys)
    assert render("-f", str(file), "--torch", "2.0.1") == 3
    assert "provision.yaml asks for numpy>=2" in " ".join(render.err.split())
    assert f"provision render --file {file} --torch 2.3.1" in render.err
    assert render.files() == set()
    told = render.json("-f", str(file), "--torch", "2.0.1")
    near = told["refusal"]["nearest"][0]
    assert render(*near["options"]) == 0
    assert near["name"] in render.out


def test_what_only_the_file_can_give_up_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_variables(monkeypatch)
    file = tmp_path / "provision.yaml"
    file.write_text('driver: "470.82"\n')
    render = Shell(tmp_path / "root", capsys)
    told = render.json("-f", str(file), "--torch", "2.15.0")
    differs = [near["differs"] for near in told["refusal"]["nearest"]]
    assert any(text.endswith(f"; take out what {file}:1 says") for text in differs)
