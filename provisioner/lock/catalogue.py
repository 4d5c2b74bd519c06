"""Everything that one lock has read: each page and each metadata once, from many threads.

A resolver asks one question after another and waits for each; `warm` walks ahead of it along the
requirements, so that most answers are there when they are asked for.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from provisioner.errors import ProvisionError
from provisioner.lock.inputs import normal_name
from provisioner.lock.markers import applies, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from provisioner.lock.metadata import Metadata
    from provisioner.lock.model import LockInput
    from provisioner.lock.select import Project
    from provisioner.lock.sources import Sources

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")
_WORKERS = 12


class Catalogue:
    """Cached, thread-safe view of the sources of a lock.

    `failure` is the first error that an answer ended in; `on_failure` is called once with it.
    `heard`: some engine has asked at all.
    """

    def __init__(self, inputs: LockInput, sources: Sources) -> None:
        self.inputs, self.sources = inputs, sources
        self.failure: Exception | None = None
        self.heard = False
        self.on_failure: Callable[[], None] = lambda: None
        self._projects: dict[str, Future[Project]] = {}
        self._metadata: dict[tuple[str, str], Future[Metadata]] = {}
        self._guard = threading.Lock()
        self._environment = environment(inputs.target)
        self._bounds = _by_name(inputs.constraints)
        self._visited: set[tuple[str, str]] = set()
        self._ahead: queue.SimpleQueue[Requirement | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._closed = False

    def project(self, name: str) -> Project:
        """Returns what the index of a name offers; raises OutsideError or RefusedError."""
        return self._once(self._projects, name, lambda: self.sources.project(name))

    def metadata(self, name: str, version: str) -> Metadata:
        """Returns what a version asks for; raises KeyError when there is no such candidate."""
        project = self.project(name)
        candidate = project.candidates[version]
        return self._once(
            self._metadata, (name, version), lambda: self.sources.metadata(project, candidate)
        )

    def read_project(self, name: str) -> Project | None:
        """Returns a project that was read already, without asking any index."""
        with self._guard:
            future = self._projects.get(name)
        if future is None or not future.done() or future.exception() is not None:
            return None
        return future.result()

    def asked(self) -> dict[tuple[str, str], Metadata]:
        """Returns all metadata read so far, by (name, version)."""
        with self._guard:
            done = {key: future for key, future in self._metadata.items() if future.done()}
        return {key: future.result() for key, future in done.items() if future.exception() is None}

    def fail(self, error: Exception) -> None:
        """Keeps the first error that a resolver was denied an answer for, and tells the engine."""
        with self._guard:
            first = self.failure is None
            self.failure = self.failure or error
        if first:
            self.on_failure()

    def warm(self, requirements: Iterable[str]) -> None:
        """Starts reading what the requirements will need; errors wait until somebody asks."""
        for text in requirements:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            key = (normal_name(requirement.name), str(requirement.specifier))
            if key in self._visited or not applies(requirement, self._environment):
                continue
            self._visited.add(key)
            self._ahead.put(requirement)
            with self._guard:
                if len(self._workers) < _WORKERS and not self._closed:
                    # Daemons: a slow index must not hold up the end of the process.
                    worker = threading.Thread(target=self._work, daemon=True)
                    self._workers.append(worker)
                    worker.start()

    def close(self) -> None:
        """Ends the reading ahead; what is under way is waited for by nobody."""
        self._closed = True
        for _ in self._workers:
            self._ahead.put(None)

    def _work(self) -> None:
        while (requirement := self._ahead.get()) is not None and not self._closed:
            self._walk(requirement)

    def _walk(self, requirement: Requirement) -> None:
        try:
            name = normal_name(requirement.name)
            bounds = requirement.specifier & self._bounds.get(name, SpecifierSet())
            fitting = [
                text
                for text, candidate in self.project(name).candidates.items()
                if bounds.contains(candidate.version) and not candidate.yanked
            ]
            if fitting:
                self.warm(self.metadata(name, fitting[-1]).requires)
        except ProvisionError:
            return  # kept in the future of this name, for the engine when it asks

    def _once(self, table: dict[K, Future[T]], key: K, read: Callable[[], T]) -> T:
        with self._guard:
            future = table.get(key)
            mine = future is None
            if future is None:
                future = table[key] = Future()
        if mine:
            try:
                future.set_result(read())
            except BaseException as error:  # noqa: BLE001 - kept for all who wait, then raised
                future.set_exception(error)
        return future.result()


def _by_name(constraints: tuple[str, ...]) -> dict[str, SpecifierSet]:
    bounds: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, constraints):
        name = normal_name(requirement.name)
        bounds[name] = bounds.get(name, SpecifierSet()) & requirement.specifier
    return bounds
