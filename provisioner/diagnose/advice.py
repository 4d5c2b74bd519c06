"""What the matrix says about a cause in this environment: sentences and commands, or nothing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from provisioner.diagnose.builds import (
    builds_for,
    driver_runs,
    install,
    listing,
    run_floor,
    runnable,
    variant_of,
)
from provisioner.diagnose.decide import release_of
from provisioner.diagnose.environment import capability_of
from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Facts
    from provisioner.matrix.model import Matrix, Release


class Advice(NamedTuple):
    """Sentences for people, and the commands that go with them."""

    text: str
    commands: tuple[str, ...] = ()


def advise(cls: str, facts: Facts, matrix: Matrix) -> Advice | None:
    """The advice for a class in an environment; None where the log says too little for any."""
    function = _FUNCTIONS.get(cls)
    return function(facts, matrix) if function else None


def driver(facts: Facts, matrix: Matrix) -> Advice | None:
    """The floors of the log's torch build against the log's driver."""
    release = release_of(facts, matrix)
    variant = variant_of(facts, release)
    if variant is None or variant.toolkit is None or release is None:
        return _driver_alone(facts, matrix)
    floor = run_floor(matrix, variant.toolkit)
    name = f"torch {release.torch}+{variant.tag}"
    have = facts.driver
    runs = floor is not None and have is not None and versions.at_least(have, floor)
    if have is None:
        speaks = f" The driver speaks CUDA {facts.driver_cuda}." if facts.driver_cuda else ""
        text = f"{name} needs driver {floor} or newer to run.{speaks}"
    elif runs:
        text = f"Driver {have} runs {name} ({floor} or newer)."
    else:
        text = f"Driver {have} does not run {name}: it needs {floor} or newer."
    compiling = _compiling(facts, matrix, release, runs=runs)
    others = runnable(facts, matrix, release) if not runs else []
    if others:
        text += f" This driver runs torch {release.torch} as {listing(others)}."
    words = ["provision", "resolve", "--torch", release.torch]
    words += ["--driver", have] if have else []
    commands = [shlex.join(words)]
    if others and not runs:
        commands.insert(0, install(release.torch, others[-1]))
    return Advice(f"{text}{compiling}", tuple(commands))


def _driver_alone(facts: Facts, matrix: Matrix) -> Advice | None:
    if facts.driver_cuda is None:
        return None
    major = versions.major(facts.driver_cuda)
    floors = ", ".join(f"CUDA {m.major} builds {m.run_floor}" for m in matrix.cuda_majors)
    text = (
        f"The driver speaks CUDA {facts.driver_cuda}, so it runs builds of CUDA {major}.x"
        f" and older majors. Oldest drivers: {floors}."
    )
    return Advice(text, ("provision matrix list",))


def _compiling(facts: Facts, matrix: Matrix, release: Release, *, runs: bool) -> str:
    """What torch.compile on the GPU needs beyond running."""
    pin = release.triton
    triton = next((t for t in matrix.tritons if pin and t.version == pin.version), None)
    if triton is None:
        return ""
    capability = capability_of(facts, matrix)
    blackwell = capability is not None and versions.at_least(
        capability, matrix.compile_rules.blackwell_from
    )
    ptxas = triton.ptxas_blackwell if blackwell and triton.ptxas_blackwell else triton.ptxas
    floor = run_floor(matrix, ptxas)
    if floor is None or (facts.driver and versions.at_least(facts.driver, floor)):
        return ""
    but = "But it cannot load" if runs and facts.driver else "Loading"
    end = "" if runs and facts.driver else " asks more"
    text = (
        f" {but} what triton {triton.version} assembles (ptxas {ptxas}){end}:"
        f" torch.compile on the GPU needs driver {floor} or newer"
    )
    for override in matrix.ptxas_overrides:
        if versions.satisfies(triton.version, override.triton):
            sure = "" if override.verified else " (reported, not confirmed at first hand)"
            return f"{text}, or the ptxas of {override.package} through TRITON_PTXAS_PATH{sure}."
    return f"{text}."


def gpu(facts: Facts, matrix: Matrix) -> Advice | None:
    """Builds that hold code for the log's GPU, the log's own release first."""
    capability = capability_of(facts, matrix)
    if capability is None:
        return None
    fitting = [b for b in builds_for(matrix, capability) if driver_runs(facts, matrix, b[1])]
    name = facts.gpu or "the GPU"
    if not fitting:
        return Advice(f"No build that the matrix knows holds code for capability {capability}.")
    own = [tag for torch, tag in fitting if torch == facts.torch]
    first, last = fitting[0], fitting[-1]
    text = f"{name} has compute capability {capability}."
    if own:
        text += f" torch {facts.torch} holds code for it as {listing(own)}."
        pick = (facts.torch or "", own[-1])
    else:
        text += (
            f" Builds that hold code for it: {first[0]}+{first[1]} is the oldest,"
            f" {last[0]}+{last[1]} the newest."
        )
        pick = last
    words = ["provision", "resolve", "--torch", pick[0], "--cuda", pick[1], "--gpu", capability]
    if not versions.at_least(capability, matrix.compile_rules.capability_min):
        words.append("--no-compile")
    return Advice(text, (install(*pick), shlex.join(words)))


def python_range(facts: Facts, matrix: Matrix) -> Advice | None:
    """The Python series of the log's release: with wheels, and with torch.compile."""
    release = release_of(facts, matrix)
    if release is None:
        return _releases_for_python(facts, matrix)
    series = release.python.x86_64
    text = f"torch {release.torch} has wheels for Python {series[0]} to {series[-1]}"
    if release.compile.python_max:
        text += f", and torch.compile works up to Python {release.compile.python_max}"
    shown = ("provision", "resolve", "--torch", release.torch)
    return Advice(f"{text}.", (shlex.join(shown),))


