"""Gathers what a cell needs into one folder; what is there already and right is kept.

While it runs, bundle.json says `complete: false` and lists everything that may be there, so that an
interrupted run is never taken for a bundle, and the next one goes on where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from provisioner import __version__
from provisioner.bundle import own, store
from provisioner.bundle.check import is_right, present, sha256_of
from provisioner.bundle.fetch import Finder, Located, fetch
from provisioner.bundle.images import ImagePlan, save_image
from provisioner.bundle.model import (
    MANIFEST,
    PARTIAL,
    SUMS,
    Bundle,
    BundleFile,
    BundleImage,
    bundle_bytes,
    read_bundle,
    sums_bytes,
)
from provisioner.bundle.wanted import (
    Wanted,
    archives_of,
    pinned_list,
    read_pins,
    wheel_of_pin,
    wheels_of,
)
from provisioner.errors import FindingError, UsageError
from provisioner.lock.tags import WheelName
from provisioner.lock.writer import LOCK
from provisioner.render.dockerfile import BundledImages, emit

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from provisioner.bundle.images import Kind
    from provisioner.lock.halves import LockedCell
    from provisioner.lock.model import Target
    from provisioner.render.context import CellContext

Told = Callable[[str, Mapping[str, object]], None]
"""Called with an event and its facts: `sizes` (fetch_bytes, fetch_files, kept_files) before the
download, `bytes` (size) while it runs, `file` (path), `image` (kind)."""

_UNKNOWN_IMAGE = 1_500_000_000
"""Room that a base takes at most, as a file; it is made after everything else."""
_NO_DOCKERFILE = ("Dockerfile", "Dockerfile.dockerignore")


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """What to gather. `context` is the cell as it was rendered, `images` how to make its
    images (None: none), `tool` the platform of the tool's own wheels (None: none), `pins` their
    list.
    """

    root: Path
    locked: LockedCell
    context: CellContext
    finder: Finder
    images: ImagePlan | None = None
    tool: Target | None = None
    pins: str = ""
    told: Told = field(default=lambda _event, _facts: None)


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What was done: `digest` is the SHA-256 of bundle.json, sizes are bytes."""

    bundle: Bundle
    digest: str
    fetched_files: int
    fetched_bytes: int
    kept_files: int


def gather(plan: GatherPlan, folder: Path) -> Gathered:
    """Gathers a bundle into a folder; raises ProvisionError (`bundle.*`, `index.*`, `build.*`).

    The folder is new, empty, or one that an earlier run made. After a failure it is no bundle, and
    the same command goes on.
    """
    with store.held(folder):
        return _Run(plan, folder).run()


