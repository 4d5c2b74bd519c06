"""Makes the pip half of a lock: ask an engine, prove its answer, put the hashes to it."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import OutsideError, RefusedError
from provisioner.lock.catalogue import Catalogue
from provisioner.lock.engines import EngineDiedError, EngineError, Question
from provisioner.lock.explain import explain
from provisioner.lock.graph import prove_whole, walk
from provisioner.lock.guards import check_pins
from provisioner.lock.licenses import of_packages
from provisioner.lock.model import Choices, Lock, LockedFile, LockedPackage
from provisioner.lock.recorded import ENOUGH, RecordedFile, Records
from provisioner.lock.sources import WHAT, Addresses, Sources
from provisioner.lock.view import no_loopback, serve
from provisioner.lock.writer import complete

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.lock.client import Client
    from provisioner.lock.engines import Engine
    from provisioner.lock.licenses import License, Licensed
    from provisioner.lock.model import Kind, LockInput
    from provisioner.lock.pages import IndexFile
    from provisioner.lock.select import Project


_UNHEARD = re.compile(
    r"Connection refused|error sending request|Network is unreachable|Failed to establish a new "
    r"connection|client error \(Connect\)|Connection reset|operation timed out"
)
"""What uv and pip say when the loopback itself does not answer them."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a lock is made with; none of it changes the content.

    `recorded_only`: the torch index is not asked, its hashes come from the records.
    """

    engine: Engine
    client: Client
    addresses: Addresses
    recorded_only: bool = False
    records: Records | None = None


@dataclass(frozen=True, kw_only=True)
class LockResult:
    """A lock, how it came about, and what the user should hear.

    `licenses` is what the packages of the lock declare, where their metadata could be read.
    """

    lock: Lock
    engine: str
    seconds: float
    notes: tuple[str, ...] = field(default_factory=tuple)
    licenses: dict[str, Licensed] = field(default_factory=dict)


def make_lock(inputs: LockInput, choices: Choices, means: Means) -> LockResult:
    """Returns the lock that answers `inputs`.

    Raises RefusedError when nothing satisfies them or a guard says no, OutsideError when an index
    or the engine fails. Nothing is written.
    """
    started = time.monotonic()
    sources = Sources(
        inputs, means.addresses, means.client, means.records, recorded_only=means.recorded_only
    )
    catalogue = Catalogue(inputs, sources)
    catalogue.warm(inputs.requirements())
    try:
        pins = _ask(catalogue, means.engine)
        _check_offered(catalogue, pins)
        edges = walk(inputs, pins, catalogue.metadata)
        check_pins(inputs, pins, edges)
        requires = prove_whole(pins, edges, inputs.constraints)
        packages = tuple(
            _package(catalogue, means.client, name, pins[name], requires[name])
            for name in sorted(pins)
            if name not in inputs.provided
        )
        declared = {
            package.name: (package.version, _license(catalogue, package)) for package in packages
        }
    finally:
        catalogue.close()
    lock = complete(
        Lock(
            cell=inputs.cell,
            inputs=inputs.digest(),
            as_of=inputs.as_of,
            provided=inputs.provided,
            chosen=choices,
            platforms=(inputs.target,),
            packages=packages,
            warnings=tuple(_warnings(packages)),
        )
    )
    notes = tuple(
        f"Recorded hashes were taken for {', '.join(names)}. {reason}"
        for reason, names in sorted(sources.fallbacks.items())
    )
    return LockResult(
        lock=lock,
        engine=means.engine.name,
        seconds=time.monotonic() - started,
        notes=notes,
        licenses=of_packages(declared),
    )


def _ask(catalogue: Catalogue, engine: Engine) -> dict[str, str]:
    """The engine's pins; its versions are those of the candidates, letter by letter."""
    inputs = catalogue.inputs

    def watch(end: object) -> None:
        catalogue.on_failure = end  # type: ignore[assignment]
        if catalogue.failure is not None:
            catalogue.on_failure()

    with (
        tempfile.TemporaryDirectory(prefix="provision-lock-") as folder,
        serve(catalogue) as address,
    ):
        question = Question(
            requirements=inputs.requirements(),
            constraints=inputs.constraints,
            target=inputs.target,
            index_url=address,
            folder=Path(folder),
        )
        try:
            return engine.compile(question, watch)
        except EngineError as error:
            if catalogue.failure is not None:
                raise catalogue.failure from error
            if isinstance(error, EngineDiedError):
                raise _died(engine.name, str(error)) from error
            # pip does not say why it found nothing; that nobody asked us says it.
            if not catalogue.heard or _UNHEARD.search(str(error)):
                raise no_loopback(f"does not reach {engine.name}: {_last(error)}") from error
            raise explain(catalogue, str(error)) from error