def _releases_for_python(facts: Facts, matrix: Matrix) -> Advice | None:
    fitting = [r.torch for r in matrix.releases if facts.python in r.python.x86_64]
    if not facts.python or not fitting:
        return None
    return Advice(f"Python {facts.python} has wheels from torch {fitting[0]} to {fitting[-1]}.")


def family(facts: Facts, matrix: Matrix) -> Advice | None:
    """torchvision and torchaudio of the log's torch."""
    release = release_of(facts, matrix)
    if release is None:
        return None
    vision, audio = release.torchvision.version, release.torchaudio.version
    tag = facts.variant or release.pypi.variant
    index = f"https://download.pytorch.org/whl/{tag}"
    packages = [f"torch=={release.torch}", f"torchvision=={vision}", f"torchaudio=={audio}"]
    command = shlex.join(["python", "-m", "pip", "install", *packages, "--index-url", index])
    return Advice(
        f"torch {release.torch} goes with torchvision {vision} and torchaudio {audio}.", (command,)
    )


def published(facts: Facts, matrix: Matrix) -> Advice | None:
    """The variants in which the log's release is published, and the command for the newest."""
    release = release_of(facts, matrix)
    if release is None:
        return None
    fitting = [
        variant.tag
        for variant in release.variants
        if variant.published == "yes"
        and variant.toolkit is not None
        and driver_runs(facts, matrix, variant.tag)
    ]
    if not fitting:
        return None
    text = f"torch {release.torch} is published as {', '.join(fitting)}."
    return Advice(text, (install(release.torch, fitting[-1]),))


def assembler(facts: Facts, matrix: Matrix) -> Advice | None:
    """The first CUDA that assembles for the log's GPU, and what the log's triton brings."""
    capability = capability_of(facts, matrix)
    known = next((c for c in matrix.capabilities if c.capability == capability), None)
    if known is None or known.toolkit_first is None:
        return None
    text = f"Compute capability {capability} begins with CUDA {known.toolkit_first}"
    triton = next((t for t in matrix.tritons if t.version == facts.triton), None)
    if triton is not None:
        text += f"; triton {triton.version} brings ptxas {triton.ptxas}"
    return Advice(f"{text}.")


def modules(facts: Facts, matrix: Matrix) -> Advice | None:
    """Which kernel modules the log's GPU needs, and from which driver on."""
    capability = capability_of(facts, matrix)
    known = next((c for c in matrix.capabilities if c.capability == capability), None)
    if known is None:
        return None
    need = {"open": "needs the open modules", "proprietary": "needs the proprietary modules"}
    text = f"Compute capability {capability} {need.get(known.modules, 'works with either modules')}"
    if known.driver_from:
        text += f" and driver {known.driver_from} or newer"
    return Advice(f"{text}.")


_FUNCTIONS: dict[str, Callable[[Facts, Matrix], Advice | None]] = {
    "driver_older_than_wheel_cuda": driver,
    "image_requires_newer_driver": driver,
    "forward_compat_on_geforce": driver,
    "gpu_newer_than_wheel": gpu,
    "gpu_arch_dropped_from_wheel": gpu,
    "dynamo_python_version": python_range,
    "no_wheel_for_python": python_range,
    "index_does_not_exist": published,
    "index_lacks_version": published,
    "torchvision_torch_mismatch": family,
    "torchvision_cuda_variant_mismatch": family,
    "torchaudio_torch_mismatch": family,
    "ptxas_too_old": assembler,
    "open_modules_required": modules,
}
