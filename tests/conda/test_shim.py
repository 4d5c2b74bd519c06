"""The conda-compatible executable, as a process: what conda-lock and people get from it."""

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.conda_server import ChannelServer

REAL = "https://conda.anaconda.org/conda-forge/"
BASE = ("python 3.10.*", "pip", "setuptools", "wheel", "numpy <2")
TARGET = {
    "CONDA_OVERRIDE_GLIBC": "2.35",
    "CONDA_OVERRIDE_LINUX": "5.15",
    "CONDA_OVERRIDE_UNIX": "0",
    "CONDA_OVERRIDE_ARCHSPEC": "x86_64",
}


def shim(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the executable."""
    return subprocess.run(
        [sys.executable, "-m", "provisioner.conda.shim", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def dry_run(environ: dict[str, str], *specs: str, platform: str = "linux-64") -> dict[str, Any]:
    """Solve specs on conda-forge; the answer, whether it worked or not."""
    words = ["create", "--prefix", "/nowhere", "--dry-run", "--json", "--override-channels"]
    done = shim(
        environ | TARGET | {"CONDA_SUBDIR": platform}, *words, "--channel", "conda-forge", *specs
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["success"] is (done.returncode == 0), done.stderr
    assert "Traceback" not in done.stderr
    return answer


def versions(answer: dict[str, Any]) -> dict[str, str]:
    return {record["name"]: record["version"] for record in answer["actions"]["FETCH"]}


def test_it_says_what_it_is(clean_environ: dict[str, str]) -> None:
    assert shim(clean_environ, "--version").stdout.startswith("conda 2")
    info = json.loads(shim(clean_environ | {"CONDA_SUBDIR": "linux-64"}, "info", "--json").stdout)
    assert info["platform"] == "linux-64"
    assert info["py_rattler_version"].startswith("0.28.")


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64"])
def test_a_solve_answers_with_real_addresses_and_hashes(
    solving: dict[str, str], platform: str
) -> None:
    answer = dry_run(solving, *BASE, platform=platform)
    records = answer["actions"]["FETCH"]
    assert versions(answer)["numpy"] == "1.26.4"
    assert versions(answer)["python"].startswith("3.10.")
    assert {r["subdir"] for r in records} == {platform, "noarch"}
    for record in records:
        assert record["url"].startswith(REAL), record["url"]
        assert len(record["sha256"]) == 64
        assert len(record["md5"]) == 32
    assert [link["name"] for link in answer["actions"]["LINK"]] == sorted(versions(answer))
    assert "file://" not in json.dumps(answer)


def test_the_target_decides_not_this_machine(solving: dict[str, str]) -> None:
    answer = dry_run(solving | {"CONDA_OVERRIDE_CUDA": "11.8"}, "cuda-version 12.6")
    assert answer["error"]["code"] == "conda.unsatisfiable"
    assert "__cuda=11.8" in answer["error"]["facts"]["target"]
    assert dry_run(solving | {"CONDA_OVERRIDE_CUDA": "12.6"}, "cuda-version 12.6")["success"]


@pytest.mark.parametrize(("cuda", "solved"), [("11.8", False), ("12.6", True)])
def test_the_channel_that_conda_lock_makes_up_is_the_target_and_no_channel(
    solving: dict[str, str], tmp_path: Path, cuda: str, solved: bool
) -> None:
    record = {"name": "__cuda", "version": cuda, "build": "0", "build_number": 0, "noarch": ""}
    record |= {"depends": [], "package_type": "virtual_system", "subdir": "linux-64"}
    for subdir, records in (("linux-64", {f"__cuda-{cuda}-0.tar.bz2": record}), ("noarch", {})):
        (tmp_path / subdir).mkdir()
        text = json.dumps({"info": {"subdir": subdir}, "packages": records})
        (tmp_path / subdir / "repodata.json").write_text(text)
    made_up = f"file://{tmp_path}"
    words = ["create", "--dry-run", "--json", "--platform", "linux-64", "--channel", "conda-forge"]
    done = shim(solving, *words, "--channel", made_up, "cuda-version 12.6", "__cuda")
    answer = json.loads(done.stdout)
    assert answer["success"] is solved
    if solved:
        assert list(versions(answer)) == ["cuda-version"]
    else:
        assert answer["error"]["facts"]["channels"] == "conda-forge"
        assert f"__cuda={cuda}" in answer["error"]["facts"]["target"]


def test_specs_that_clash_are_named_and_only_they(solving: dict[str, str]) -> None:
    answer = dry_run(solving, "pip", "setuptools", "wheel", "python 3.14.*", "numpy <2")
    error = answer["error"]
    assert error["code"] == "conda.unsatisfiable"
    assert error["facts"]["clash"] == ["python 3.14.*", "numpy <2"]
    assert answer["exception_name"] == "UnsatisfiableError"
    assert "python 3.14.*, numpy <2" in answer["message"]
    assert "numpy 1.26.4 would require" in error["facts"]["solver"]


def test_a_misspelt_package_is_told_as_that(solving: dict[str, str]) -> None:
    error = dry_run(solving, *BASE, "numpyy")["error"]
    assert (error["code"], error["facts"]["clash"]) == ("conda.unknown-package", ["numpyy"])


def test_text_that_is_no_spec_is_a_usage_error(solving: dict[str, str]) -> None:
    error = dry_run(solving, "python 3.10.*", "numpy !!! 2")["error"]
    assert (error["code"], error["exit_status"]) == ("conda.bad-spec", 2)


def test_a_day_leaves_out_what_was_built_later(solving: dict[str, str]) -> None:
    then = dry_run(solving | {"PROVISION_CONDA_EXCLUDE_NEWER": "2024-09-01"}, "python", "scipy")
    now = dry_run(solving, "python 3.12.*", "scipy")
    assert versions(then)["scipy"] == "1.14.1"
    assert versions(now)["scipy"] > "1.14.1"
    bad = dry_run(solving | {"PROVISION_CONDA_EXCLUDE_NEWER": "yesterday"}, "python")
    assert bad["error"]["code"] == "conda.bad-date"


def test_a_mirror_is_read_under_the_real_addresses(
    clean_environ: dict[str, str], snapshot_server: ChannelServer
) -> None:
    answer = dry_run(clean_environ | {"PROVISION_MIRROR_CONDA": snapshot_server.url}, *BASE)
    assert all(record["url"].startswith(REAL) for record in answer["actions"]["FETCH"])
    assert "/conda-forge/linux-64/repodata.json" in snapshot_server.paths()
    assert "127.0.0.1" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"status": 403}, "conda.channel-denied"),
        ({"status": 404}, "conda.channel-missing"),
        ({"status": 503}, "conda.channel-unreachable"),
        ({"body": b"<html>a login page</html>"}, "conda.channel-broken"),
    ],
)
def test_a_channel_that_fails_is_not_told_as_unsatisfiable(
    clean_environ: dict[str, str],
    snapshot_server: ChannelServer,
    fault: dict[str, Any],
    code: str,
) -> None:
    for name, value in fault.items():
        setattr(snapshot_server, name, value)
    environ = clean_environ | {"PROVISION_MIRROR_CONDA": snapshot_server.url}
    error = dry_run(environ, "python")["error"]
    assert (error["code"], error["exit_status"]) == (code, 4)
    assert error["facts"]["channel"] == "conda-forge"
    assert error["next_step"]


def test_nothing_listens_there(clean_environ: dict[str, str]) -> None:
    environ = clean_environ | {"PROVISION_MIRROR_CONDA": "http://127.0.0.1:9"}
    error = dry_run(environ, "python")["error"]
    assert error["code"] == "conda.channel-unreachable"
    assert "Connection refused" in error["facts"]["reason"]


@pytest.mark.parametrize("way", ["netrc", "file-basic", "file-bearer", "user", "token"])
def test_credentials_open_a_channel_and_are_shown_nowhere(
    clean_environ: dict[str, str], snapshot_server: ChannelServer, tmp_path: Path, way: str
) -> None:
    secret = "s3cret-w0rd"
    basic = "Basic " + base64.b64encode(f"ann:{secret}".encode()).decode()
    environ = clean_environ | {"PROVISION_MIRROR_CONDA": snapshot_server.url}
    credentials = tmp_path / "credentials"
    if way == "netrc":
        credentials.write_text(f"machine 127.0.0.1 login ann password {secret}\n")
        environ["NETRC"] = str(credentials)
    elif way == "user":
        environ |= {"PROVISION_CONDA_USER": "ann", "PROVISION_CONDA_PASSWORD": secret}
    elif way == "token":
        environ["PROVISION_CONDA_TOKEN"] = secret
    else:
        kind: Any = {"BasicHTTP": {"username": "ann", "password": secret}}
        kind = kind if way == "file-basic" else {"BearerToken": secret}
        credentials.write_text(json.dumps({"127.0.0.1": kind}))
        environ["PROVISION_CONDA_AUTH_FILE"] = str(credentials)
    bearer = way in ("token", "file-bearer")
    snapshot_server.authorization = f"Bearer {secret}" if bearer else basic
    answer = dry_run(environ, "python 3.10.*")
    assert answer["success"], answer
    assert secret not in json.dumps(answer)
    snapshot_server.authorization = "Basic another"
    refused = dry_run(environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, "python 3.10.*")
    assert refused["error"]["code"] == "conda.channel-denied"
    assert secret not in json.dumps(refused)
    assert base64.b64encode(f"ann:{secret}".encode()).decode() not in json.dumps(refused)


def test_credentials_in_an_address_stay_out_of_the_answer(
    clean_environ: dict[str, str], snapshot_server: ChannelServer
) -> None:
    place = snapshot_server.url.removeprefix("http://")
    basic = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    snapshot_server.authorization = basic
    words = ["create", "--dry-run", "--json", "--platform", "linux-64", "--channel"]
    done = shim(
        clean_environ | TARGET, *words, f"http://ann:s3cret@{place}/conda-forge", "python 3.10.*"
    )
    assert json.loads(done.stdout)["success"], done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_offline_answers_from_what_was_read_before_and_from_nothing_else(
    clean_environ: dict[str, str], snapshot_server: ChannelServer, tmp_path: Path
) -> None:
    environ = clean_environ | {
        "PROVISION_MIRROR_CONDA": snapshot_server.url,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    offline = environ | {"PROVISION_OFFLINE": "1"}
    assert dry_run(offline, "python 3.10.*")["error"]["code"] == "conda.offline"
    before = dry_run(environ, "python 3.10.*")
    snapshot_server.status = 500
    asked = len(snapshot_server.asked)
    assert dry_run(offline, "python 3.10.*") == before
    assert len(snapshot_server.asked) == asked


def fake_environment(folder: Path, records: list[dict[str, Any]]) -> Path:
    """What conda-lock makes of an earlier lock: records without build numbers and dependencies."""
    meta = folder / "conda-meta"
    meta.mkdir(parents=True)
    for record in records:
        kept = {k: record[k] for k in ("name", "version", "url", "fn", "md5", "build", "subdir")}
        kept |= {"channel": REAL + record["subdir"], "build_number": 0, "depends": []}
        (meta / f"{record['name']}.json").write_text(json.dumps(kept))
    return folder


def test_one_package_moves_and_the_others_stay(solving: dict[str, str], tmp_path: Path) -> None:
    environ = solving | {"PROVISION_CONDA_EXCLUDE_NEWER": "2024-09-01"}
    old = dry_run(environ, "python 3.10.*", "numpy <2", "scipy")
    prefix = fake_environment(tmp_path / "fake", old["actions"]["FETCH"])
    listed = json.loads(shim(solving, "list", "--no-pip", "-p", str(prefix), "--json").stdout)
    assert {entry["name"] for entry in listed} == set(versions(old))
    words = ["install", "--override-channels", "--channel", "conda-forge", "-p", str(prefix)]
    words += ["--json", "--dry-run", "--platform", "linux-64", "scipy"]
    moved = json.loads(shim(solving | TARGET, *words).stdout)
    assert [link["name"] for link in moved["actions"]["LINK"]] == ["scipy"]
    assert versions(moved)["scipy"] > versions(old)["scipy"]


def test_what_stands_in_the_way_moves_too_but_no_further(
    solving: dict[str, str], tmp_path: Path
) -> None:
    environ = solving | {"PROVISION_CONDA_EXCLUDE_NEWER": "2024-09-01"}
    old = dry_run(environ, "python 3.12.*", "numpy <2", "scipy")
    prefix = fake_environment(tmp_path / "fake", old["actions"]["FETCH"])
    words = ["install", "--channel", "conda-forge", "-p", str(prefix), "--json", "--dry-run"]
    words += ["--platform", "linux-64", "numpy >=2"]
    moved = json.loads(shim(solving | TARGET, *words).stdout)
    changed = {link["name"] for link in moved["actions"]["LINK"]}
    assert "numpy" in changed
    assert "python" not in changed
    bounded = solving | TARGET | {"PROVISION_CONDA_CONSTRAINTS": "numpy <2\npython 3.12.*"}
    refused = json.loads(shim(bounded, *words).stdout)
    assert refused["error"]["code"] == "conda.unsatisfiable"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["create", "--dry-run", "python"], "conda.no-channel"),
        (["create", "--dry-run", "-c", "conda-forge"], "conda.no-specs"),
        (["create", "-c", "conda-forge", "python"], "conda.usage"),
        (["create", "--bogus"], "conda.usage"),
        (["install", "-c", "conda-forge", "python"], "conda.usage"),
        (["list", "-p", "/nowhere"], "conda.no-prefix"),
        (["run", "-p", "/nowhere"], "conda.usage"),
        (["run", "-p", "/nowhere", "no-such-program"], "conda.run"),
        ([], "conda.usage"),
    ],
)
def test_what_is_no_command_is_one_line(
    solving: dict[str, str], words: list[str], code: str
) -> None:
    done = shim(solving, *words)
    assert done.returncode in (2, 4)
    assert done.stderr.count("\n") == 1
    assert f"[{code}]" in done.stderr
    assert done.stdout == ""


def test_the_interpreter_never_crashes_after_an_answer(solving: dict[str, str]) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        answers = list(pool.map(lambda _: dry_run(solving, "python 3.10.*"), range(12)))
    assert all(answer["success"] for answer in answers)
