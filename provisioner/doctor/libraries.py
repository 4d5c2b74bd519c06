"""The libraries that the loader really maps: whose CUDA, how many OpenMPs, which libstdc++."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_SHADOW = (
    "https://github.com/pytorch/pytorch/issues/103832",
    "https://github.com/pytorch/pytorch/issues/88882",
)
# What the wheels bring themselves, by the part of the file's name before .so
_BROUGHT = re.compile(
    r"^lib(cublas|cublasLt|cudart|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nvJitLink"
    r"|nvrtc|nccl|cupti)(-[0-9a-f]+)?\.so"
)
_OPENMP = re.compile(r"^lib(gomp|iomp5|omp)(-[0-9a-f]+)?\.so")
_CUDA_FOLDER = re.compile(r"cuda|cudnn|nvidia|tensorrt|nccl|/compat\b")


def _loaded(seen: Seen) -> tuple[str, ...] | None:
    return seen.imported.loaded if seen.imported is not None else None


def _own(seen: Seen, path: str) -> bool:
    """Whether a library belongs to the environment: below its prefix or where its packages are."""
    if seen.env is None:
        return False
    python = seen.env.python
    roots = {python.prefix, *(p for p in python.path if "-packages" in p)}
    if seen.env.torch is not None:
        roots.add(os.path.dirname(os.path.dirname(seen.env.torch.file)))  # noqa: PTH120 - not here
    return any(path.startswith(root.rstrip("/") + "/") for root in roots if root != "/usr")


def shadowed(seen: Seen) -> Outcome:
    """Do the CUDA libraries that were mapped come from the environment?"""
    loaded = _loaded(seen)
    if loaded is None:
        return skip("torch was not imported")
    cuda = [path for path in loaded if _BROUGHT.match(path.rpartition("/")[2])]
    if not cuda:
        return skip("torch mapped no CUDA library")
    foreign = [path for path in cuda if not _own(seen, path)]
    if not foreign:
        return good(f"{len(cuda)} CUDA libraries, all of the environment")
    brings = (
        any(row.name.startswith("nvidia-") for row in seen.env.distributions) if seen.env else False
    )
    return bad(
        "error" if brings or len(foreign) < len(cuda) else "warn",
        "mapped from outside the environment: " + ", ".join(foreign[:4]),
        "Another CUDA's libraries stand before those that came with torch: undefined symbols, "
        "CUBLAS_STATUS_INVALID_VALUE, or wrong versions without a word.",
        "Take their folder off the loader's path.",
        "unset LD_LIBRARY_PATH",
        "grep -rn cuda /etc/ld.so.conf /etc/ld.so.conf.d",
        source=_SHADOW,
        claim="ld-library-path",
    )


def library_path(seen: Seen) -> Outcome:
    """Does LD_LIBRARY_PATH name folders with CUDA libraries?"""
    value = seen.variables.get("LD_LIBRARY_PATH")
    every = seen.facts.library_path.etc_environment
    if seen.env is None and every is None:
        return unknown("LD_LIBRARY_PATH")
    if not value and not every:
        return good("LD_LIBRARY_PATH is not set")
    named = [part for part in (value or str(every)).split(":") if part]
    folders = [part for part in named if _CUDA_FOLDER.search(part)]
    if not folders:
        return good(f"LD_LIBRARY_PATH={value or every} names no CUDA folder")
    where = "" if value else " (in /etc/environment, for every user)"
    return bad(
        "warn",
        f"LD_LIBRARY_PATH names {':'.join(folders)}{where}",
        "Libraries there may be loaded instead of those that torch brings; which ones depends on "
        "the wheel's own search path. libraries.cuda says what was really mapped.",
        "Unset it for torch. The wheels need none.",
        "unset LD_LIBRARY_PATH" if value else "grep -n LD_LIBRARY_PATH /etc/environment",
        source=_SHADOW,
        claim="ld-library-path",
    )


def openmp(seen: Seen) -> Outcome:
    """Is one OpenMP runtime loaded?"""
    loaded = _loaded(seen)
    if loaded is None:
        return skip("torch was not imported")
    found = [path for path in loaded if _OPENMP.match(path.rpartition("/")[2])]
    if len(found) < 2:
        return good(found[0] if found else "no OpenMP runtime is mapped")
    kinds = {m[1] for path in found if (m := _OPENMP.match(path.rpartition("/")[2]))}
    mixed = len(kinds) > 1
    return bad(
        "warn" if mixed else "note",
        ", ".join(found),
        "Two OpenMP runtimes of different makers in one process: `OMP: Error #15`, or a hang in a "
        "forked worker."
        if mixed
        else "Two copies of one runtime each start their own threads: slower, not wrong.",
        "Take numpy and its kin from one source, all from conda or all from pip.",
        seen.pip("list", "--path", *(_sites(seen)[:1] or ["."])),
        source=("https://github.com/pytorch/pytorch/issues/78490",),
    )


def _sites(seen: Seen) -> list[str]:
    return [p for p in seen.env.python.path if p.endswith("-packages")] if seen.env else []


def mkl(seen: Seen) -> Outcome:
    """Is one MKL loaded, and not a conda one that this torch cannot use?"""
    loaded = _loaded(seen)
    if loaded is None:
        return skip("torch was not imported")
    cores = [p for p in loaded if re.match(r"^libmkl_core\.so", p.rpartition("/")[2])]
    if len(cores) > 1:
        return bad(
            "warn",
            ", ".join(cores),
            "Two MKLs in one process choose threads and kernels on their own.",
            "Keep one.",
            seen.pip("uninstall", "-y", "mkl"),
            source=("https://github.com/pytorch/pytorch/issues/123097",),
        )
    return good(cores[0] if cores else "no MKL beside the one inside torch")


def glibc(seen: Seen) -> Outcome:
    """Is the system's glibc new enough for the wheel?"""
    if seen.torch_label is None:
        return skip("no torch is here")
    if seen.release is None:
        return unknown(f"the matrix does not know {seen.build}")
    have = seen.facts.glibc
    if have is None:
        return unknown("the version of glibc")
    if versions.at_least(have, seen.release.glibc):
        return good(f"glibc {have}, {seen.build} needs {seen.release.glibc}")
    return bad(
        "error",
        f"glibc {have}; {seen.build} needs {seen.release.glibc}",
        "The import ends in: version `GLIBC_...' not found. glibc is part of the system.",
        "Take an older torch, or run the image of the cell.",
        f"provision build --torch {seen.torch}",
        source=seen.release.source,
    )


