"""Rules whose line is the same for several causes: here the facts of the log choose.

Each function gives (class, weight) pairs, best first; none where the line is no cause after all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from provisioner.diagnose.environment import capability_of
from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Facts, Hit, Rule
    from provisioner.matrix.model import Matrix, Release, Variant

Chosen = list[tuple[str, int]]
NEWER, DROPPED = "gpu_newer_than_wheel", "gpu_arch_dropped_from_wheel"
_FAMILY = {"torch", "torchvision", "torchaudio", "torchtext", "torchdata", "functorch"}
_TRITON = {"torchtriton", "pytorch-triton"}
# Variant indexes from before the matrix begins.
_OLD_TAGS = frozenset(f"cu{n}" for n in (75, 80, 90, 91, 92, 100, 101, 102, 110, 111, 113, 115))
_VERSION_IN_SPEC = re.compile(r"==\s?([0-9][0-9A-Za-z.]*)(\+[a-z0-9.]+)?")
_FROM = re.compile(r"\(from versions: ([^)]*)")


class Case(NamedTuple):
    """What a decision may look at."""

    rule: Rule
    hit: Hit
    facts: Facts
    matrix: Matrix


def decide(case: Case) -> Chosen:
    """The classes of a hit."""
    if case.rule.decide is None:
        return [(case.rule.cls, case.rule.weight), *case.rule.also.items()]
    return _FUNCTIONS[case.rule.decide](case)


def gpu_arch(case: Case) -> Chosen:
    """Newer than the build, or dropped from it: by the capability against the build's list."""
    weight = case.rule.weight
    capability = capability_of(case.facts, case.matrix)
    if capability is None:
        if "not yet supported in this version of the container" in case.hit.context:
            return [(NEWER, weight)]
        other = NEWER if case.rule.cls == DROPPED else DROPPED
        return [(case.rule.cls, weight), (other, weight - 20)]
    held = case.facts.arch_list or build_arch_list(case.facts, case.matrix)
    have = versions.key(capability)
    if held:
        cls = NEWER if have > max(map(versions.key, held)) else DROPPED
    else:
        cls = NEWER if have >= (8, 9) else DROPPED
    return [(cls, max(weight, 85))]


def build_arch_list(facts: Facts, matrix: Matrix) -> tuple[str, ...]:
    """The architectures of the torch build that the log names, by the matrix."""
    release = release_of(facts, matrix)
    if release is None:
        return ()
    tag = facts.variant or release.pypi.variant
    return next((v.arch_list for v in release.variants if v.tag == tag), ())


def release_of(facts: Facts, matrix: Matrix) -> Release | None:
    """The release that the log names, where the matrix has it."""
    return next((r for r in matrix.releases if r.torch == facts.torch), None)


def blackwell_only(case: Case) -> Chosen:
    """A GPU that fails to initialise: a matter of the modules' flavour from Blackwell on."""
    capability = capability_of(case.facts, case.matrix)
    needs_open = capability is not None and versions.key(capability) >= (10,)
    return [(case.rule.cls, 85 if needs_open else 40)]


def gcc_differs(case: Case) -> Chosen:
    """The kernel's compiler and the module's, where their major numbers really differ."""
    built = re.search(r"kernel was built by:.{0,80}?(\d+)\.\d+\.\d+", case.hit.context)
    using = re.search(r"You are using:.{0,80}?(\d+)\.\d+\.\d+", case.hit.context)
    if built and using:
        return [(case.rule.cls, 88)] if built[1] != using[1] else []
    return [(case.rule.cls, 45)]


def index_exists(case: Case) -> Chosen:
    """Whether a variant index is one that was ever published."""
    tag = case.hit.groups.get("tag", "").rsplit("/", 1)[-1]
    if not tag:
        return [(case.rule.cls, 60)]
    return [] if known_index(tag, case.matrix) else [(case.rule.cls, 93)]


def known_index(tag: str, matrix: Matrix) -> bool:
    """Whether download.pytorch.org has (had) an index of this name."""
    if tag in _OLD_TAGS or not re.fullmatch(r"cu\d{2,4}", tag):
        return True
    return any(v.tag == tag for release in matrix.releases for v in release.variants)


def unsupported_wheel(case: Case) -> Chosen:
    """A wheel that the interpreter refuses: by Python tag, else by platform."""
    name = case.hit.groups.get("file", case.hit.line.text)
    tag = re.search(r"-cp3(\d+)-", name)
    python = case.facts.python
    new_glibc = re.search(r"manylinux_2_(2[4-9]|3\d)", name) is not None
    same = bool(tag and python and f"3.{tag[1]}" == python)
    if new_glibc and (same or python is None):
        return [("glibc_too_old", 70), ("no_wheel_for_python", 62)]
    return [("no_wheel_for_python", case.rule.weight)]


def uv_platform(case: Case) -> Chosen:
    """A lock that does not fit the platform, unless a label or glibc says more."""
    text = case.hit.line.text + "\n" + case.hit.context
    if re.search(r"[0-9]\+(?:cpu|cu\d+|rocm)", case.hit.line.text):
        return [("universal_lock_local_label", 90)]
    if "only has wheels with the following Python" in text:
        return [("no_wheel_for_python", 92), (case.rule.cls, 60)]
    if re.search(r"manylinux_2_(?:\d|1\d|2[0-7])_\w+`?\)", case.hit.line.text):
        return [("glibc_too_old", 90)]
    return [(case.rule.cls, case.rule.weight)]


