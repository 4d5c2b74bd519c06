"""The facts of a log, made of what its lines say: one value each, in the words of the matrix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.diagnose.model import Facts
from provisioner.diagnose.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provisioner.matrix.model import Matrix


def facts_of(found: Mapping[str, Sequence[tuple[int, str]]]) -> Facts:
    """One value per fact: of the most reliable pattern, the last in the log."""
    torch = _best(found, "torch")
    torch = torch.replace("%2B", "+") if torch else None
    plain, _, label = (torch or "").partition("+")
    cuda = _best(found, "cuda")
    indexes = tuple(dict.fromkeys(value for _, value in found.get("index", ())))
    variant = label if re.fullmatch(r"cpu|cu\d{2,4}", label) else None
    if variant is None and cuda:
        variant = "cu" + cuda.replace(".", "")
    capability = _best(found, "capability")
    if capability and "." not in capability:
        capability = f"{capability[:-1]}.{capability[-1]}"
    arch = _best(found, "arch_list") or ""
    return Facts(
        torch=plain or None,
        variant=variant,
        cuda=cuda,
        driver=_best(found, "driver"),
        driver_cuda=_cuda(_best(found, "driver_cuda")),
        gpu=_best(found, "gpu"),
        capability=capability,
        arch_list=tuple(f"{n[:-1]}.{n[-1]}" for n in re.findall(r"sm_(\d+)", arch))
        or tuple(re.findall(r"\(([0-9.]+)\)", _best(found, "arch_range") or "")),
        python=_python(_best(found, "python")),
        triton=_best(found, "triton"),
        numpy=_best(found, "numpy"),
        os=_best(found, "os"),
        kernel=_best(found, "kernel"),
        glibc=(_best(found, "glibc") or "").replace("_", ".") or None,
        gcc=_best(found, "gcc"),
        indexes=indexes,
    )


def capability_of(facts: Facts, matrix: Matrix) -> str | None:
    """The GPU's compute capability: as the log says, or by the GPU's name in the matrix."""
    if facts.capability or not facts.gpu:
        return facts.capability
    wanted = _plain(facts.gpu)
    best: tuple[int, str] | None = None
    for gpu in matrix.gpus:
        for name in (gpu.name, *gpu.aliases):
            plain = _plain(name)
            if plain and plain in wanted and (best is None or len(plain) > best[0]):
                best = (len(plain), gpu.capability)
    return best[1] if best else None


def shown(facts: Facts) -> dict[str, str]:
    """What people and `--json` see of the environment, without secrets."""
    torch = f"{facts.torch}+{facts.variant}" if facts.torch and facts.variant else facts.torch
    values = {
        "torch": torch,
        "driver": facts.driver,
        "driver_cuda": facts.driver_cuda,
        "gpu": facts.gpu,
        "capability": facts.capability,
        "python": facts.python,
        "triton": facts.triton,
        "numpy": facts.numpy,
        "os": facts.os,
        "kernel": facts.kernel,
        "glibc": facts.glibc,
        "gcc": facts.gcc,
    }
    return {name: mask(value) for name, value in values.items() if value}


def _best(found: Mapping[str, Sequence[tuple[int, str]]], name: str) -> str | None:
    values = found.get(name)
    if not values:
        return None
    first = min(order for order, _ in values)
    return [value for order, value in values if order == first][-1][:80]


def _cuda(value: str | None) -> str | None:
    """12070 -> 12.7, as the driver API counts."""
    if value and value.isdigit():
        return f"{int(value) // 1000}.{int(value) % 1000 // 10}"
    return value


def _python(value: str | None) -> str | None:
    """310 -> 3.10."""
    return f"{value[0]}.{value[1:]}" if value and value.isdigit() else value


def _plain(name: str) -> str:
    return re.sub(r"(?i)nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())