def _died(engine: str, what: str) -> OutsideError:
    return OutsideError(
        "lock.engine-died",
        f"{engine} {what}, before it had an answer.",
        facts={"engine": engine},
        next_step="Look for a lack of memory (`dmesg`), then lock again, or take the other engine "
        "(`--engine`).",
    )


def _last(error: EngineError) -> str:
    return str(error).strip().splitlines()[-1].strip()[:200]


def _check_offered(catalogue: Catalogue, pins: dict[str, str]) -> None:
    for name, version in sorted(pins.items()):
        if version not in catalogue.project(name).candidates:
            raise OutsideError(
                "lock.unknown-version",
                f"The resolver answered {name} {version}, which no index offered it.",
                next_step="Try the other engine (`--engine`), and report this.",
            )


def _package(
    catalogue: Catalogue, client: Client, name: str, version: str, requires: tuple[str, ...]
) -> LockedPackage:
    project = catalogue.project(name)
    candidate = project.candidates[version]
    records = catalogue.sources.records
    files = tuple(_locked(project, file, client, records) for file in candidate.files)
    return LockedPackage(
        name=name, version=version, origin=project.kind, requires=requires, files=files
    )


def _license(catalogue: Catalogue, package: LockedPackage) -> License | None:
    return catalogue.metadata(package.name, package.version).license


def _locked(project: Project, file: IndexFile, client: Client, records: Records) -> LockedFile:
    """A file with its hash and everyone who vouches for it."""
    record = records.file(file.filename) if project.kind != "own-index" else None
    if project.kind == "recorded" and record is not None:
        sha256, where = record.sha256, record.seen_in
    else:
        what = WHAT[project.kind]
        sha256 = file.sha256 or _hash_of(client, file, what)
        where = (what if file.sha256 else f"{what}, hashed here",)
        if record is not None and _agrees(record, sha256, project.kind):
            where += record.seen_in if project.kind == "torch-index" else ()
    return LockedFile(filename=file.filename, sha256=sha256, confirmed_by=len(where), where=where)


def _agrees(record: RecordedFile, found: str, kind: Kind) -> bool:
    """Whether a record says the same; raises RefusedError when a sure one says otherwise.

    What was recorded from the package index is sure: a file there never changes.
    """
    if record.sha256 == found:
        return True
    if kind != "package-index" and len(record.seen_in) < ENOUGH:
        return False
    raise RefusedError(
        "lock.hash-conflict",
        f"The {WHAT[kind]} serves {record.filename} with another hash than is recorded.",
        facts={"index": found, "recorded": record.sha256, "seen_in": list(record.seen_in)},
        next_step="Do not lock from this index before its operator has explained this.",
    )


def _hash_of(client: Client, file: IndexFile, what: str) -> str:
    """The hash of a file whose page does not tell it: the file has to be read once."""
    seen = hashlib.sha256()
    for piece in client.stream(file.url, what):
        seen.update(piece)
    return seen.hexdigest()


def _warnings(packages: tuple[LockedPackage, ...]) -> Iterator[str]:
    kinds: dict[Kind, list[str]] = {}
    for package in packages:
        kinds.setdefault(package.origin, []).append(package.name)
        weak = [f.filename for f in package.files if package.origin == "recorded"
                and f.confirmed_by < ENOUGH]  # fmt: skip
        if weak:
            yield f"{package.name}: one source alone vouches for the hash of {', '.join(weak)}"
    for name in kinds.get("recorded", []):
        yield f"{name}: hashes from written records, not read from the torch index"
