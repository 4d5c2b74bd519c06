"""Hosts and groups of an Ansible inventory, as Ansible itself reads it.

Only names leave this module: variables of an inventory may hold secrets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.errors import OutsideError, UsageError
from provisioner.fleet.names import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STRICT = {
    "ANSIBLE_DUPLICATE_YAML_DICT_KEY": "error",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
}
"""A name given twice, or a source that cannot be read, ends the reading; else it is skipped."""
_BUILT_IN = frozenset({"all", "ungrouped"})


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of each host, by host, both sorted. `all` and `ungrouped` are left out."""

    groups: dict[str, tuple[str, ...]]


def program(name: str) -> str:
    """The path of one of Ansible's programs, first beside our own interpreter."""
    import shutil

    own = Path(sys.executable).with_name(name)
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        raise OutsideError(
            "fleet.no-ansible",
            f"{name} is not there.",
            next_step="Install provision with its dependencies; ansible-core is one of them.",
        )
    return found


def read_inventory(sources: Sequence[str], vault_password_file: str | None = None) -> Listed:
    """Asks ansible-inventory. Raises UsageError for what is ambiguous, OutsideError if it fails."""
    for source in sources:
        if "," not in source and not Path(source).exists():
            raise UsageError(
                "fleet.no-inventory",
                f"There is no inventory {source}.",
                next_step="Name an inventory file or folder with -i.",
            )
    command = [program("ansible-inventory"), "--list"]
    for source in sources:
        command += ["-i", source]
    if vault_password_file:
        command += ["--vault-password-file", vault_password_file]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, **STRICT},
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise OutsideError(
            "fleet.inventory",
            "Ansible cannot read the inventory:\n" + said[-1500:],
            next_step="ansible-inventory --list -i INVENTORY",
        )
    return listed(msgspec.json.decode(done.stdout))


def listed(tree: Mapping[str, Any]) -> Listed:
    """Hosts with their groups, from what ansible-inventory prints. Pure."""
    variables = tree.get("_meta", {}).get("hostvars", {})
    groups: dict[str, set[str]] = {}
    parents: dict[str, list[str]] = {}
    for name, entry in tree.items():
        if name != "_meta":
            for child in entry.get("children", ()):
                parents.setdefault(child, []).append(name)
    for name, entry in tree.items():
        if name == "_meta":
            continue
        above = _above(name, parents)
        for host in entry.get("hosts", ()):
            groups.setdefault(host, set()).update(above)
    for host in groups:
        check_name(host, "Host")
    for group in set().union(*groups.values()) if groups else ():
        check_name(group, "Group")
    _distinct(sorted(groups), variables)
    return Listed(groups={host: tuple(sorted(groups[host] - _BUILT_IN)) for host in sorted(groups)})


def _above(name: str, parents: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        group = waiting.pop()
        if group not in found:
            found.add(group)
            waiting += parents.get(group, ())
    return found


def _distinct(hosts: Sequence[str], variables: Mapping[str, Any]) -> None:
    """Refuses two names for one address: such a machine would be changed twice."""
    seen: dict[tuple[str, str], str] = {}
    for host in hosts:
        own = variables.get(host, {})
        if own.get("ansible_connection") == "local":
            continue
        address = str(own.get("ansible_host", host))
        place = (address, str(own.get("ansible_port", 22)))
        if "{{" in address + place[1]:
            continue
        other = seen.setdefault(place, host)
        if other != host:
            raise UsageError(
                "fleet.same-host",
                f"{other} and {host} of the inventory are both {address} port {place[1]}.",
                next_step="Keep one of the two names.",
            )
