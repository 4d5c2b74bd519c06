"""Builds the image of a rendered and locked cell, and brings its report back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provisioner.atomic import write_whole
from provisioner.build.progress import Progress, short_title
from provisioner.errors import Exit, FindingError, OutsideError, UsageError
from provisioner.render.bake import image_tag
from provisioner.render.dockerfile import PLATFORMS
from provisioner.render.quote import checked
from provisioner.shell import out_option
from provisioner.verify.report import exit_status, parse_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from provisioner.build.engine import Engine

SECRETS = ("ca", "netrc", "pip_conf")
"""Secrets that a Dockerfile of ours takes; none of them gets into a layer."""

REPORT_IN_IMAGE = "/usr/share/provision/report.json"
EXPECTED_BYTES = {"cpu": 1_600_000_000, "cuda": 5_000_000_000}
"""About what an image takes; measured on torch 2.13.0+cpu and 2.0.1+cu117."""

ROOM_FACTOR = 3
_REPORT_LIMIT = 16 << 20
_LAST_LINES = 12
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class BuildOptions:
    """How to build. `arguments` are build arguments, `secrets` maps ids to files.

    `reports` is the folder that gets build/<cell>/report.json (None: the root of the build);
    `target` is a stage to end with.
    """

    tag: str | None = None
    no_cache: bool = False
    network: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    reports: Path | None = None
    target: str | None = None


@dataclass(frozen=True)
class Built:
    """A finished image. `report` is what its verification wrote, also kept at `report_path`."""

    tag: str
    image_id: str
    size_bytes: int
    seconds: float
    report: dict[str, Any]
    report_path: Path


def check_locked(root: Path, name: str, names: tuple[str, ...]) -> None:
    """Raises FindingError when a lock file of the cell is missing, naming the command for it."""
    missing = [file for file in names if not (root / "lockfiles" / name / file).is_file()]
    if missing:
        raise FindingError(
            "build.not-locked",
            f"{name} has no lock: lockfiles/{name}/{missing[0]} is missing.",
            facts={"missing": missing},
            next_step=f"provision lock {name}{out_option(root)}",
        )


def check_secrets(secrets: Mapping[str, Path]) -> None:
    """Raises UsageError for a secret that no Dockerfile takes or whose file can't be read."""
    for name, path in secrets.items():
        if name not in SECRETS:
            raise UsageError(
                "build.unknown-secret",
                f"No build takes a secret {name!r}.",
                facts={"known": list(SECRETS)},
            )
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise UsageError(
                "build.secret-file",
                f"The file of the secret {name} can't be read: {path}.",
                facts={"secret": name, "file": str(path)},
            )


def check_room(engine: Engine, device: str) -> None:
    """Raises OutsideError when the engine's disk is too full for the build, before it starts."""
    needed = EXPECTED_BYTES[device] * ROOM_FACTOR
    if engine.free_bytes is not None and engine.free_bytes < needed:
        raise OutsideError(
            "build.no-space",
            f"The disk of the Docker engine has {_gb(engine.free_bytes)} free; building a {device} "
            f"cell takes up to {_gb(needed)}.",
            facts={"free_bytes": engine.free_bytes, "needed_bytes": needed},
            next_step="Make room (docker system prune shows what can go), or let the engine keep "
            "its data on a larger disk.",
        )


def build_image(
    engine: Engine,
    root: Path,
    cell: Mapping[str, Any],
    options: BuildOptions,
    say: Callable[[str, bool], None],
) -> Built:
    """Builds the image of `cell` (its plain values, as in spec.json) and returns what came out.

    `say` gets each line of the builder, and whether it is a short one for everybody. The report
    is copied to build/<cell>/report.json below `root`, or where the options say. Raises
    FindingError when the verification fails, OutsideError for everything else that stops it.
    """
    name = str(checked("name", str(cell["name"]), "the name of the cell"))
    tag = options.tag or image_tag(name)
    command = build_command(engine, root, cell, tag, options)
    started = time.monotonic()
    progress, status = run_builder(engine, command, say)
    if status != 0:
        raise failure(progress, name, status)
    image = engine.api.images.get(tag)
    report = _report(engine, tag)
    judge(report, cell, tag)
    return Built(
        tag=tag,
        image_id=str(image.id),
        size_bytes=int(image.attrs["Size"]),
        seconds=time.monotonic() - started,
        report=json.loads(report),
        report_path=_keep((options.reports or root) / "build" / name, report),
    )


