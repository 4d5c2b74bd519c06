"""What changed between two locks of a cell, for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.conda.explicit import CondaLock
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


def conda_changes(old: CondaLock, new: CondaLock) -> list[str]:
    """Returns the same for conda's half; a package of the same version may be another build."""
    before = {package.name: package for package in old.packages}
    after = {package.name: package for package in new.packages}
    lines: list[str] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            lines.append(f"+ {name} {now.version} (conda)")
        elif now is None and was is not None:
            lines.append(f"- {name} {was.version} (conda)")
        elif was is not None and now is not None and was.sha256 != now.sha256:
            same = was.version == now.version
            what = f"{was.version}: another build" if same else f"{was.version} -> {now.version}"
            lines.append(f"  {name} {what} (conda)")
    return lines
