"""Why a resolver found nothing, in words of the cell: what was asked, by whom, what stood against.

A resolver explains itself in terms of its own search. We know more: which day, platform and index
were applied, and everything that it read.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from provisioner.errors import OutsideError, ProvisionError, RefusedError
from provisioner.lock import select
from provisioner.lock.graph import Edge, direct, edges_of
from provisioner.lock.inputs import normal_name
from provisioner.lock.installed import pins_of
from provisioner.lock.markers import environment
from provisioner.lock.sources import WHAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.lock.catalogue import Catalogue
    from provisioner.lock.select import Project

_TEXT_LIMIT = 3000
_LOOPBACK = re.compile(r"https?://127\.0\.0\.1:[0-9]+/\S*")

_ADVICE = {
    select.LATER: "Take it as of a later day: `--upgrade {name}`, or `--as-of DATE` for all.",
    select.SOURCE: "A lock takes wheels only: a build would fetch what is not locked. Build a "
    "wheel of it, serve it from an index of your own, and name that: `--own-index {name}=URL`.",
    select.OTHER_PYTHON: "Take another version of it, or a cell with another Python.",
    select.OTHER_PLATFORM: "Take another version of it, or a cell that its wheels are made for.",
}


@dataclass(frozen=True)
class _Step:
    """A requirement that was met on the way, with the way to it."""

    edge: Edge
    path: tuple[str, ...]
    forced: bool


def explain(catalogue: Catalogue, told: str) -> ProvisionError:
    """Returns the error that says why nothing satisfies the cell; `told` is the engine's text."""
    steps = list(_steps(catalogue))
    for judge in (_replaces_torch, _unknown_name, _nothing_fits):
        for step in steps:
            found = judge(catalogue, step)
            if found is not None:
                return found
    return RefusedError(
        "lock.unsatisfiable",
        "No set of versions satisfies this cell and its packages together.",
        facts={"resolver": clean(told), "as_of": catalogue.inputs.as_of},
        next_step="Loosen one of your own packages, or take them as of a later day (`--as-of`).",
    )


def clean(told: str) -> str:
    """Returns an engine's text without addresses of the loopback view, and not endless."""
    text = _LOOPBACK.sub("the index view", told).strip()
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + " ..."


def _steps(catalogue: Catalogue) -> Iterator[_Step]:
    """All requirements reached from the cell over every version that was read, nearest first.

    `forced`: each version of the asker that was read makes this very demand on the name.
    """
    where = environment(catalogue.inputs.target)
    read: dict[str, dict[str, list[Edge]]] = {}
    for (name, version), metadata in sorted(catalogue.asked().items()):
        with contextlib.suppress(ProvisionError):  # an unreadable version explains nothing
            read.setdefault(name, {})[version] = list(edges_of(name, metadata.requires, (), where))
    queue = deque(
        _Step(edge, (str(edge.requirement),), forced=True) for edge in direct(catalogue.inputs)
    )
    seen: set[str] = set()
    while queue:
        step = queue.popleft()
        yield step
        name = step.edge.name
        if name in seen:
            continue
        seen.add(name)
        versions = read.get(name, {})
        for version in sorted(versions, key=lambda v: select.version(v) or Version("0")):
            for edge in versions[version]:
                others = all(any(e.name == edge.name for e in es) for es in versions.values())
                path = (*step.path, f"{name} {version} asks for {edge.requirement}")
                queue.append(_Step(edge, path, forced=step.forced and others))


def _replaces_torch(catalogue: Catalogue, step: _Step) -> ProvisionError | None:
    need = pins_of({"requirements": catalogue.inputs.family}).get(step.edge.name)
    specifier = step.edge.requirement.specifier
    if need is None or not step.edge.asker or specifier.contains(need, prereleases=True):
        return None
    name = step.edge.name
    return RefusedError(
        "lock.replaces-torch",
        f"{step.edge.asker} would replace {name}: the cell has {name} {need}, and it asks for "
        f"{step.edge.requirement}. The way to it: {' -> '.join(step.path)}.",
        facts={
            "package": step.edge.asker,
            "have": f"{name}=={need}",
            "need": str(step.edge.requirement),
            "chain": list(step.path),
        },
        next_step=f"Ask for a version of {step.edge.asker} that takes {name} {need}, or for a cell "
        f"with the {name} that it wants.",
    )


def _unknown_name(catalogue: Catalogue, step: _Step) -> ProvisionError | None:
    project = catalogue.read_project(step.edge.name)
    if project is None or project.known or not step.forced:
        return None
    return OutsideError(
        "index.no-package",
        f"The {WHAT[project.kind]} has no package {project.name}. Asked for by "
        f"{' -> '.join(step.path)}.",
        facts={"package": project.name, "index": project.kind, "chain": list(step.path)},
        next_step="Check the name; a package of your own index needs `--own-index NAME=URL`.",
    )


def _nothing_fits(catalogue: Catalogue, step: _Step) -> ProvisionError | None:
    project = catalogue.read_project(step.edge.name)
    if project is None or not project.known or not step.forced:
        return None
    wanted = step.edge.requirement.specifier
    for text in catalogue.inputs.constraints:
        bound = Requirement(text)
        if normal_name(bound.name) == project.name:
            wanted &= bound.specifier
    if any(wanted.contains(c.version, prereleases=True) for c in project.candidates.values()):
        return None
    return _no_candidate(project, step, str(wanted), catalogue.inputs.as_of)


def _no_candidate(project: Project, step: _Step, wanted: str, as_of: str | None) -> ProvisionError:
    against = {
        str(number): why
        for number, why in sorted(select.reasons(project).items(), reverse=True)
        if not wanted or step.edge.requirement.specifier.contains(number, prereleases=True)
    }
    newest = next(iter(against.items()), None)
    if newest is None:
        why, advice = f"it has no version {wanted or 'at all'}", "Ask for a version that exists."
    else:
        why = f"the newest of {len(against)} that it lists, {newest[0]}, is {newest[1]}"
        advice = _ADVICE.get(newest[1], "Ask for another version.").format(name=project.name)
    return RefusedError(
        "lock.no-candidate",
        f"The {WHAT[project.kind]} has nothing for {project.name}{wanted} that this cell could "
        f"take as of {as_of or 'today'}: {why}. Asked for by {' -> '.join(step.path)}.",
        facts={
            "package": project.name,
            "wanted": wanted,
            "chain": list(step.path),
            "left_out": dict(list(against.items())[:10]),
        },
        next_step=advice,
    )
