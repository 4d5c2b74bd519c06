"""What a bundle says about itself: bundle.json, and the same hashes for `sha256sum --check`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from provisioner.errors import FindingError
from provisioner.lock.model import Target  # noqa: TC001 - decoded at run time
from provisioner.regular import read_regular

if TYPE_CHECKING:
    from pathlib import Path

BUNDLE_SCHEMA: Final = "provision.bundle/1"
MANIFEST: Final = "bundle.json"
SUMS: Final = "SHA256SUMS"
PARTIAL: Final = ".part-"
"""What a file is called while it is written; the rest of its name follows."""

LIMIT = 64 << 20
Part = Literal["cell", "wheels", "conda", "builder", "images", "tool", "playbooks"]

# No segment is hidden, climbs up, or is an option to a program.
FilePath = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+!@-]*(/[A-Za-z0-9_][A-Za-z0-9_.+!@-]*){0,9}\Z")
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
ImageName = Annotated[str, Meta(pattern=r"^localhost/provision/(base|builder):[0-9a-f]{12}\Z")]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class BundleFile(_Struct, frozen=True, kw_only=True):
    """One file: path below the bundle, size in bytes, hex SHA-256."""

    path: FilePath
    size: int
    sha256: Sha256


class BundleImage(_Struct, frozen=True, kw_only=True):
    """An image that `docker load` brings. `layers` are its diff ids, the same in every engine.

    `inputs` is the digest of what it was made from; `target` the Python of a builder.
    """

    file: FilePath
    name: ImageName
    layers: tuple[str, ...]
    inputs: Sha256
    target: Target | None = None


class Bundle(_Struct, frozen=True, kw_only=True):
    """The content of bundle.json. `lock` is the SHA-256 of the cell's lock.json.

    `complete` is false while files are gathered. `files` are all but bundle.json and SHA256SUMS,
    by path; `tool` is the platform that the tool's own wheels are for.
    """

    schema: Literal["provision.bundle/1"] = BUNDLE_SCHEMA
    provision: str
    cell: str
    lock: Sha256
    complete: bool
    tool: Target | None = None
    images: tuple[BundleImage, ...] = ()
    files: tuple[BundleFile, ...]

    def image(self, kind: Literal["base", "builder"]) -> BundleImage | None:
        """Returns the image of that kind, None where the bundle has none."""
        return next((i for i in self.images if i.file == f"images/{kind}.tar"), None)


def part_of(path: str) -> Part:
    """Returns which part of a bundle a file belongs to."""
    top = path.partition("/")[0]
    known: dict[str, Part] = {
        "wheels": "wheels",
        "conda": "conda",
        "builder": "builder",
        "images": "images",
        "tool": "tool",
        "playbooks": "playbooks",
    }
    return known.get(top, "cell")


def bundle_bytes(bundle: Bundle) -> bytes:
    """Returns bundle.json: the same bytes for the same content, files sorted by path."""
    files = tuple(sorted(bundle.files, key=lambda file: file.path))
    return (
        msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(bundle, files=files)))
        + b"\n"
    )


def sums_bytes(bundle: Bundle) -> bytes:
    """Returns SHA256SUMS: every file, and bundle.json at the end."""
    files = sorted(bundle.files, key=lambda file: file.path)
    lines = [f"{file.sha256}  {file.path}" for file in files]
    lines.append(f"{hashlib.sha256(bundle_bytes(bundle)).hexdigest()}  {MANIFEST}")
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def read_bundle(folder: Path, *, complete: bool = True) -> Bundle:
    """Returns what a folder says about itself; raises FindingError `bundle.*`.

    Unless `complete`, a bundle that is still being gathered is taken too.
    """
    try:
        raw = read_regular(folder / MANIFEST, LIMIT)
        bundle = msgspec.json.decode(raw, type=Bundle)
    except (FileNotFoundError, NotADirectoryError):
        raise FindingError(
            "bundle.none",
            f"{folder} is no bundle: it holds no {MANIFEST}.",
            next_step="Name the folder that `provision bundle CELL --out DIR` made.",
        ) from None
    except OSError as error:
        raise FindingError(
            "bundle.unreadable", f"{folder / MANIFEST} cannot be read: {error.strerror}."
        ) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise damaged(folder, str(error)) from None
    if bundle_bytes(bundle) != raw:
        raise damaged(folder, "it is not as provision writes it")
    if complete and not bundle.complete:
        raise FindingError(
            "bundle.unfinished",
            f"{folder} was not gathered to its end.",
            facts={"cell": bundle.cell},
            next_step="Run `provision bundle` again with the same options: what is there is kept.",
        )
    return bundle


def damaged(folder: Path, why: str) -> FindingError:
    """Returns the error for a bundle.json that cannot be understood."""
    return FindingError(
        "bundle.damaged",
        f"{folder / MANIFEST} cannot be understood: {why}.",
        next_step="Copy the bundle again from where it was made.",
    )
