"""Installing a lock for real: what lands in a prefix, and what never does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import conda_channel as cc
from support.conda_server import serve_channel
from support.needs import skip_or_fail

from provisioner.conda import prefix as prefixes
from provisioner.conda import worker
from provisioner.conda.install import InstallOptions, install_conda
from provisioner.env.check import check_env
from provisioner.errors import FindingError, OutsideError, ProvisionError, UsageError

MakePrefix = Callable[..., Path]


def said(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return str(done.stdout).strip()


def failing(lock: Path, prefix: Path, options: InstallOptions) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        install_conda(lock, prefix, options)
    return caught.value


def littered(folder: Path) -> list[str]:
    """What an installation left beside prefixes, hidden files included."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_files_know_the_prefix_they_were_installed_to(make_prefix: MakePrefix) -> None:
    prefix = make_prefix("a prefix with blanks")
    assert said(prefix / "bin" / "greet") == f"{prefix}/share"  # data and run path of a program
    assert said(prefix / "bin" / "where") == str(prefix)  # first line of a script
    assert (prefix / "share" / "greet.conf").read_text() == f"home = {prefix}\n"
    assert said(prefix / "bin" / "pip", "--version").startswith("pip ")  # a noarch entry point
    assert said(prefix / "bin" / "python", "-c", "import six; print(six.__file__)").startswith(
        f"{prefix}/"
    )
    assert not (prefix / "bin" / "pip").stat().st_mode & 0o022
    assert prefixes.is_whole(prefix)


def test_records_name_the_lock_and_nothing_of_this_machine(
    make_prefix: MakePrefix, channel: Path, archives: list[Path], installing: dict[str, str]
) -> None:
    prefix = make_prefix()
    records = {p.name: json.loads(p.read_text()) for p in (prefix / "conda-meta").glob("*.json")}
    assert len(records) == len(archives)
    for record in records.values():
        assert record["url"].startswith("https://conda.anaconda.org/conda-forge/")
        assert record["channel"] == "https://conda.anaconda.org/conda-forge"
        assert len(record["sha256"]) == 64
        text = json.dumps(record)
        assert str(channel) not in text
        assert installing["XDG_CACHE_HOME"] not in text
        assert str(prefix) not in text
    assert not (prefix / ".provision" / "work").exists()
    assert not (prefix / "CACHEDIR.TAG").exists()
    # No file is shared with a cache: an edit in place stays in this environment.
    assert all(path.stat().st_nlink == 1 for path in prefix.rglob("*") if path.is_file())
    assert littered(prefix.parent) == []


def test_a_prefix_as_long_as_the_placeholder_fits_and_no_longer(
    make_prefix: MakePrefix, lock: Path, installing: dict[str, str], tmp_path: Path
) -> None:
    longest = tmp_path / ("x" * 100) / "y"
    longest = longest.with_name("y" * (worker.MAX_PREFIX - len(str(longest.parent)) - 1))
    assert len(str(longest)) == 254
    prefix = make_prefix(str(longest.relative_to(tmp_path)))
    assert said(prefix / "bin" / "greet") == f"{prefix}/share"
    assert said(prefix / "bin" / "where") == str(prefix)
    error = failing(lock, longest.with_name(longest.name + "y"), InstallOptions(environ=installing))
    assert (error.code, error.facts["bytes"]) == ("env.prefix-too-long", 255)


@pytest.mark.parametrize("prefix", ["relative/env", "/a/../b", "/a\nb"])
def test_a_path_that_is_no_prefix_is_refused(lock: Path, prefix: str) -> None:
    error = failing(lock, Path(prefix), InstallOptions())
    assert isinstance(error, UsageError)
    assert error.code.startswith("env.prefix-")


