"""Finding a client with BuildKit and an engine that answers: real programs, real sockets."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest
from support.needs import needs

from provisioner.build import image
from provisioner.build.engine import Client, Engine, connect, find_client
from provisioner.errors import OutsideError, UsageError

GOOD = "#!/bin/sh\n[ \"$DOCKER_BUILDKIT\" = 1 ] || exit 9\necho '--secret'\n"
LOADS = "#!/bin/sh\necho '--secret --load'\n"
NO_BUILDX = (
    "#!/bin/sh\necho 'ERROR: BuildKit is enabled but the buildx component is missing'\nexit 1\n"
)
ANCIENT = "#!/bin/sh\necho '--build-arg'\n"


def program(folder: Path, text: str, name: str = "docker") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)
    return path


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join(map(str, folders))}


def test_the_first_client_that_can_do_buildkit_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "1", NO_BUILDX)
    program(tmp_path / "2", ANCIENT)
    good = program(tmp_path / "3", GOOD)
    program(tmp_path / "4", LOADS)
    folders = [tmp_path / name for name in ("none", "1", "2", "3", "4")]
    assert find_client(path_of(*folders)) == Client(path=good, loads=False)
    assert find_client(path_of(tmp_path / "4")).loads


def test_a_named_client_is_the_only_one_tried(tmp_path: Path) -> None:
    program(tmp_path / "good", GOOD)
    named = program(tmp_path / "named", NO_BUILDX)
    with pytest.raises(OutsideError) as refused:
        find_client({**path_of(tmp_path / "good"), "PROVISION_DOCKER": str(named)})
    assert list(refused.value.facts) == [str(named)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NO_BUILDX, "ERROR: BuildKit is enabled but the buildx component is missing"),
        (ANCIENT, "its build command knows no secrets"),
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("not a program", "Exec format error"),
    ],
)
def test_the_refusal_names_what_was_tried_and_why_not(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = program(tmp_path, text)
    with pytest.raises(OutsideError) as refused:
        find_client(path_of(tmp_path))
    assert refused.value.code == "build.no-client"
    assert reason in refused.value.facts[str(path)]
    assert "PROVISION_DOCKER" in (refused.value.next_step or "")


def test_without_any_client_the_refusal_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="no docker client on PATH"):
        find_client(path_of(tmp_path))


# --- the engine ---


class UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


ANSWERS = {
    "/_ping": ("text/plain", "OK"),
    "/version": ("application/json", '{"Version":"20.10.24","ApiVersion":"1.41","Arch":"amd64"}'),
    "/info": ("application/json", '{"DockerRootDir":"/nonexistent/but/below/root"}'),
}


@contextmanager
def answering_engine(path: Path) -> Iterator[str]:
    """A socket that answers what an engine answers to ping, version and info."""

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the tests' output quiet."""

        def do_GET(self) -> None:
            kind, body = next(a for end, a in ANSWERS.items() if self.path.endswith(end))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    server = UnixServer(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_engine_that_answers_is_connected_with_its_disk(tmp_path: Path) -> None:
    client = Client(path=program(tmp_path, GOOD), loads=False)
    with answering_engine(tmp_path / "engine.sock") as host:
        engine = connect(client, {"DOCKER_HOST": host})
        assert engine.version == "20.10.24"
        assert engine.free_bytes is not None
        assert engine.free_bytes > 0
        assert engine.environment()["DOCKER_BUILDKIT"] == "1"
        assert engine.environment()["DOCKER_HOST"] == host
        engine.api.close()


def test_the_engine_of_the_clients_context_is_taken_without_docker_host(tmp_path: Path) -> None:
    with answering_engine(tmp_path / "engine.sock") as host:
        script = f"#!/bin/sh\n[ \"$1\" = context ] && echo '{host}'\n"
        client = Client(path=program(tmp_path, script), loads=False)
        engine = connect(client, {})
        assert engine.host == host
        engine.api.close()


def closed_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("there", [False, True])
def test_no_engine_is_one_clear_refusal(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "engine.sock"
    if there:
        closed_socket(path)  # the file of an engine that has ended
    with pytest.raises(OutsideError) as refused:
        connect(Client(path=Path("docker"), loads=False), {"DOCKER_HOST": f"unix://{path}"})
    assert refused.value.code == "build.no-engine"
    assert str(path) in refused.value.message


@pytest.mark.parametrize(
    "host",
    [
        "tcp://1.2.3.4:99999",
        "tcp://[::1",
        "tcp://",
        "nonsense",
        f"unix:///{'x' * 200}",
        "http://a:b",
    ],
)
def test_an_address_that_is_none_is_one_clear_refusal(host: str) -> None:
    with pytest.raises(OutsideError) as refused:
        connect(Client(path=Path("docker"), loads=False), {"DOCKER_HOST": host})
    assert refused.value.code in {"build.engine-unreachable", "build.no-engine"}


@pytest.mark.parametrize(
    "host",
    [
        "tcp://me:s3cret@127.0.0.1:1",
        "tcp://me:s3cret/more@127.0.0.1:1",
        "tcp://me:s3cret more@127.0.0.1:1",
        "tcp://s3cret@127.0.0.1:1",
        "tcp://me:a@s3cret@[::1",
        "http://h:s3cret/x@h",
        "me:s3cret@host",
    ],
)
def test_a_password_of_the_engines_address_is_not_shown(host: str) -> None:
    with pytest.raises(OutsideError) as refused:
        connect(Client(path=Path("docker"), loads=False), {"DOCKER_HOST": host})
    assert "s3cret" not in str(refused.value.to_dict())
    assert "***@" in refused.value.message


def test_a_client_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioner.build.engine._PROBE_SECONDS", 0.2)
    client = Client(path=program(tmp_path, "#!/bin/sh\nexec sleep 60\n"), loads=False)
    with pytest.raises(OutsideError) as refused:
        connect(client, {})
    assert refused.value.code == "build.client-hangs"


def test_clients_are_asked_about_themselves_whatever_engine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://[::1")
    text = "#!/bin/sh\n[ -z \"$DOCKER_HOST\" ] && echo ' --secret'\n"
    path = program(tmp_path, text)
    assert find_client({"PROVISION_DOCKER": str(path)}).path == path


@needs("system", missing=os.getuid() != 0, reason="only root can ask as another user")
def test_no_permission_is_told_apart_from_no_engine() -> None:
    import docker  # noqa: F401 - the other user may not be able to read it

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "engine.sock"
        closed_socket(path)
        path.chmod(0o600)
        told = as_nobody(f"unix://{path}")
    assert told.startswith("build.no-permission")
    assert "(uid 65534)" in told


def as_nobody(host: str) -> str:
    """What connecting says to another user, in a copy of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            connect(Client(path=Path("docker"), loads=False), {"DOCKER_HOST": host})
        except OutsideError as error:
            os.write(writer, f"{error.code} {error.message}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


# --- before a build ---


def engine_with(free: int | None) -> Engine:
    client = Client(path=Path("docker"), loads=True)
    return Engine(client=client, api=None, host="unix:///x", version="28", free_bytes=free)  # type: ignore[arg-type]


def test_a_full_disk_is_refused_with_both_numbers() -> None:
    with pytest.raises(OutsideError) as refused:
        image.check_room(engine_with(9_000_000_000), "cuda")
    assert refused.value.code == "build.no-space"
    assert "9.0 GB free" in refused.value.message
    assert "15.0 GB" in refused.value.message
    image.check_room(engine_with(9_000_000_000), "cpu")
    image.check_room(engine_with(None), "cuda")


def test_secrets_are_known_and_readable(tmp_path: Path) -> None:
    there = tmp_path / "ca.pem"
    there.write_text("x", encoding="ascii")
    image.check_secrets({"ca": there, "netrc": there, "pip_conf": there})
    with pytest.raises(UsageError, match="No build takes a secret 'token'"):
        image.check_secrets({"token": there})
    with pytest.raises(UsageError, match="can't be read"):
        image.check_secrets({"ca": tmp_path / "none"})