def pip_requirement(case: Case) -> Chosen:
    """pip found nothing: no such index, version or wheel, or a dependency that is not there."""
    name = case.hit.groups.get("name", "").lower().replace("_", "-").rstrip(".")
    text = case.hit.context
    first = case.hit.line.text
    if name in _TRITON and "(from torch" not in first:
        return [("triton_missing", 60)]
    tags = [tag.rsplit("/", 1)[-1] for tag in case.facts.indexes]
    if name not in _FAMILY:
        return _dependency(name, first, text, tags)
    if any(not known_index(tag, case.matrix) for tag in tags):
        return [("index_does_not_exist", 94)]
    wanted = _VERSION_IN_SPEC.search(first)
    offered = _FROM.search(first) or _FROM.search(text)
    listed = [] if offered is None or offered[1].strip() == "none" else offered[1].split(", ")
    if listed:
        return _listed(case, wanted, listed)
    return _nothing(case, wanted, tags)


def _dependency(name: str, first: str, text: str, tags: list[str]) -> Chosen:
    asked_by_torch = re.search(r"\(from (?:torch|triton|functorch)", first) is not None
    own_index = bool(tags) or re.search(r"download\S*pytorch\.org/whl", text) is not None
    if name == "triton" and not asked_by_torch and not own_index:
        return [("triton_missing", 62), ("universal_lock_platform_marker", 55)]
    if asked_by_torch or own_index or re.match(r"nvidia-|cuda-bindings|lit$", name):
        return [("dependency_not_mirrored_on_index", 86)]
    return [("index_lacks_version", 42)]


def _listed(case: Case, wanted: re.Match[str] | None, listed: list[str]) -> Chosen:
    """Other versions are there: the label is not, or this Python (or glibc) is out of range."""
    if wanted is None:
        return [("index_lacks_version", 74)]
    if wanted[2]:
        if not known_index(wanted[2][1:], case.matrix):
            return [("index_does_not_exist", 86), ("index_lacks_version", 62)]
        plain = [v.partition("+")[0] for v in listed]
        if wanted[1] in plain or not _python_refuses(case, wanted[1]):
            return [("index_lacks_version", 90), ("no_wheel_for_python", 50)]
    have = [versions.key(v.partition("+")[0]) for v in listed if re.match(r"[0-9]", v)]
    key = versions.key(wanted[1])
    refused = _python_refuses(case, wanted[1])
    known = any(r.torch == wanted[1] for r in case.matrix.releases)
    if not known and key > max(have, default=()):
        return [("index_lacks_version", 84), ("no_wheel_for_python", 60)]
    if refused or key < min(have, default=()):
        return [("no_wheel_for_python", 86), ("index_lacks_version", 62)]
    if key > max(have, default=()):
        if case.facts.glibc and versions.key(case.facts.glibc) < (2, 28):
            return [("glibc_too_old", 84), ("no_wheel_for_python", 60)]
        published = _published(case, wanted[1])
        if published is False:
            return [("index_lacks_version", 86), ("no_wheel_for_python", 55)]
        return [("no_wheel_for_python", 76), ("index_lacks_version", 64), ("glibc_too_old", 45)]
    return [("index_lacks_version", 86), ("no_wheel_for_python", 52)]


def _nothing(case: Case, wanted: re.Match[str] | None, tags: list[str]) -> Chosen:
    """Nothing at all is there for this interpreter."""
    fits = wanted is not None and not _python_refuses(case, wanted[1])
    if wanted and fits and tags and _published(case, wanted[1]) is False:
        return [("index_lacks_version", 85), ("no_wheel_for_python", 62)]
    if wanted and _python_refuses(case, wanted[1]):
        return [("no_wheel_for_python", 90)]
    if wanted and wanted[2] and not tags:  # a label, and no index that could have it
        return [("index_lacks_version", 78), ("no_wheel_for_python", 60)]
    return [("no_wheel_for_python", 78)]


def _python_refuses(case: Case, version: str) -> bool:
    """Whether the log's Python is known to have no wheel of a torch release."""
    release = next((r for r in case.matrix.releases if r.torch == version), None)
    if release is None or case.facts.python is None:
        return False
    return case.facts.python not in release.python.x86_64


def _published(case: Case, version: str) -> bool | None:
    """Whether one of the log's indexes has a release; None where the matrix does not know."""
    release = next((r for r in case.matrix.releases if r.torch == version), None)
    tags = {tag.rsplit("/", 1)[-1] for tag in case.facts.indexes}
    if release is None or not tags:
        return None
    variants: tuple[Variant, ...] = release.variants
    return any(v.tag in tags for v in variants)


_FUNCTIONS: dict[str, Callable[[Case], Chosen]] = {
    "blackwell_only": blackwell_only,
    "gcc_differs": gcc_differs,
    "gpu_arch": gpu_arch,
    "index_exists": index_exists,
    "pip_requirement": pip_requirement,
    "unsupported_wheel": unsupported_wheel,
    "uv_platform": uv_platform,
}
