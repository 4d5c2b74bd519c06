"""Compares the facts of two hosts: what differs, ranked by what it can break. Pure.

Facts are plain values as the readers print them (facts.py, with or without `environment`). What is
null on either side is unknown there, and never taken for a difference that counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DIFF_SCHEMA = "provision.facts-diff/1"
Level = Literal["breaks", "may-break", "other", "unknown"]
LEVELS: tuple[Level, ...] = ("breaks", "may-break", "other", "unknown")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact with its two values. `path` is dotted; rows of a list go by their name: [numpy].

    `level` says what it can do: keep programs of one host from running on the other (`breaks`), do
    so in some cases (`may-break`), or neither (`other`). `unknown`: one side did not tell.
    """

    path: str
    level: Level
    a: Any
    b: Any
    why: str


# What changes from one minute to the next, or names a host without describing it.
_PASSED_OVER = re.compile(
    r"^(schema|unreadable|gpu_processes|disk\.[^.]*\.free|gpus\[[^]]*\]\.(index|uuid|pci_bus_id)"
    r"|pci\[[^]]*\]\.address|environment\.(schema|traced_by|ldconfig\b.*"
    r"|(cache|tmp|shm)\.(free|error)|variables\.(HOME|LOGNAME|USER|LOCAL_RANK)"
    r"|nvml\..*|driver\.value\.(file|devices)\b.*|torch\.places\b.*"
    r"|compilers\.(c|cxx)\.(said|status|path)))"
)
# Where null says "none", not "could not be read".
_NULL_IS_NONE = re.compile(
    r"^environment\.(torch|conda|torch\.cuda|imported\.value\.(cuda|numpy_error)"
    r"|compilers\.(c|cxx|headers)\.(problem|name)|ptxas\.(named|error)"
    r"|nvcc\.(path|home|usual)\.(path|version))$"
)
# Path -> what a difference there can do; the first that matches counts.
_RANKS: tuple[tuple[str, Level, str], ...] = (
    (r"arch$", "breaks", "Machine code of one architecture does not run on another."),
    (r"driver\.loaded$", "breaks", "The driver decides which builds run, and which compile."),
    (r"driver\.modules$", "breaks", "Some GPUs have open modules alone, others none."),
    (r"driver\.libraries", "breaks", "Libraries and module of two versions fail every program."),
    (r"(pci|gpus)\b", "breaks", "Another GPU needs other machine code, and maybe another driver."),
    (r"glibc$", "breaks", "Programs built against the newer one do not start on the older."),
    (r"fabric_manager\b", "breaks", "It must be of the driver's version, and run."),
    (r"(secure_boot|other_gpu_modules|nouveau_loaded)\b", "breaks", "It keeps the module out."),
    (r"(container|wsl)$", "breaks", "The driver comes from elsewhere there."),
    (r"environment\.torch(\.(version|cuda))?$", "breaks", "Another build of torch."),
    (r"environment\.imported\.value\.arch_list", "breaks", "Machine code for other GPUs."),
    (r"environment\.imported\.value\.(version|cuda|numpy_error)", "breaks", "Another torch."),
    (r"environment\.(imported|driver)\.died", "breaks", "It fails on one of them."),
    (r"environment\.driver\.value\.(init|found)$", "breaks", "cuInit answers otherwise."),
    (r"environment\.python\.version$", "breaks", "torch.compile refuses some Pythons."),
    (
        r"environment\.distributions\[(torch|torchvision|torchaudio|triton|numpy)\]",
        "breaks",
        "torch, its companions and triton fit together in one way each.",
    ),
    (r"environment\.compilers\.(c|cxx|headers)\.problem$", "breaks", "Compiling needs it."),
    (
        r"environment\.variables\.(TORCHDYNAMO|TORCH_COMP|LD_|(CUDA|NVIDIA)_VIS|TRITON_PTX|ATEN)",
        "breaks",
        "It switches compiling or GPUs off, or has other libraries loaded.",
    ),
    (r"environment\.(cache|tmp)\.(writable|noexec)$", "breaks", "Compiled code needs the folder."),
    (r"(kernel|os)\b", "may-break", "Modules are built for a kernel, packages for a system."),
    (r"driver\.(packages|dkms|built_for|other_sources)", "may-break", "What the next start loads."),
    (r"(held|unattended_upgrades)\b", "may-break", "One of them may change its driver by itself."),
    (r"(containers|cuda_toolkits|nvcc|gcc)\b", "may-break", "Images, extensions are built by it."),
    (r"library_path\b", "may-break", "Other libraries may be loaded."),
    (r"environment\.cpu\.flags", "may-break", "A compile cache of one does not work on the other."),
    (r"environment\.(distributions|conda)\b", "may-break", "Another package, or another version."),
    (r"environment\.imported\.value\.loaded", "may-break", "Other libraries were mapped."),
    (r"environment\.(variables|compilers|nvcc|ptxas|libstdcxx|devices)\b", "may-break", "A tool."),
    (r"environment\.(cache|tmp|shm)\b", "may-break", "Compiled code and tensors go through it."),
    (r"persistenced$", "other", "The first start after a pause is slower on one of them."),
)
_COMPILED = tuple((re.compile(pattern), level, why) for pattern, level, why in _RANKS)
_NAMES = ("name", "path", "address", "module")


