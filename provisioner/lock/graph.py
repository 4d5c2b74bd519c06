"""Who asks for whom: proof that a set of pins is whole, and the chain that leads to a package."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from provisioner.errors import OutsideError
from provisioner.lock.inputs import normal_name
from provisioner.lock.markers import applies, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from provisioner.lock.metadata import Metadata
    from provisioner.lock.model import LockInput


@dataclass(frozen=True)
class Edge:
    """One requirement that holds on the target. `asker` is a name, or "" for the cell itself."""

    asker: str
    name: str
    requirement: Requirement


def direct(inputs: LockInput) -> list[Edge]:
    """Returns what the cell itself asks for on its target."""
    return list(edges_of("", inputs.requirements(), (), environment(inputs.target)))


def edges_of(
    asker: str, texts: Iterable[str], extras: tuple[str, ...], where: Mapping[str, str]
) -> Iterator[Edge]:
    """Yields the requirements among `texts` that hold, with these extras or without; raises
    OutsideError for a text that is none."""
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise OutsideError(
                "index.bad-requirement",
                f"{asker} carries a requirement that cannot be read: {ascii(text)[:120]}.",
                facts={"package": asker},
                next_step=f"Take another version of {asker}.",
            ) from error
        if applies(requirement, where, extras):
            yield Edge(asker, normal_name(requirement.name), requirement)


def walk(
    inputs: LockInput, pins: Mapping[str, str], metadata: Callable[[str, str], Metadata]
) -> list[Edge]:
    """Returns every requirement that holds among the pins, starting at the cell.

    A name without a pin is an end. Extras are followed as they are asked for.
    """
    where = environment(inputs.target)
    found: list[Edge] = []
    seen: set[tuple[str, str]] = set()
    open_edges = deque(direct(inputs))
    while open_edges:
        edge = open_edges.popleft()
        found.append(edge)
        if edge.name not in pins:
            continue
        for extra in ("", *sorted(edge.requirement.extras)):
            if (edge.name, extra) in seen:
                continue
            seen.add((edge.name, extra))
            asked = metadata(edge.name, pins[edge.name]).requires
            open_edges.extend(edges_of(edge.name, asked, (extra,) if extra else (), where))
    return found


def prove_whole(
    pins: Mapping[str, str], edges: Iterable[Edge], constraints: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Returns name -> required names; raises OutsideError when an engine's answer is not whole.

    The engine decided the versions; this holds every requirement against them once more.
    """
    bounds = [Requirement(text) for text in constraints]
    requires: dict[str, set[str]] = {name: set() for name in pins}
    wanted: set[str] = set()
    checks = [(edge.asker, edge.name, edge.requirement) for edge in edges]
    wanted.update(name for _, name, _ in checks)
    checks += [("constraints", normal_name(bound.name), bound) for bound in bounds]
    for asker, name, requirement in checks:
        have = pins.get(name)
        if have is None and asker != "constraints":
            raise _not_whole(f"{requirement} is asked for by {asker or 'the cell'} and missing")
        if have is not None and not requirement.specifier.contains(have, prereleases=True):
            raise _not_whole(f"{asker or 'the cell'} asks for {requirement}, the answer has {have}")
        if asker and asker != "constraints":
            requires[asker].add(name)
    if extra := sorted(set(pins) - wanted):
        raise _not_whole(f"nobody asks for {', '.join(extra)}")
    return {name: tuple(sorted(names)) for name, names in requires.items()}


def chain(edges: Iterable[Edge], goal: str) -> list[str]:
    """Returns the requirements that lead from the cell to `goal`, shortest first; [] for none."""
    before: dict[str, Edge] = {}
    for edge in edges:  # breadth first, so the first way to a name is a shortest one
        before.setdefault(edge.name, edge)
    path: list[str] = []
    name = goal
    while name in before and len(path) <= len(before):
        path.insert(0, str(before[name].requirement))
        name = before[name].asker
        if not name:
            return path
    return []


def _not_whole(what: str) -> OutsideError:
    return OutsideError(
        "lock.not-whole",
        f"The answer of the resolver does not hold together: {what}.",
        next_step="Try the other engine (`--engine`), and report this.",
    )