def tampered(path: Path) -> None:
    """Change one byte in the middle of an archive; its size stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def own_channel(channel: Path, tmp_path: Path) -> Path:
    """A copy of the channel that a test may damage."""
    return Path(shutil.copytree(channel, tmp_path / "own-channel"))


def mapped(environ: Mapping[str, str], place: str) -> dict[str, str]:
    return {**environ, "PROVISION_CONDA_CHANNEL_MAP": f"conda-forge={place}"}


@pytest.mark.parametrize("way", ["file", "http"])
def test_a_changed_archive_is_refused(
    lock: Path, own_channel: Path, clean_environ: dict[str, str], tmp_path: Path, way: str
) -> None:
    # Same name, same size, a valid package: only the hash of the lock tells.
    other = cc.pure_package("six", "1.16.0", b"__version__ = 'evil!!'\n")
    cc.write_package(own_channel, other, ending=".tar.bz2")
    prefix = tmp_path / "env"
    options: dict[str, Any] = {"store": tmp_path / "store"}
    with serve_channel(own_channel) as server:
        place = f"file://{own_channel}" if way == "file" else server.url
        environ = mapped(clean_environ, place)
        error = failing(lock, prefix, InstallOptions(environ=environ, **options))
    assert isinstance(error, FindingError)
    assert error.code == "conda.archive-hash"
    assert "six-1.16.0" in error.message
    assert error.facts["locked"] != error.facts["found"]
    assert not prefix.exists()
    assert not list((tmp_path / "store").rglob("six*"))


def test_a_changed_archive_in_the_cache_is_never_used(
    lock: Path, clean_environ: dict[str, str], installing: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    events: list[tuple[str, Mapping[str, Any]]] = []
    options = InstallOptions(
        environ=installing, store=store, progress=lambda event, facts: events.append((event, facts))
    )
    install_conda(lock, tmp_path / "first", options)
    (numpy,) = store.rglob("numpy-*.conda")
    good = numpy.read_bytes()
    tampered(numpy)
    # Without its origin it is missing, not taken: the network is not asked either.
    offline = InstallOptions(environ=clean_environ, store=store, offline=True)
    error = failing(lock, tmp_path / "second", offline)
    assert error.code == "conda.offline"
    assert not numpy.exists()
    # With its origin it is fetched anew.
    numpy.write_bytes(good)
    tampered(numpy)
    install_conda(lock, tmp_path / "third", options)
    assert ("discarded", str(numpy)) in [(e, f.get("path")) for e, f in events]
    assert numpy.read_bytes() == good
    assert check_env(tmp_path / "third") == []


def test_everything_from_the_cache_needs_no_channel(
    lock: Path, clean_environ: dict[str, str], installing: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    install_conda(lock, tmp_path / "first", InstallOptions(environ=installing, store=store))
    offline = InstallOptions(environ=clean_environ, store=store, offline=True)
    assert install_conda(lock, tmp_path / "second", offline) == 5
    assert prefixes.is_whole(tmp_path / "second")


def test_a_network_namespace_without_a_route_is_enough(
    lock: Path, installing: dict[str, str], tmp_path: Path
) -> None:
    probe = ["unshare", "--net", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        skip_or_fail("network-namespace", "this user may not make a network namespace (unshare -n)")
    prefix = tmp_path / "env"
    words = [sys.executable, "-m", "provisioner.conda.worker", str(lock), str(prefix), "--offline"]
    place = installing["PROVISION_CONDA_CHANNEL_MAP"].partition("=")[2]
    words += ["--mirror", f"https://conda.anaconda.org/conda-forge={place}"]
    done = subprocess.run(
        ["unshare", "--net", *words], env=installing, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert said(prefix / "bin" / "python", "-c", "print(1)") == "1"


def test_a_mirror_that_wants_credentials_gets_them(
    lock: Path, channel: Path, clean_environ: dict[str, str], tmp_path: Path
) -> None:
    with serve_channel(channel) as server:
        server.authorization = "Bearer t0k3n-value"
        environ = mapped(clean_environ, server.url)
        options = InstallOptions(environ=environ, store=tmp_path / "store")
        error = failing(lock, tmp_path / "env", options)
        assert (error.code, error.exit_status) == ("conda.archive-unreachable", 4)
        with_token = environ | {"PROVISION_CONDA_TOKEN": "t0k3n-value"}
        options = InstallOptions(environ=with_token, store=tmp_path / "store")
        install_conda(lock, tmp_path / "env", options)
    assert "t0k3n-value" not in "".join(
        path.read_text() for path in (tmp_path / "env" / "conda-meta").glob("*.json")
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "@EXPLICIT\nhttps://conda.anaconda.org/c/noarch/a-1-0.conda#{md5}\n",
            "conda.lock-no-hash",
        ),
        ("@EXPLICIT\n", "conda.lock-empty"),
        ("@EXPLICIT\nhttps://x/noarch/a-1-0.zip#{md5}\n", "conda.lock-bad"),
        ("not a lock", "conda.lock-bad"),
    ],
)
def test_a_lock_that_cannot_be_trusted_is_refused_first(
    tmp_path: Path, text: str, code: str
) -> None:
    lock = tmp_path / "lock"
    lock.write_text(text.format(md5="c" * 32))
    error = failing(lock, tmp_path / "env", InstallOptions())
    assert (error.code, (tmp_path / "env").exists()) == (code, False)


def test_what_is_in_the_way_stays(lock: Path, installing: dict[str, str], tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    prefix.mkdir()
    (prefix / "precious").write_text("data")
    error = failing(lock, prefix, InstallOptions(environ=installing))
    assert isinstance(error, OutsideError)
    assert error.code == "env.prefix-taken"
    assert (prefix / "precious").read_text() == "data"
    assert littered(tmp_path) == []


INSTALL = """
import os, sys
from pathlib import Path
from provisioner.conda.install import InstallOptions, install_conda
def told(event, facts):
    print(event, facts.get("done", ""), flush=True)
