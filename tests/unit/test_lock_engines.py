"""What reaches an engine and what does not; which engine and which interpreter are found."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.locking import CPU_CELL, HERE, Indexes, locked, machine, pins, pip_tools, uv
from support.needs import skip_or_fail
from support.simpleindex import Index

from provisioner.errors import OutsideError, UsageError
from provisioner.lock import find, toolset, view
from provisioner.lock.client import Client
from provisioner.lock.engines import Engine, PipTools, Question, Uv, read_pins
from provisioner.lock.model import Target
from provisioner.lock.writer import lock_bytes, requirements_texts

ENGINES = [pytest.param(uv, id="uv"), pytest.param(pip_tools, id="pip-tools")]


@pytest.fixture
def indexes() -> Iterator[Indexes]:
    """torch and filelock on their indexes."""
    both = Indexes()
    both.torch.add("torch", "2.0.1+cpu", "filelock", uploaded=None)
    both.package.add("filelock", "3.12.2")
    with both.package.serve(), both.torch.serve():
        yield both


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A machine full of settings, each of which would bring filelock 99 or break the lock."""
    evil = Index()
    wheel = evil.add("filelock", "99.0")
    folder = tmp_path / "planted-links"
    folder.mkdir()
    (folder / wheel.filename).write_bytes(wheel.body)
    constraint = tmp_path / "planted-constraints.txt"
    constraint.write_text("filelock==99.0\n")
    config = tmp_path / "config"
    (config / "pip").mkdir(parents=True)
    (config / "uv").mkdir()
    with evil.serve() as url:
        text = (
            f"[global]\nextra-index-url = {url}\nfind-links = {folder}\nconstraint = {constraint}\n"
        )
        (config / "pip" / "pip.conf").write_text(text)
        uv_text = f'find-links = ["{folder}"]\nextra-index-url = ["{url}"]\n'
        (config / "uv" / "uv.toml").write_text(uv_text)
        (tmp_path / "uv.toml").write_text(uv_text)
        (tmp_path / ".pip-tools.toml").write_text(f'[tool.pip-tools]\nfind-links = ["{folder}"]\n')
        for variable, value in {
            "XDG_CONFIG_HOME": str(config),
            "PIP_CONFIG_FILE": str(config / "pip" / "pip.conf"),
            "PIP_FIND_LINKS": str(folder),
            "PIP_EXTRA_INDEX_URL": url,
            "PIP_CONSTRAINT": str(constraint),
            "PIP_PRE": "1",
            "UV_FIND_LINKS": str(folder),
            "UV_EXTRA_INDEX_URL": url,
            "UV_INDEX": url,
            "UV_CONSTRAINT": str(constraint),
            "UV_OVERRIDE": str(constraint),
            "UV_CONFIG_FILE": str(config / "uv" / "uv.toml"),
            "UV_PRERELEASE": "allow",
            "PYTHONPATH": str(folder),
        }.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.chdir(tmp_path)
        yield evil


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_this_machine_reaches_a_lock(
    indexes: Indexes, planted: Index, tmp_path: Path, engine: type[Engine]
) -> None:
    result = locked(CPU_CELL, indexes, engine())
    assert pins(result) == {"torch": "2.0.1+cpu", "filelock": "3.12.2"}
    assert planted.asked == []
    text = lock_bytes(result.lock).decode() + "".join(requirements_texts(result.lock).values())
    for leak in (str(tmp_path), "planted", "127.0.0.1", os.environ["HOME"], "http", "index-url"):
        assert leak not in text, leak


