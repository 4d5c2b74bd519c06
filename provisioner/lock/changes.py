"""What changed between two locks of a cell, for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.lock.model import Lock, LockedPackage


def changes(old: Lock, new: Lock) -> list[str]:
    """Returns one line for each package that came, went or changed; [] when none did."""
    before = {package.name: package for package in old.packages}
    after = {package.name: package for package in new.packages}
    lines: list[str] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            lines.append(f"+ {name} {now.version}")
        elif now is None and was is not None:
            lines.append(f"- {name} {was.version}")
        elif was is not None and now is not None and was != now:
            lines.append(f"  {name} {_difference(was, now)}")
    return lines


def _difference(was: LockedPackage, now: LockedPackage) -> str:
    parts = []
    if was.version != now.version:
        parts.append(f"{was.version} -> {now.version}")
    elif {file.sha256 for file in was.files} != {file.sha256 for file in now.files}:
        parts.append(f"{now.version}: other files or hashes")
    if was.origin != now.origin:
        parts.append(f"from {was.origin} -> {now.origin}")
    return ", ".join(parts) or f"{now.version}: other requirements or sources of its hashes"