def judge(raw: bytes, cell: Mapping[str, Any], tag: str) -> None:
    """Raises FindingError unless a report says that this very cell passed its verification.

    A build ends well only after the verify stage did; a Dockerfile that was changed may have
    copied another report.
    """
    report = parse_report(raw, f"The report in {tag}")
    promised = report.details.expect.get("name")
    if promised != cell["name"]:
        raise FindingError(
            "build.other-report",
            f"The report in {tag} is that of {promised}, not of {cell['name']}.",
            facts={"have": promised, "need": cell["name"]},
            next_step="provision render --again, then build again.",
        )
    if exit_status(report) != Exit.DONE:
        raise FindingError(
            "build.not-verified",
            f"The report in {tag} does not pass: its verdict is {report.verdict}.",
            facts={"verdict": report.verdict, "reasons": list(report.details.reasons)},
            next_step="provision render --again, then build again.",
        )


def build_command(
    engine: Engine, root: Path, cell: Mapping[str, Any], tag: str, options: BuildOptions
) -> list[str]:
    """Returns the argument list of the client; no value passes through a shell."""
    dockerfile = root / "docker" / str(cell["name"]) / "Dockerfile"
    words = [str(engine.client.path), "build", "--progress=plain", "--file", str(dockerfile)]
    words += ["--tag", tag]
    if engine.client.loads:
        words.append("--load")
    machine = str(engine.api.version().get("Arch", ""))
    if _MACHINES.get(machine, machine) != cell["arch"]:
        words += ["--platform", PLATFORMS[str(cell["arch"])]]
    if options.no_cache:
        words.append("--no-cache")
    if options.target:
        words += ["--target", options.target]
    if options.network:
        words += ["--network", options.network]
    for key, value in sorted(options.arguments.items()):
        words += ["--build-arg", f"{key}={value}"]
    for secret, path in sorted(options.secrets.items()):
        words += ["--secret", f"id={secret},src={path}"]
    return [*words, str(root)]


def run_builder(
    engine: Engine, command: list[str], say: Callable[[str, bool], None]
) -> tuple[Progress, int]:
    """Runs the client and returns what it said and its exit status; it ends with this process."""
    progress = Progress()
    with subprocess.Popen(
        command,
        env=engine.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                short = progress.feed(line.rstrip("\n"))
                say(line.rstrip("\n"), False)
                if short:
                    say(short, True)
        except BaseException:
            process.terminate()
            raise
    return progress, process.returncode


def failure(progress: Progress, name: str, status: int) -> FindingError | OutsideError:
    """Returns the error for a failed build: what the failing step said, what decided first."""
    step = progress.failed
    said = [line for line in (step.said if step else progress.rest) if line.strip()]
    if step is not None and step.stage == "verify":
        return _verify_failure(said, name)
    last = said[-_LAST_LINES:] or list(progress.rest)[-_LAST_LINES:]
    text = "\n".join(last)
    if "no space left on device" in text.lower():
        return OutsideError(
            "build.no-space",
            "The disk of the Docker engine ran full during the build.",
            facts={"last": last[-1:]},
            next_step="Make room (docker system prune shows what can go), then build again.",
        )
    place = f"in stage {step.stage}, step {step.place}" if step and step.stage else "before a step"
    return OutsideError(
        "build.failed",
        f"The build of {name} failed {place}:\n{text}",
        facts={"exit_status": status, "step": short_title(step.title) if step else "none"},
        next_step="Run it again with -v to see everything that the builder says.",
    )


def _verify_failure(said: list[str], name: str) -> FindingError:
    """The probe's own words: it puts what decided first."""
    first = next((i for i, line in enumerate(said) if line.startswith("FAILED")), 0)
    verdict = next((line for line in reversed(said) if line.startswith("verdict:")), "")
    return FindingError(
        "build.verify-failed",
        f"{name} was built, but its verification failed, so there is no image:\n"
        + "\n".join(said[first : first + _LAST_LINES]),
        facts={"verdict": verdict.removeprefix("verdict:").strip()},
        next_step="Correct what the first line names and build again; what was installed before "
        "is cached.",
    )


def _report(engine: Engine, tag: str) -> bytes:
    """The report out of a container of the image that is never started."""
    from docker.errors import DockerException

    try:
        return _read_report(engine, tag)
    except (DockerException, tarfile.TarError, KeyError) as error:
        raise OutsideError(
            "build.report",
            f"{tag} holds no report of its verification: {' '.join(str(error).split())[:300]}",
            next_step="provision render --again, then build again.",
        ) from None


def _read_report(engine: Engine, tag: str) -> bytes:
    container = engine.api.containers.create(tag)
    try:
        stream, _ = container.get_archive(REPORT_IN_IMAGE)
        data = b""
        for chunk in stream:
            data += chunk
            if len(data) > _REPORT_LIMIT:
                raise OutsideError("build.report", f"The report in {tag} is over 16 MiB.")
    finally:
        container.remove(force=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile("report.json")
        if member is None:
            raise OutsideError("build.report", f"{tag} holds no report of its verification.")
        return member.read()


def _keep(folder: Path, report: bytes) -> Path:
    """Writes the report whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    write_whole(path, report)
    return path


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
