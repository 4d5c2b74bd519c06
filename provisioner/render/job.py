"""One render: which cells, which files, which groups of the manifest it owns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from provisioner.cells import not_rendered
from provisioner.errors import FindingError
from provisioner.matrix.cell import Refusal, Request, Resolution
from provisioner.matrix.resolve import resolve
from provisioner.render.bake import GROUP, render_bake
from provisioner.render.context import CellContext, Facts
from provisioner.render.engine import render_context
from provisioner.render.fileset import FileSet
from provisioner.render.manifest import load_manifest
from provisioner.render.spec import SPEC_LIMIT, Recorded, read_spec
from provisioner.render.tree import Tree, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

CELL_GROUP = "cell/"
LOCK_GROUP = "lock:"
_MIRRORED = frozenset({"index_url"})  # what a mirror changes in a cell


class Job(msgspec.Struct, frozen=True):
    """What is to be on disk. `refused` are requests without a cell, `cells` those with one, `gone`
    cells that the manifest lists and whose spec.json was deleted.
    """

    files: FileSet
    groups: frozenset[str]
    cells: tuple[CellContext, ...]
    refused: tuple[tuple[Request, Refusal], ...] = ()
    gone: tuple[str, ...] = ()

    def refused_by_code(self) -> dict[str, int]:
        """Returns how often each refusal came, most frequent first."""
        counted = Counter(refusal.code for _, refusal in self.refused)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def recorded_specs(root: Path) -> dict[str, Recorded]:
    """Returns the specs of the cells that were rendered below `root` before, by cell name.

    A cell counts when the manifest lists its spec.json and the file is there.
    """
    specs: dict[str, Recorded] = {}
    if not root.is_dir():
        return specs
    try:
        with Tree(root) as tree:
            manifest, _ = load_manifest(tree)
            for path in manifest.files:
                parts = path.split("/")
                if len(parts) == 3 and parts[0] == "docker" and parts[2] == "spec.json":
                    raw = tree.read(path, SPEC_LIMIT)
                    if raw is not None:
                        specs[parts[1]] = read_spec(raw, path)
    except OSError as error:
        raise explain(error, root, "reading the cells") from None
    return specs


def listed_cells(root: Path) -> dict[str, frozenset[str]]:
    """Returns the cells of which the manifest below `root` lists files, with their groups."""
    if not root.is_dir():
        return {}
    found: dict[str, set[str]] = {}
    try:
        with Tree(root) as tree:
            manifest, _ = load_manifest(tree)
    except OSError as error:
        raise explain(error, root, "reading the cells") from None
    for entry in manifest.files.values():
        for prefix in (CELL_GROUP, LOCK_GROUP):
            if entry.group.startswith(prefix):
                found.setdefault(entry.group.removeprefix(prefix), set()).add(entry.group)
    return {name: frozenset(groups) for name, groups in sorted(found.items())}


def removal_job(root: Path, names: Iterable[str], recorded: Mapping[str, Recorded]) -> Job:
    """Returns the job that takes cells away: all their files, locks too, and their bake entry.

    Raises UsageError for a name of which the manifest lists nothing.
    """
    listed = listed_cells(root)
    groups = {GROUP}
    for name in names:
        if name not in listed:
            raise not_rendered(root, name)
        groups |= listed[name]
    kept = {name: spec for name, spec in recorded.items() if name not in set(names)}
    job = _job([], kept)
    return msgspec.structs.replace(job, groups=frozenset(groups))


def cell_job(resolution: Resolution, facts: Facts, recorded: Mapping[str, Recorded]) -> Job:
    """Returns the job for one cell beside those that are there."""
    return _job([CellContext(resolution, facts)], recorded)


def every_cell_job(facts: Facts, recorded: Mapping[str, Recorded]) -> Job:
    """Returns the job for every release with every published variant, at its defaults."""
    requests = [
        Request(torch=release.torch, cuda=variant.tag)
        for release in facts.matrix.releases
        for variant in release.variants
    ]
    return _from_requests([(request, facts) for request in requests], recorded)


def recorded_job(
    recorded: Mapping[str, Recorded],
    facts_with: Callable[[Recorded], Facts],
    gone: Iterable[str] = (),
) -> Job:
    """Returns the job that makes all recorded cells again, each with its own mirrors.

    `facts_with` gives the matrix of today with the mirrors of a cell. `gone` are cells whose
    spec.json was deleted: what else the manifest lists of their render is no longer wanted.
    """
    requests = [(spec.request, facts_with(spec)) for _, spec in sorted(recorded.items())]
    job = _from_requests(requests, {})
    names = tuple(sorted(gone))
    groups = job.groups | {CELL_GROUP + name for name in names}
    return msgspec.structs.replace(job, groups=groups, gone=names)


def refuse_other_request(job: Job, recorded: Mapping[str, Recorded]) -> None:
    """Raises FindingError when a folder of the job holds a cell that was asked for differently.

    Some options change a cell and not its name: GPUs, a driver, left-out packages.
    """
    for context in job.cells:
        old = recorded.get(context.name)
        if old is None or old.made_by == context.command:
            continue
        new = msgspec.json.decode(msgspec.json.encode(context.cell))
        moved = _MIRRORED if old.mirrors != context.facts.mirrors else frozenset[str]()
        fields = [
            field for field in new if field not in moved and old.cell.get(field) != new[field]
        ]
        if not fields:
            continue
        raise FindingError(
            "render.other-request",
            f"docker/{context.name} holds a cell of the same name from another request: "
            f"{', '.join(fields)} differ.",
            facts={"there": old.made_by, "asked": str(context.command), "differs": fields},
            next_step="Render into another folder with --out DIR, or replace it with --force.",
        )


def _from_requests(
    requests: Iterable[tuple[Request, Facts]], recorded: Mapping[str, Recorded]
) -> Job:
    contexts: list[CellContext] = []
    refused: list[tuple[Request, Refusal]] = []
    for request, facts in requests:
        found = resolve(facts.matrix, request)
        if isinstance(found, Resolution):
            contexts.append(CellContext(found, facts))
        else:
            refused.append((request, found))
    return _job(contexts, recorded, tuple(refused))


def _job(
    contexts: list[CellContext],
    recorded: Mapping[str, Recorded],
    refused: tuple[tuple[Request, Refusal], ...] = (),
) -> Job:
    files = FileSet()
    for context in contexts:
        for file in render_context(context):
            files.add(file.path, file.content, group=file.group, mode=file.mode)
    machines = {name: str(spec.cell.get("arch")) for name, spec in recorded.items()}
    machines |= {str(context.name): context.cell.arch for context in contexts}
    bake = render_bake(machines)
    files.add(bake.path, bake.content, group=bake.group)
    groups = frozenset({GROUP, *(context.group for context in contexts)})
    return Job(files=files, groups=groups, cells=tuple(contexts), refused=refused)
