"""The image of a cell: Dockerfile, what its build may see, and the verification inside it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from provisioner.render.fileset import RenderedFile
from provisioner.render.quote import Safe, all_checked, checked, label_json
from provisioner.render.spec import SPEC_SCHEMA
from provisioner.render.templating import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from provisioner.render.context import CellContext

PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
"""What Docker calls the machines of the matrix."""

REQUIREMENTS = "requirements.txt"
REQUIREMENTS_TORCH = "requirements-torch.txt"
"""The pip locks: of the package index; of the torch index, for cells whose torch comes from it."""

CONDA_LOCKS = {"x86_64": "conda-linux-64.lock", "aarch64": "conda-linux-aarch64.lock"}
"""The conda lock that a build installs from, for cells whose Python is conda's: it has a sha256
for each archive and needs no YAML reader."""

PREFIX = "/opt/env"
_PROBE = Path(__file__).resolve().parent.parent / "verify" / "probe.py"
_GUARD = _PROBE.parent.parent / "lock" / "installed.py"
_CONDA_INSTALL = _PROBE.parent.parent / "conda" / "worker.py"
_SEEN = tuple(map(Safe, ("expect.json", "guard.py", "probe.py", "provision-verify", "spec.json")))
_SEEN_BY_BUILDER = tuple(map(Safe, ("conda-install.py", "conda-install.txt")))


class BundledImages(NamedTuple):
    """What a bundle's images are called: the stage `base`, and the builder of a conda cell."""

    base: str
    builder: str | None = None


def emit(context: CellContext, bundled: BundledImages | None = None) -> list[RenderedFile]:
    """Returns the Dockerfile and the files beside it, except the specs.

    With `bundled` it builds inside a bundle without a network: the stage `base` is an image that
    was made before, wheels and conda packages are mounted from the context.
    """
    conda = context.cell.python_from == "conda"
    made_by = {"made_by": context.made_by}
    seen = made_by | {
        "docker": context.docker,
        "locks": context.locks,
        "files": _SEEN + (_SEEN_BY_BUILDER if conda else ()),
        "bundle": bundled is not None,
        "conda": conda,
    }
    eager = made_by | {"eager": not context.cell.compile}
    files = [
        _file(context, "Dockerfile", fill("Dockerfile.j2", template_values(context, bundled))),
        _file(context, "Dockerfile.dockerignore", fill("dockerignore.j2", seen)),
        _file(context, "provision-verify", fill("provision-verify.j2", eager), mode=0o755),
        _file(context, "probe.py", _copy(_PROBE)),
        _file(context, "guard.py", _copy(_GUARD)),
    ]
    if conda:
        files += [
            _file(context, "conda-install.py", _copy(_CONDA_INSTALL)),
            _file(context, "conda-install.txt", fill("conda-install.txt.j2", made_by)),
        ]
    return files