def libstdcxx(seen: Seen) -> Outcome:
    """Is the libstdc++ that was mapped as new as the system's compiler needs?"""
    if _loaded(seen) is None:
        return skip("torch was not imported")
    pair = seen.env.libstdcxx if seen.env else None
    if pair is None or pair.mapped is None:
        return skip("torch mapped no libstdc++")
    if pair.mapped.newest is None or pair.system is None or pair.system.newest is None:
        return unknown("the versions of libstdc++")
    if versions.at_least(pair.mapped.newest, pair.system.newest):
        return good(f"GLIBCXX_{pair.mapped.newest} ({pair.mapped.path})")
    return bad(
        "warn",
        f"{pair.mapped.path} offers GLIBCXX_{pair.mapped.newest}, {pair.system.path} "
        f"GLIBCXX_{pair.system.newest}",
        "What the system's g++ builds, kernels of Inductor and extensions, may ask for the newer "
        "one: version `GLIBCXX_3.4.x' not found.",
        "Bring the environment's libstdc++ up to date, or compile with its own g++.",
        f"strings {shlex.quote(pair.mapped.path)} | grep GLIBCXX_3.4",
        "conda install 'libstdcxx-ng>=13'",
        source=("https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html",),
    )


CHECKS = (
    Check("libraries.cuda", "CUDA libraries are the environment's own", shadowed),
    Check("libraries.path", "LD_LIBRARY_PATH names no CUDA", library_path),
    Check("libraries.openmp", "one OpenMP runtime is loaded", openmp),
    Check("libraries.mkl", "one MKL is loaded", mkl),
    Check("libraries.glibc", "glibc is new enough", glibc),
    Check("libraries.libstdcxx", "libstdc++ is new enough", libstdcxx),
)
