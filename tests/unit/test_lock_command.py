"""`provision lock` as people and scripts meet it: files, statuses, what costs nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.locking import Indexes

from provisioner.cli.main import run
from provisioner.errors import UsageError
from provisioner.lock import quick
from provisioner.lock.choices import Said, merged
from provisioner.lock.model import Choices

CELL = "torch2.0.1-cpu-py39-debian11-basepy"
OPTIONS = ["--torch", "2.0.1", "--cuda", "cpu", "--python-from", "base", "--os", "debian11"]
Provision = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PROVISION_* variable of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("PROVISION_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def indexes() -> Iterator[Indexes]:
    """What the cell needs, and a little of the future."""
    both = Indexes()
    for name, version in (("torch", "2.0.1"), ("torchvision", "0.15.2"), ("torchaudio", "2.0.2")):
        both.torch.add(name, f"{version}+cpu", "numpy", uploaded=None)
    for version, day in (("1.25.0", "2023-06-01"), ("1.26.0", "2023-09-01")):
        both.package.add("numpy", version, uploaded=f"{day}T00:00:00Z")
    both.package.add("setuptools", "68.0.0")
    with both.package.serve(), both.torch.serve():
        yield both


@pytest.fixture
def provision(indexes: Indexes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Provision:
    """Runs a command on a rendered cell: provision("lock", CELL) -> (status, out, err)."""

    def call(*words: str) -> tuple[int, str, str]:
        status = run([*words, "--out", str(tmp_path)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    mirrors = [
        f"--mirror=package_index={indexes.package.url}",
        f"--mirror=torch_index={indexes.torch.url.removesuffix('/simple')}",
    ]
    # The torch index has its variants below it; the test index does not care for the path before.
    indexes.torch.url = indexes.torch.url.removesuffix("/simple")
    status, out, err = call("render", *OPTIONS, *mirrors)
    assert status == 0, (out, err)
    return call


def lock_json(root: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((root / "lockfiles" / CELL / "lock.json").read_bytes())
    return value


def versions(root: Path) -> dict[str, str]:
    packages = lock_json(root)["packages"]
    assert isinstance(packages, list)
    return {package["name"]: package["version"] for package in packages}


def test_a_rendered_cell_is_locked_by_its_name(provision: Provision, tmp_path: Path) -> None:
    status, out, _ = provision("lock", CELL)
    assert status == 0
    assert f"Next: provision build {CELL} --out" in out
    folder = tmp_path / "lockfiles" / CELL
    assert "torch==2.0.1+cpu" in (folder / "requirements-torch.txt").read_text()
    assert "torch" not in (folder / "requirements.txt").read_text().replace("`provision", "")[200:]
    assert versions(tmp_path) == {
        "numpy": "1.25.0",
        "setuptools": "68.0.0",
        "torch": "2.0.1+cpu",
        "torchaudio": "2.0.2+cpu",
        "torchvision": "0.15.2+cpu",
    }
    assert lock_json(tmp_path)["as_of"] == "2023-07-07"


def test_locking_twice_asks_nobody(provision: Provision, indexes: Indexes, tmp_path: Path) -> None:
    provision("lock", CELL)
    before = (tmp_path / "lockfiles" / CELL / "lock.json").read_bytes()
    indexes.package.asked.clear()
    indexes.torch.asked.clear()
    status, out, _ = provision("lock", CELL)
    assert (status, indexes.package.asked, indexes.torch.asked) == (0, [], [])
    assert "nothing to do" in out
    provision("lock", CELL, "--refresh")
    assert indexes.package.asked
    assert (tmp_path / "lockfiles" / CELL / "lock.json").read_bytes() == before


def test_options_select_the_same_cell(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL)
    status, out, _ = provision("lock", *OPTIONS)
    assert (status, "nothing to do" in out) == (0, True)


def test_json_has_a_schema(provision: Provision) -> None:
    status, out, err = provision("lock", CELL, "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["schema"] == "provision.lock-run/1"
    assert (told["cell"], told["state"], told["engine"]) == (CELL, "locked", "uv")
    assert told["packages"] == 5
    assert f"lockfiles/{CELL}/requirements.txt" in told["created"]
    assert json.loads(provision("lock", CELL, "--json")[1])["state"] == "unchanged"


def test_one_package_is_upgraded_and_stays_so(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL)
    status, out, _ = provision("lock", CELL, "--upgrade", "NumPy=2023-10-01")
    assert status == 0
    assert "numpy 1.25.0 -> 1.26.0" in out
    assert versions(tmp_path)["numpy"] == "1.26.0"
    assert "nothing to do" in provision("lock", CELL)[1]
    assert versions(tmp_path)["numpy"] == "1.26.0"
    provision("lock", CELL, "--as-of", "cell")
    assert versions(tmp_path)["numpy"] == "1.25.0"


def test_a_day_of_ones_own_stays_too(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL, "--as-of", "2023-12-31")
    assert versions(tmp_path)["numpy"] == "1.26.0"
    assert "as of 2023-12-31" in (tmp_path / "lockfiles" / CELL / "requirements.txt").read_text()
    assert "nothing to do" in provision("lock", CELL)[1]
    assert provision("lock", CELL, "--check")[0] == 0


def test_all_rendered_cells_are_locked_and_one_failure_keeps_none_from_it(
    provision: Provision, tmp_path: Path, indexes: Indexes
) -> None:
    other = "torch2.1.2-cpu-py39-debian11-basepy"
    torch = f"--mirror=torch_index={indexes.torch.url}"
    words = ["--torch", "2.1.2", *OPTIONS[2:], f"--mirror=package_index={indexes.package.url}"]
    assert provision("render", *words, torch)[0] == 0
    status, out, err = provision("lock", "--all")
    assert status == 3  # the index has no torch 2.1.2
    assert f"{other} is not locked:" in err
    assert "1 of 2 cells locked." in out
    assert (tmp_path / "lockfiles" / CELL / "lock.json").is_file()
    assert not (tmp_path / "lockfiles" / other / "lock.json").exists()

    for name, version in (("torch", "2.1.2"), ("torchvision", "0.16.2"), ("torchaudio", "2.1.2")):
        indexes.torch.add(name, f"{version}+cpu", "numpy", uploaded=None)
    status, out, _ = provision("lock", "--all", "--json")
    assert status == 0
    told = json.loads(out)
    assert told["schema"] == "provision.lock-run/1"
    assert {each["cell"]: each["state"] for each in told["locks"]} == {
        CELL: "unchanged",
        other: "locked",
    }
    for wrong in ([CELL], ["--check"], ["--upgrade", "numpy"], ["--torch", "2.0.1"]):
        status, _, err = provision("lock", "--all", *wrong)
        assert (status, "lock.all-alone" in err) == (2, True)


@pytest.mark.parametrize("word", ["2023-13-01", "20230707", "yesterday", "2023-07-07; rm"])
def test_a_day_that_is_none_is_a_usage_error(provision: Provision, word: str) -> None:
    status, _, err = provision("lock", CELL, "--as-of", word)
    assert (status, "lock.bad-date" in err) == (2, True)


@pytest.mark.parametrize("word", ["nan", "inf", "-1", "0", "soon"])
def test_a_time_limit_that_is_none_is_a_usage_error(provision: Provision, word: str) -> None:
    status, _, err = provision("lock", CELL, f"--timeout={word}")
    assert (status, "[usage]" in err) == (2, True)


# --- check ---


def damage_requirements(root: Path) -> None:
    path = root / "lockfiles" / CELL / "requirements.txt"
    path.write_text(path.read_text() + "evil==1.0\n")


def change_cell(root: Path) -> None:
    path = root / "docker" / CELL / "spec.json"
    path.write_text(path.read_text().replace("setuptools<70", "setuptools<69"))


def break_lock(root: Path) -> None:
    (root / "lockfiles" / CELL / "lock.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "state"),
    [
        (damage_requirements, "edited"),
        (change_cell, "changed-inputs"),
        (break_lock, "damaged"),
        (lambda root: (root / "lockfiles" / CELL / "lock.json").unlink(), "missing"),
    ],
)
def test_check_finds_what_is_not_right(
    provision: Provision, tmp_path: Path, harm: Callable[[Path], None], state: str
) -> None:
    provision("lock", CELL)
    assert provision("lock", CELL, "--check")[0] == 0
    assert provision("lock", "--check")[0] == 0
    assert quick.unchanged(str(tmp_path), CELL)
    harm(tmp_path)
    assert not quick.unchanged(str(tmp_path), CELL)
    status, out, _ = provision("lock", CELL, "--check", "--json")
    assert status == 1
    assert json.loads(out)["locks"] == [{"cell": CELL, "state": state}]
    status, out, _ = provision("lock", CELL, "--check")
    assert f"provision lock {CELL}" in out


def test_a_changed_cell_is_locked_again(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL)
    change_cell(tmp_path)
    status, out, _ = provision("lock", CELL)
    assert (status, "nothing to do" in out) == (0, False)
    assert provision("lock", CELL, "--check")[0] == 0


def test_an_edited_lock_is_not_overwritten_without_force(
    provision: Provision, tmp_path: Path
) -> None:
    provision("lock", CELL)
    damage_requirements(tmp_path)
    status, _, err = provision("lock", CELL)
    assert (status, "evil" in (tmp_path / "lockfiles" / CELL / "requirements.txt").read_text()) == (
        1,
        True,
    )
    assert "--force" in err
    assert provision("lock", CELL, "--force")[0] == 0
    assert provision("lock", CELL, "--check")[0] == 0


# --- what is refused ---


def test_a_cell_that_was_not_rendered(provision: Provision) -> None:
    status, _, err = provision("lock", "torch9.9.9-cpu-py39-debian11-basepy")
    assert (status, "cell.not-rendered" in err) == (2, True)


@pytest.mark.parametrize("name", ["../../etc", "a/b", "-x\n", ".provision-x/y"])
def test_a_name_cannot_lead_out_of_the_folder(provision: Provision, name: str) -> None:
    status, _, err = provision("lock", "--", name)
    assert status in (1, 2)
    assert "provision:" in err


def test_no_cell_and_no_option(provision: Provision) -> None:
    status, _, err = provision("lock")
    assert (status, "lock.no-cell" in err) == (2, True)


def test_what_the_matrix_refuses(provision: Provision) -> None:
    status, _, _ = provision("lock", "--torch", "2.0.1", "--cuda", "12.4")
    assert status == 3


def test_a_failing_index_leaves_the_old_lock(
    provision: Provision, indexes: Indexes, tmp_path: Path
) -> None:
    provision("lock", CELL)
    before = (tmp_path / "lockfiles" / CELL / "lock.json").read_bytes()
    indexes.package.status["/numpy/"] = 404
    status, _, err = provision("lock", CELL, "--refresh")
    assert (status, "index.no-package" in err) == (4, True)
    assert (tmp_path / "lockfiles" / CELL / "lock.json").read_bytes() == before


def test_an_own_index_has_to_be_an_address(provision: Provision) -> None:
    status, _, err = provision("lock", CELL, "--own-index", "acme")
    assert (status, "lock.own-index-syntax" in err) == (2, True)


# --- at once ---


def test_the_quick_answer_is_that_of_the_command(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL)
    root = str(tmp_path)
    assert quick.answer([CELL, "--out", root], {}) == 0
    assert quick.answer(["--check", "--out", root], {}) == 0
    assert quick.answer([CELL, "--check", "--out", root], {}) == 0
    for words in (
        ["--out", root],
        [CELL, "--json", "--out", root],
        [CELL, "--refresh", "--out", root],
        [CELL, CELL, "--out", root],
        ["../" + CELL, "--out", root],
        ["no-such-cell", "--out", root],
    ):
        assert quick.answer(words, {}) is None, words
    assert quick.answer([CELL, "--out", root], {"PROVISION_TORCH": "2.1.2"}) is None


def test_the_quick_answer_imports_next_to_nothing(provision: Provision, tmp_path: Path) -> None:
    provision("lock", CELL)
    program = (
        "import sys; before = set(sys.modules); from provisioner.lock.quick import answer; "
        "assert answer(sys.argv[1:], {}) == 0; "
        "print(sorted(m for m in set(sys.modules) - before if m in "
        "('click', 'msgspec', 'yaml', 'packaging', 'typing', 'urllib3', 'pathlib', 'email')))"
    )
    command = [sys.executable, "-c", program, CELL, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- choices ---


def test_choices_stay_until_replaced() -> None:
    first = merged(None, Said(upgrades=("Foo_Bar", "baz=2024-01-02"), own=("Acme",)), "2026-01-01")
    assert first == Choices(upgrades={"baz": "2024-01-02", "foo-bar": "2026-01-01"}, own=("acme",))
    assert merged(first, Said(), "2027-01-01") == first
    later = merged(first, Said(as_of="2025-01-01", single_source=True), "2027-01-01")
    assert later == Choices(as_of="2025-01-01", own=("acme",), single_source=True)
    assert merged(later, Said(as_of="none"), "2027-01-01").as_of == "none"
    assert merged(later, Said(as_of="cell", single_source=False), "x") == Choices(own=("acme",))


@pytest.mark.parametrize("word", ["", "=2024-01-01", "a b", "a;b", "a=soon"])
def test_bad_upgrades_are_usage_errors(word: str) -> None:
    with pytest.raises(UsageError):
        merged(None, Said(upgrades=(word,)), "2026-01-01")


# --- a spec that was tampered with ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("python", "3.9\nevil==1.0"),
        ("python", "3.9\n"),
        ("arch", "x86_64\n--extra-index-url http://evil"),
        ("requirements", ["torch==2.0.1\n--index-url http://evil"]),
        ("requirements", ["torch @ http://evil/torch.whl"]),
        ("companions", ["-r /etc/passwd"]),
        ("companions", ["numpy --hash=sha256:00"]),
        ("constraints", ["numpy<2\n-e ."]),
        ("packages", {"pip": ["--find-links=http://evil"], "conda": [], "apt": []}),
        ("variant", "../../evil"),
        ("as_of", "2023-07-07\nevil==1.0"),
        ("requirements", "torch"),
        ("companions", None),
    ],
)
def test_a_tampered_spec_injects_nothing(
    provision: Provision, tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "docker" / CELL / "spec.json"
    spec = json.loads(path.read_bytes())
    spec["cell"][field] = value
    path.write_text(json.dumps(spec))
    status, _, err = provision("lock", CELL)
    assert status in (1, 2)
    assert "lock.bad-cell" in err or "render.spec-damaged" in err
    assert not (tmp_path / "lockfiles" / CELL / "lock.json").exists()
