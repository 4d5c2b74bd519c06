"""What no lock may hold, whatever a resolver says: another torch, another CUDA, CUDA on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from provisioner.errors import OutsideError, RefusedError
from provisioner.lock.graph import chain
from provisioner.lock.inputs import name_of
from provisioner.lock.installed import FAMILY, RIVALS, cuda_problem, pins_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from provisioner.errors import ProvisionError
    from provisioner.lock.graph import Edge
    from provisioner.lock.model import LockInput


def check_pins(inputs: LockInput, pins: Mapping[str, str], edges: Sequence[Edge]) -> None:
    """Raises RefusedError or OutsideError for the first thing that must not be in this lock."""
    for problem in _problems(inputs, pins, edges):
        raise problem


def _problems(
    inputs: LockInput, pins: Mapping[str, str], edges: Sequence[Edge]
) -> Iterator[ProvisionError]:
    demanded = pins_of({"requirements": inputs.family})
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
        reason = cuda_problem(inputs.device, inputs.cuda, name, pins[name])
        if reason is not None:
            yield _asked_for("lock.other-cuda", name, edges, reason)


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
