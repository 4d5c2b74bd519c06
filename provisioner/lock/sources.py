"""One index for each name, and never another: where a project's files may come from.

The torch family with a label comes from the variant's index, a name of the user's own from the
index named for it, everything else from the package index. What is planted under the same name on
another index is not even looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from provisioner.errors import OutsideError
from provisioner.lock.credentials import bare
from provisioner.lock.inputs import name_of, normal_name
from provisioner.lock.metadata import Metadata, read_metadata
from provisioner.lock.pages import ACCEPT, IndexFile, PageError, parse_page
from provisioner.lock.recorded import Records, confirmed, load_records
from provisioner.lock.select import Candidate, Project, Rules, select
from provisioner.lock.tags import WheelName, rank

if TYPE_CHECKING:
    from provisioner.lock.client import Client
    from provisioner.lock.model import Kind, LockInput, Target

NEVER = frozenset({"torchtriton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"})
"""Names that only the torch index may serve; torchtriton was hijacked on the public index once."""

WHAT: dict[Kind, str] = {
    "package-index": "package index",
    "torch-index": "torch index",
    "own-index": "index of your own",
    "recorded": "recorded hashes",
    "conda": "conda half",
}


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the indexes are. `torch` is that of the variant, null when no name comes from there.

    `own` maps names to simple-index addresses. None of this is written into a lock.
    """

    package: str
    torch: str | None = None
    own: dict[str, str] = field(default_factory=dict)


class Sources:
    """Answers for each name what its one index offers under the rules of a lock."""

    def __init__(
        self,
        inputs: LockInput,
        addresses: Addresses,
        client: Client,
        records: Records | None = None,
        *,
        recorded_only: bool = False,
    ) -> None:
        self._inputs, self._addresses, self._client = inputs, addresses, client
        self.records = records if records is not None else load_records()
        self._recorded_only = recorded_only
        self._own = {normal_name(name): url for name, url in addresses.own.items()}
        pins = (pin.partition("==") for pin in inputs.family)
        self._pins = {name_of(name): version for name, _, version in pins}
        # The message of a failed torch index -> the names that the records answered for.
        self.fallbacks: dict[str, list[str]] = {}

    def kind(self, name: str) -> Kind | None:
        """Returns which index serves a name; None when no index may."""
        if name in self._inputs.provided:
            return "conda"
        if name in self._inputs.own:
            return "own-index"
        if "+" in self._pins.get(name, ""):
            return "torch-index"
        if name in NEVER:
            return "torch-index" if self._inputs.torch_index is not None else None
        return "package-index"

    def project(self, name: str) -> Project:
        """Returns the candidates of a name; raises OutsideError or RefusedError."""
        kind = self.kind(name)
        if kind is None:
            return Project(name=name, kind="package-index", known=False)
        if kind == "conda":
            return _provided(name, self._inputs.provided[name], self._inputs.target)
        if kind == "torch-index" and self._recorded_only:
            return self._recorded(name, None)
        try:
            return self._live(name, kind)
        except OutsideError as error:
            if kind != "torch-index" or not error.code.startswith("index."):
                raise
            return self._recorded(name, error)

    def metadata(self, project: Project, candidate: Candidate) -> Metadata:
        """Returns what one version asks for; raises OutsideError."""
        if project.kind == "conda":
            return Metadata()  # what it needs is conda's affair
        if project.kind == "recorded":
            known = self.records.project(project.name, str(candidate.version))
            return known.metadata() if known is not None else Metadata()
        return read_metadata(self._client, candidate.best, WHAT[project.kind])

    def _live(self, name: str, kind: Kind) -> Project:
        base = {
            "package-index": self._addresses.package,
            "torch-index": self._addresses.torch,
            "own-index": self._own.get(name),
        }.get(kind)
        if base is None:
            raise OutsideError(
                "index.no-address",
                f"No address is known for the {WHAT[kind]} that serves {name}.",
                next_step=f"Name it: `--own-index {name}=URL`."
                if kind == "own-index"
                else "Name it: `--mirror torch_index=URL`.",
            )
        files = self._page(f"{base.rstrip('/')}/{quote(name)}/", WHAT[kind])
        if files is None:
            if kind == "torch-index":
                raise OutsideError(
                    "index.no-project",
                    f"The torch index for {self._inputs.torch_index} has no {name}.",
                    facts={"address": bare(base), "package": name},
                    next_step="Check the mirror of torch_index: the address above the variants.",
                )
            return Project(name=name, kind=kind, known=False)
        return select(name, kind, files, self._rules(name, kind))

    def _rules(self, name: str, kind: Kind) -> Rules:
        dated = kind == "package-index"
        return Rules(
            target=self._inputs.target,
            # The torch index tells no times, and its files are pinned to one version anyway.
            until=None if kind == "torch-index" else self._until(name),
            dated=dated,
            only=self._pins.get(name),
        )

    def _until(self, name: str) -> str | None:
        return self._inputs.upgrades.get(name, self._inputs.as_of)

    def _page(self, url: str, what: str) -> list[IndexFile] | None:
        answer = self._client.get(url, what, {"Accept": ACCEPT})
        if answer.status != 200:
            return None
        try:
            return parse_page(answer.body, answer.headers.get("content-type", ""), answer.url)
        except PageError as error:
            raise OutsideError(
                "index.bad-page",
                f"The {what} answers with something that is no index page: {error}.",
                facts={"address": bare(url)},
                next_step="Check the address: it is that of a simple index (PEP 503 or 691).",
            ) from error

    def _recorded(self, name: str, failure: OutsideError | None) -> Project:
        """The pinned version out of the records; without it `failure` is the answer."""
        pin = self._pins.get(name, "")
        known = self.records.project(name, pin)
        fitting = []
        for file in known.files if known is not None else ():
            fit = rank(WheelName(file.filename), self._inputs.target)
            if fit is not None:
                fitting.append((fit, file))
        if known is None or not fitting:
            raise _not_recorded(name, pin, failure)
        fitting.sort(key=lambda entry: (entry[0], entry[1].filename))
        kept = confirmed([file for _, file in fitting], self._inputs.single_source)
        if failure is not None:
            self.fallbacks.setdefault(failure.message, []).append(name)
            self.fallbacks[failure.message].sort()
        files = [IndexFile(filename=f.filename, url="", sha256=f.sha256) for f in kept]
        return select(name, "recorded", files, Rules(target=self._inputs.target, only=pin))


def _provided(name: str, version: str, target: Target) -> Project:
    """A distribution that is there already, at its version and no other."""
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    file = IndexFile(filename=filename, url="", sha256=None)
    return select(name, "conda", [file], Rules(target=target))


def _not_recorded(name: str, pin: str, failure: OutsideError | None) -> OutsideError:
    if failure is None:
        return OutsideError(
            "lock.not-recorded",
            f"No hash of {name} {pin} for this Python and machine is recorded.",
            next_step="Lock from the torch index (leave out `--recorded`).",
        )
    return OutsideError(
        failure.code,
        f"{failure.message} No hash of {name} {pin} for this cell is recorded either.",
        facts={**failure.facts, "package": f"{name} {pin}"},
        next_step=failure.next_step,
    )