def compare(facts_a: Mapping[str, Any], facts_b: Mapping[str, Any]) -> list[Difference]:
    """What differs, the most dangerous first, then by path; an empty list for equal hosts."""
    found = [
        _difference(path, a, b)
        for path, a, b in _walk("", facts_a, facts_b)
        if not _PASSED_OVER.match(path)
    ]
    return sorted(found, key=lambda item: (LEVELS.index(item.level), item.path))


def _difference(path: str, a: Any, b: Any) -> Difference:
    level, why = _rank(path)
    if (a is None or b is None) and not _NULL_IS_NONE.match(path):
        level, why = "unknown", "One of them did not tell."
    return Difference(path=path, level=level, a=_absent(a), b=_absent(b), why=why)


def _absent(value: Any) -> Any:
    return None if value is _MISSING else value


def _rank(path: str) -> tuple[Level, str]:
    for pattern, level, why in _COMPILED:
        if pattern.match(path):
            return level, why
    return "other", "Nothing is known that it breaks."


class _Missing:
    """Stands for a row that one side lacks, as opposed to null, which is unknown."""


_MISSING = _Missing()


def _walk(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every leaf that differs, as (path, a, b)."""
    if isinstance(a, dict) and isinstance(b, dict):
        # A key that one reader does not know is unknown there, but for tables with free keys.
        free = path.endswith(("variables", "gcc", "ld_so_conf", "ldconfig"))
        lacking = _MISSING if free else None
        for name in sorted({*a, *b}):
            inner = f"{path}.{name}" if path else str(name)
            yield from _walk(inner, a.get(name, lacking), b.get(name, lacking))
    elif isinstance(a, list) and isinstance(b, list):
        yield from _lists(path, a, b)
    elif a != b:
        yield path, a, b


def _lists(path: str, a: list[Any], b: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Rows by name, other lists as sets: order is no difference, but for the loader's path."""
    if any(isinstance(item, dict) for item in (*a, *b)):
        rows_a, rows_b = _rows(a), _rows(b)
        for name in sorted({*rows_a, *rows_b}):
            inner = f"{path}[{name}]"
            yield from _walk(inner, rows_a.get(name, _MISSING), rows_b.get(name, _MISSING))
        return
    only_a = [item for item in a if item not in b]
    only_b = [item for item in b if item not in a]
    if only_a or only_b:
        yield path, only_a, only_b


def _rows(rows: list[Any]) -> dict[str, Any]:
    """Name -> row; rows of one name are numbered: four GPUs are A100, A100#2, ..."""
    found: dict[str, Any] = {}
    for row in rows:
        named = isinstance(row, dict) and next((row[k] for k in _NAMES if row.get(k)), None)
        name = str(named or "row")
        count = 1
        while (name if count == 1 else f"{name}#{count}") in found:
            count += 1
        found[name if count == 1 else f"{name}#{count}"] = row
    return found
