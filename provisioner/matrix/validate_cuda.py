"""Checks of toolkits, driver branches, compute capabilities, GPUs, systems and images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.matrix.index import gpu_key
from provisioner.matrix.validate import Findings, number

if TYPE_CHECKING:
    from provisioner.matrix.problems import DocumentPath


_CAPABILITY = re.compile(r"(sm_?)?[0-9]{1,2}[.]?[0-9][af]?", re.IGNORECASE)
"""What a request takes for a compute capability and never looks up as a name."""


def check(findings: Findings) -> None:
    """All checks of this module."""
    _toolkits(findings)
    _branches(findings)
    _capabilities(findings)
    _gpus(findings)
    _images(findings)
    rules = findings.matrix.compile_rules
    for name in ("capability_min", "blackwell_from"):
        value = getattr(rules, name)
        place = ("compile_rules", name)
        findings.refer(place, "compute capability", value, findings.capabilities)


def _toolkits(findings: Findings) -> None:
    majors = [entry.major for entry in findings.matrix.cuda_majors]
    for index, toolkit in enumerate(findings.matrix.toolkits):
        path = ("toolkits", index)
        major = number(toolkit.series)[0]
        findings.refer((*path, "series"), "a run floor for the CUDA major", major, majors)
        place = (*path, "native_branch")
        findings.refer(place, "the driver branch", toolkit.native_branch, findings.branches)
        findings.ascending((*path, "capabilities"), toolkit.capabilities)
        if toolkit.capability_first is not None:
            place = (*path, "capability_first")
            value = toolkit.capability_first
            findings.refer(place, "compute capability", value, findings.capabilities)
        for entry, release in enumerate(toolkit.releases):
            if number(release.version)[:2] != number(toolkit.series):
                message = f"expected a release of {toolkit.series}, found {release.version}"
                findings.say("inconsistent", (*path, "releases", entry, "version"), message)
        for entry, branch in enumerate(toolkit.forward_compat_from):
            where = (*path, "forward_compat_from", entry)
            findings.refer(where, "the driver branch", branch, findings.branches)


def _branches(findings: Findings) -> None:
    for index, branch in enumerate(findings.matrix.driver_branches):
        path = ("driver_branches", index)
        _series(findings, (*path, "cuda"), branch.cuda)
        for place, family in enumerate(branch.families):
            findings.refer((*path, "families", place), "the family", family, findings.families)
        for name in ("first", "latest"):
            version = getattr(branch, name)
            if version is not None and number(version)[0] != branch.branch:
                message = f"expected a driver of branch {branch.branch}, found {version}"
                findings.say("inconsistent", (*path, name), message)
        if branch.first and branch.latest and number(branch.first) > number(branch.latest):
            message = f"expected at least {branch.first} (first), found {branch.latest}"
            findings.say("inconsistent", (*path, "latest"), message)


def _series(findings: Findings, path: DocumentPath, series: str) -> None:
    """A CUDA series that the matrix has, or one from before its first."""
    known = findings.toolkits
    if known and number(series) < min(number(entry) for entry in known):
        return
    findings.refer(path, "the toolkit", series, known)


def _capabilities(findings: Findings) -> None:
    for index, entry in enumerate(findings.matrix.capabilities):
        path = ("capabilities", index)
        if entry.driver_branch_last is not None:
            place = (*path, "driver_branch_last")
            findings.refer(place, "the driver branch", entry.driver_branch_last, findings.branches)
        first, last = entry.toolkit_first, entry.toolkit_last
        for name, series in (("toolkit_first", first), ("toolkit_last", last)):
            if series is not None:
                _series(findings, (*path, name), series)
        if first and last and number(first) > number(last):
            message = f"expected at least {first} (toolkit_first), found {last}"
            findings.say("inconsistent", (*path, "toolkit_last"), message)


def _gpus(findings: Findings) -> None:
    # By the key that a request is looked up with: `GeForce RTX 3090` and `RTX 3090` are one name.
    taken: dict[str, str] = {}
    for index, gpu in enumerate(findings.matrix.gpus):
        path = ("gpus", index)
        place = (*path, "capability")
        findings.refer(place, "compute capability", gpu.capability, findings.capabilities)
        places: list[DocumentPath] = [(*path, "name")]
        places += [(*path, "aliases", entry) for entry in range(len(gpu.aliases))]
        for name, where in zip((gpu.name, *gpu.aliases), places, strict=True):
            key = gpu_key(name)
            if _CAPABILITY.fullmatch(name):
                message = f"expected a name, found {name}, which is a compute capability to --gpu"
                findings.say("value", where, message)
            if taken.get(key, gpu.name) != gpu.name or (key in taken and name == gpu.name):
                message = f"expected a name of its own, found {name}, which {taken[key]} has"
                findings.say("duplicate-entry", where, message)
            taken.setdefault(key, gpu.name)


def _images(findings: Findings) -> None:
    systems = {system.id for system in findings.matrix.operating_systems}
    deleted = findings.matrix.cuda_images_deleted.versions
    for index, image in enumerate(findings.matrix.cuda_images):
        path = ("cuda_images", index)
        series = ".".join(image.version.split(".")[:2])
        findings.refer((*path, "version"), "the toolkit", series, findings.toolkits)
        for place, system in enumerate(image.os):
            findings.refer((*path, "os", place), "the operating system", system, systems)
        if image.state == "published" and image.version in deleted:
            message = f"expected another state: {image.version} is in cuda_images_deleted"
            findings.say("inconsistent", (*path, "state"), message)
    for index, gate in enumerate(findings.matrix.container_gates):
        path = ("container_gates", index)
        findings.refer((*path, "toolkit"), "the toolkit", gate.toolkit, findings.toolkits)
        for place, branch in enumerate(gate.branches):
            where = (*path, "branches", place)
            findings.refer(where, "the driver branch", branch, findings.branches)
