"""What compiles: C and C++ compilers, Python's headers, triton's assembler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.facts import Compiler, Compilers
    from provisioner.doctor.seen import Seen
    from provisioner.matrix.model import OsPackages

_TRITON = ("triton wheels 2.0.0 to 3.8.0 (build.py)",)
_INDUCTOR = ("torch/_inductor/cpp_builder.py, codecache.py",)


def install(seen: Seen, what: str) -> str:
    """The command that installs `compiler` or `python_headers` on this system."""
    if seen.system is None:
        return "sudo apt-get install g++ python3-dev"
    packages: OsPackages = seen.system.packages
    names = packages.compiler if what == "compiler" else packages.python_headers
    tool = "apt-get" if seen.system.package_manager == "apt" else "dnf"
    sudo = "" if seen.inside else "sudo "
    return f"{sudo}{tool} install {' '.join(names)}"


def _compilers(seen: Seen) -> Compilers | Outcome:
    if seen.compilers is None:
        return unknown("the compilers: no interpreter was asked")
    if seen.release is not None and not seen.release.compile.supported:
        return skip(f"{seen.build} has no torch.compile")
    return seen.compilers


def _judge(
    seen: Seen, found: Compiler, language: str, user: str, source: tuple[str, ...]
) -> Outcome:
    name = found.name or " or ".join(found.tried)
    if found.problem is None:
        tried = "compiles" if seen.compilers and seen.compilers.trial else "is there"
        return good(f"{found.version or name} {tried}")
    if found.problem == "missing":
        return bad(
            "error" if seen.torch_label else "warn",
            f"no {language} compiler: {name} is not on PATH",
            f"{user} It is looked for at every start, with a warm cache too.",
            "Install one.",
            install(seen, "compiler"),
            source=source,
            claim="nvcc-for-inductor",
        )
    said = (found.said or "").strip().splitlines()
    return bad(
        "error",
        f"{name} {found.problem}: {said[-1][:200] if said else 'no word'}",
        f"It answers to --version and cannot build a small library. {user}",
        "Install it whole; an environment's CC or CXX that names another one counts.",
        install(seen, "compiler"),
        source=source,
    )


def c_compiler(seen: Seen) -> Outcome:
    """Is there a C compiler that works, as triton needs one?"""
    found = _compilers(seen)
    if isinstance(found, Outcome):
        return found
    if seen.torch_label is not None and seen.cuda is None:
        return skip(f"{seen.build} is a build for the CPU, without triton")
    return _judge(
        seen,
        found.c,
        "C",
        "triton builds a small C helper on the host that runs.",
        _TRITON,
    )


def cxx_compiler(seen: Seen) -> Outcome:
    """Is there a C++ compiler that works, as Inductor needs one for the CPU?"""
    found = _compilers(seen)
    if isinstance(found, Outcome):
        return found
    return _judge(seen, found.cxx, "C++", "Inductor compiles its CPU kernels with it.", _INDUCTOR)


def headers(seen: Seen) -> Outcome:
    """Are the headers of this very Python there?"""
    found = _compilers(seen)
    if isinstance(found, Outcome):
        return found
    lies = found.headers
    if lies.problem is None:
        return good(lies.include or "")
    old = seen.torch is not None and not versions.at_least(seen.torch, "2.3")
    spared = old and seen.cuda is None
    return bad(
        "note" if spared else "error" if seen.torch_label else "warn",
        f"no usable Python.h ({lies.problem}); it would be in {lies.expected}",
        "triton needs it, and from torch 2.3 on Inductor's CPU kernels do.",
        "Install the headers of this Python series. A virtual environment takes those of the "
        "Python below it.",
        install(seen, "python_headers"),
        source=(*_TRITON, *_INDUCTOR),
    )


def ptxas(seen: Seen) -> Outcome:
    """Does the assembler that triton would call run, and know the GPU?"""
    env = seen.env
    if env is None or env.ptxas is None:
        return skip("no torch was asked for its triton")
    named = seen.variables.get("TRITON_PTXAS_PATH")
    if named and (env.ptxas.named is None or env.ptxas.named.version is None):
        error = env.ptxas.named.error if env.ptxas.named else "not tried"
        return bad(
            "error",
            f"TRITON_PTXAS_PATH is {named}, and it does not run ({error})",
            "triton calls it for every kernel.",
            "Unset it, or name an assembler that runs.",
            "unset TRITON_PTXAS_PATH",
            source=("triton/backends/nvidia/compiler.py",),
        )
    used = env.ptxas.named or env.ptxas
    if seen.version_of("triton") is None and seen.version_of("pytorch-triton") is None:
        return skip("triton is not installed")
    if used.version is None:
        return bad(
            "error",
            f"triton's ptxas does not run: {used.error}",
            "triton calls it for every kernel.",
            "Install triton anew, whole.",
            seen.pip("install", "--force-reinstall", "--no-deps", f"triton=={_triton(seen)}"),
            source=("triton/backends/nvidia/compiler.py",),
        )
    for gpu in seen.gpus:
        first = gpu.fact.capability.toolkit_first if gpu.fact else None
        have = _for(seen, gpu.capability) or used.version
        if first and not versions.at_least(have, first):
            return bad(
                "error",
                f"ptxas {have}; {gpu.name} ({gpu.capability}) begins with CUDA {first}",
                "The assembler does not know this GPU, so compiling for it fails.",
                "Take a torch whose triton brings a newer one.",
                f"provision resolve --gpu {gpu.capability}",
                source=gpu.fact.source if gpu.fact else (),
            )
    return good(f"ptxas {used.version} ({used.path})")


def _triton(seen: Seen) -> str:
    return seen.version_of("triton") or seen.version_of("pytorch-triton") or "2.0.0"


def _for(seen: Seen, capability: str | None) -> str | None:
    """triton's second assembler, where it has one for this GPU."""
    fact = seen.index.tritons.get(_triton(seen))
    rules = seen.index.matrix.compile_rules
    if fact is None or capability is None:
        return None
    newer = versions.at_least(capability, rules.blackwell_from)
    return fact.ptxas_blackwell if newer else None


CHECKS = (
    Check("toolkit.cc", "a C compiler works", c_compiler),
    Check("toolkit.cxx", "a C++ compiler works", cxx_compiler),
    Check("toolkit.headers", "Python's headers are there", headers),
    Check("toolkit.ptxas", "triton's assembler runs", ptxas),
)
