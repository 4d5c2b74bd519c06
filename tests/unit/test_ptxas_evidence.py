"""What matrix.yaml says of another ptxas, held against the evidence that tools/ gathered."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from provisioner.matrix.cell import Refusal, Request, Resolution
from provisioner.matrix.evidence import read_evidence
from provisioner.matrix.load import load_matrix
from provisioner.matrix.model import Matrix, PtxasOverride
from provisioner.matrix.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
FILE = ROOT / "evidence" / "ptxas118" / "assembly.json"
OVERRIDE = "ptxas118"


def _tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = _tool("ptxas_read").compare


@pytest.fixture(scope="module")
def evidence() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    assert found["schema"] == "provision.ptxas-evidence/1"
    return found


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load_matrix().matrix


@pytest.fixture(scope="module")
def override(matrix: Matrix) -> PtxasOverride:
    return next(o for o in matrix.ptxas_overrides if o.id == OVERRIDE)


def assembled(evidence: dict[str, Any], *, steadily: bool) -> dict[str, dict[str, bool]]:
    """Triton -> capability -> whether all that was tried there speaks for the other ptxas.

    `steadily`: nor did it crash now and then on what triton's own ptxas takes every time.
    """
    out: dict[str, dict[str, bool]] = {}
    for verdict in evidence["verdicts"]:
        digits = verdict["target"].removeprefix("sm_")
        of_triton = out.setdefault(verdict["triton"], {})
        capability = f"{digits[:-1]}.{digits[-1]}"
        shaky = verdict["unsteady"]
        worse = set(shaky.get("other", ())) - set(shaky.get("own", ()))
        fine = verdict["assembles"] and not (steadily and worse)
        of_triton[capability] = of_triton.get(capability, True) and fine
    return out


def test_the_evidence_was_gathered_by_the_tools_as_they_are(evidence: dict[str, Any]) -> None:
    here = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in TOOLS.glob("ptxas_*.py")}
    assert evidence["code"] == here, "gather it again: tools/ptxas_evidence.py --out FILE"


def test_the_verdicts_follow_from_the_table(evidence: dict[str, Any]) -> None:
    pairs: dict[tuple[str, str, str], dict[bool, dict[str, Any]]] = {}
    for script, table in (("ptxas_kernels.py", "table"), ("ptxas_inductor.py", "inductor")):
        for row in evidence[table]:
            pair = pairs.setdefault((script, row["triton"], row["target"]), {})
            pair[row["ptxas"] == "own"] = row
    assert len(pairs) == len(evidence["verdicts"])
    for verdict in evidence["verdicts"]:
        pair = pairs[verdict["by"], verdict["triton"], verdict["target"]]
        where = {name: verdict[name] for name in ("by", "triton", "target")}
        assert verdict == where | compare(pair[True], pair[False])


def test_the_matrix_says_what_was_seen(evidence: dict[str, Any], override: PtxasOverride) -> None:
    seen = {
        triton: tuple(
            capability
            for capability, takes in by_target.items()
            if takes and number(capability) <= number(override.capability_max)
        )
        for triton, by_target in assembled(evidence, steadily=True).items()
        if triton in SpecifierSet(override.triton)
    }
    assert override.assembled == seen


def number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_nothing_is_offered_that_was_seen_to_fail(
    evidence: dict[str, Any], override: PtxasOverride, matrix: Matrix
) -> None:
    seen = assembled(evidence, steadily=False)
    known = [t.version for t in matrix.tritons if t.version in SpecifierSet(override.triton)]
    assert known == ["2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.3.1"]
    for triton in known:
        for capability, takes in seen[triton].items():
            low, high = number(override.capability_min), number(override.capability_max)
            assert takes or not low <= number(capability) <= high, (triton, capability)
    assert not any(seen[triton]["9.0"] for triton in known if triton != "2.0.0")


def test_the_assemblers_are_those_of_the_matrix(
    evidence: dict[str, Any], override: PtxasOverride, matrix: Matrix
) -> None:
    assert evidence["assembler"]["package"] == override.package
    assert evidence["assembler"]["version"] == override.ptxas
    own = {triton.version: triton.ptxas for triton in matrix.tritons}
    assert {v: own[v] for v in evidence["own_ptxas"]} == {
        version: ptxas["version"] for version, ptxas in evidence["own_ptxas"].items()
    }


def test_it_is_no_evidence_about_a_cell_and_is_not_refused() -> None:
    found, refused = read_evidence(ROOT / "evidence", None)
    assert FILE.is_file()
    assert OVERRIDE not in found
    assert [line for line in refused if OVERRIDE in line] == []


# --- what resolve makes of it -------------------------------------------------------------------


def _resolve(matrix: Matrix, **axes: Any) -> Resolution | Refusal:
    return resolve(matrix, Request(ptxas=OVERRIDE, cuda="11.8", **axes))


def _without(matrix: Matrix, triton: str, capability: str | None) -> Matrix:
    """A matrix that has no evidence for one triton, or for one triton and capability."""
    old = next(o for o in matrix.ptxas_overrides if o.id == OVERRIDE)
    kept = tuple(c for c in old.assembled[triton] if capability not in (None, c))
    new = msgspec.structs.replace(old, assembled={**old.assembled, triton: kept})
    return msgspec.structs.replace(matrix, ptxas_overrides=(new,))


@pytest.mark.parametrize("torch", ["2.0.1", "2.1.2", "2.2.2", "2.3.1"])
@pytest.mark.parametrize("gpu", [(), ("V100",), ("T4",), ("A100",), ("RTX 4090", "A10")])
def test_a_cell_with_evidence_is_verified(matrix: Matrix, torch: str, gpu: tuple[str, ...]) -> None:
    answer = _resolve(matrix, torch=torch, gpu=gpu)
    assert isinstance(answer, Resolution)
    assert answer.cell.ptxas is not None
    # On 8.0 ptxas 11.8 crashes now and then on a kernel of triton 2.1 that ptxas 12.1 takes.
    wanted = not (torch == "2.1.2" and gpu in ((), ("A100",)))
    assert answer.cell.ptxas.verified is wanted
    assert any("no kernel ran on a driver this old" in line for line in answer.warnings) is wanted
    assert set(answer.cell.driver.compile_floor_by_arch) <= {"7.0", "7.5", "8.0", "8.6", "8.9"}


@pytest.mark.parametrize(
    ("capability", "gpu", "verified"),
    [
        (None, (), False),
        ("8.0", (), False),
        ("8.0", ("A100", "T4"), False),
        ("8.0", ("T4",), True),
        ("8.9", (), True),  # the build has no machine code of 8.9
    ],
)
def test_a_cell_without_evidence_is_not(
    matrix: Matrix, capability: str | None, gpu: tuple[str, ...], verified: bool
) -> None:
    answer = _resolve(_without(matrix, "2.0.0", capability), torch="2.0.1", gpu=gpu)
    assert isinstance(answer, Resolution)
    assert answer.cell.ptxas is not None
    assert answer.cell.ptxas.verified is verified
    floor = next(d for d in answer.decisions if d.part == "compile floor")
    assert floor.verified is verified
    assert any("is unverified" in line for line in answer.warnings) is not verified


def test_no_other_ptxas_for_hopper(matrix: Matrix) -> None:
    answer = _resolve(matrix, torch="2.3.1", gpu=("H100",))
    assert isinstance(answer, Refusal)
    assert answer.code == "ptxas.not-possible"


@pytest.mark.parametrize(("capability", "words"), [("9.9", "another ptxas"), (None, "unverified")])
def test_a_refusal_offers_it_with_its_standing(
    matrix: Matrix, capability: str | None, words: str
) -> None:
    changed = _without(matrix, "2.0.0", capability)
    answer = resolve(changed, Request(driver="470.82"))
    assert isinstance(answer, Refusal)
    offered = next(n.differs for n in answer.nearest if n.name.endswith(OVERRIDE))
    assert words in offered
    assert ("unverified" in offered) is (capability is None)


# --- how one ptxas is held against another ------------------------------------------------------


def _entry(kernels: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"kernels": kernels, "cuda": "11.8", "ptxas_release": "11.8", **more}


@pytest.mark.parametrize(
    ("own", "other", "assembles", "refused"),
    [
        ({"a": "ok", "b": "ok"}, _entry({"a": "ok", "b": "ok"}), True, []),
        ({"a": "ok", "b": "bf16"}, _entry({"a": "ok", "b": "bf16"}), True, []),
        ({"a": "ok", "b": "ok"}, _entry({"a": "ok", "b": "sm_90a"}), False, ["b"]),
        ({"a": "ok"}, _entry({"a": "crash"}, repeat_failures={"a": 3}), True, []),
        ({"a": "bf16"}, _entry({"a": "bf16"}, cuda=[]), False, []),
        ({"a": "ok"}, _entry({"a": "ok"}, cuda="12.0"), False, []),
        ({"a": "ok"}, _entry({"a": "ok"}, cuda=["11.8", "12.0"]), False, []),
    ],
)
def test_one_ptxas_against_another(
    own: dict[str, str], other: dict[str, Any], assembles: bool, refused: list[str]
) -> None:
    found = compare(_entry(own, cuda="12.0", ptxas_release="12.0"), other)
    assert (found["assembles"], found["refused"]) == (assembles, refused)
