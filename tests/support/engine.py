"""The Docker engine of the tests: found, never started. tools/test-engine starts one."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.needs import UnavailableError

PROJECT = Path(__file__).resolve().parents[2]
TOOL = PROJECT / "tools" / "test-engine"
START_ADVICE = (
    "as root: tools/test-engine install && tools/test-engine start && tools/test-engine bases"
)
IMAGE_PREFIX = "localhost/provision-test/debian"
SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A reachable engine and a docker client that can do BuildKit with it."""

    client: Path
    host: str
    version: str

    @property
    def environ(self) -> dict[str, str]:
        """The environment for programs that shall use this engine."""
        path = os.pathsep.join([str(self.client.parent), os.environ.get("PATH", "")])
        return {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "1", "PATH": path}

    def docker(self, *arguments: str, timeout: float = 120) -> Completed:
        """Run the client with `arguments`; never raises for a failed command."""
        return subprocess.run(
            [str(self.client), *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def build(
        self,
        context: Path,
        *arguments: str,
        dockerfile: Path | None = None,
        timeout: float = 1800,
    ) -> Completed:
        """Build an image with BuildKit; its plain progress is in stderr.

        The host's network is used, so that an index on 127.0.0.1 can serve the build.
        """
        chosen = [] if dockerfile is None else ["--file", str(dockerfile)]
        options = ["--progress=plain", "--network=host", *chosen]
        return self.docker("build", *options, *arguments, str(context), timeout=timeout)

    def run(
        self,
        image: str,
        *command: str,
        options: Sequence[str] = (),
        timeout: float = 600,
    ) -> Completed:
        """Run `command` in a fresh container that is removed afterwards."""
        return self.docker("run", "--rm", *options, image, *command, timeout=timeout)

    def has_image(self, name: str) -> bool:
        """Tell whether the engine holds the image `name`."""
        return self.docker("image", "inspect", name).returncode == 0

    def remove_image(self, name: str) -> None:
        """Remove the image `name` if it is there."""
        self.docker("image", "rm", "--force", name)


def find_engine() -> Engine:
    """Return the engine that the environment or tools/test-engine names, once it has answered.

    Raises UnavailableError with the reason and the remedy.
    """
    told = subprocess.run(
        [str(TOOL), "env"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if told.returncode != 0:
        raise UnavailableError(told.stderr.strip() or f"tools/test-engine env: {told.returncode}")
    variables = dict(re.findall(r"^export (\w+)='([^']*)'$", told.stdout, flags=re.MULTILINE))
    client = Path(variables["PROVISION_TEST_DOCKER"])
    host = variables["PROVISION_TEST_DOCKER_HOST"]
    engine = Engine(client=client, host=host, version="")
    answer = engine.docker("version", "--format", "{{.Server.Version}}", timeout=30)
    if answer.returncode != 0:
        raise UnavailableError(f"no Docker engine answers at {host}; {START_ADVICE}")
    return Engine(client=client, host=host, version=answer.stdout.strip())


def base_image_name(engine: Engine, version: str) -> str:
    """Return the name of the Debian base image of `version` ("11", "12", "13") in the engine.

    Raises UnavailableError where it is missing.
    """
    name = f"{IMAGE_PREFIX}:{version}"
    if not engine.has_image(name):
        raise UnavailableError(
            missing_suite(version)
            or f"{name} is not in the engine; tools/test-engine bases {SUITES[version]}"
        )
    return name


def missing_suite(version: str) -> str | None:
    """Return why Debian's archive could not give `version`, or None if it never refused."""
    record = PROJECT / ".cache" / "engine" / "base" / f"{SUITES[version]}.unavailable"
    return record.read_text(encoding="utf-8").strip() if record.exists() else None
