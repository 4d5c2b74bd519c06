"""What decides a conda lock, and when an earlier one still answers."""

import datetime as dt

import msgspec
import pytest
from support.cells import cell_of, shipped

from provisioner.conda import explicit
from provisioner.conda.inputs import Inputs, merged, read_environment
from provisioner.conda.lock import (
    CondaLockOptions,
    Step,
    extends,
    file_names,
    solver_environment,
    why_stale,
)
from provisioner.errors import FindingError
from provisioner.matrix.model import Origin

CELL, SYSTEM = cell_of(cuda="11.8")
ENVIRONMENT = b"""# a comment
channels:
  - "conda-forge"
  - nodefaults
dependencies:
  - "python=3.10.*"
  - "numpy<2"
"""


def options(environment: bytes = ENVIRONMENT, **fields: object) -> CondaLockOptions:
    return CondaLockOptions(environment=environment, system=SYSTEM, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (("numpy<2", "numpy>=1.22"), ("numpy <2,>=1.22",)),
        (("numpy", "numpy<2", "numpy<2"), ("numpy<2",)),
        (("NumPy=1.26", "numpy<2"), ("numpy 1.26.*,<2",)),
        (("python=3.10.*", "python !=3.10.1"), ("python 3.10.*,!=3.10.1",)),
        (("python 3.10.*", "pip * py_0"), ("pip * py_0", "python 3.10.*")),
        (("zlib", "libblas=*=*openblas"), ("libblas=*=*openblas", "zlib")),
    ],
)
def test_two_lines_for_one_name_both_hold(
    specs: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert merged(specs) == expected


def test_builds_are_not_merged() -> None:
    with pytest.raises(FindingError) as caught:
        merged(("libblas=*=*mkl", "libblas>=3.9"))
    assert caught.value.code == "conda.environment-bad"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"- a",
        b"channels: [conda-forge]",
        b"channels: []\ndependencies: [python]",
        b"channels: [nodefaults]\ndependencies: [python]",
        b"channels: [conda-forge]\ndependencies: [python, {pip: [torch]}]",
        b"channels: [conda-forge]\ndependencies: 'python'",
        b"channels: [conda-forge\n",
    ],
)
def test_an_environment_that_is_none_or_names_pip_packages_is_refused(text: bytes) -> None:
    with pytest.raises(FindingError) as caught:
        read_environment(text)
    assert caught.value.code == "conda.environment-bad"


def test_inputs_are_facts_of_the_cell_alone() -> None:
    inputs = Inputs.of(CELL, options())
    assert inputs.environment() == (
        b'channels:\n  - "conda-forge"\ndependencies:\n  - "numpy<2"\n  - "python=3.10.*"\n'
    )
    shuffled = ENVIRONMENT.replace(b"# a comment\n", b"").replace(
        b'  - "python=3.10.*"\n  - "numpy<2"\n', b"  - numpy<2\n  - python=3.10.*\n"
    )
    moved = {"channel_map": {"conda-forge": "file:///srv/x"}, "environ": {"HOME": "/somewhere"}}
    assert Inputs.of(CELL, options(shuffled, **moved)).digest() == inputs.digest()


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": ENVIRONMENT.replace(b"<2", b"<1.26")},
        {"environment": ENVIRONMENT.replace(b"conda-forge", b"other")},
        {"exclude_newer": dt.date(2024, 9, 1)},
        {"upgrades": {"numpy": dt.date(2024, 9, 1)}},
    ],
)
def test_the_digest_tells_changed_inputs(changed: dict[str, object]) -> None:
    assert Inputs.of(CELL, options(**changed)).digest() != Inputs.of(CELL, options()).digest()  # type: ignore[arg-type]


def test_another_target_is_another_input() -> None:
    other, system = cell_of(cuda="11.8", os="ubuntu20.04")
    there = CondaLockOptions(environment=ENVIRONMENT, system=system)
    assert Inputs.of(other, there).digest() != Inputs.of(CELL, options()).digest()


