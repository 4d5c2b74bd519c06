"""Solving with py-rattler: the only module that knows its solver, and it runs in child processes.

A process that has solved can crash when its interpreter ends, so callers end with `os._exit`.
"""

from __future__ import annotations

import asyncio
import datetime as dt  # noqa: TC003 - type of a field
import json
import os
from collections.abc import Sequence  # noqa: TC003 - part of public signatures
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from provisioner.conda import failures
from provisioner.conda.channel import AUTH_FILE_VARIABLE, Channel, headers_for
from provisioner.conda.virtual import VirtualPackage  # noqa: TC001 - type of a field
from provisioner.errors import OutsideError

if TYPE_CHECKING:
    from rattler import Gateway, MatchSpec, RepoDataRecord
    from rattler.networking import Client

RETRIES = 2
REPODATA_TIMEOUT_S = 180
_CLASH_LIMIT = 40


@dataclass(frozen=True, kw_only=True)
class Question:
    """One solve. `installed` are records (as in conda-meta) of an environment to change.

    With `update` only these names may move: first with all else pinned, then merely preferred.
    `constraints` bound packages without asking for them. `cache` keeps what channels answered.
    """

    platform: str
    specs: tuple[str, ...]
    channels: tuple[Channel, ...]
    virtual: tuple[VirtualPackage, ...] = ()
    constraints: tuple[str, ...] = ()
    installed: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    exclude_newer: dt.datetime | None = None
    cache: Path | None = None
    offline: bool = False


def version() -> str:
    """Returns the version of py-rattler."""
    import rattler

    return str(rattler.__version__)


def solve(question: Question) -> list[dict[str, Any]]:
    """Returns the repodata records of the solution, sorted by name, with addresses for a lock.

    Raises FindingError when nothing satisfies the specs (`conda.unsatisfiable`,
    `conda.unknown-package`), OutsideError when a channel cannot be read (`conda.channel-*`,
    `conda.offline`), UsageError for text that is no spec.
    """
    return asyncio.run(_Solver(question).answer())


class _Solver:
    """One question with the gateway that serves it."""

    def __init__(self, question: Question) -> None:
        import rattler

        self.question = question
        self.sources = [rattler.Channel(_readable(c)) for c in question.channels]
        self.subdirs = [rattler.Subdir(name) for name in (question.platform, "noarch")]
        self.gateway = _gateway(question)

    async def answer(self) -> list[dict[str, Any]]:
        specs = [_spec(text) for text in self.question.specs]
        if self.question.installed:
            records = await self._update(specs)
        else:
            records = await self._solve(specs)
        plain = [self._plain(record) for record in records]
        return sorted(plain, key=lambda record: str(record["name"]))

    async def _solve(self, specs: list[MatchSpec], **held: Any) -> list[RepoDataRecord]:
        from rattler.exceptions import GatewayError, SolverError

        try:
            return await self._attempt(specs, **held)
        except GatewayError as error:
            raise failures.of_gateway(str(error), self.question.channels) from None
        except SolverError as error:
            raise await self._unsatisfiable(specs, str(error)) from None

    async def _attempt(self, specs: list[MatchSpec], **held: Any) -> list[RepoDataRecord]:
        import rattler

        return await rattler.solve(
            self.sources,
            specs,
            gateway=self.gateway,
            platforms=self.subdirs,
            virtual_packages=[_virtual(package) for package in self.question.virtual],
            constraints=[_spec(text) for text in self.question.constraints],
            exclude_newer=self.question.exclude_newer,
            # Records of a channel may name other channels; only those asked for are read.
            channel_relations="disabled",
            **held,
        )

    async def _update(self, specs: list[MatchSpec]) -> list[RepoDataRecord]:
        """Moves what the specs name and, only where that is needed, what stands in their way."""
        from rattler.exceptions import GatewayError, SolverError

        moving = {_name(spec) for spec in specs}
        try:
            kept = [
                record
                for record in await self._installed_records()
                if record.name.normalized not in moving
            ]
        except GatewayError as error:
            raise failures.of_gateway(str(error), self.question.channels) from None
        wanted = specs + [_spec(record.name.normalized) for record in kept]
        try:
            return await self._attempt(wanted, pinned_packages=kept)
        except SolverError:
            return await self._solve(wanted, locked_packages=kept)

    async def _installed_records(self) -> list[RepoDataRecord]:
        """The channel's own records of what is installed: conda-meta of a lock lacks most of it."""
        by_file = {record["fn"]: record for record in self.question.installed}
        names = sorted({str(record["name"]) for record in self.question.installed})
        answers = await self.gateway.query(
            self.sources,
            self.subdirs,
            names,
            recursive=False,
            channel_relations="disabled",
        )
        return [record for answer in answers for record in answer if record.file_name in by_file]

    async def _unsatisfiable(self, specs: list[MatchSpec], text: str) -> Exception:
        """Names the smallest part of the specs that already has no solution."""
        question = self.question
        clash = await self._smallest_clash(specs)
        if len(clash) == 1:
            known = await self.gateway.names(
                self.sources, self.subdirs, channel_relations="disabled"
            )
            if _name(clash[0]) not in {name.normalized for name in known}:
                return failures.unknown_package(
                    _name(clash[0]), question.platform, question.channels
                )
        if len(clash) < len(specs):
            text = await self._reason(clash, text)
        shown = [str(spec) for spec in clash]
        facts = ", ".join(map(str, sorted(question.virtual))) or "no virtual packages"
        target = f"{question.platform} with {facts}"
        return failures.unsatisfiable(text, shown, target, question.channels)

    async def _smallest_clash(self, specs: list[MatchSpec]) -> list[MatchSpec]:
        """Leaves out one spec after the other for as long as there is no solution."""
        from rattler.exceptions import SolverError

        kept = list(specs)
        if len(kept) > _CLASH_LIMIT:
            return kept
        for spec in specs:
            without = [other for other in kept if other is not spec]
            if not without:
                break
            try:
                await self._attempt(without)
            except SolverError:
                kept = without
        return kept

    async def _reason(self, clash: list[MatchSpec], text: str) -> str:
        from rattler.exceptions import SolverError

        try:
            await self._attempt(clash)
        except SolverError as error:
            return str(error)
        return text

    def _plain(self, record: RepoDataRecord) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(record.to_json())
        address = record.url
        for channel in self.question.channels:
            public = channel.public(address)
            if public.startswith(channel.url + "/"):
                return plain | {"url": public, "channel": channel.url, "fn": record.file_name}
        folder = address.rpartition("/")[0].rpartition("/")[0]
        return plain | {"url": address, "channel": folder, "fn": record.file_name}


