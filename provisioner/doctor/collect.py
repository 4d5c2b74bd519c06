"""Runs the two readers: on this machine with an interpreter of it, or inside an image."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from provisioner.errors import OutsideError
from provisioner.host import facts as facts_module
from provisioner.verify import probe as probe_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provisioner.build.engine import Engine

PROBE: Final = Path(probe_module.__file__)
FACTS: Final = Path(facts_module.__file__)
READERS: Final = (FACTS.with_name("environment.py"), FACTS, PROBE)
_PLACE = "/provision-doctor"
_LIMIT_S = 300.0
_LIMIT = 32 << 20
_LAST_LINES = 6


class _Here(facts_module.Host):
    """This machine. Its python3 is not asked for its version: the judged interpreter tells more."""

    def program(self, name: str) -> str | None:
        return None if name == "python3" else super().program(name)


def collect_here(python: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """The facts of this machine, and of an environment on it where there is an interpreter.

    Raises OutsideError `doctor.no-python` or `doctor.no-facts`.
    """
    found = facts_module.collect(_Here())
    found["environment"] = None if python is None else ask(python, environ)
    return found


def ask(python: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """What environment.py tells, run by `python` with the caller's own environment."""
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise OutsideError(
            "doctor.no-python",
            f"There is no Python to look at in {python}.",
            next_step="Name an environment with --env, or an interpreter with --python.",
        )
    command = [str(python), "-B", str(READERS[0]), str(PROBE.parent)]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(str(python), str(error)) from None
    return _parse(done.stdout, done.stderr.decode("utf-8", "replace"), str(python))


def collect_image(engine: Engine, image: str, python: str, *, gpus: bool) -> dict[str, Any]:
    """The facts as a program in a container of `image` meets them, without a network.

    Raises OutsideError without such an image, or where its Python tells nothing.
    """
    from docker.errors import APIError, DockerException, ImageNotFound
    from docker.types import DeviceRequest

    try:
        container = engine.api.containers.create(
            image,
            entrypoint=[python, "-B", f"{_PLACE}/environment.py", _PLACE, _PLACE],
            command=[],
            network_mode="none",
            device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
        )
    except ImageNotFound:
        raise OutsideError(
            "doctor.no-image",
            f"The engine at {engine.host} has no image {image}.",
            next_step=f"docker pull {image}",
        ) from None
    except DockerException as error:
        raise _failed(image, str(error)) from None
    try:
        container.put_archive("/", _archive())
        container.start()
        container.wait(timeout=_LIMIT_S)
        out = container.logs(stdout=True, stderr=False)
        told = container.logs(stdout=False, stderr=True, tail=40).decode("utf-8", "replace")
    except (APIError, OSError) as error:
        raise _failed(image, str(getattr(error, "explanation", None) or error)) from None
    finally:
        container.remove(force=True)
    return _parse(out, told, image)


def _archive() -> bytes:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        folder = tarfile.TarInfo(_PLACE.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for path in READERS:
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{_PLACE.lstrip('/')}/{path.name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _parse(out: bytes, told: str, who: str) -> dict[str, Any]:
    last = out.strip().rpartition(b"\n")[2]
    if len(out) > _LIMIT or not last.startswith(b"{"):
        raise _failed(who, told or "no output")
    try:
        found = msgspec.json.decode(last, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _failed(who, str(error)) from None
    return found


def _failed(who: str, said: str) -> OutsideError:
    shown = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
    return OutsideError(
        "doctor.no-facts",
        f"The reader that {who} ran told nothing:\n{shown}",
        next_step="It needs Python 3.8 or newer; --python names another interpreter.",
    )
