"""Reads the facts of many hosts at once: one ssh command each, through Ansible's connections."""

from __future__ import annotations

import base64
import datetime as dt  # noqa: TC003 - decoded at run time
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from provisioner.errors import OutsideError
from provisioner.fleet.engine import Job, result_of, run
from provisioner.fleet.store import read_whole, sha256, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from provisioner.fleet.inventory import Listed

FACTS_SCHEMA: Final = "provision.fleet-facts/1"
_ANSWERS = {"runner_on_ok": "read", "runner_on_unreachable": "unreachable"}
_REASON = 300


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a facts file. `collected_at` is UTC, by the controller's clock."""

    schema: Literal["provision.fleet-facts/1"]
    collected_at: dt.datetime
    hosts: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One host: its groups and its facts as they came, with their sha256; or why there are none."""

    host: str
    groups: tuple[str, ...]
    state: Literal["read", "unreachable", "failed"]
    reason: str | None = None
    sha256: str | None = None
    facts: msgspec.Raw = msgspec.Raw(b"null")


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A facts file, read: its digest, when it was made, the hosts by name."""

    sha256: str
    collected_at: dt.datetime
    entries: tuple[Entry, ...]


_WRAPPER = """\
import zlib,base64,json,sys
s={'__name__':'facts'}
exec(zlib.decompress(base64.b64decode('%s')),s)
f=s['collect'](s['Host']())
def fact(name):
    try:
        return json.load(open(sys.argv[1]+'/'+name))
    except FileNotFoundError:
        return False
    except Exception:
        return None
p,o=fact('provision_rollout.fact'),fact('provision.fact')
if p and o is not False and not (o and o.get('state')=='done' and o.get('cell')==p.get('cell')):
    p['state']='changed'
elif p is False and o and o.get('state')=='done':
    p={'cell':o.get('cell'),'branch':o.get('branch'),'state':'none'}
f['provision']=p
print(json.dumps(f))
"""


def reader() -> str:
    """The fact reader as a program for `python3 -c`: nothing is left behind on the host.

    It adds `provision`, the state that a rollout recorded: false where there is none. Where
    gpu_host.yml, run by hand, recorded another cell since, the state is `changed`.
    """
    from provisioner.host import facts

    source = Path(facts.__file__).read_bytes()
    return _WRAPPER % base64.b64encode(zlib.compress(source, 9)).decode("ascii")


def collect(
    sources: Iterable[str],
    listed: Listed,
    playbook: Path,
    *,
    forks: int,
    vault_password_file: str | None,
    timeout_s: int,
) -> list[Entry]:
    """Asks every host; one that does not answer in `timeout_s` seconds is an entry of its own."""
    found: dict[str, Entry] = {}

    def on_event(event: Mapping[str, Any]) -> None:
        kind, host, _, result = result_of(event)
        if host in listed.groups and kind in (*_ANSWERS, "runner_on_failed"):
            found[host] = entry_of(host, listed.groups[host], kind, result)

    with tempfile.TemporaryDirectory(prefix="provision-fleet-") as folder:
        job = Job(
            playbook=playbook,
            inventory=tuple(sources),
            folder=Path(folder),
            variables={"provision_fleet_reader": reader()},
            forks=forks,
            vault_password_file=vault_password_file,
            environ={"ANSIBLE_TASK_TIMEOUT": str(timeout_s)},
        )
        ended = run(job, on_event, lambda: False)
    if not found and listed.groups:
        raise OutsideError(
            "fleet.ansible",
            f"Ansible asked no host; it ended with status {ended.status}:\n{ended.said}",
            next_step="ansible all -m ping -i INVENTORY",
        )
    missing = set(listed.groups) - set(found)
    for host in missing:
        found[host] = Entry(
            host=host, groups=listed.groups[host], state="failed", reason="never asked"
        )
    return [found[host] for host in sorted(found)]


def entry_of(host: str, groups: tuple[str, ...], kind: str, result: Mapping[str, Any]) -> Entry:
    """What one answer says of a host. Pure."""
    if kind == "runner_on_ok":
        text = str(result.get("stdout") or "")
        begin, end = text.find("{"), text.rfind("}")
        try:
            facts = msgspec.json.encode(msgspec.json.decode(text[begin : end + 1].encode()))
        except msgspec.DecodeError as error:
            return Entry(host=host, groups=groups, state="failed", reason=f"no facts: {error}")
        return Entry(
            host=host, groups=groups, state="read", sha256=sha256(facts), facts=msgspec.Raw(facts)
        )
    said = [result.get("msg"), result.get("stderr"), result.get("stdout"), "no answer"]
    reason = next(str(text).strip() for text in said if text and str(text).strip())
    state: Literal["unreachable", "failed"] = (
        "unreachable" if kind == "runner_on_unreachable" else "failed"
    )
    return Entry(host=host, groups=groups, state=state, reason=" ".join(reason.split())[:_REASON])


def write_survey(path: Path, entries: list[Entry], now: dt.datetime) -> str:
    """Writes a facts file, one host a line; returns its sha256."""
    head = Head(schema=FACTS_SCHEMA, collected_at=now, hosts=len(entries))
    return write_whole(path, msgspec.json.Encoder().encode_lines([head, *entries]))


def read_survey(path: Path) -> Survey:
    """A facts file; raises OutsideError for one that is damaged or none."""
    data = read_whole(path, "The facts", "provision fleet facts -i INVENTORY")
    first, _, rest = data.partition(b"\n")
    try:
        head = msgspec.json.decode(first, type=Head)
        entries = msgspec.json.Decoder(Entry).decode_lines(rest)
    except msgspec.MsgspecError as error:
        raise _damaged(path, str(error)) from None
    if len(entries) != head.hosts:
        raise _damaged(path, f"it holds {len(entries)} of {head.hosts} hosts")
    if len({entry.host for entry in entries}) != len(entries):
        raise _damaged(path, "a host is in it twice")
    return Survey(sha256=sha256(data), collected_at=head.collected_at, entries=tuple(entries))


def _damaged(path: Path, why: str) -> OutsideError:
    return OutsideError(
        "fleet.bad-facts",
        f"{path} holds no facts of a fleet: {why}.",
        next_step="provision fleet facts -i INVENTORY",
    )
