"""Finds what builds need: a docker client that speaks BuildKit, and an engine that answers.

Builds go through the client, since the Engine API alone can't do BuildKit; everything else goes
over the API.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from docker import DockerClient

_PROBE_SECONDS = 20
_API_SECONDS = 60


@dataclass(frozen=True)
class Client:
    """A docker client that builds with BuildKit; `loads` when it must be told to keep the image."""

    path: Path
    loads: bool


@dataclass(frozen=True)
class Engine:
    """A reachable engine. `free_bytes` is null where its disk can't be seen from here."""

    client: Client
    api: DockerClient
    host: str
    version: str
    free_bytes: int | None

    def environment(self) -> dict[str, str]:
        """Returns the environment in which the client builds with this engine and BuildKit."""
        return {**os.environ, "DOCKER_BUILDKIT": "1", "DOCKER_HOST": self.host}


def find_client(environment: Mapping[str, str]) -> Client:
    """Returns the first docker client that can do BuildKit; raises OutsideError with what it tried.

    Tried are $PROVISION_DOCKER, else every `docker` on PATH: the first one often lacks its
    BuildKit plugin while an older one further on brings it built in.
    """
    tried: dict[str, str] = {}
    for path in _candidates(environment):
        found = _probe(path)
        if isinstance(found, Client):
            return found
        tried[str(path)] = found
    message = (
        "No docker client here can build with BuildKit."
        if tried
        else "There is no docker client on PATH."
    )
    raise OutsideError(
        "build.no-client",
        message,
        facts=tried,
        next_step="Install docker with its buildx plugin (or a 20.10 client), or name a client "
        "with PROVISION_DOCKER=/path/to/docker.",
    )


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    named = environment.get("PROVISION_DOCKER")
    if named:
        return [Path(named)]
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    paths = [Path(folder) / "docker" for folder in folders if folder]
    usable = [path for path in paths if path.is_file() and os.access(path, os.X_OK)]
    return list({path.resolve(): path for path in reversed(usable)}.values())[::-1]


def _probe(path: Path) -> Client | str:
    """The client when `build` runs with BuildKit on, else what it said. Needs no engine."""
    try:
        said = subprocess.run(
            [str(path), "build", "--help"],
            env=_without_engine(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    text = said.stdout.decode("utf-8", "replace")
    if said.returncode != 0:
        return " ".join(text.split("\n", 1)[0].split()) or f"exit status {said.returncode}"
    if "--secret" not in text:
        return "its build command knows no secrets: older than 18.09, or without BuildKit"
    return Client(path=path, loads="--load" in text)


def _without_engine(environment: Mapping[str, str]) -> dict[str, str]:
    """What a client is asked about itself must not hang on an address of an engine."""
    kept = {k: v for k, v in environment.items() if k not in ("DOCKER_HOST", "DOCKER_CONTEXT")}
    return {**kept, "DOCKER_BUILDKIT": "1"}


def connect(client: Client, environment: Mapping[str, str]) -> Engine:
    """Returns the engine that `client` would use, once it has answered a ping.

    Raises OutsideError: no engine, no permission, or an engine that can't be talked to.
    """
    from docker.errors import DockerException

    import docker

    host = environment.get("DOCKER_HOST") or _context_host(client)
    api: DockerClient | None = None
    try:
        _knock(host)
        api = docker.from_env(
            environment={**environment, "DOCKER_HOST": host},
            timeout=_API_SECONDS,
            use_ssh_client=host.startswith("ssh://"),
        )
        api.ping()
        version = str(api.version().get("Version", "?"))
        info = api.info()
    except (DockerException, OSError, ValueError) as error:  # ValueError: no address at all
        if api is not None:
            api.close()
        raise _unreachable(error, host) from None
    return Engine(
        client=client,
        api=api,
        host=host,
        version=version,
        free_bytes=_free_bytes(host, str(info.get("DockerRootDir", ""))),
    )


def _knock(host: str) -> None:
    """Opens and closes a local engine's socket: the system's own error is the clearest."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_API_SECONDS)
            door.connect(host.removeprefix("unix://"))


def _context_host(client: Client) -> str:
    """The engine of the client's current context; Docker's own default where it has none."""
    try:
        said = subprocess.run(
            [str(client.path), "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OutsideError(
            "build.client-hangs",
            f"The docker client {client.path} does not say which engine it uses: {error}.",
            facts={"client": str(client.path), "waited_s": _PROBE_SECONDS},
            next_step="Name the engine with DOCKER_HOST, or another client with PROVISION_DOCKER.",
        ) from None
    host = said.stdout.strip()
    return host if said.returncode == 0 and "://" in host else "unix:///var/run/docker.sock"


def shown(address: str) -> str:
    """An address without user and password: no part of what stands before its last @."""
    front, at, host = address.rpartition("@")
    scheme = f"{front.partition('://')[0]}://" if "://" in front else ""
    return f"{scheme}***@{host}" if at else address


def _reason(error: BaseException, address: str) -> str:
    """What went wrong, unless a piece of a password is in it."""
    text = str(error).replace(address, shown(address))
    secret = address.rpartition("@")[0].partition("://")[2] or address.rpartition("@")[0]
    pieces = [piece for piece in re.split(r"[^A-Za-z0-9]+", secret) if piece]
    if any(re.search(rf"\b{piece}\b", text) for piece in pieces):
        return "its address cannot be understood."
    return text[:300]


def _unreachable(error: BaseException, address: str) -> OutsideError:
    host = shown(address)
    numbers = {cause.errno for cause in _causes(error) if isinstance(cause, OSError)}
    if numbers & {errno.EACCES, errno.EPERM}:
        return OutsideError(
            "build.no-permission",
            f"The Docker engine at {host} does not let this user in (uid {os.getuid()}).",
            facts={"host": host},
            next_step="Have an administrator add you to the group `docker` and log in again, or "
            "point DOCKER_HOST at an engine of your own (rootless docker).",
        )
    if numbers & {errno.ENOENT, errno.ECONNREFUSED}:
        return OutsideError(
            "build.no-engine",
            f"No Docker engine answers at {host}.",
            facts={"host": host},
            next_step="Start the engine, or point DOCKER_HOST at one that runs.",
        )
    return OutsideError(
        "build.engine-unreachable",
        f"The Docker engine at {host} could not be asked: {_reason(error, address)}",
        facts={"host": host},
        next_step="Check DOCKER_HOST and that the engine runs (docker version).",
    )


def _causes(error: BaseException) -> list[BaseException]:
    """The error with all that it stands for: HTTP libraries wrap the system's own error."""
    found: list[BaseException] = []
    queue: list[object] = [error]
    while queue:
        item = queue.pop()
        if isinstance(item, BaseException) and item not in found:
            found.append(item)
            queue += [item.__cause__, item.__context__, *item.args]
    return found


def _free_bytes(host: str, root: str) -> int | None:
    """Free space where a local engine keeps its images."""
    if not host.startswith("unix://") or not root:
        return None
    place = next(p for p in (Path(root), *Path(root).parents) if os.path.exists(p))  # noqa: PTH110
    return shutil.disk_usage(place).free