def test_the_plant_would_work_without_our_care(planted: Index, tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    source = tmp_path / "in.txt"
    source.write_text("filelock\n")
    command = [sys.executable, "-m", "piptools", "compile", str(source), "-o", "-", "-q"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PIP_NO_INDEX": "1"}
    )
    assert "filelock==99.0" in done.stdout


def test_a_lock_leaves_no_files_behind(
    indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    locked(CPU_CELL, indexes)
    assert list(tmp_path.iterdir()) == []


class _Looker:
    """An engine that reads the view as a browser would."""

    name = "looker"

    def __init__(self, path: str, accept: str) -> None:
        self.path, self.accept = path, accept
        self.kind, self.text = "", ""

    def compile(self, question: Question, watch: object) -> dict[str, str]:
        url = urllib.parse.urljoin(question.index_url, self.path)
        asked = urllib.request.Request(url, headers={"Accept": self.accept})
        with urllib.request.urlopen(asked) as answer:
            self.kind, self.text = answer.headers["Content-Type"], answer.read().decode()
        return {"torch": "2.0.1+cpu", "filelock": "3.12.2"}


def test_the_view_speaks_both_kinds_of_page_and_metadata(indexes: Indexes) -> None:
    as_json = _Looker("torch/", "application/vnd.pypi.simple.v1+json")
    locked(CPU_CELL, indexes, as_json)
    page = json.loads(as_json.text)
    assert [file["filename"] for file in page["files"]] == ["torch-2.0.1+cpu-py3-none-any.whl"]
    as_html = _Looker("torch/", "text/html")
    locked(CPU_CELL, indexes, as_html)
    assert 'data-core-metadata="true"' in as_html.text
    metadata = _Looker("../files/torch/torch-2.0.1%2Bcpu-py3-none-any.whl.metadata", "*/*")
    locked(CPU_CELL, indexes, metadata)
    assert metadata.text == (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.0.1+cpu\nRequires-Dist: filelock\n"
    )


@pytest.mark.parametrize("path", ["../../simple/torch/", "no-such-name/", "../files/torch/x", ""])
def test_the_view_answers_nothing_else(indexes: Indexes, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        locked(CPU_CELL, indexes, _Looker(path, "*/*"))
    caught.value.close()
    assert caught.value.code == 404


class _Liar:
    """An engine whose answer is made up."""

    name = "liar"

    def __init__(self, **answer: str) -> None:
        self.answer = {"torch": "2.0.1+cpu", "filelock": "3.12.2", **answer}

    def compile(self, question: Question, watch: object) -> dict[str, str]:
        return {name: version for name, version in self.answer.items() if version}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"torch": "2.0.0"}, "lock.unknown-version"),
        ({"torch": ""}, "lock.wrong-build"),
        ({"filelock": ""}, "lock.not-whole"),
        ({"surplus": "1.0"}, "lock.not-whole"),
        ({"filelock": "9.9"}, "lock.unknown-version"),
    ],
)
def test_the_answer_of_an_engine_is_not_simply_believed(
    indexes: Indexes, answer: dict[str, str], code: str
) -> None:
    indexes.package.add("surplus", "1.0")
    with pytest.raises(OutsideError) as caught:
        locked(CPU_CELL, indexes, _Liar(**answer))
    assert caught.value.code == code


def test_constraints_are_held_against_the_answer(indexes: Indexes) -> None:
    bounded = msgspec.structs.replace(CPU_CELL, constraints=("filelock<3",))
    with pytest.raises(OutsideError) as caught:
        locked(bounded, indexes, _Liar())
    assert caught.value.code == "lock.not-whole"
    assert "filelock<3" in caught.value.message


def test_pins_are_read_from_either_engines_text() -> None:
    text = "# head\nNum.Py==1.25.0 \\\n    --hash=sha256:00\nmine[more]==1.0+x ; a == 'b'\n-e .\n"
    assert read_pins(text) == {"num-py": "1.25.0", "mine": "1.0+x"}


