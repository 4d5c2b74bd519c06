"""Reads conda-lock.yml and the explicit list, and what pip has to know of them. Pure."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.conda import worker
from provisioner.errors import FindingError

RECORD = "conda-lock.yml"
INPUTS = "# inputs: sha256:"
TORCH_FAMILY = frozenset({"torch", "torchvision", "torchaudio", "triton"})
_CONDA_TORCH = frozenset(
    {"pytorch", "pytorch-cpu", "pytorch-gpu", "libtorch", "pytorch-cuda", *TORCH_FAMILY}
)
_NAMES = Path(__file__).with_name("data") / "pypi_names.json"
_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True, kw_only=True)
class LockedPackage:
    """One conda package of a lock. `depends` are the names that it depends on."""

    name: str
    version: str
    url: str
    sha256: str
    md5: str
    depends: frozenset[str]

    @property
    def file_name(self) -> str:
        """SUBDIR/FILE, unique in a channel."""
        return "/".join(self.url.rsplit("/", 2)[1:])


@dataclass(frozen=True, kw_only=True)
class CondaLock:
    """The packages of a conda-lock.yml for one platform, sorted by name."""

    platform: str
    packages: tuple[LockedPackage, ...]

    def version_of(self, name: str) -> str | None:
        """Returns the locked version of a conda package, or None."""
        return next((p.version for p in self.packages if p.name == name), None)


def parse_conda_lock(data: bytes, platform: str) -> CondaLock:
    """Returns what a conda-lock.yml holds for a platform.

    Raises FindingError for a file that is none (`conda.lock-bad`), without the platform
    (`conda.lock-empty`), with pip packages (`conda.lock-pip`) or without a sha256
    (`conda.lock-no-hash`).
    """
    import yaml

    try:
        worker.read_lock(data, platform)
    except worker.Problem as problem:
        raise FindingError(problem.code, problem.message) from None
    document: dict[str, Any] = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe loaders
    packages = [
        LockedPackage(
            name=str(entry["name"]),
            version=str(entry["version"]),
            url=entry["url"],
            sha256=entry["hash"].get("sha256") or "",
            md5=entry["hash"].get("md5") or "",
            depends=frozenset(entry.get("dependencies") or ()),
        )
        for entry in document["package"]
        if entry["platform"] == platform
    ]
    for package in packages:
        if not package.sha256:
            raise FindingError(
                "conda.lock-no-hash",
                f"The lock has no sha256 for {package.name} {package.version}.",
                next_step="Use a channel that states them, and lock again.",
            )
    return CondaLock(
        platform=platform, packages=tuple(sorted(packages, key=lambda package: package.name))
    )


def explicit_with_hashes(explicit: bytes, lock: CondaLock, digest: str, made_by: str) -> bytes:
    """Returns conda-lock's explicit list with the SHA-256 of each package and the inputs' digest.

    conda and its kin skip the comments and check the MD5; our installer checks the SHA-256.
    """
    hashes = {package.url: package.sha256 for package in lock.packages}
    lines = [f"# {made_by}", f"{INPUTS}{digest}"]
    for line in explicit.decode("ascii").splitlines():
        lines.append(line)
        url = line.partition("#")[0]
        if url in hashes:
            name = "/".join(url.rsplit("/", 2)[1:])
            lines.append(f"# sha256 {hashes[url]}  {name}")
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def inputs_digest(explicit: bytes) -> str | None:
    """Returns the digest of the inputs that an explicit list of ours was made from."""
    for line in explicit.decode("utf-8", "replace").splitlines():
        if line.startswith(INPUTS):
            return line.removeprefix(INPUTS).strip()
        if line.startswith("@EXPLICIT"):
            break
    return None


def differences(explicit: bytes, lock: CondaLock) -> list[str]:
    """Returns in which packages an explicit list and its conda-lock.yml disagree."""
    listed = {a.url: (a.sha256, a.md5) for a in worker.read_lock(explicit, lock.platform)}
    locked = {p.url: (p.sha256, p.md5) for p in lock.packages}
    return sorted(
        url.rpartition("/")[2]
        for url in listed.keys() | locked.keys()
        if listed.get(url) != locked.get(url)
    )


def pip_constraints_from_conda(lock: CondaLock) -> list[str]:
    """Returns `name==version` for every distribution that conda owns, sorted.

    Owned is what depends on python: conda's tzdata or xz, which share a name with something else
    on the package index, do not.
    """
    owned = {}
    for package in lock.packages:
        if "python" in package.depends:
            name = pypi_name(package.name)
            if name is not None:
                owned[name] = package.version
    return [f"{name}=={version}" for name, version in sorted(owned.items())]


def pypi_name(conda_name: str) -> str | None:
    """Returns the normalized name of a conda package's distribution, None when it has none."""
    names = _names()
    if conda_name in names:
        return names[conda_name]
    return _SEPARATORS.sub("-", conda_name).lower()


def refuse_torch(lock: CondaLock) -> None:
    """Raises FindingError when conda would install torch or one of its family: that is pip's."""
    found = sorted(p.name for p in lock.packages if p.name in _CONDA_TORCH)
    if found:
        raise FindingError(
            "conda.owns-torch",
            f"The conda half would install {', '.join(found)}; torch and its family are pip's.",
            facts={"packages": found, "asked_by": _asked_by(lock, found[0])},
            next_step="Take what asks for it out of packages.conda, or have it from packages.pip.",
        )


def _asked_by(lock: CondaLock, name: str) -> list[str]:
    return sorted(p.name for p in lock.packages if name in p.depends)


@functools.cache
def _names() -> dict[str, str | None]:
    names: dict[str, str | None] = json.loads(_NAMES.read_bytes())
    return names
