"""playbooks/vars/<cell>.yml: the sources of driver and toolkit by system, or the refusal."""

from typing import Any

import pytest
import yaml
from support.rendering import bent, facts, rendered, resolved

from provisioner.errors import UsageError
from provisioner.matrix.hosts import DriverChoice, driver_choice, host_facts, toolkit_choice
from provisioner.matrix.index import index_of
from provisioner.render.engine import render_cell


def variables(**asked: Any) -> dict[str, Any]:
    text = rendered(resolved(**asked))["playbooks/vars/cell.yml"]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_the_default_branch_is_580_and_the_toolkit_never_the_one_with_a_driver() -> None:
    found = variables(cuda="11.8")
    assert found["nvidia_driver_cell_branch"] == 580
    sources = found["nvidia_driver_sources"]
    assert sources["debian12"]["580"]["pin"] == "nvidia-driver-pinning-580"
    assert set(sources["debian12"]) == {"580", "595"}  # keys are text, also for YAML
    assert sources["el8"]["580"]["kind"] == "refused"
    packages = [
        name for s in found["cuda_toolkit_sources"].values() for name in s.get("packages", ())
    ]
    assert "cuda-toolkit-11-8" in packages
    # `cuda` and `cuda-11-8` bring the newest driver along.
    assert not [name for name in packages if name.startswith("cuda") and "toolkit" not in name]


@pytest.mark.parametrize(
    ("series", "system", "kind", "gcc", "part"),
    [
        ("11.8", "ubuntu22.04", "repository", None, "cuda-toolkit-11-8"),
        ("11.8", "debian12", "distribution", 11, "nvidia-cuda-toolkit"),
        ("11.8", "ubuntu24.04", "runfile", 11, "cuda_11.8.0_520.61.05_linux.run"),
        ("11.8", "el9", "runfile", None, "cuda_11.8.0_520.61.05_linux.run"),
        ("11.8", "debian13", "refused", None, "glibc 2.41"),
        ("11.8", "el10", "refused", None, "gcc 11 at most"),
        ("11.8", "el8", "refused", None, "Python 3.7"),
        ("12.6", "debian12", "repository", None, "cuda-toolkit-12-6"),
        ("12.1", "debian12", "runfile", None, "cuda_12.1.1_530.30.02_linux.run"),
        ("13.0", "debian12", "refused", None, "No repository of debian12 carries CUDA 13.0"),
    ],
)
def test_where_a_toolkit_comes_from(
    series: str, system: str, kind: str, gcc: int | None, part: str
) -> None:
    index = index_of(facts().matrix)
    choice = toolkit_choice(index, host_facts(), index.systems[system], series, "x86_64")
    assert (choice.kind, choice.gcc) == (kind, gcc)
    assert part in " ".join([*choice.packages, choice.file or "", choice.reason or ""])
    assert (choice.sha256 is not None) == (kind == "runfile")
    assert (choice.reason is not None) == (kind == "refused")


def choice_of(system: str, branch: int, *, open_modules: bool = False) -> DriverChoice:
    index = index_of(facts().matrix)
    return driver_choice(
        host_facts(), index.systems[system], branch, "x86_64", open_modules=open_modules
    )


def test_where_a_driver_comes_from() -> None:
    ubuntu = choice_of("ubuntu22.04", 580, open_modules=True)
    assert "nvidia-driver-580-server-open" in ubuntu.packages
    assert ubuntu.signed
    debian = choice_of("debian12", 580)
    assert (debian.packages, debian.pin) == (("cuda-drivers",), "nvidia-driver-pinning-580")
    assert choice_of("debian12", 580, open_modules=True).packages == ("nvidia-open",)
    assert choice_of("el9", 580, open_modules=True).stream == "580-open"
    # 515-server and 535-server are dummies that bring another branch.
    for branch in (515, 535):
        refused = choice_of("ubuntu22.04", branch)
        assert refused.kind == "refused"
        assert str(branch) in str(refused.reason)


def test_every_repository_has_a_key_with_a_fingerprint_where_apt_reads_it() -> None:
    found = variables(torch="2.6.0", cuda="12.4")
    named = {s["repository"] for s in found["cuda_toolkit_sources"].values() if "repository" in s}
    assert named
    for repository in named:
        key = found["nvidia_repository_keys"][repository.partition("/")[0]]
        assert len(key.get("fingerprint", "")) == (0 if repository.startswith("rhel") else 40)


def test_a_cpu_cell_names_neither_driver_nor_toolkit() -> None:
    found = variables(torch="2.13.0", cuda="cpu")
    assert found["nvidia_driver_cell_branch"] is None
    assert found["cuda_toolkit_series"] is None
    assert found["nvidia_driver_sources"] == {}
    assert found["compile_check_device"] == "cpu"


def test_a_mirror_replaces_the_repository() -> None:
    mirrors = {"cuda_repository": "https://mirror.example/cuda"}
    text = rendered(resolved(mirrors, cuda="11.8"), mirrors)["playbooks/vars/cell.yml"]
    assert yaml.safe_load(text)["nvidia_repository_url"] == "https://mirror.example/cuda"


@pytest.mark.parametrize("series", ["11.8\n", "{{ 1 }}", "99.9"])
def test_what_ansible_would_run_is_refused(series: str) -> None:
    with pytest.raises(UsageError) as caught:
        render_cell(bent(resolved(cuda="11.8"), cuda=series), facts())
    assert caught.value.code == "render.unsafe-value"