def test_an_engine_that_cannot_start(indexes: Indexes, tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as caught:
        locked(CPU_CELL, indexes, Uv(str(tmp_path / "no-uv")))
    assert caught.value.code == "lock.engine-start"


@pytest.mark.parametrize(
    ("text", "says"),
    [("kill -KILL $$", "was killed by SIGKILL"), ("kill -SEGV $$", "was killed by SIGSEGV")],
)
def test_an_engine_that_died_has_answered_nothing(
    indexes: Indexes, tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(OutsideError) as caught:
        locked(CPU_CELL, indexes, Uv(str(script(tmp_path / "uv", text))))
    assert caught.value.code == "lock.engine-died"
    assert says in caught.value.message


@pytest.mark.parametrize("make", ENGINES)
def test_a_loopback_that_is_down_is_no_lack_of_versions(
    indexes: Indexes, tmp_path: Path, make: type[Engine]
) -> None:
    """The engine runs in a network namespace of its own, where nothing is up."""
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        skip_or_fail("system", "network namespaces cannot be made here")
    engine = make()
    if isinstance(engine, Uv):
        engine = Uv(str(script(tmp_path / "uv", f'exec unshare -rn {engine.program} "$@"')))
    elif isinstance(engine, PipTools):
        wrapper = script(tmp_path / "python", f'exec unshare -rn {engine.python} "$@"')
        engine = PipTools(str(wrapper), engine.library)
    with pytest.raises(OutsideError) as caught:
        locked(CPU_CELL, indexes, engine)
    assert caught.value.code == "lock.loopback"


def test_a_defect_of_the_view_is_not_told_as_a_lack_of_versions(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(project: object) -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr(view, "_json_page", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        locked(CPU_CELL, indexes, uv())
    assert "Traceback" not in capfd.readouterr().err


def test_an_engine_that_hangs_up_is_no_news(
    indexes: Indexes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A client that resets its connection in the middle of a request, then the real engine."""
    reset = (
        "import os, socket, struct, sys, urllib.parse as p\n"
        "u = p.urlsplit(os.environ['UV_DEFAULT_INDEX'])\n"
        "for _ in range(20):\n"
        "    s = socket.create_connection((u.hostname, u.port))\n"
        "    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
        "    s.sendall(b'GET ' + u.path.encode() + b'filelock/ HTTP/1.1\\r\\nHost: x')\n"
        "    s.close()\n"
    )
    (tmp_path / "reset.py").write_text(reset, encoding="ascii")
    program = Uv(uv().program).program  # type: ignore[attr-defined]
    text = f'{sys.executable} {tmp_path}/reset.py && exec {program} "$@"'
    locked(CPU_CELL, indexes, Uv(str(script(tmp_path / "uv", text))))
    assert "Traceback" not in capfd.readouterr().err


# --- finding ---


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


OTHER = Target(python="3.7" if HERE != "3.7" else "3.8", arch=machine(), glibc="2.31")
OTHER_NAME = f"python{OTHER.python}"


def test_an_interpreter_is_found_by_variable_and_path(tmp_path: Path) -> None:
    says = f"echo {OTHER.python} cpython {OTHER.arch}"
    named = script(tmp_path / "named", says)
    on_path = script(tmp_path / OTHER_NAME, says)
    assert find.find_python(OTHER, str(named), {}) == str(named)
    variable = f"PROVISION_PYTHON_{OTHER.python.replace('.', '')}"
    assert find.find_python(OTHER, None, {variable: str(named)}) == str(named)
    assert find.find_python(OTHER, None, {"PATH": str(tmp_path)}) == str(on_path)


def test_a_name_that_does_not_run_is_not_taken(tmp_path: Path) -> None:
    """A version manager leaves such names for versions that are not chosen."""
    script(tmp_path / OTHER_NAME, "echo not chosen >&2; exit 127")
    with pytest.raises(OutsideError) as caught:
        find.find_python(OTHER, None, {"PATH": str(tmp_path)})
    assert caught.value.code == "lock.no-python"
    assert f"{OTHER_NAME} on the path: does not run" in caught.value.message


def test_a_missing_interpreter_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as caught:
        find.find_python(OTHER, None, {"PATH": str(tmp_path)})
    step = caught.value.next_step or ""
    assert "--lock-python PATH" in step
    assert f"PROVISION_PYTHON_{OTHER.python.replace('.', '')}" in step
    assert "--engine uv" in step


def test_a_wrong_interpreter_is_not_taken_even_when_named() -> None:
    with pytest.raises(OutsideError) as caught:
        find.find_python(OTHER, sys.executable, {})
    assert f"--lock-python: {HERE} cpython" in caught.value.message


def test_pip_tools_does_not_judge_for_another_machine() -> None:
    foreign = msgspec.structs.replace(OTHER, arch="riscv64")
    with pytest.raises(OutsideError) as caught:
        find.find_python(foreign, sys.executable, {})
    assert caught.value.code == "lock.engine-machine"


def test_the_choice_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    target, asking = CPU_CELL.target, Client(environ={})
    assert isinstance(find.find_engine("auto", target, None, asking, "http://x"), Uv)
    chosen = find.find_engine("pip-tools", target, None, asking, "http://x")
    assert isinstance(chosen, PipTools)
    assert chosen.library is None
    monkeypatch.setattr(find, "find_uv", lambda: None)
    assert isinstance(find.find_engine("auto", target, None, asking, "http://x"), PipTools)
    with pytest.raises(OutsideError) as caught:
        find.find_engine("uv", target, None, asking, "http://x")
    assert caught.value.code == "lock.no-uv"
    with pytest.raises(UsageError):
        find.find_engine("conda", target, None, asking, "http://x")


# --- pip-tools for another interpreter ---


@pytest.fixture
def small_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Index:
    """An index with one pinned wheel, which the tool set asks for; the cache is empty."""
    index = Index()
    made = index.add("pip-tools", "1.0")
    assert made.sha256 is not None
    wheel = toolset.Wheel(project="pip-tools", filename=made.filename, sha256=made.sha256)
    pinned = toolset.WheelSet(python_from="3.8", wheels=(wheel,))
    monkeypatch.setattr(toolset, "wheel_set", lambda python: pinned)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return index


def test_the_tool_set_is_made_once(small_set: Index) -> None:
    with small_set.serve() as url:
        folder = toolset.library(OTHER, Client(environ={}), url)
        assert (folder / "pip_tools.py").is_file()
        before = list(small_set.asked)
        assert toolset.library(OTHER, Client(environ={}), url) == folder
    assert small_set.asked == before
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_a_tampered_tool_is_refused_and_leaves_nothing(small_set: Index, tmp_path: Path) -> None:
    small_set.projects["pip-tools"][0].body += b"x"
    with small_set.serve() as url, pytest.raises(OutsideError) as caught:
        toolset.library(OTHER, Client(environ={}), url)
    assert caught.value.code == "index.file-hash"
    assert list((tmp_path / "cache" / "provision" / "lock").iterdir()) == []


def test_an_index_without_the_tool(small_set: Index) -> None:
    small_set.projects.clear()
    with small_set.serve() as url, pytest.raises(OutsideError) as caught:
        toolset.library(OTHER, Client(environ={}), url)
    assert caught.value.code == "lock.no-pip-tools"


def test_the_shipped_tool_sets_are_pure_wheels_with_hashes() -> None:
    for python in ("3.8", "3.9", "3.10", "3.15"):
        pinned = toolset.wheel_set(python)
        assert pinned is not None
        assert {"pip", "pip-tools", "click", "build"} <= {wheel.project for wheel in pinned.wheels}
        for wheel in pinned.wheels:
            assert wheel.filename.endswith("-py3-none-any.whl")
            assert len(wheel.sha256) == hashlib.sha256().digest_size * 2
    assert toolset.wheel_set("3.7") is None