class _Run:
    """One run, in the order of its methods."""

    def __init__(self, plan: GatherPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.before = self._before()
        self.known = {file.path: file for file in self.before.files} if self.before else {}
        self.files: dict[str, BundleFile] = {}
        self.images: list[BundleImage] = []
        self.lock = sha256_of(self.plan.root / "lockfiles" / plan.locked.name / LOCK)

    def run(self) -> Gathered:
        plan, told = self.plan, self.plan.told
        wanted = self._wanted()
        small = self._small()
        kept = {w.path: f for w in wanted if (f := self._there(w.path, w.sha256)) is not None}
        located = plan.finder.locate([w for w in wanted if w.path not in kept])
        needed = sum(each.size or 0 for each in located)
        told(
            "sizes",
            {"fetch_bytes": needed, "fetch_files": len(located), "kept_files": len(kept)},
        )
        images = self._kept_images()
        missing = 0 if plan.images is None or len(images) == len(self._kinds()) else _UNKNOWN_IMAGE
        store.require_room(self.folder, needed + missing)
        self._begin(wanted, small)
        self.files |= kept
        for path, data in small.items():
            self._add(store.write_bytes(self.folder, path, data))
        fetched = self._fetch(located)
        self._images(images)
        self._builder_wheels()
        self._dockerfile()
        bundle = self._finish()
        return Gathered(
            bundle=bundle,
            digest=hashlib.sha256(bundle_bytes(bundle)).hexdigest(),
            fetched_files=len(located),
            fetched_bytes=fetched,
            kept_files=len(kept),
        )

    def _before(self) -> Bundle | None:
        if (self.folder / MANIFEST).exists():
            return read_bundle(self.folder, complete=False)
        foreign = [path for path, _ in present(self.folder)]
        if foreign:
            raise UsageError(
                "bundle.not-ours",
                f"{self.folder} holds {foreign[0]}, and no {MANIFEST}: it is no bundle.",
                next_step="Name a new or an empty folder with --out.",
            )
        return None

    # --- what ---

    def _wanted(self) -> list[Wanted]:
        plan = self.plan
        halves = plan.locked.halves
        wanted = wheels_of(halves.lock)
        if halves.conda is not None:
            wanted += archives_of(halves.conda)
        if plan.tool is not None:
            wanted += self._pinned(plan.pins, plan.tool, "tool")
        return wanted

    def _pinned(self, text: str, target: Target, part: Literal["tool", "builder"]) -> list[Wanted]:
        pins = read_pins(text, target)
        finder = self.plan.finder
        finder.pages("package", [pin.name for pin in pins])
        return [wheel_of_pin(p, finder.page("package", p.name), target, part) for p in pins]

    def _small(self) -> dict[str, bytes]:
        """Files of the cell and of the tool, by their path in the bundle."""
        name, root = self.plan.locked.name, self.plan.root
        small = own.playbook_files()
        places = [f"docker/{name}", f"lockfiles/{name}"]
        for place in places:
            for path in sorted((root / place).iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    small[f"{place}/{path.name}"] = path.read_bytes()
        variables = root / "playbooks" / "vars" / f"{name}.yml"
        if variables.is_file():
            small[f"playbooks/vars/{name}.yml"] = variables.read_bytes()
        for file in _NO_DOCKERFILE:  # the bundle has one of its own
            small.pop(f"docker/{name}/{file}", None)
        if self.plan.tool is not None:
            filename, data = own.own_wheel()
            small[f"tool/{filename}"] = data
        return small

    def _tool_list(self, wanted: list[Wanted], small: Mapping[str, bytes]) -> bytes:
        wheels = [(w.filename, w.sha256) for w in wanted if w.path.startswith("tool/")]
        wheels += [
            (path.removeprefix("tool/"), hashlib.sha256(data).hexdigest())
            for path, data in small.items()
            if path.startswith("tool/")
        ]
        named = [(WheelName(filename), sha256) for filename, sha256 in wheels]
        return pinned_list((n.distribution.replace("_", "-"), n.version, s) for n, s in named)

    # --- where ---

    def _there(self, path: str, sha256: str) -> BundleFile | None:
        """A file that is there with the right content, whatever the list of before says."""
        place = self.folder / path
        if place.is_symlink() or not place.is_file():
            return None
        file = BundleFile(path=path, size=place.stat().st_size, sha256=sha256)
        return file if is_right(place, file) else None

    def _begin(self, wanted: list[Wanted], small: dict[str, bytes]) -> None:
        """Removes what is no longer wanted, refuses what is not ours, and says `not complete`."""
        if self.plan.tool is not None:
            small["tool/requirements.txt"] = self._tool_list(wanted, small)
        coming = {w.path: w.sha256 for w in wanted}
        coming |= {path: hashlib.sha256(data).hexdigest() for path, data in small.items()}
        made = self._made_here()
        for path, _ in present(self.folder):
            if path in (MANIFEST, SUMS) or path in coming or path in made:
                continue
            ours = path in self.known or path.rpartition("/")[2].startswith(PARTIAL)
            if not ours:
                raise UsageError(
                    "bundle.foreign-file",
                    f"{self.folder / path} is in the way: no bundle lists it.",
                    next_step="Move it away, or name another folder with --out.",
                )
            store.remove(self.folder, path)
        listed = {path: BundleFile(path=path, size=0, sha256=s) for path, s in coming.items()}
        listed |= {p: f for p, f in self.known.items() if p in made}
        listed |= {
            path: BundleFile(path=path, size=0, sha256="0" * 64) for path in made - set(listed)
        }
        store.remove(self.folder, SUMS)
        self._write(listed, self.before.images if self.before else (), complete=False)

    def _made_here(self) -> set[str]:
        """What is made and not fetched, and the wheels that a builder wants."""
        if self.plan.images is None:
            return set()
        name = self.plan.locked.name
        made = {f"docker/{name}/{file}" for file in _NO_DOCKERFILE} | {"images/base.tar"}
        if "builder" in self._kinds():
            made |= {"images/builder.tar"}
            made |= {path for path in self.known if path.startswith("builder/")}
        return made

    # --- how ---

    def _add(self, file: BundleFile) -> None:
        self.files[file.path] = file

    def _fetch(self, located: list[Located]) -> int:
        told, got = self.plan.told, 0
        for each in located:
            file = fetch(
                each,
                self.folder,
                self.plan.finder.client,
                lambda size: told("bytes", {"size": size}),
            )
            self._add(file)
            got += file.size
            told("file", {"path": file.path})
        return got

    def _kinds(self) -> tuple[Kind, ...]:
        return ("base",) if self.plan.locked.halves.conda is None else ("base", "builder")

    def _kept_images(self) -> list[BundleImage]:
        """Images of an earlier run that were made from the same, and are as they were."""
        if self.plan.images is None or self.before is None:
            return []
        kept = []
        for kind in self._kinds():
            image = self.before.image(kind)
            file = self.known.get(f"images/{kind}.tar")
            if image is None or file is None or image.inputs != self.plan.images.inputs(kind):
                continue
            if self._there(file.path, file.sha256) is not None:
                kept.append(image)
                self._add(file)
        return kept

    def _images(self, kept: list[BundleImage]) -> None:
        plan = self.plan.images
        if plan is None:
            return
        self.images = list(kept)
        for kind in self._kinds():
            if any(image.file == f"images/{kind}.tar" for image in kept):
                continue
            self.plan.told("image", {"kind": kind})
            image, file = save_image(plan, kind, self.folder)
            self.images.append(image)
            self._add(file)
        self.images.sort(key=lambda image: image.file)

    def _builder_wheels(self) -> None:
        """What conda's installer needs on the Python of the builder."""
        builder = next((i for i in self.images if i.target is not None), None)
        if builder is None or builder.target is None:
            return
        name = self.plan.locked.name
        pins = self.plan.root / "docker" / name / "conda-install.txt"
        wanted = self._pinned(pins.read_text(encoding="ascii"), builder.target, "builder")
        for each in wanted:
            if (there := self._there(each.path, each.sha256)) is not None:
                self._add(there)
        left = [each for each in wanted if each.path not in self.files]
        self._fetch(self.plan.finder.locate(left))
        for path in self.known:
            if path.startswith("builder/") and path not in self.files:
                store.remove(self.folder, path)

    def _dockerfile(self) -> None:
        """The image from this bundle alone, by the names that its images have."""
        if self.plan.images is None:
            return
        names = {image.file: image.name for image in self.images}
        bundled = BundledImages(names["images/base.tar"], names.get("images/builder.tar"))
        for file in emit(self.plan.context, bundled):
            if file.path.rpartition("/")[2] in _NO_DOCKERFILE:
                self._add(store.write_bytes(self.folder, file.path, file.content))

    def _finish(self) -> Bundle:
        left = [path for path, _ in present(self.folder) if path not in {*self.files, MANIFEST}]
        if left:
            raise FindingError(
                "bundle.foreign-file", f"{self.folder / left[0]} came while it was gathered."
            )
        return self._write(self.files, tuple(self.images), complete=True)

    def _write(
        self,
        files: Mapping[str, BundleFile],
        images: tuple[BundleImage, ...],
        *,
        complete: bool,
    ) -> Bundle:
        listed = tuple(files[path] for path in sorted(files))
        bundle = Bundle(
            provision=__version__,
            cell=self.plan.locked.name,
            lock=self.lock,
            complete=complete,
            tool=self.plan.tool,
            images=images,
            files=listed,
        )
        if complete:  # the list that says so comes last
            store.write_bytes(self.folder, SUMS, sums_bytes(bundle))
        store.write_bytes(self.folder, MANIFEST, bundle_bytes(bundle))
        return bundle
