"""nvcc, which builds extensions: of torch's CUDA, with a compiler and a glibc that it accepts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen


def nvcc(seen: Seen) -> Outcome:
    """Do nvcc on PATH, CUDA_HOME and torch's CUDA agree?"""
    env = seen.env
    if env is None or env.nvcc is None:
        return unknown("nvcc: no interpreter was asked")
    path, home = env.nvcc.path, env.nvcc.home
    named = seen.variables.get("CUDA_HOME") or seen.variables.get("CUDA_PATH")
    if named and home.version is None:
        return bad(
            "warn",
            f"CUDA_HOME is {named}, and no nvcc answers in {home.path}",
            "Extensions are built with the toolkit that CUDA_HOME names; torch.compile needs none.",
            "Name a toolkit, or unset it.",
            "unset CUDA_HOME CUDA_PATH",
            source=("torch/utils/cpp_extension.py",),
            claim="nvcc-for-inductor",
        )
    used = home if home.version else path if path.version else env.nvcc.usual
    if used.version is None:
        return skip("no nvcc is here; torch and torch.compile need none")
    if home.version and path.version and _series(home.version) != _series(path.version):
        return bad(
            "warn",
            f"nvcc on PATH is {path.version}, that of CUDA_HOME ({named}) is {home.version}",
            "torch builds extensions with CUDA_HOME's, CMake and people with the one on PATH.",
            "Let both name the same toolkit.",
            "which -a nvcc",
            "ls -d /usr/local/cuda-*",
            source=("torch/utils/cpp_extension.py",),
        )
    if seen.cuda is None:
        return good(f"nvcc {used.version}")
    if _series(used.version).partition(".")[0] != seen.cuda.partition(".")[0]:
        return bad(
            "warn",
            f"nvcc {used.version} ({used.path}); {seen.build} was built with CUDA {seen.cuda}",
            "Building a CUDA extension stops with: the detected CUDA version mismatches. "
            "torch.compile does not use nvcc and is not touched by it.",
            "Install the toolkit of the same series and name it, for extensions alone.",
            f"sudo apt-get install cuda-toolkit-{seen.cuda.replace('.', '-')}",
            f"export CUDA_HOME=/usr/local/cuda-{seen.cuda}",
            source=("torch/utils/cpp_extension.py",),
            claim="nvcc-for-inductor",
        )
    return good(f"nvcc {used.version}, torch's CUDA {seen.cuda}")


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def host_compiler(seen: Seen) -> Outcome:
    """Does nvcc accept this gcc and this glibc?"""
    env = seen.env
    if env is None or env.nvcc is None:
        return unknown("nvcc: no interpreter was asked")
    used = next((p for p in (env.nvcc.home, env.nvcc.path, env.nvcc.usual) if p.version), None)
    if used is None:
        return skip("no nvcc is here")
    series = _series(str(used.version))
    toolkit = seen.index.toolkits.get(series)
    if toolkit is None or toolkit.host_compiler is None:
        return unknown(f"which compilers nvcc {series} takes")
    limits = toolkit.host_compiler
    breaks, glibc = limits.glibc_breaks_from, seen.facts.glibc
    if breaks and glibc and versions.at_least(glibc, breaks):
        return bad(
            "warn",
            f"nvcc {used.version} beside glibc {glibc}",
            f"nvcc {series} cannot read the headers of glibc {breaks} and newer.",
            "Compile CUDA code in an image of an older system, or take a newer toolkit.",
            "provision build --cuda " + series + " --flavour devel",
            source=limits.source,
        )
    gcc = _gcc(seen)
    if gcc is None:
        return unknown("the version of gcc")
    if gcc > limits.gcc_max:
        older = sorted(
            name
            for name in seen.facts.gcc
            if (m := re.fullmatch(r"gcc-(\d+)", name)) and int(m[1]) <= limits.gcc_max
        )
        # A name that is not installed is the newest one that would do.
        name = older[-1] if older else f"gcc-{limits.gcc_max}"
        need = () if older else (f"sudo apt-get install {name} {name.replace('gcc', 'g++')}",)
        return bad(
            "warn",
            f"gcc {gcc} beside nvcc {used.version}",
            f"nvcc {series} takes gcc {limits.gcc_max} at most and stops with: unsupported GNU "
            "version. torch.compile does not use nvcc.",
            "Give nvcc an older compiler.",
            *need,
            f"export NVCC_PREPEND_FLAGS='-ccbin {name.replace('gcc', 'g++')}'",
            source=limits.source,
        )
    return good(f"nvcc {used.version} takes gcc {gcc} (up to {limits.gcc_max})")


def _gcc(seen: Seen) -> int | None:
    found = seen.compilers.cxx if seen.compilers else None
    said = re.search(r"\) (\d+)\.\d+", (found.version or "") if found else "")
    told = said[1] if said else (seen.facts.gcc.get("gcc") or "").partition(".")[0]
    return int(told) if told.isdigit() else None


CHECKS = (
    Check("toolkit.nvcc", "nvcc, CUDA_HOME and torch agree", nvcc),
    Check("toolkit.host-compiler", "nvcc accepts gcc and glibc", host_compiler),
)
