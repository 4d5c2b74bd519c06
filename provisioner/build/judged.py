"""Runs the probe in a container of an image, as the image's own user and without a network."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.errors import OutsideError
from provisioner.verify.report import Report, parse_report
from provisioner.verify.run import PROBE, Question

if TYPE_CHECKING:
    from provisioner.build.engine import Engine

CELL_LABEL = "io.provision.cell"
_OURS = "/usr/local/bin/provision-verify"
_PLACE = "/provision-probe"
_LIMIT = 32 << 20
_LAST = 2000


def verify_image(engine: Engine, image: str, question: Question, python: str = "python3") -> Report:
    """Returns the report of the probe run in `image`.

    An image of ours runs its own `provision-verify` with the promise that it carries (that of
    `question` counts when it has one). Any other image runs our probe by its `python`. Raises
    OutsideError without such an image, without GPUs for it, or without a report.
    """
    from docker.errors import APIError, DockerException, ImageNotFound
    from docker.types import DeviceRequest

    try:
        labels = engine.api.images.get(image).labels or {}
        ours = CELL_LABEL in labels and question.expect is None
        gpus = question.device != "cpu" and _wants_gpu(question, labels)
        container = engine.api.containers.create(
            image,
            entrypoint=[_OURS] if ours else [python, f"{_PLACE}/probe.py"],
            command=["--json", *question.options(_expect(question, ours=ours))],
            network_mode="none",
            device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
        )
    except ImageNotFound:
        raise OutsideError(
            "verify.no-image",
            f"The engine at {engine.host} has no image {image}.",
            facts={"image": image},
            next_step=f"docker pull {image}, or provision build CELL.",
        ) from None
    except DockerException as error:
        raise _failed(image, str(error)) from None
    try:
        if not ours:
            container.put_archive("/", _archive(question))
        container.start()
        status = int(container.wait()["StatusCode"])
        out = _bounded(container.logs(stdout=True, stderr=False, stream=True))
        told = container.logs(stdout=False, stderr=True, tail=40).decode("utf-8", "replace")
    except APIError as error:
        text = str(error.explanation or error)
        if "device driver" in text or "nvidia" in text.lower():
            raise OutsideError(
                "verify.no-gpu-runtime",
                f"The engine cannot give its GPUs to a container: {text[:300]}",
                facts={"image": image},
                next_step="Install and configure nvidia-container-toolkit on that host, or judge "
                "the CPU half alone with --device cpu.",
            ) from None
        raise _failed(image, text) from None
    finally:
        container.remove(force=True)
    if not out.lstrip().startswith(b"{"):
        said = (out.decode("utf-8", "replace") + told).strip()
        raise _failed(image, said or f"exit status {status}")
    return parse_report(out, f"What the verification in {image} printed")


def _wants_gpu(question: Question, labels: dict[str, str]) -> bool:
    if question.device == "cuda":
        return True
    if question.expect is not None:
        return question.expect.get("device") == "cuda"
    try:
        spec: Any = msgspec.json.decode(labels.get("io.provision.spec", "{}"))
        return bool(spec["cell"]["device"] == "cuda")
    except (msgspec.DecodeError, KeyError, TypeError):
        return False


def _expect(question: Question, *, ours: bool) -> str | None:
    return None if ours or question.expect is None else f"{_PLACE}/expect.json"


def _archive(question: Question) -> bytes:
    files = {"probe.py": PROBE.read_bytes()}
    if question.expect is not None:
        files["expect.json"] = msgspec.json.encode(question.expect)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        folder = tarfile.TarInfo(_PLACE.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{_PLACE.lstrip('/')}/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _bounded(stream: Any) -> bytes:
    data = b""
    for chunk in stream:
        data += chunk
        if len(data) > _LIMIT:
            raise OutsideError("verify.no-report", "The container printed more than 32 MiB.")
    return data


def _failed(image: str, said: str) -> OutsideError:
    return OutsideError(
        "verify.no-report",
        f"The verification in {image} left no report:\n{said[-_LAST:]}",
        facts={"image": image},
        next_step="Check that the image has a Python with torch (--python names another one).",
    )
