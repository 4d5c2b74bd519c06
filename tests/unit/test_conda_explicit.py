"""conda-lock.yml and the explicit list as data."""

import pytest
import yaml

from provisioner.conda import explicit, worker
from provisioner.conda.explicit import CondaLock, LockedPackage
from provisioner.errors import FindingError

BASE = "https://conda.anaconda.org/conda-forge"
SHA, OTHER, MD5 = "a" * 64, "b" * 64, "c" * 32

ENTRY = """- name: {name}
  version: '{version}'
  manager: {manager}
  platform: linux-64
  dependencies: {depends}
  url: {base}/{subdir}/{name}-{version}-0.conda
  hash:
    md5: {md5}
    sha256: {sha}
"""


def entry(name: str, version: str = "1.0", **fields: str) -> str:
    values = {"manager": "conda", "depends": "{}", "subdir": "noarch", "sha": SHA, "md5": MD5}
    return ENTRY.format(name=name, version=version, base=BASE, **(values | fields))


def lock_of(*entries: str) -> CondaLock:
    text = "version: 1\npackage:\n" + "".join(entries)
    return explicit.parse_conda_lock(text.encode(), "linux-64")


PYTHON = "{python: '>=3.10'}"


def test_what_depends_on_python_is_owned_under_its_pypi_name() -> None:
    lock = lock_of(
        entry("python", "3.10.14", depends="{tzdata: ''}"),
        entry("numpy", "1.26.4", depends="{python: '', libblas: ''}"),
        entry("brotli-python", "1.1.0", depends=PYTHON),
        entry("typing_extensions", "4.12.2", depends=PYTHON),
        entry("pysocks", "1.7.1", depends=PYTHON),
        entry("matplotlib", "3.9.0", depends=PYTHON),
        entry("matplotlib-base", "3.9.0", depends=PYTHON),
        entry("tzdata", "2026c"),
        entry("xz", "5.8.1"),
    )
    assert explicit.pip_constraints_from_conda(lock) == [
        "brotli==1.1.0",
        "matplotlib==3.9.0",
        "numpy==1.26.4",
        "pysocks==1.7.1",
        "typing-extensions==4.12.2",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("just text", "conda.lock-bad"),
        ("package: [{name: a}]", "conda.lock-bad"),
        ("{", "conda.lock-bad"),
        ("package: []", "conda.lock-bad"),
        ("package:\n", "conda.lock-empty"),
        ("package:\n- name: a\n", "conda.lock-bad"),
        ("package:\n- name: a\n\tplatform: b\n", "conda.lock-bad"),
        ("package:\n  name: a\n", "conda.lock-bad"),
        ("package:\n" + entry("zlib", sha="../../x"), "conda.lock-bad"),
        ("package:\n" + entry("zlib", manager="pip"), "conda.lock-pip"),
        ("package:\n" + entry("zlib", sha="null"), "conda.lock-no-hash"),
        ("package:\n" + entry("zlib", subdir="../.."), None),
        ("package:\n" + entry("zlib").replace("https:", "ftp:"), "conda.lock-bad"),
        ("package:\n" + entry("zlib").replace(".conda", ".exe"), "conda.lock-bad"),
    ],
)
def test_a_lock_that_is_none_is_refused_with_its_reason(text: str, code: str | None) -> None:
    if code is None:
        assert explicit.parse_conda_lock(text.encode(), "linux-64").packages[0].name == "zlib"
        return
    with pytest.raises(FindingError) as caught:
        explicit.parse_conda_lock(text.encode(), "linux-64")
    assert caught.value.code == code


def test_the_reader_for_images_agrees_with_a_yaml_reader() -> None:
    text = "version: 1\nmetadata:\n  platforms: [linux-64]\npackage:\n" + "".join(
        (
            entry("a", "1.0", depends="\n    __glibc: '>=2.17'\n    'odd': '>=1,<2\n      folded'"),
            entry("b", "1e5", md5=f"'{'1' * 32}'"),
            entry("c", sha="null"),
        )
    )
    document = yaml.safe_load(text)
    assert worker.read_lock(text.encode(), "linux-64") == [
        worker.Archive(e["url"], e["hash"]["sha256"] or "", e["hash"]["md5"])
        for e in document["package"]
    ]


def test_the_explicit_list_carries_both_hashes_and_the_inputs() -> None:
    lock = lock_of(entry("zlib"), entry("xz", sha=OTHER))
    plain = f"# platform: linux-64\n@EXPLICIT\n{BASE}/noarch/xz-1.0-0.conda#{MD5}\n"
    plain += f"{BASE}/noarch/zlib-1.0-0.conda#{MD5}\n"
    listed = explicit.explicit_with_hashes(plain.encode(), lock, "d" * 64, "Made by: us")
    assert explicit.inputs_digest(listed) == "d" * 64
    assert worker.read_lock(listed, "linux-64") == [
        worker.Archive(f"{BASE}/noarch/xz-1.0-0.conda", OTHER, MD5),
        worker.Archive(f"{BASE}/noarch/zlib-1.0-0.conda", SHA, MD5),
    ]
    assert explicit.differences(listed, lock) == []
    edited = listed.replace(OTHER.encode(), SHA.encode())
    assert explicit.differences(edited, lock) == ["xz-1.0-0.conda"]
    fewer = listed.replace(f"{BASE}/noarch/zlib-1.0-0.conda#{MD5}\n".encode(), b"")
    assert explicit.differences(fewer, lock) == ["zlib-1.0-0.conda"]


def test_an_explicit_list_of_another_tool_has_no_sha256() -> None:
    text = f"@EXPLICIT\n{BASE}/noarch/a-1-0.conda#sha256:{SHA}\n{BASE}/noarch/b-1-0.conda\n"
    archives = worker.read_lock(text.encode(), "linux-64")
    assert [(a.sha256, a.md5) for a in archives] == [(SHA, ""), ("", "")]
    assert explicit.inputs_digest(text.encode()) is None


def test_torch_of_conda_is_refused_with_who_asks_for_it() -> None:
    lock = lock_of(entry("pytorch"), entry("timm", depends="{python: '', pytorch: ''}"))
    with pytest.raises(FindingError) as caught:
        explicit.refuse_torch(lock)
    assert caught.value.code == "conda.owns-torch"
    assert caught.value.facts["asked_by"] == ["timm"]
    explicit.refuse_torch(lock_of(entry("numpy")))


def test_packages_are_sorted_and_found_by_name() -> None:
    lock = lock_of(entry("zlib", "1.3"), entry("python", "3.10.14"))
    assert [package.name for package in lock.packages] == ["python", "zlib"]
    assert lock.version_of("python") == "3.10.14"
    assert lock.version_of("absent") is None
    first = lock.packages[0]
    assert isinstance(first, LockedPackage)
    assert first.file_name == "noarch/python-3.10.14-0.conda"
