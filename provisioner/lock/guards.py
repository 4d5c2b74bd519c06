"""What no lock may hold, whatever a resolver says: another torch, another CUDA, CUDA on a CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from provisioner.errors import OutsideError, RefusedError
from provisioner.lock.graph import chain
from provisioner.lock.inputs import name_of
from provisioner.lock.model import FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from provisioner.errors import ProvisionError
    from provisioner.lock.graph import Edge
    from provisioner.lock.model import LockInput

RIVALS = frozenset({"pytorch", "pytorch-cpu", "torch-cpu", "torch-nightly", "torchtriton"})
"""Other distributions that carry, or claim to carry, a `torch`."""

_BY_CUDA_VERSION = frozenset(
    {
        "cuda-toolkit",
        "nvidia-cublas",
        "nvidia-cuda-cupti",
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-runtime",
    }
)
"""Distributions without a series in their name, whose major version is that of CUDA."""

_CUDA_NAME = re.compile(r"-cu(?:da)?([0-9]{2})[0-9]?x?$")


def pins_of(inputs: LockInput) -> dict[str, str]:
    """Returns the exact versions of the torch family that the cell demands."""
    parts = (pin.partition("==") for pin in inputs.family)
    return {name_of(name): version for name, _, version in parts}


def check_pins(inputs: LockInput, pins: Mapping[str, str], edges: Sequence[Edge]) -> None:
    """Raises RefusedError or OutsideError for the first thing that must not be in this lock."""
    for problem in _problems(inputs, pins, edges):
        raise problem


def _problems(
    inputs: LockInput, pins: Mapping[str, str], edges: Sequence[Edge]
) -> Iterator[ProvisionError]:
    demanded = pins_of(inputs)
    for name in FAMILY:
        have, need = pins.get(name), demanded.get(name)
        if need is None and have is not None and name != "torch":
            yield _uncalled(name, have, edges)
        elif need is not None and (have is None or Version(have) != Version(need)):
            yield _wrong_build(name, have, need)
        elif have is not None and inputs.torch_index is None and "+" in have:
            yield _wrong_build(name, have, need or "a version without a label")
    label = f"+{inputs.torch_index}"
    for name, need in demanded.items():
        if inputs.torch_index is not None and "+" in need and not need.endswith(label):
            yield _wrong_build(name, need, f"a version that ends with {label}")
    for name in sorted(RIVALS & set(pins)):
        yield _asked_for("lock.second-torch", name, edges, "it brings a second torch")
    beside = {name_of(requirement) for requirement in inputs.beside}
    for name in sorted(set(pins) - beside):
        reason = _cuda_problem(inputs, name, pins[name])
        if reason is not None:
            yield _asked_for("lock.other-cuda", name, edges, reason)


def _cuda_problem(inputs: LockInput, name: str, version: str) -> str | None:
    found = _CUDA_NAME.search(name)
    series = found.group(1) if found is not None else None
    if name in _BY_CUDA_VERSION:
        series = version.partition(".")[0]
    if inputs.device == "cpu":
        if name.startswith("nvidia-") or series is not None:
            return "the cell is for the CPU and takes no CUDA libraries"
        return None
    major = (inputs.cuda or "").partition(".")[0]
    if series is not None and series != major:
        return f"it belongs to CUDA {series}, and the cell has CUDA {inputs.cuda}"
    return None


def _asked_for(code: str, name: str, edges: Sequence[Edge], reason: str) -> RefusedError:
    path = chain(edges, name)
    return RefusedError(
        code,
        f"{name} cannot go into this lock: {reason}. Asked for by {' -> '.join(path) or name}.",
        facts={"package": name, "chain": path},
        next_step="Leave that package out, constrain it to a version without this requirement, or "
        "take a cell that it fits.",
    )


def _uncalled(name: str, have: str, edges: Sequence[Edge]) -> RefusedError:
    path = chain(edges, name)
    return RefusedError(
        "lock.uncalled-family",
        f"{name} {have} would come in though the cell leaves it out; its build would be left to "
        f"chance. Asked for by {' -> '.join(path)}.",
        facts={"package": name, "chain": path},
        next_step=f"Take the cell with {name} (leave out `--without {name}`).",
    )


def _wrong_build(name: str, have: str | None, need: str) -> OutsideError:
    return OutsideError(
        "lock.wrong-build",
        f"The resolver answered {name} {have or 'not at all'}, the cell demands {need}.",
        facts={"package": name, "have": have, "need": need},
        next_step="Try the other engine (`--engine`), and report this.",
    )
