"""The recorded hashes that are shipped, held against the matrix and against themselves."""

from collections import Counter

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.locking import shipped_matrix

from provisioner.lock.model import Target
from provisioner.lock.recorded import ENOUGH, load_records
from provisioner.lock.tags import WheelName, rank

RECORDS = load_records()


def test_each_file_once_with_its_own_name() -> None:
    names = Counter(file.filename for project in RECORDS.projects for file in project.files)
    assert set(names.values()) == {1}
    for project in RECORDS.projects:
        for file in project.files:
            parts = WheelName(file.filename)
            assert (parts.distribution, parts.version) == (project.name, project.version)
            assert len(file.sha256) == 64
            assert file.seen_in
            assert len(set(file.seen_in)) == len(file.seen_in)


def test_the_two_source_set_of_2_0_1_cu118_is_whole() -> None:
    for series in ("3.8", "3.9", "3.10", "3.11"):
        target = Target(python=series, arch="x86_64", glibc="2.31")
        for name, version in (
            ("torch", "2.0.1"),
            ("torchvision", "0.15.2"),
            ("torchaudio", "2.0.2"),
        ):
            project = RECORDS.project(name, f"{version}+cu118")
            assert project is not None
            fitting = [f for f in project.files if rank(WheelName(f.filename), target) is not None]
            assert [len(f.seen_in) >= ENOUGH for f in fitting] == [True], (series, name)


def test_what_one_project_alone_says_is_not_confirmed() -> None:
    project = RECORDS.project("torch", "2.0.1+cu117")
    assert project is not None
    assert {len(file.seen_in) for file in project.files} == {1}


@pytest.mark.parametrize("version", ["1.13.1", "2.0.0", "2.0.1"])
def test_recorded_requirements_are_those_of_the_matrix(version: str) -> None:
    release = next(r for r in shipped_matrix().releases if r.torch == version)
    wanted = {Requirement(text).name: Requirement(text).specifier for text in release.requires}
    if release.triton is not None:
        wanted["triton"] = SpecifierSet(release.triton.requires)
    recorded = [p for p in RECORDS.projects if p.name == "torch" and p.requires
                and p.version.startswith(f"{version}+")]  # fmt: skip
    assert recorded
    for project in recorded:
        parsed = [Requirement(text) for text in project.requires]
        plain = {r.name: r.specifier for r in parsed if "extra" not in str(r.marker)}
        assert plain == wanted


def test_companions_ask_for_their_torch() -> None:
    matrix = shipped_matrix()
    for release in matrix.releases:
        for name in ("torchvision", "torchaudio"):
            companion = getattr(release, name)
            for project in RECORDS.projects:
                if (project.name, project.version.partition("+")[0]) != (name, companion.version):
                    continue
                if project.requires:
                    asked = {Requirement(t).name: Requirement(t) for t in project.requires}["torch"]
                    assert str(asked.specifier) == companion.requires
