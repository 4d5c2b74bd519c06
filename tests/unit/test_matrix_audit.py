"""The audit against real local indexes: agreement, difference, not reachable, and the patch."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.matrices import DATA, SMALL, before_2_15, replaced
from support.simpleindex import Index

from provisioner.cli.audit_run import Audit, Plan, run_audit
from provisioner.cli.main import run
from provisioner.cli.matrix_audit import exit_status
from provisioner.lock.client import Client
from provisioner.matrix.audit import Finding
from provisioner.matrix.cell import Request, Resolution
from provisioner.matrix.load import default_matrix_path, load_matrix
from provisioner.matrix.model import Matrix
from provisioner.matrix.patch import insert, overlay_text, unified_diff
from provisioner.matrix.propose import Proposal
from provisioner.matrix.resolve import resolve
from provisioner.matrix.wheels import normal_requirement

X86 = "manylinux1_x86_64"
ARM = "manylinux2014_aarch64"
NOWHERE = "http://127.0.0.1:9"
PINNED = 'nvidia-cuda-runtime-cu11 (==11.7.99) ; platform_system == "Linux"'


def small_index() -> Index:
    """An index that agrees with small.yaml in everything."""
    index = Index()
    for torch, day, pythons in (
        ("1.13.1", "2022-12-15", "9 10"),
        ("2.0.1", "2023-05-08", "9 10 11"),
    ):
        requires = ["typing-extensions", PINNED]
        if torch == "2.0.1":
            requires = ["filelock", "jinja2", PINNED, "opt-einsum>=3 ; extra == 'opt-einsum'"]
            requires.append('triton (==2.0.0) ; platform_machine == "x86_64"')
        for minor in pythons.split():
            for platform in (X86, ARM):
                tag = f"cp3{minor}-cp3{minor}-{platform}"
                index.add("torch", torch, *requires, tag=tag, uploaded=f"{day}T10:00:00Z")
    companions = (("torchvision", "0.14.1", "0.15.2"), ("torchaudio", "0.13.1", "2.0.2"))
    for name, old, new in companions:
        for minor in ("9", "10", "11"):
            tag = f"cp3{minor}-cp3{minor}-{X86}"
            index.add(name, new, "torch (==2.0.1)", tag=tag)
            if minor != "11":
                index.add(name, old, "torch==1.13.1", tag=tag)
    index.add("triton", "2.0.0", tag=f"cp310-cp310-{X86}")
    return index


@pytest.fixture
def package() -> Iterator[Index]:
    index = small_index()
    with index.serve():
        yield index


def audited(matrix: Matrix, package_url: str, **how: Any) -> Audit:
    plan = Plan(
        matrix=matrix,
        releases=how.pop("releases", matrix.releases),
        package_index=package_url,
        recorded=how.pop("recorded", {}),
        torch=how.pop("torch", "all"),
        jobs=4,
        day="2026-11-30",
    )
    assert not how
    if plan.torch == "all":
        plan.torch = None
    return run_audit(plan, Client(environ={}, timeout_s=5.0, attempts=1), lambda *_: None)


def small(
    tmp_path: Path, *changes: tuple[str, str], torch: str = NOWHERE, conda: str = NOWHERE
) -> Matrix:
    text = SMALL.read_text(encoding="utf-8")
    for find, put in (
        ("https://torch.example/whl", torch),
        ("https://conda.example", conda),
        *changes,
    ):
        text = replaced(text, find, put)
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    return load_matrix(path, cache=False).matrix


def of(audit: Audit, origin: str) -> list[Finding]:
    return [finding for finding in audit.findings if finding.origin == origin]


def differing(audit: Audit) -> list[tuple[str | None, str, str | None, str | None]]:
    return [
        (finding.torch, finding.fact, finding.matrix, finding.index)
        for finding in audit.findings
        if finding.state == "differs"
    ]


@pytest.mark.parametrize("json_page", [True, False], ids=["PEP 691", "PEP 503"])
def test_an_index_that_agrees(json_page: bool, package: Index, tmp_path: Path) -> None:
    package.json = json_page
    audit = audited(small(tmp_path), package.url)
    assert differing(audit) == []
    assert len(of(audit, "package_index")) == 28
    assert {finding.state for finding in of(audit, "package_index")} == {"agrees"}
    assert {finding.state for finding in of(audit, "torch_index")} == {"not reachable"}
    assert {finding.state for finding in of(audit, "conda")} == {"not reachable"}
    assert exit_status(audit) == 0


def test_each_page_and_each_metadata_file_is_asked_for_once(package: Index, tmp_path: Path) -> None:
    audited(small(tmp_path), package.url)
    assert len(package.asked) == len(set(package.asked))


DIFFERENCES: list[tuple[str, tuple[str, str], tuple[str, str, str | None, str | None]]] = [
    (
        "a version that is not there",
        ("version: 0.15.2", "version: 0.15.9"),
        ("2.0.1", "torchvision.version", "0.15.9", None),
    ),
    (
        "a day",
        ("released: 2023-05-08", "released: 2023-05-09"),
        ("2.0.1", "released", "2023-05-09", "2023-05-08"),
    ),
    (
        "a Python",
        ("    aarch64: ['3.9', '3.10', '3.11']", "    aarch64: ['3.9', '3.10']"),
        ("2.0.1", "python.aarch64", "3.9 3.10", "3.9 3.10 3.11"),
    ),
    (
        "a requirement",
        ("requires: [filelock, jinja2]", "requires: [filelock, 'jinja2>=3']"),
        ("2.0.1", "requires", "filelock; jinja2>=3", "filelock; jinja2"),
    ),
    (
        "a triton",
        ("requires: ==2.0.0, version", "requires: '>=2.0.0', version"),
        ("2.0.1", "triton.requires", ">=2.0.0", "==2.0.0"),
    ),
    (
        "a machine",
        ("version: 2.0.0, aarch64: false", "version: 2.0.0, aarch64: true"),
        ("2.0.1", "triton.aarch64", "true", "false"),
    ),
    (
        "a companion's range",
        ("version: 0.14.1, requires: ==1.13.1", "version: 0.14.1, requires: '>=1.13'"),
        ("1.13.1", "torchvision.requires", ">=1.13", "==1.13.1"),
    ),
]


@pytest.mark.parametrize(
    ("change", "expected"),
    [case[1:] for case in DIFFERENCES],
    ids=[case[0] for case in DIFFERENCES],
)
def test_one_difference_is_one_finding(
    change: tuple[str, str],
    expected: tuple[str, str, str | None, str | None],
    package: Index,
    tmp_path: Path,
) -> None:
    audit = audited(small(tmp_path, change), package.url)
    assert expected in differing(audit)
    assert {entry[:1] for entry in differing(audit)} == {expected[:1]}
    assert exit_status(audit) == 1


def test_a_yanked_release_is_no_longer_there(package: Index, tmp_path: Path) -> None:
    for wheel in package.projects["triton"]:
        wheel.yanked = True
    assert differing(audited(small(tmp_path), package.url)) == [
        ("2.0.1", "triton.version", "2.0.0", None)
    ]


def test_nothing_reachable_is_status_4_and_quick(tmp_path: Path) -> None:
    audit = audited(small(tmp_path), NOWHERE)
    assert {finding.state for finding in audit.findings} == {"not reachable"}
    assert all(finding.index for finding in audit.findings)
    assert exit_status(audit) == 4


def test_the_torch_index_is_held_against_published(package: Index, tmp_path: Path) -> None:
    torch = Index()
    for version in ("1.13.1+cu117", "1.13.1+cpu", "2.0.1+cu117", "2.0.1+cu118"):
        torch.add("torch", version, tag="cp310-cp310-linux_x86_64")
    change = (
        "arch_list: ['7.0', '8.0', '9.0']\n",
        "arch_list: ['7.0', '8.0', '9.0']\n    published: expected\n",
    )
    with torch.serve() as url:
        audit = audited(small(tmp_path, change, torch=url), package.url)
    assert differing(audit) == [
        ("2.0.1", "cu118 published", "expected", "yes"),
        ("2.0.1", "cpu published", "yes", "no files"),
    ]


def test_a_conda_channel_is_held_against_the_defaults(package: Index, tmp_path: Path) -> None:
    folder = tmp_path / "conda" / "conda-forge" / "linux-64"
    folder.mkdir(parents=True)
    repodata = {
        "packages": {"pip-1.tar.bz2": {"name": "pip", "version": "26.0"}},
        "packages.conda": {"p": {"name": "python", "version": "3.10.14"}},
    }
    (folder / "current_repodata.json").write_text(json.dumps(repodata), encoding="utf-8")
    with served(tmp_path / "conda") as url:
        audit = audited(small(tmp_path, conda=url), package.url)
    told = {finding.fact: finding.state for finding in of(audit, "conda")}
    assert told == {
        "pip": "agrees",
        "python": "agrees",
        "python 3.10": "agrees",
        "python 3.9": "differs",
    }


def served(folder: Path) -> Any:
    """A plain web server over a folder, as a context."""
    import functools
    import threading
    from contextlib import contextmanager
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the tests' output quiet."""

    @contextmanager
    def serve() -> Iterator[str]:
        handler = functools.partial(Quiet, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    return serve()


def test_recorded_hashes_are_held_against_the_index(package: Index, tmp_path: Path) -> None:
    good, other = package.projects["torch"][:2]
    recorded = {
        ("package_index", "torch"): {
            good.filename: str(good.sha256),
            other.filename: "0" * 64,
            "torch-2.0.1-gone.whl": "1" * 64,
        }
    }
    audit = audited(small(tmp_path), package.url, recorded=recorded)
    assert differing(audit) == [
        (None, f"sha256 of {other.filename}", "0" * 64, other.sha256),
        (None, "sha256 of torch-2.0.1-gone.whl", "1" * 64, None),
    ]


@pytest.fixture(scope="module")
def recorded_index() -> Iterator[Index]:
    """The package index as it was on the day of torch 2.15.0, for four projects."""
    index = Index()
    record = json.loads((DATA / "index_2_15.json").read_text(encoding="utf-8"))
    for wheel in record["wheels"]:
        requires = record["requires"][wheel["requires"]]
        index.add(
            wheel["name"], wheel["version"], *requires, tag=wheel["tag"], uploaded=wheel["uploaded"]
        )
    with index.serve():
        yield index


@pytest.fixture
def older(tmp_path: Path) -> Path:
    path = tmp_path / "matrix.yaml"
    path.write_text(before_2_15(default_matrix_path()), encoding="utf-8")
    return path


def proposed(older: Path, index: Index) -> Proposal:
    audit = audited(load_matrix(older, cache=False).matrix, index.url, releases=(), torch=">=2.14")
    assert audit.new == ["2.15.0"]
    assert audit.without_proposal == []
    return audit.proposals[0]


def same_requirements(mine: list[str], theirs: tuple[str, ...]) -> bool:
    return sorted(normal_requirement(line).text for line in mine) == sorted(
        normal_requirement(line).text for line in theirs
    )


@pytest.mark.parametrize("json_page", [True, False], ids=["PEP 691", "PEP 503"])
def test_a_new_release_is_proposed_with_what_metadata_tells(
    json_page: bool, recorded_index: Index, older: Path
) -> None:
    recorded_index.json = json_page
    made = proposed(older, recorded_index).overlay["releases"][0]
    release = load_matrix(cache=False).matrix.releases[-1]
    assert made["torch"] == release.torch == "2.15.0"
    # a PEP 503 page tells no times: the day of reading stands there
    assert made["released"] == (release.released if json_page else "2026-11-30")
    assert tuple(made["python"]["x86_64"]) == release.python.x86_64
    assert tuple(made["python"]["aarch64"]) == release.python.aarch64
    for name in ("torchvision", "torchaudio"):
        companion = getattr(release, name)
        assert made[name]["version"] == companion.version
        assert made[name]["requires"] == companion.requires
        assert made[name]["python"] == companion.python
    assert release.triton is not None
    assert made["triton"]["requires"] == release.triton.requires
    assert made["triton"]["version"] == release.triton.version
    assert made["triton"]["aarch64"] == release.triton.aarch64
    assert same_requirements(made["requires"], release.requires)
    assert same_requirements(made["pypi"]["nvidia"], release.pypi.nvidia)
    assert made["pypi"]["variant"] == release.pypi.variant
    assert made["pypi"]["aarch64_variant"] == release.pypi.aarch64_variant
    assert made["glibc"] == release.glibc
    variant = next(entry for entry in release.variants if entry.tag == "cu132")
    assert made["variants"][0]["built_with"] == variant.built_with
    assert made["variants"][0]["cudnn"] == variant.cudnn
    assert made["verified"] is False


def test_the_proposal_says_what_is_left_to_confirm(recorded_index: Index, older: Path) -> None:
    recorded_index.json = True
    told = proposed(older, recorded_index).to_confirm
    assert any("compile.python_max" in line for line in told)
    assert any("triton 3.9.0: ptxas" in line for line in told)


def test_the_diff_applies_and_the_overlay_says_the_same(
    recorded_index: Index, older: Path, tmp_path: Path
) -> None:
    recorded_index.json = True
    overlay = proposed(older, recorded_index).overlay
    before = older.read_text(encoding="utf-8")
    (tmp_path / "new.yaml").write_text(overlay_text([overlay], "new"), encoding="utf-8")
    laid_over = load_matrix(older, [tmp_path / "new.yaml"], cache=False).matrix
    diff = unified_diff(before, [overlay], "matrix.yaml")
    assert not [line for line in diff.splitlines()[2:] if line.startswith("-")]
    subprocess.run(["git", "apply", "-p1"], input=diff, text=True, cwd=tmp_path, check=True)
    patched = load_matrix(older, cache=False).matrix
    assert patched == laid_over
    answer = resolve(patched, Request(torch="2.15.0"))
    assert isinstance(answer, Resolution)
    assert answer.cell.triton == "3.9.0"
    assert answer.cell.requirements[0] == "torch==2.15.0"


def test_the_command_writes_the_patch(
    recorded_index: Index, older: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_index.json = True
    command = ["matrix", "audit", "--matrix", str(older), "--torch", ">=2.15"]
    command += ["--mirror", f"package_index={recorded_index.url}"]
    assert run([*command, "--patch", str(tmp_path / "new.diff")]) == 1
    told = capsys.readouterr().out
    assert "not in the matrix: torch 2.15.0" in told
    assert "+- torch: 2.15.0" in (tmp_path / "new.diff").read_text(encoding="utf-8")
    assert run([*command, "--patch", str(tmp_path / "new.yaml"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "provision.matrix.audit/1"
    assert answer["new"] == ["2.15.0"]
    assert (tmp_path / "new.yaml").is_file()
    assert run([*command, "--patch", str(tmp_path / "gone" / "new.diff")]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_a_range_without_any_release_is_a_usage_error(
    recorded_index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = f"package_index={recorded_index.url}"
    assert run(["matrix", "audit", "--torch", ">9", "--mirror", mirror]) == 2
    assert "is in >9" in capsys.readouterr().err


def test_a_new_cuda_series_is_proposed_and_a_new_major_is_not(
    recorded_index: Index, older: Path
) -> None:
    text = older.read_text(encoding="utf-8")
    entry = {"series": "13.9", "native_branch": 620, "ptx_isa": "9.9", "source": ["x y"]}
    changed = insert(text, "toolkits", entry)
    assert insert(changed, "toolkits", entry) == changed
    older.write_text(changed, encoding="utf-8")
    assert load_matrix(older, cache=False).matrix.toolkits[-1].series == "13.9"
    index = Index()
    index.add("triton", "4.0.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    for version, cuda in (("2.16.0", "13.7.0"), ("2.17.0", "14.0.0"), ("2.18.0", "13.2.2")):
        needs = [f"cuda-toolkit=={cuda}", *(["triton==4.0.0"] if version != "2.18.0" else [])]
        index.add("torch", version, *needs, tag="cp312-cp312-manylinux_2_28_x86_64")
    index.add("torchvision", "0.30.0", "torch>=2.16.0")
    index.add("torchaudio", "2.12.0")
    with index.serve():
        audit = audited(
            load_matrix(older, cache=False).matrix, index.url, releases=(), torch=">2.14"
        )
    assert audit.new == ["2.16.0", "2.17.0", "2.18.0"]
    assert [entry["series"] for entry in audit.proposals[0].overlay["toolkits"]] == ["13.7"]
    assert "CUDA 14.0: the run floor" in audit.without_proposal[0]
    assert "asks for no triton" in audit.without_proposal[1]
    overlay = older.with_name("new.yaml")
    overlay.write_text(overlay_text([audit.proposals[0].overlay], "new"), encoding="utf-8")
    assert load_matrix(older, [overlay], cache=False).matrix.releases[-1].torch == "2.16.0"