def locked() -> dict[str, bytes]:
    """The files of a small lock from these inputs."""
    record, listed, target = file_names(CELL)
    url = "https://conda.anaconda.org/conda-forge/linux-64/python-3.10.14-0.conda"
    entry = f"""version: 1
package:
- name: python
  version: 3.10.14
  manager: conda
  platform: linux-64
  dependencies: {{}}
  url: {url}
  hash:
    md5: {"c" * 32}
    sha256: {"a" * 64}
""".encode()
    inputs = Inputs.of(CELL, options())
    plain = f"@EXPLICIT\n{url}#{'c' * 32}\n".encode()
    lock = explicit.parse_conda_lock(entry, "linux-64")
    return {
        record: entry,
        listed: explicit.explicit_with_hashes(plain, lock, inputs.digest(), "us"),
        target: inputs.virtual_yaml(CELL),
    }


def test_a_lock_from_the_same_inputs_is_current() -> None:
    assert why_stale(CELL, options(previous=locked())) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("conda-lock.yml", b"a" * 64, b"b" * 64, "differ in python-3.10.14-0.conda"),
        ("conda-lock.yml", b"package:", b"packages:", "no conda-lock.yml"),
        ("conda-linux-64.lock", b"# inputs: sha256:", b"# inputs: sha256:0", "changed since"),
        ("conda-linux-64.lock", b".conda#", b".exe#", "names no archive"),
        ("virtual-packages.yml", b"11.8", b"11.4", "changed by hand"),
    ],
)
def test_a_lock_that_was_edited_is_noticed(name: str, old: bytes, new: bytes, reason: str) -> None:
    files = locked()
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    (found,) = why_stale(CELL, options(previous=files))
    assert reason in found


def test_a_missing_file_is_named() -> None:
    files = locked()
    del files["virtual-packages.yml"]
    assert why_stale(CELL, options(previous=files)) == ["virtual-packages.yml is missing"]
    assert (
        "changed since"
        in why_stale(CELL, options(ENVIRONMENT.replace(b"<2", b"<1"), previous=locked()))[0]
    )


def test_an_upgrade_extends_the_lock_that_it_was_added_to_and_no_other() -> None:
    day, later = dt.date(2024, 9, 1), dt.date(2025, 9, 1)
    assert extends(CELL, options(previous=locked(), upgrades={"numpy": day}))
    # Made with other upgrades, or for other specs, or as of another day: everything is solved.
    again = {"numpy": later}
    assert not extends(CELL, options(previous=locked(), upgrades=again, applied={"numpy": day}))
    assert not extends(CELL, options(previous=locked(), upgrades=again, applied={"python": day}))
    changed = ENVIRONMENT.replace(b"<2", b"<1")
    assert not extends(CELL, options(changed, previous=locked(), upgrades=again))
    assert not extends(CELL, options(previous=locked(), upgrades=again, exclude_newer=day))
    assert not extends(CELL, options(upgrades=again))


def test_an_upgrade_of_one_package_keeps_the_bounds_of_the_others() -> None:
    inputs, origins = Inputs.of(CELL, options()), shipped().origins
    step = Step(until=dt.date(2024, 9, 1), moving=("numpy",))
    told = solver_environment(inputs, origins, options(), step)
    assert told["PROVISION_CONDA_CONSTRAINTS"] == "numpy<2\npython=3.10.*"
    assert told["PROVISION_CONDA_EXCLUDE_NEWER"] == "2024-09-01"
    plain = solver_environment(inputs, origins, options(), Step(until=None))
    assert plain["PROVISION_CONDA_CONSTRAINTS"] == plain["PROVISION_CONDA_EXCLUDE_NEWER"] == ""


def test_mirrors_and_maps_are_told_to_the_solver_alone() -> None:
    origins = msgspec.structs.replace(
        shipped().origins, conda=Origin(url="https://mirror.corp/conda/")
    )
    given = options(
        channel_map={"conda-forge": "file:///srv/cf"},
        environ={"PROVISION_CONDA_CHANNEL_MAP": "other=http://x/y"},
        offline=True,
    )
    told = solver_environment(Inputs.of(CELL, given), origins, given, Step(until=None))
    assert told["PROVISION_MIRROR_CONDA"] == "https://mirror.corp/conda"
    assert told["PROVISION_CONDA_CHANNEL_MAP"] == "conda-forge=file:///srv/cf other=http://x/y"
    assert told["PROVISION_OFFLINE"] == "1"
    usual = solver_environment(
        Inputs.of(CELL, options()), shipped().origins, options(environ={}), Step(until=None)
    )
    assert "PROVISION_MIRROR_CONDA" not in usual
