"""The images that a build starts from, as files: the stage `base` of the cell, conda's builder.

A build without a network cannot install a compiler, so the stage that holds it is made where there
is one. An image is known by its layers, which are the same in every engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping  # noqa: TC003 - types of fields
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - types of fields
from typing import TYPE_CHECKING, Any, Literal

from provisioner.build.image import BuildOptions, build_command, failure, run_builder
from provisioner.bundle.model import BundleImage
from provisioner.bundle.store import write_stream
from provisioner.errors import FindingError, OutsideError
from provisioner.lock.model import Target

if TYPE_CHECKING:
    from provisioner.build.engine import Engine
    from provisioner.bundle.model import BundleFile

Kind = Literal["base", "builder"]
_ASK = (
    "import os, platform, sys; "
    "print('%d.%d' % sys.version_info[:2], os.uname().machine, platform.libc_ver()[1])"
)
_TIMEOUT_S = 3600


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """How to make the images of a cell. `root` holds docker/ and lockfiles/.

    `arguments`, `secrets` and `network` are those of the build of the stage `base`.
    """

    engine: Engine
    root: Path
    cell: Mapping[str, Any]
    builder: str | None
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict, repr=False)
    network: str | None = None
    say: Callable[[str, bool], None] = lambda _line, _short: None

    def inputs(self, kind: Kind) -> str:
        """Returns the digest of what an image is made from, as far as this machine can tell."""
        if kind == "builder":
            told = json.dumps(["builder", self.builder])
        else:
            dockerfile = self.root / "docker" / str(self.cell["name"]) / "Dockerfile"
            stage = dockerfile.read_text(encoding="ascii").partition("AS environment\n")[0]
            told = json.dumps(["base", stage, sorted(self.arguments.items())])
        return hashlib.sha256(told.encode()).hexdigest()


def save_image(
    plan: ImagePlan, kind: Kind, folder: Path, told: Callable[[int], None] | None = None
) -> tuple[BundleImage, BundleFile]:
    """Makes an image and saves it below the bundle; raises OutsideError or FindingError."""
    engine = plan.engine
    found = _build_base(plan) if kind == "base" else _pull(plan)
    layers = _layers(found)
    name = f"localhost/provision/{kind}:{_short(layers)}"
    target = _target(engine, found, name) if kind == "builder" else None
    known = _find(engine, name) is not None
    found.tag(name)
    try:
        saved = engine.api.images.get(name).save(named=name)
        file = write_stream(folder, f"images/{kind}.tar", _pieces(saved), None, told)
    finally:  # the engine is left as it was; the builder's cache keeps the layers
        for ours in [*([] if known else [name]), *([_scratch()] if kind == "base" else [])]:
            engine.api.images.remove(ours, noprune=True)
    image = BundleImage(
        file=file.path, name=name, layers=layers, inputs=plan.inputs(kind), target=target
    )
    return image, file


def load_image(engine: Engine, folder: Path, image: BundleImage) -> bool:
    """Brings an image into the engine unless it is there; returns whether it was brought.

    Raises FindingError `bundle.other-image` when the file holds another one, OutsideError.
    """
    there = _find(engine, image.name)
    if there is not None and _layers(there) == image.layers:
        return False
    try:
        with (folder / image.file).open("rb") as stream:
            engine.api.images.load(stream)
    except OSError as error:
        raise OutsideError(
            "bundle.unreadable", f"{folder / image.file} cannot be read: {error.strerror}."
        ) from None
    there = _find(engine, image.name)
    if there is None or _layers(there) != image.layers:
        raise FindingError(
            "bundle.other-image",
            f"{image.file} does not hold the image {image.name} that the bundle names.",
            next_step="Do not use it. Copy the bundle again from where it was made.",
        )
    return True


def _build_base(plan: ImagePlan) -> Any:
    tag = _scratch()
    options = BuildOptions(
        network=plan.network, arguments=plan.arguments, secrets=plan.secrets, target="base"
    )
    command = build_command(plan.engine, plan.root, plan.cell, tag, options)
    progress, status = run_builder(plan.engine, command, plan.say)
    if status != 0:
        raise failure(progress, str(plan.cell["name"]), status)
    return plan.engine.api.images.get(tag)


def _scratch() -> str:
    """What the stage is called while it is saved."""
    return f"localhost/provision/gathering:{os.getpid()}"


def _pull(plan: ImagePlan) -> Any:
    reference = plan.builder or ""
    found = _find(plan.engine, reference)
    if found is not None:
        return found
    done = subprocess.run(
        [str(plan.engine.client.path), "pull", "--quiet", reference],
        env=plan.engine.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )
    found = _find(plan.engine, reference)
    if done.returncode != 0 or found is None:
        said = " ".join(done.stderr.split())[:300]
        raise OutsideError(
            "bundle.no-builder",
            f"The builder image {reference} cannot be had: {said}",
            next_step="Name one with Python 3.10 or newer: --builder-image IMAGE.",
        )
    return found


def _target(engine: Engine, image: Any, name: str) -> Target:
    """The Python of a builder, asked in a container without a network."""
    from docker.errors import DockerException

    try:
        said = engine.api.containers.run(
            image.id, ["python3", "-c", _ASK], remove=True, network_mode="none"
        )
        python, arch, glibc = said.decode("ascii").split()
    except (DockerException, ValueError, UnicodeDecodeError) as error:
        raise OutsideError(
            "bundle.no-builder",
            f"The builder image runs no Python 3: {' '.join(str(error).split())[:300]}",
            facts={"image": name},
            next_step="Name one with Python 3.10 or newer: --builder-image IMAGE.",
        ) from None
    return Target(python=python, arch=arch, glibc=glibc)  # type: ignore[arg-type]


def _find(engine: Engine, name: str) -> Any | None:
    from docker.errors import ImageNotFound

    try:
        return engine.api.images.get(name)
    except ImageNotFound:
        return None


def _layers(image: Any) -> tuple[str, ...]:
    return tuple(image.attrs["RootFS"].get("Layers") or ())


def _short(layers: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(layers).encode()).hexdigest()[:12]


def _pieces(saved: Iterator[bytes]) -> Iterator[bytes]:
    from docker.errors import DockerException

    try:
        yield from saved
    except DockerException as error:
        raise OutsideError(
            "bundle.not-saved", f"The engine could not save an image: {str(error)[:300]}"
        ) from None
