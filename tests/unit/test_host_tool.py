"""What goes to a host: the wheel holds what runs here, the lock the same versions as ours."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.engine import PROJECT

from provisioner.cli.main import run
from provisioner.host import tool

PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tool.Tool:
    return tool.write_tool(tmp_path_factory.mktemp("tool"))


def test_the_same_content_gives_the_same_bytes_and_place(made: tool.Tool, tmp_path: Path) -> None:
    again = tool.write_tool(tmp_path)
    assert again.digest == made.digest
    assert again.wheel.read_bytes() == made.wheel.read_bytes()
    assert again.wheel.parent.name == made.digest


def test_another_file_gives_another_digest(made: tool.Tool, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_bytes(made.lock.read_bytes() + b"# one line more\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "LOCK", lock)
        assert tool.write_tool(tmp_path).digest != made.digest


def test_what_was_cut_off_is_written_again(made: tool.Tool, tmp_path: Path) -> None:
    place = tmp_path / made.digest
    place.mkdir()
    (place / made.wheel.name).write_bytes(b"half")
    assert tool.write_tool(tmp_path).wheel.read_bytes() == made.wheel.read_bytes()


def test_the_record_of_the_wheel_is_right(made: tool.Tool) -> None:
    with zipfile.ZipFile(made.wheel) as wheel:
        names = set(wheel.namelist())
        record = next(name for name in names if name.endswith("/RECORD"))
        lines = [line.rsplit(",", 2) for line in wheel.read(record).decode().splitlines()]
        assert {name for name, _, _ in lines} == names
        for name, told, size in lines:
            if name != record:
                content = wheel.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
                assert (told, size) == (f"sha256={digest.rstrip('=')}", str(len(content)))
    assert "provisioner/data/matrix.yaml" in names
    assert not [name for name in names if "__pycache__" in name or "evidence/" in name]


def test_it_runs_from_the_wheel_alone(made: tool.Tool) -> None:
    code = f"import sys; sys.path.insert(0, {str(made.wheel)!r}); sys.argv[1:] = ['--version']\n"
    code += "from provisioner import __main__ as m; print(m.__file__); sys.exit(m.main())"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(made.wheel) in done.stdout


def test_the_lock_has_our_versions_with_hashes() -> None:
    ours = dict(PIN.findall((PROJECT / "requirements/run.txt").read_text(encoding="utf-8")))
    text = tool.LOCK.read_text(encoding="utf-8")
    theirs = dict(PIN.findall(text))
    assert {"click", "msgspec", "py-rattler", "uv"} <= set(theirs)
    assert theirs == {name: ours[name] for name in theirs}
    assert text.count("--hash=sha256:") >= len(theirs)


def test_the_pythons_are_those_of_the_package() -> None:
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    first, last = (tuple(map(int, s.split("."))) for s in (tool.PYTHONS[0], tool.PYTHONS[-1]))
    beyond = f"{last[0]}.{last[1] + 1}"
    assert f'requires-python = ">={first[0]}.{first[1]},<{beyond}"' in text
    assert list(tool.PYTHONS) == [f"3.{minor}" for minor in range(first[1], last[1] + 1)]


def test_the_command_says_where_they_lie(
    tmp_path: Path, made: tool.Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["host", "tool", "--json", f"--out={tmp_path}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["digest"] == made.digest
    assert Path(told["wheel"]).is_file()
    assert Path(told["lock"]).read_bytes() == made.lock.read_bytes()


def test_a_folder_that_cannot_be_written_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["host", "tool", f"--out={tmp_path}/file"]) == 4
    assert "host.tool-unwritable" in capsys.readouterr().err