options = InstallOptions(store=Path(sys.argv[3]), progress=told)
install_conda(Path(sys.argv[1]), Path(sys.argv[2]), options)
"""


@pytest.mark.parametrize(
    ("victim", "moment"), [("all", "fetched 1"), ("all", "linking"), ("worker", "linking")]
)
def test_an_interrupted_install_is_never_taken_for_whole(
    lock: Path, installing: dict[str, str], tmp_path: Path, moment: str, victim: str
) -> None:
    prefix, store = tmp_path / "env", tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", INSTALL, lock, prefix, store],
        env=installing,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(moment):
            break
    (child,) = children(process.pid)
    if victim == "worker":
        os.kill(child, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert "conda.installer-died" in errors or "ended by signal 9" in errors
        assert not prefix.exists()
        return
    process.kill()
    process.communicate(timeout=60)
    wait_for_end(child)
    assert (prefix / ".provision" / "work").exists()  # it was stopped, not waited for
    assert not prefixes.is_whole(prefix)
    # The next run takes nothing of it for granted.
    install_conda(lock, prefix, InstallOptions(environ=installing, store=store))
    assert prefixes.is_whole(prefix)
    assert check_env(prefix) == []
    assert littered(tmp_path) == []


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def wait_for_end(pid: int) -> None:
    """The worker goes with the process that started it."""
    for _ in range(200):
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return
        except OSError:
            return
        time.sleep(0.02)
    pytest.fail("the worker outlived its parent")


def test_a_prefix_that_was_moved_is_not_whole(make_prefix: MakePrefix, tmp_path: Path) -> None:
    prefix = make_prefix()
    moved = prefix.rename(tmp_path / "elsewhere")
    assert not prefixes.is_whole(moved)
    assert "env.unfinished" in [finding.code for finding in check_env(moved)]


def test_conda_lock_installs_through_the_executable(
    lock: Path, installing: dict[str, str], tmp_path: Path
) -> None:
    from provisioner.conda import condalock

    bare = "".join(
        line for line in lock.read_text().splitlines(keepends=True) if "# sha256" not in line
    )
    listed = tmp_path / "conda-linux-64.lock"
    listed.write_text(f"# platform: {cc.SUBDIR}\n{bare}")
    prefix = tmp_path / "env"
    with condalock.launcher() as conda:
        done = subprocess.run(
            [sys.executable, "-m", "conda_lock", "install", "--conda", conda, "-p", prefix,
             "--no-validate-platform", listed],
            env=installing, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert said(conda, "run", "-p", prefix, "where", env=installing) == str(prefix)
        assert check_env(prefix) == []
        tampered_list = tmp_path / "tampered.lock"
        tampered_list.write_text(bare.replace(bare.split("#")[1][:8], "0" * 8))
        refused = subprocess.run(
            [conda, "create", "--file", tampered_list, "-p", tmp_path / "other", "--json"],
            env=installing, capture_output=True, text=True,
        )  # fmt: skip
    assert json.loads(refused.stdout)["error"]["code"] == "conda.archive-hash"


def test_the_worker_alone_serves_an_image(
    archives: list[Path], channel: Path, clean_environ: dict[str, str], tmp_path: Path
) -> None:
    """A rendered image carries this one file; conda's half is installed by it from a mirror."""
    script = tmp_path / "builder" / "conda-install.py"
    script.parent.mkdir()
    shutil.copy(Path(worker.__file__), script)
    lock = tmp_path / "conda-lock.yml"
    lock.write_text(conda_lock_of(archives))
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "conda-forge").symlink_to(channel)
    prefix = tmp_path / "env"
    with serve_channel(tmp_path / "mirror") as server:
        done = subprocess.run(
            [sys.executable, script, lock, prefix],
            env=clean_environ | {"CONDA_CHANNELS": server.url}, cwd="/",
            capture_output=True, text=True,
        )  # fmt: skip
        again = subprocess.run([sys.executable, script, lock, prefix], env=clean_environ,
                               capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert check_env(prefix) == []
    assert (again.returncode, "[conda.prefix-taken]" in again.stderr) == (2, True)


def conda_lock_of(archives: list[Path]) -> str:
    """What conda-lock.yml has of these archives."""
    entries = []
    for path in archives:
        record = cc.record_of(path)
        url = f"https://conda.anaconda.org/conda-forge/{path.parent.name}/{path.name}"
        entry = {k: record[k] for k in ("name", "version")}
        entry |= {"manager": "conda", "platform": cc.SUBDIR, "url": url, "dependencies": {}}
        entries.append(entry | {"hash": {k: record[k] for k in ("md5", "sha256")}})
    return yaml.safe_dump({"version": 1, "package": entries}, sort_keys=False)
