"""A project's provision.yaml: what it asks for, its own packages, its mirrors."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - part of the struct's type
from typing import Any

import msgspec

from provisioner.matrix.load import read_bytes
from provisioner.matrix.model import Requirement, Text  # noqa: TC001 - part of the structs' types
from provisioner.matrix.problems import DocumentError, DocumentPath, Problem
from provisioner.matrix.project_types import (  # noqa: TC001 - part of the structs' types
    AptSpec,
    CondaSpec,
    ProjectName,
    Word,
)

_NEXT = " and run the command again."
# What the key `torch` chooses, by all names that pip and conda have for it.
_RESERVED = frozenset(
    {
        "libtorch",
        "pytorch",
        "pytorch-cpu",
        "pytorch-cuda",
        "pytorch-gpu",
        "pytorch-mutex",
        "pytorch-triton",
        "torch",
        "torchaudio",
        "torchtriton",
        "torchvision",
        "triton",
    }
)


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable; an unknown key is an error."""


class Packages(_Struct, frozen=True, kw_only=True):
    """Own packages: pip requirements, conda specs, apt names (each by name and version only)."""

    pip: tuple[Requirement, ...] = ()
    conda: tuple[CondaSpec, ...] = ()
    apt: tuple[AptSpec, ...] = ()


class Project(_Struct, frozen=True, kw_only=True):
    """The document. Every key but `name`, `packages` and `mirrors` is an option of that name."""

    name: ProjectName | None = None
    torch: Word | None = None
    cuda: Word | None = None
    python: Word | None = None
    os: Word | None = None
    arch: Word | None = None
    gpu: tuple[Word, ...] | Word | None = None
    driver: Word | None = None
    flavour: Word | None = None
    compile: bool | None = None
    python_from: Word | None = None
    index: Word | None = None
    ptxas: Word | None = None
    without: tuple[Word, ...] | Word | None = None
    packages: Packages = Packages()
    mirrors: dict[Word, Text] = {}
    matrix: Text | None = None
    overlay: tuple[Text, ...] | Text | None = None


class ReadProject(msgspec.Struct, frozen=True):
    """A project with the line of each of its keys (`torch`, `mirrors.conda`)."""

    path: Path
    project: Project
    lines: dict[str, int]

    def place(self, key: str) -> str:
        """Where a key stands: provision.yaml:3."""
        return f"{self.path}:{self.lines[key]}"


def read_project(path: Path) -> ReadProject:
    """The project of a file. Raises UsageError (`project.<kind>`) with all problems and lines."""
    from provisioner.matrix.typed import convert
    from provisioner.matrix.yaml_reader import Mapping, locate, read_tree

    tree, problems = read_tree(read_bytes(path, "project"), str(path))
    if tree is None:
        raise DocumentError("project", problems, _NEXT)
    project, found = convert(tree, Project)
    problems += found
    if project is None or problems or not isinstance(tree, Mapping):
        raise DocumentError("project", problems, _NEXT)
    for problem in _inconsistent(project):
        problems.append(msgspec.structs.replace(problem, where=locate(tree, problem.path)))
    if problems:
        raise DocumentError("project", problems, _NEXT)
    lines = {key: where.line for key, where in tree.keys.items()}
    for origin in project.mirrors:
        lines[f"mirrors.{origin}"] = locate(tree, ("mirrors", origin)).line
    return ReadProject(path, project, lines)


def _inconsistent(project: Project) -> list[Problem]:
    problems: list[Problem] = []
    packages = project.packages
    for index, spec in enumerate(packages.pip):
        problems += _unreadable(spec, ("packages", "pip", index))
    for kind, specs in (("pip", packages.pip), ("conda", packages.conda)):
        for index, spec in enumerate(specs):
            problems += _reserved(spec, ("packages", kind, index))
    if (packages.pip or packages.conda or packages.apt) and project.name is None:
        message = "expected the key 'name' too: a project with own packages has a folder of its own"
        problems.append(Problem(kind="missing-key", message=message, path=("packages",)))
    return problems


def _unreadable(spec: str, path: DocumentPath) -> list[Problem]:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(spec)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0].rstrip(".:")
        message = f"expected a requirement that pip can read, found {spec!r}: {why}"
        return [Problem(kind="value", message=message, path=path)]
    return []


def _reserved(spec: str, path: DocumentPath) -> list[Problem]:
    import re

    written = re.split(r"[^A-Za-z0-9._-]", spec, maxsplit=1)[0]
    name = re.sub(r"[-_.]+", "-", written).lower()  # as package indexes compare names
    if name in _RESERVED:
        why = "the key 'torch' chooses that one"
    elif name == "python":
        why = "the key 'python' chooses that one"
    elif name == "cuda-compat" or name.startswith("cuda-compat-"):
        why = "a driver's libraries come with the image or the host, not with an environment"
    else:
        return []
    message = f"expected a package beside torch, found {spec!r}; {why}"
    return [Problem(kind="inconsistent", message=message, path=path)]


def option_values(project: Project) -> dict[str, Any]:
    """What the document says for options, by option name; lists always as tuples."""
    values = {name: getattr(project, name) for name in project.__struct_fields__}
    for name in ("gpu", "without", "overlay"):
        if isinstance(values[name], str):
            values[name] = (values[name],)
    for name in ("name", "packages", "mirrors"):
        del values[name]
    return {name: value for name, value in values.items() if value is not None}
