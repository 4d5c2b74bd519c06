"""Loads matrix.yaml: reads it, lays overlays over it, checks it, keeps a parsed copy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from provisioner import __version__
from provisioner.errors import OutsideError, UsageError
from provisioner.matrix.cache import cache_directory, read_entry, write_entry
from provisioner.matrix.model import Matrix
from provisioner.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provisioner.matrix.problems import Problem
    from provisioner.matrix.yaml_reader import Node

MAX_BYTES = 8_000_000
_PACKAGE = Path(__file__).resolve().parent.parent
# The code that decides what a file means: a cached matrix that other code made is not used.
_DECIDING = (
    "identity.py",
    "model.py",
    "overlay.py",
    "typed.py",
    "validate.py",
    "validate_cuda.py",
    "validate_releases.py",
    "yaml_reader.py",
)


class LoadedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """A valid matrix. `sha256` names the bytes it was made of: matrix and overlays, in order.

    `paths` are these files, `digests` the SHA-256 of each.
    """

    matrix: Matrix
    sha256: str
    paths: tuple[str, ...]
    digests: tuple[str, ...]


def default_matrix_path() -> Path:
    """The shipped matrix.yaml: package data of a wheel, else the top of the repository."""
    for path in (_PACKAGE / "data" / "matrix.yaml", _PACKAGE.parent / "matrix.yaml"):
        if path.is_file():
            return path
    raise OutsideError(
        "matrix.missing",
        "The installed provision has no matrix.yaml.",
        next_step="Install it again, or name a matrix with --matrix FILE.",
    )


def evidence_directory() -> Path | None:
    """The shipped evidence/: package data of a wheel, else the top of the repository."""
    for path in (_PACKAGE / "data" / "evidence", _PACKAGE.parent / "evidence"):
        if path.is_dir():
            return path
    return None


def load_matrix(
    path: Path | None = None, overlays: Sequence[Path] = (), *, cache: bool = True
) -> LoadedMatrix:
    """The typed, validated matrix of a file (default: the shipped one) with its overlays.

    Raises UsageError (`matrix.<kind>`) that lists up to 20 problems with path, file and line.
    With `cache` a parsed copy is kept for the next time, by content.
    """
    files = [path or default_matrix_path(), *overlays]
    contents = [read_bytes(file) for file in files]
    digests = tuple(hashlib.sha256(content).hexdigest() for content in contents)
    sha256 = digests[0]
    if overlays:
        sha256 = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    paths = tuple(str(file) for file in files)
    directory = cache_directory() if cache else None
    key = _key(sha256) if directory else None
    if directory and key and (matrix := _cached(directory, key)) is not None:
        return LoadedMatrix(matrix=matrix, sha256=sha256, paths=paths, digests=digests)
    matrix = _parse(paths, contents)
    if directory and key:
        write_entry(directory, key, msgspec.msgpack.encode(matrix))
    return LoadedMatrix(matrix=matrix, sha256=sha256, paths=paths, digests=digests)


def read_bytes(path: Path, prefix: str = "matrix") -> bytes:
    """The content of a file of at most MAX_BYTES. Raises UsageError when it cannot be read."""
    try:
        data = read_regular(path, MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{prefix}.unreadable",
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}.",
            next_step="Name a readable YAML file.",
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{prefix}.too-large",
            f"{path} is larger than {MAX_BYTES:,} bytes.",
            next_step="Name the right file; a matrix has some 150,000 bytes.",
        )
    return data


def _key(sha256: str) -> str | None:
    digest = hashlib.sha256(f"{__version__}\n{sha256}\n".encode())
    try:
        for name in _DECIDING:
            digest.update((_PACKAGE / "matrix" / name).read_bytes())
    except OSError:
        return None  # installed without its sources: no way to tell whose cache it is
    return digest.hexdigest()[:40]


def _cached(directory: Path, key: str) -> Matrix | None:
    payload = read_entry(directory, key)
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=Matrix)
    except msgspec.MsgspecError:
        return None


def _parse(paths: tuple[str, ...], contents: Sequence[bytes]) -> Matrix:
    """The matrix that the documents make together. YAML is imported here and not before."""
    from shlex import quote

    from provisioner.matrix.overlay import merge
    from provisioner.matrix.problems import DocumentError
    from provisioner.matrix.typed import convert
    from provisioner.matrix.validate import validate
    from provisioner.matrix.yaml_reader import Mapping, locate, read_tree

    overlays = "".join(f" --overlay {quote(path)}" for path in paths[1:])
    next_step = f", then: provision matrix validate {quote(paths[0])}{overlays}"
    problems: list[Problem] = []
    root: Node | None = None
    for path, content in zip(paths, contents, strict=True):
        tree, found = read_tree(content, path)
        problems += found
        if tree is None:
            raise DocumentError("matrix", problems, next_step)
        keys = tree.entries.keys() if root is None and isinstance(tree, Mapping) else ()
        if keys and not found and not set(keys) & set(Matrix.__struct_fields__):
            # Another file by mistake: what stands in it may be secret, so none of it is quoted.
            raise UsageError(
                "matrix.not-a-matrix",
                f"{path} is no matrix: it has none of the keys of one.",
                facts={"path": path, "keys": list(Matrix.__struct_fields__)},
                next_step="Name the right file (docs/matrix.md says what a matrix holds).",
            )
        if root is None:
            root = tree
        else:
            root, found = merge(root, tree, Matrix)
            problems += found
    assert root is not None  # noqa: S101 - there is at least one path
    matrix, found = convert(root, Matrix)
    problems += found
    if matrix is None or problems:
        raise DocumentError("matrix", problems, next_step)
    problems = [
        msgspec.structs.replace(problem, where=locate(root, problem.path))
        for problem in validate(matrix)
    ]
    if problems:
        raise DocumentError("matrix", problems, next_step)
    return matrix
