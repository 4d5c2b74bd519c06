"""The shipped matrix against the package index that this machine's own client asks."""

import os
import subprocess
from pathlib import Path

import pytest
from support.matrices import before_2_15

from provisioner.cli.audit_run import Audit, Plan, run_audit
from provisioner.lock.client import Client
from provisioner.lock.defaults import package_index
from provisioner.matrix.cell import Request, Resolution
from provisioner.matrix.load import default_matrix_path, load_matrix
from provisioner.matrix.model import Matrix
from provisioner.matrix.patch import unified_diff
from provisioner.matrix.resolve import resolve

pytestmark = pytest.mark.network
NOWHERE = "http://127.0.0.1:9"


def audited(matrix: Matrix, torch: str | None) -> Audit:
    plan = Plan(
        matrix=matrix,
        releases=matrix.releases if torch is None else (),
        package_index=package_index(None, os.environ),
        recorded={},
        torch=torch,
        jobs=8,
        day="2026-11-30",
    )
    return run_audit(plan, Client(), lambda *_: None)


def test_the_shipped_matrix_agrees_with_the_package_index() -> None:
    audit = audited(load_matrix(cache=False).matrix, None)
    found = [finding for finding in audit.findings if finding.origin == "package_index"]
    # A file may be yanked, and a newer triton may satisfy an open pin, any day: that is told here.
    assert [finding for finding in found if finding.state != "agrees"] == []
    assert len(found) >= 440


def test_a_release_that_was_taken_out_is_proposed_again(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(before_2_15(default_matrix_path()), encoding="utf-8")
    audit = audited(load_matrix(path, cache=False).matrix, "==2.15.0")
    assert audit.new == ["2.15.0"]
    diff = unified_diff(
        path.read_text(encoding="utf-8"), [audit.proposals[0].overlay], "matrix.yaml"
    )
    subprocess.run(["git", "apply", "-p1"], input=diff, text=True, cwd=tmp_path, check=True)
    made = load_matrix(path, cache=False).matrix
    shipped = load_matrix(cache=False).matrix.releases[-1]
    release = next(entry for entry in made.releases if entry.torch == "2.15.0")
    assert release.released == shipped.released
    assert release.python == shipped.python
    assert release.triton is not None
    assert release.pypi.variant == shipped.pypi.variant
    assert sorted(release.requires) == sorted(shipped.requires)
    answer = resolve(made, Request(torch="2.15.0"))
    assert isinstance(answer, Resolution)