def lock_names(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the lock files without which the image of a cell can't be built.

    `cell` holds the plain values of a Cell. A pin with a local label comes from the torch index.
    """
    names = [REQUIREMENTS]
    if any("+" in pin for pin in cell["requirements"]):
        names.append(REQUIREMENTS_TORCH)
    if cell["python_from"] == "conda":
        names.append(CONDA_LOCKS[cell["arch"]])
    return tuple(names)


def lock_files(context: CellContext) -> tuple[Safe, ...]:
    """Returns the lock files of the cell, see `lock_names`."""
    cell = context.cell
    plain = {key: getattr(cell, key) for key in ("requirements", "python_from", "arch")}
    names = lock_names(plain)
    return tuple(Safe(name) for name in names)


def _file(context: CellContext, name: str, content: bytes, mode: int = 0o644) -> RenderedFile:
    path = f"{context.docker}/{name}"
    return RenderedFile(path=path, content=content, group=context.group, mode=mode)


@lru_cache(maxsize=4)
def _copy(path: Path) -> bytes:
    """A file of this package, byte for byte: reports name the hash of the code that judged."""
    return path.read_bytes()


def template_values(context: CellContext, bundled: BundledImages | None = None) -> dict[str, Any]:
    """Returns everything that the Dockerfile template names."""
    cell = context.cell
    conda = cell.python_from == "conda"
    locks = lock_files(context)
    addresses = _addresses(context)
    return {
        "made_by": context.made_by,
        "name": context.name,
        "docker": context.docker,
        "locks": context.locks,
        "title": _title(context),
        "bundle": bundled is not None,
        **_images(context, bundled),
        "machine": checked("name", cell.arch, "the architecture"),
        "platform": Safe(PLATFORMS[cell.arch]),
        "lock_files": locks,
        "conda_lock": Safe(CONDA_LOCKS[cell.arch]),
        "pip_locks": _words(Safe(f"/lock/{name}") for name in locks if "req" in name),
        "pip_steps": _pip_steps(context),
        "conda": conda,
        "apt": context.system.package_manager == "apt",
        "packages": _packages(context),
        "own_packages": _own_packages(context),
        "python": checked("name", cell.python, "the Python series"),
        "from_torch_index": context.from_torch_index,
        "nvidia_base": cell.base_image.startswith("nvidia/cuda:"),
        "local_version": checked("name", cell.local_version, "the torch version"),
        "spec": label_json({"schema": SPEC_SCHEMA, "cell": cell}),
        **addresses,
        "mirror_arguments": _mirror_arguments(context, addresses),
        **_gpu(context),
    }


def _words(values: Iterable[Safe]) -> Safe:
    return Safe(" ".join(values))


def _title(context: CellContext) -> Safe:
    cell = context.cell
    owner = "conda" if cell.python_from == "conda" else "the base image"
    parts = all_checked(
        "name", (cell.local_version, cell.python, cell.os, cell.arch), "a field of the cell"
    )
    torch, python, system, arch = parts
    return Safe(f"torch {torch}, Python {python} from {owner}, {system}, {arch}")


def at_registry(mirror: str, reference: str) -> Safe:
    """Returns an image of the default registry as a mirror serves it."""
    # Only the default registry lets one leave out the `library/` of official images.
    path = reference if "/" in reference else f"library/{reference}"
    host = mirror.partition("://")[2].rstrip("/")
    return checked("image", f"{host}/{path}", "an image at the registry mirror")


def _image(context: CellContext, reference: str) -> Safe:
    mirror = context.origins.image_registry.url
    if mirror is None:
        return checked("image", reference, "an image")
    return at_registry(mirror, reference)


def _images(context: CellContext, bundled: BundledImages | None) -> dict[str, Safe]:
    base, builder = context.cell.base_image, context.matrix.defaults.builder_image
    if bundled is None:
        return {"base_image": _image(context, base), "builder_image": _image(context, builder)}
    return {
        "base_image": checked("image", bundled.base, "the base of the bundle"),
        "builder_image": checked("image", bundled.builder or builder, "the builder of the bundle"),
    }


def _packages(context: CellContext) -> tuple[Safe, ...]:
    """Operating-system packages: certificates, compiler, Python where it is the base image's."""
    names = context.system.packages
    wanted = [*names.certificates, *names.compiler]
    if context.cell.python_from == "base":
        wanted += [*names.python, *names.python_headers]
    wanted += context.cell.packages.apt
    return all_checked("package", sorted(set(wanted)), "an operating-system package")


def _own_packages(context: CellContext) -> Safe:
    """Names of the project's own packages, without versions.

    apt-get takes a name that it does not know for a pattern, or for an order to remove: the build
    looks each of them up first.
    """
    names = sorted({package.partition("=")[0] for package in context.cell.packages.apt})
    return _words(all_checked("package", names, "an operating-system package"))


def _addresses(context: CellContext) -> dict[str, Safe]:
    origins = context.origins
    named = {
        "package_index": origins.package_index.url,
        "torch_index": context.cell.index_url,
        "apt_mirror": origins.apt.url,
        "apt_security_mirror": origins.apt_security.url,
        "dnf_mirror": origins.dnf.url,
        "conda_url": origins.conda.url,
    }
    return {
        name: Safe("") if url is None else checked("url", url, f"the address of {name}")
        for name, url in named.items()
    }


def _mirror_arguments(context: CellContext, addresses: Mapping[str, Safe]) -> list[dict[str, Safe]]:
    """The build arguments of this Dockerfile that are addresses, for the guard before all else."""
    names = {"PACKAGE_INDEX": "package_index"}
    if context.from_torch_index:
        names["TORCH_INDEX"] = "torch_index"
    if context.cell.python_from == "conda":
        names["CONDA_CHANNELS"] = "conda_url"
    if context.system.package_manager == "apt":
        names |= {"APT_MIRROR": "apt_mirror", "APT_SECURITY_MIRROR": "apt_security_mirror"}
    else:
        names["DNF_MIRROR"] = "dnf_mirror"
    return [{"name": Safe(name), "value": addresses[key]} for name, key in names.items()]


def _pip_steps(context: CellContext) -> list[dict[str, Safe]]:
    steps = [("PACKAGE_INDEX", REQUIREMENTS)]
    if context.from_torch_index:
        steps.insert(0, ("TORCH_INDEX", REQUIREMENTS_TORCH))
    return [
        {"index": Safe(f'${{{name}:+--index-url "${name}"}}'), "file": Safe(file)}
        for name, file in steps
    ]


def _gpu(context: CellContext) -> dict[str, Any]:
    cell = context.cell
    path = None
    if cell.ptxas is not None:
        packages = f"{PREFIX}/lib/python{cell.python}/site-packages"
        path = checked("path", f"{packages}/{cell.ptxas.path}", "the path of ptxas")
    floor = cell.driver.compile_floor if cell.compile else None
    floor = floor or cell.driver.run_floor
    gate = [f"driver>={floor.partition('.')[0]}"] if floor else []
    if cell.forward_compat is not None:
        gate += [
            f"driver>={branch},driver<{branch + 1}"
            for toolkit in context.matrix.toolkits
            if toolkit.series == cell.cuda
            for branch in toolkit.forward_compat_from
        ]
    return {
        "cuda": cell.device == "cuda" and floor is not None,
        "driver_floor": checked("name", floor or "none", "the driver floor"),
        "driver_gate": Safe(" ".join(checked("gate", word, "the driver gate") for word in gate)),
        "compat": cell.forward_compat is not None,
        "compat_package": checked(
            "name", cell.forward_compat or "none", "the compatibility package"
        ),
        "ptxas_path": path,
    }
