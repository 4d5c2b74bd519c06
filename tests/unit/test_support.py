"""The tests' own support: the rule for missing parts, the wheel index, the engine tool."""

import hashlib
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.engine import TOOL
from support.needs import VARIABLE, needs, required_parts, skip_or_fail
from support.tinywheel import make_wheel
from support.wheelhouse import Served, project_page, serve_wheels


def read(url: str) -> bytes:
    """Return the body of `url`, without any proxy between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.parametrize(
    ("value", "parts"),
    [("", set()), ("engine", {"engine"}), (" engine, network ,", {"engine", "network"})],
)
def test_required_parts_reads_the_list(value: str, parts: set[str]) -> None:
    assert required_parts({VARIABLE: value}) == parts


def test_required_parts_refuses_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="known parts") as refused:
        required_parts({VARIABLE: "engine,moon"})
    assert "moon" in str(refused.value)


def test_a_missing_part_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no engine here"):
        skip_or_fail("engine", "no engine here")


def test_a_missing_part_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "network,engine")
    with pytest.raises(pytest.fail.Exception, match="no engine here"):
        skip_or_fail("engine", "no engine here")


def test_a_mark_skips_only_what_is_missing_and_not_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def skips(*, missing: bool) -> bool:
        return bool(needs("system", missing=missing, reason="no g++ here").args[0])

    monkeypatch.delenv(VARIABLE, raising=False)
    assert skips(missing=True)
    assert not skips(missing=False)
    monkeypatch.setenv(VARIABLE, "system")
    assert not skips(missing=True)


def test_the_page_of_a_project_carries_the_hashes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    served = Served.of(wheel)
    page = project_page([served]).decode()
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    metadata = hashlib.sha256(served.metadata).hexdigest()
    assert f'href="Tiny_Thing-1.0%2Bcpu-py3-none-any.whl#sha256={sha256}"' in page
    assert f'data-core-metadata="sha256={metadata}"' in page


def test_the_index_serves_wheels_metadata_and_nothing_else(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    (tmp_path / "secret.txt").write_text("not a wheel", encoding="utf-8")
    with serve_wheels(tmp_path) as url:
        assert b"Tiny_Thing-1.0%2Bcpu" in read(f"{url}/cpu/tiny.thing/")
        target = f"{url}/tiny-thing/Tiny_Thing-1.0%2Bcpu-py3-none-any.whl"
        assert read(target) == wheel.read_bytes()
        assert b"Name: Tiny_Thing" in read(f"{target}.metadata")
        for missing in ("/other/", "/tiny-thing/secret.txt", "/tiny-thing/../secret.txt", ""):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(url + missing)


def test_pip_installs_by_hash_from_the_index(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"tiny-thing==1.0+cpu --hash=sha256:{sha256}\n", encoding="utf-8")
    with serve_wheels(tmp_path) as url:
        command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps"]
        options = [f"--index-url={url}", "--no-cache-dir", f"--dest={tmp_path / 'got'}"]
        done = subprocess.run(
            [*command, *options, "--require-hashes", f"--requirement={lock}"],
            env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "got" / wheel.name).read_bytes() == wheel.read_bytes()


def run_tool(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run tools/test-engine with `environ` on top of ours."""
    return subprocess.run(
        [str(TOOL), *arguments], env={**os.environ, **environ}, capture_output=True, text=True
    )


def fake_docker(folder: Path, *, version: str, buildx: bool) -> Path:
    """Write a stand-in docker client that only tells its version."""
    folder.mkdir()
    client = folder / "docker"
    answer = 0 if buildx else 1
    client.write_text(
        f'#!/bin/sh\ncase $1 in buildx) exit {answer} ;; esac\necho "Docker version {version}"\n',
        encoding="utf-8",
    )
    client.chmod(0o755)
    return client


@pytest.mark.parametrize(
    ("version", "buildx", "taken"),
    [
        ("28.2.2, build 1", False, False),
        ("28.2.2, build 1", True, True),
        ("20.10.24+dfsg1", False, True),
    ],
)
def test_the_engine_tool_takes_the_first_client_with_buildkit(
    tmp_path: Path, version: str, buildx: bool, taken: bool
) -> None:
    first = fake_docker(tmp_path / "a", version=version, buildx=buildx)
    second = fake_docker(tmp_path / "b", version="20.10.1", buildx=False)
    path = os.pathsep.join([str(first.parent), str(second.parent), os.environ["PATH"]])
    told = run_tool("env", PATH=path, PROVISION_TEST_DOCKER="")
    assert told.returncode == 0, told.stderr
    chosen = re.search(r"PROVISION_TEST_DOCKER='(.*)'", told.stdout)
    assert chosen is not None
    assert chosen[1] == str(first if taken else second)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "usage: tools/test-engine"),
        (["fly"], 2, "usage: tools/test-engine"),
        (["bases", "woody"], 1, "no Debian release number known for suite 'woody'"),
    ],
)
def test_the_engine_tool_answers_wrong_use(arguments: list[str], status: int, said: str) -> None:
    done = run_tool(*arguments)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_the_engine_tool_names_the_remedy_where_no_engine_answers(tmp_path: Path) -> None:
    done = run_tool("bases", PROVISION_TEST_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1
    assert "run 'tools/test-engine start'" in done.stderr
