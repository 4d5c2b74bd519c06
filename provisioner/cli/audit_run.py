"""Asks the origins for `provision matrix audit`: few at a time, each down origin only once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from provisioner.errors import OutsideError
from provisioner.lock.metadata import read_metadata
from provisioner.lock.pages import ACCEPT, IndexFile, PageError, parse_page
from provisioner.matrix.audit import (
    Finding,
    conda_findings,
    hash_findings,
    new_releases,
    release_findings,
    variant_findings,
)
from provisioner.matrix.listing import in_range
from provisioner.matrix.propose import Proposal, propose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from provisioner.lock.client import Client
    from provisioner.matrix.audit import ServedFile
    from provisioner.matrix.model import Matrix, Release

PACKAGE, TORCH, CONDA = "package index", "torch index", "conda channel"


class Reach:
    """Whether an origin can be reached: its first failure is the answer to all later questions."""

    def __init__(self) -> None:
        self.failure: OutsideError | None = None

    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer; raises the OutsideError that the origin is known for."""
        if self.failure is not None:
            raise self.failure
        try:
            return question()
        except OutsideError as error:
            if error.code in _DOWN:
                self.failure = error
            raise


_DOWN = frozenset(
    f"index.{kind}"
    for kind in ("dns", "proxy", "tls", "timeout", "connection", "credentials", "ca-bundle")
)


class ClientView:
    """One simple index, asked through the tool's own client. Safe to use from several threads."""

    def __init__(self, client: Client, base: str, what: str, reach: Reach) -> None:
        self.client = client
        self.base = base.rstrip("/")
        self.what = what
        self.reach = reach
        self._lock = threading.Lock()
        self._waiting: dict[str, threading.Lock] = {}
        self._files: dict[str, list[IndexFile]] = {}
        self._requires: dict[str, tuple[str, ...]] = {}

    def files(self, project: str) -> list[ServedFile]:
        """All files of a project, asked for once; empty when the index does not have it."""
        with self._lock:
            waiting = self._waiting.setdefault(project, threading.Lock())
        with waiting:
            if project not in self._files:
                self._files[project] = self.reach.ask(lambda: self._page(project))
        return list(self._files[project])

    def requires(self, file: ServedFile) -> tuple[str, ...]:
        """The Requires-Dist lines of a wheel, asked for once."""
        with self._lock:
            waiting = self._waiting.setdefault(file.filename, threading.Lock())
        with waiting:
            if file.filename not in self._requires:
                found = self.reach.ask(lambda: self._metadata(file))
                self._requires[file.filename] = found
        return self._requires[file.filename]

    def _metadata(self, file: ServedFile) -> tuple[str, ...]:
        if not isinstance(file, IndexFile):
            raise TypeError(file)
        return read_metadata(self.client, file, self.what).requires

    def _page(self, project: str) -> list[IndexFile]:
        url = f"{self.base}/{quote(project)}/"
        answer = self.client.get(url, self.what, {"Accept": ACCEPT})
        if answer.status != 200:
            return []
        try:
            return parse_page(answer.body, answer.headers.get("content-type", ""), answer.url)
        except PageError as error:
            raise OutsideError(
                "index.bad-page",
                f"The {self.what} answers with something that is no index page: {error}.",
            ) from error


class Plan(msgspec.Struct, kw_only=True):
    """What to audit. `torch` is the range that `releases` was chosen by, null for the whole."""

    matrix: Matrix
    releases: tuple[Release, ...]
    package_index: str
    recorded: dict[tuple[str, str], dict[str, str]]
    torch: str | None
    jobs: int
    day: str


class Audit(msgspec.Struct, kw_only=True):
    """All findings, the releases that the matrix lacks, and a proposal (or why none) for each."""

    findings: list[Finding]
    new: list[str]
    proposals: list[Proposal]
    without_proposal: list[str]


def run_audit(plan: Plan, client: Client, progress: Callable[[int, int], None]) -> Audit:
    """Ask every origin. `recorded` is by (origin or variant, project): file name to sha256."""
    matrix = plan.matrix
    package = ClientView(client, plan.package_index, PACKAGE, Reach())
    torch = torch_views(matrix, plan.releases, client)
    tasks: list[Callable[[], list[Finding]]] = []
    for release in plan.releases:
        tasks.append(lambda release=release: release_findings(release, package))  # type: ignore[misc]
        tasks.append(lambda release=release: variant_findings(release, torch))  # type: ignore[misc]
    for (where, project), files in sorted(plan.recorded.items()):
        if where == "package_index":
            tasks.append(_hashes("package_index", project, files, package))
        elif where in torch:
            tasks.append(_hashes("torch_index", project, files, torch[where]))
    if plan.torch is None:
        tasks.append(lambda: conda_findings(matrix, conda_names(matrix, client)))
    findings = _all(tasks, plan.jobs, progress)
    audit = Audit(findings=findings, new=[], proposals=[], without_proposal=[])
    if package.reach.failure is None:
        _new(plan, package, audit)
    return audit


def torch_views(
    matrix: Matrix, releases: Sequence[Release], client: Client
) -> dict[str, ClientView]:
    """A view of each variant's index, by tag."""
    base = matrix.origins.torch_index.url or ""
    reach = Reach()
    tags = dict.fromkeys(variant.tag for release in releases for variant in release.variants)
    return {tag: ClientView(client, f"{base}/{tag}", TORCH, reach) for tag in tags}


class _Repodata(msgspec.Struct):
    packages: dict[str, dict[str, Any]] = {}
    conda: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict, name="packages.conda")


def conda_names(matrix: Matrix, client: Client) -> Callable[[str], Mapping[str, set[str]]]:
    """What gives the versions by name of a channel, from its current_repodata.json."""

    reach = Reach()

    def names(channel: str) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = reach.ask(lambda: read(channel))
        return found

    def read(channel: str) -> dict[str, set[str]]:
        url = f"{matrix.origins.conda.url}/{channel}/linux-64/current_repodata.json"
        answer = client.get(url, CONDA)
        if answer.status != 200:
            raise OutsideError("index.no-channel", f"There is no conda channel {channel}.")
        try:
            data = msgspec.json.decode(answer.body, type=_Repodata)
        except msgspec.MsgspecError as error:
            raise OutsideError(
                "index.bad-page", f"The conda channel {channel} answers with no repodata: {error}."
            ) from error
        found: dict[str, set[str]] = {}
        for entry in (*data.packages.values(), *data.conda.values()):
            found.setdefault(str(entry.get("name")), set()).add(str(entry.get("version")))
        return found

    return names


def _hashes(
    origin: Any, project: str, files: dict[str, str], view: ClientView
) -> Callable[[], list[Finding]]:
    return lambda: hash_findings(origin, project, files, view)


def _all(
    tasks: Sequence[Callable[[], list[Finding]]], jobs: int, progress: Callable[[int, int], None]
) -> list[Finding]:
    """The findings of all tasks, in the order of the tasks."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(task) for task in tasks]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(futures))
        return [finding for future in futures for finding in future.result()]


def _new(plan: Plan, package: ClientView, audit: Audit) -> None:
    try:
        audit.new = in_range(new_releases(plan.matrix, package), plan.torch)
        for torch in audit.new:
            made = propose(plan.matrix, torch, package, plan.day)
            if isinstance(made, Proposal):
                audit.proposals.append(made)
            else:
                audit.without_proposal.append(made)
    except OutsideError as error:
        audit.without_proposal.append(error.message)
