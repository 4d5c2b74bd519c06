"""Which names of hosts and groups are taken: they become file names, Ansible patterns and HTML."""

from __future__ import annotations

import re

from provisioner.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}\Z")


def check_name(name: str, what: str) -> str:
    """The name itself; raises UsageError for one that is no plain word."""
    if not _NAME.match(name):
        raise UsageError(
            "fleet.bad-name",
            f"{what} {name!r} of the inventory is no plain name.",
            next_step="Use letters, digits, dots, underscores, colons and dashes; put an address "
            "into ansible_host.",
        )
    return name