def client_for(channels: Sequence[Channel], timeout_s: int) -> Client:
    """Returns a client that reads mirrors under the real addresses and knows the credentials.

    py-rattler's own default client brings cloud storage along, and looks for none of our mirrors.
    Certificates are the system's, or those in SSL_CERT_FILE.
    """
    from rattler.networking import Client, MirrorMiddleware
    from rattler.networking.middleware import (
        AddHeadersMiddleware,
        AuthenticationMiddleware,
        RetryMiddleware,
    )

    auth_file = os.environ.get(AUTH_FILE_VARIABLE)
    if auth_file:
        if not Path(auth_file).is_file():
            raise OutsideError(
                "conda.auth-file",
                f"The file with credentials that {AUTH_FILE_VARIABLE} names is not there: "
                f"{auth_file}.",
            )
        os.environ["RATTLER_AUTH_FILE"] = auth_file
    steps: list[Any] = [RetryMiddleware(RETRIES)]
    # After the mirror: credentials belong to the host that is really asked.
    mirrors = {c.url: [c.read_from] for c in channels if c.mirrored and c.read_from != c.url}
    if mirrors:
        steps.append(MirrorMiddleware(mirrors))
    headers = headers_for(channels)
    if headers is not None:
        steps.append(AddHeadersMiddleware(headers))
    else:
        steps.append(AuthenticationMiddleware())
    return Client(steps, user_agent="provision", timeout=timeout_s)


def _gateway(question: Question) -> Gateway:
    import rattler
    from rattler.repo_data.gateway import SourceConfig

    action: Literal["force-cache-only", "cache-or-fetch"]
    action = "force-cache-only" if question.offline else "cache-or-fetch"
    return rattler.Gateway(
        cache_dir=question.cache,
        default_config=SourceConfig(cache_action=action),
        client=client_for(question.channels, REPODATA_TIMEOUT_S),
    )


def _readable(channel: Channel) -> str:
    return channel.url if channel.mirrored else channel.read_from


def _spec(text: str) -> MatchSpec:
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    try:
        # Not strict: conda-lock writes `numpy 1.26.*` and such.
        return MatchSpec(text, strict=False)
    except (InvalidMatchSpecError, ValueError) as error:
        raise failures.bad_spec(text, str(error)) from None


def _name(spec: MatchSpec) -> str:
    return str(spec.name.normalized)


def _virtual(package: VirtualPackage) -> Any:
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.package.build_string import BuildString

    return GenericVirtualPackage(
        PackageName(package.name), Version(package.version), BuildString(package.build)
    )
