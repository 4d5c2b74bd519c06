"""tools/test-engine on a folder of its own: a second engine beside the one of the tests."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import TOOL, Engine
from support.needs import skip_or_fail

pytestmark = pytest.mark.images


def own_environ() -> dict[str, str]:
    """Return the environment without what points at the tests' engine, which must stay whole."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PROVISION_TEST_") and name != "DOCKER_HOST"
    }


class Tool:
    """A copy of the tool: its engine's data and socket belong to the copy's folder."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.path = project / "tools" / TOOL.name
        self.path.parent.mkdir(parents=True)
        shutil.copy(TOOL, self.path)

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path), *arguments],
            env={**own_environ(), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script that finds the tool as $0."""
        return subprocess.run(
            ["sh", "-ec", script, str(self.path)],
            env=own_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def host(self) -> str:
        """Return the address of its engine."""
        told = self("env").stdout
        return next(line.split("'")[1] for line in told.splitlines() if "DOCKER_HOST=" in line)


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    """The tool in a project folder of its own, stopped and emptied afterwards."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        skip_or_fail("engine", "starting an engine needs root and dockerd")
    tool = Tool(tmp_path / "project")
    yield tool
    assert tool("clean").returncode == 0


def bridges() -> set[str]:
    """Return the names of this machine's network bridges."""
    return {path.parent.name for path in Path("/sys/class/net").glob("*/bridge")}


def test_an_engine_starts_once_survives_a_crash_and_stops(tool: Tool) -> None:
    others = bridges()
    assert tool("status").returncode == 1
    assert "is up at" in tool("start").stderr
    assert "already running" in tool("start").stderr

    socket = Path(tool.host().removeprefix("unix://"))
    os.kill(int((socket.parent / "dockerd.pid").read_text()), signal.SIGKILL)
    again = tool("start")
    assert again.returncode == 0, again.stderr
    assert tool("status").returncode == 0

    assert "stopped" in tool("stop").stderr
    assert not socket.parent.exists()
    assert bridges() == others, "the bridge of another engine must stay, and its own must go"
    assert tool("status").returncode == 1


def test_an_archive_that_gives_nothing_is_a_failure_not_a_retired_suite(tool: Tool) -> None:
    assert tool("start").returncode == 0
    nowhere = "http://127.0.0.1:9/debian"
    done = tool("bases", "bullseye", PROVISION_TEST_DEBIAN_MIRROR=nowhere)
    assert done.returncode == 1, done.stderr
    assert "is the Debian archive reachable?" in done.stderr
    assert not list(tool.project.rglob("*.unavailable"))


def test_a_suite_that_the_archive_lacks_has_a_status_and_a_reason_of_its_own(
    tool: Tool, engine: Engine, base_image: Callable[[str], str]
) -> None:
    assert tool("start").returncode == 0
    script = """
        eval "$("$0" env)"
        name=localhost/provision-test/debian:12
        tar -C / -c etc/hostname | "$PROVISION_TEST_DOCKER" import - "$name"
    """
    loaded = tool.shell(script)
    assert loaded.returncode == 0, loaded.stderr
    kept = engine.run(base_image("12"), "true")
    assert kept.returncode == 0, "the script must reach the copy's engine, not the tests' own"
    nowhere = "http://127.0.0.1:9/debian"
    done = tool("bases", "bookworm", "bullseye", PROVISION_TEST_DEBIAN_MIRROR_BULLSEYE=nowhere)
    assert done.returncode == 3, done.stderr
    record = tool.project / ".cache" / "engine" / "base" / "bullseye.unavailable"
    assert record.read_text().startswith(f"the Debian archive {nowhere} does not carry bullseye")
