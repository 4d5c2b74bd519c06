"""The driver: loaded, new enough to run, to compile, to JIT; reachable by loader and user."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions
from provisioner.matrix.compiling import compile_floor as floor_to_compile
from provisioner.matrix.rules import Candidate

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_LIBCUDA = (
    "source of triton 2.0.0, 2.1.0, 3.2.0, 3.8.0",
    "https://github.com/pytorch/pytorch/issues/103417",
)


def _asked(seen: Seen) -> Outcome | None:
    """Why the driver's version does not matter or is not known; None when it can be judged."""
    if seen.torch_label is None:
        return skip("no torch to hold the driver against")
    if seen.cuda is None:
        return skip(f"{seen.build} is a build for the CPU")
    if seen.driver is None:
        if seen.facts.driver.loaded is False and not seen.gpus:
            return skip("no driver is loaded, and no GPU is here")
        return unknown("the version of the driver")
    return None


def loaded(seen: Seen) -> Outcome:
    """Is a driver loaded for the GPU that is on the bus?"""
    state = seen.facts.driver.loaded
    if seen.driver is not None:
        return good(f"driver {seen.driver}")
    if not [d for d in seen.facts.pci or () if d.kind == "gpu"]:
        return (
            skip("no NVIDIA GPU is on the bus")
            if seen.facts.pci is not None
            else unknown("what is on the PCI bus")
        )
    if state is None:
        return unknown("whether a driver is loaded")
    kernels = seen.facts.driver.built_for
    if kernels and seen.facts.kernel and seen.facts.kernel not in kernels:
        return bad(
            "error",
            f"kernel {seen.facts.kernel} runs; nvidia modules are there for {', '.join(kernels)}",
            "The module was built for another kernel, so none is loaded for this one.",
            "Build it for this kernel (its headers are needed), or boot the other one.",
            "sudo apt-get install linux-headers-generic",
            "sudo dkms autoinstall",
            "sudo modprobe nvidia",
            source=("https://github.com/NVIDIA/ansible-role-nvidia-driver/issues/18",),
        )
    return bad(
        "error",
        "an NVIDIA GPU is on the PCI bus, and no nvidia module is loaded",
        "Without the module there is no CUDA.",
        "Install a driver, or load the one that is installed.",
        "sudo modprobe nvidia",
        *seen.newer_driver("0"),
        source=("/sys/bus/pci/devices", "/sys/module/nvidia"),
    )


def run_floor(seen: Seen) -> Outcome:
    """Is the driver new enough to run the build's machine code?"""
    if (answer := _asked(seen)) is not None:
        return answer
    driver, cuda = str(seen.driver), str(seen.cuda)
    if versions.major(cuda) not in seen.index.majors:
        return unknown(f"the matrix has no floor for CUDA {cuda}")
    fact = seen.index.run_floor(cuda)
    if versions.at_least(driver, fact.run_floor):
        return good(f"driver {driver}, {seen.build} runs from {fact.run_floor} on")
    call = seen.cuda_call
    if call is not None and call.init == 0 and "/compat" in (call.file or ""):
        return good(f"driver {driver} with the compatibility library {call.file}")
    return bad(
        "error",
        f"driver {driver}; {seen.build} (CUDA {cuda}) needs {fact.run_floor} or newer",
        f"Machine code of CUDA {fact.major}.x is not loaded by older drivers.",
        "Install a newer driver, or a build that this one runs.",
        *seen.newer_driver(fact.run_floor),
        f"provision resolve --driver {shlex.quote(driver)}",
        source=fact.source,
        claim="one-minimum-driver",
    )


def compile_floor(seen: Seen) -> Outcome:
    """Is the driver new enough for what triton's own assembler makes?"""
    if (answer := _asked(seen)) is not None:
        return answer
    release, variant, driver = seen.release, seen.variant, str(seen.driver)
    if release is None or variant is None:
        return unknown(f"the matrix does not know {seen.build}")
    if not release.compile.supported or release.triton is None:
        return skip(f"{seen.build} compiles nothing on a GPU")
    if seen.variables.get("TRITON_PTXAS_PATH"):
        return skip("TRITON_PTXAS_PATH names another assembler; see toolkit.ptxas")
    candidate = Candidate(release, variant, False, variant.arch_list, variant.ptx)
    capabilities = [gpu.capability for gpu in seen.gpus] or [None]
    floors = [floor_to_compile(seen.index, candidate, capability) for capability in capabilities]
    floor = versions.newest([f for f in floors if f] or ["0"])
    if versions.at_least(driver, floor):
        return good(f"driver {driver}, compiled code of {seen.build} loads from {floor} on")
    fact = seen.index.tritons[release.triton.version]
    return bad(
        "error",
        f"driver {driver}; torch.compile of {seen.build} needs {floor} or newer",
        f"triton {fact.version} assembles with a ptxas of CUDA {fact.ptxas}; this driver does not "
        "load what that makes. Eager code may run.",
        "Install a newer driver, or find the cell that compiles on this one.",
        *seen.newer_driver(floor),
        f"provision resolve --torch {release.torch} --driver {shlex.quote(driver)}",
        source=fact.source,
        claim="one-minimum-driver",
    )


def native(seen: Seen) -> Outcome:
    """Does the driver speak the build's CUDA series natively?"""
    if (answer := _asked(seen)) is not None:
        return answer
    driver, cuda = str(seen.driver), str(seen.cuda)
    speaks = seen.index.branch_of(driver).cuda
    if versions.at_least(speaks, cuda):
        return good(f"driver {driver} speaks CUDA {speaks}")
    toolkit = seen.index.toolkits.get(cuda)
    branch = f"branch {toolkit.native_branch}" if toolkit else "a newer branch"
    return bad(
        "note",
        f"driver {driver} speaks CUDA {speaks}; {seen.build} was made with {cuda}",
        "Ready machine code runs all the same (minor-version compatibility). PTX of the newer CUDA "
        "is refused (error 222), and so are API calls that the driver does not know.",
        f"Nothing, unless you compile PTX at run time: then take {branch} or newer.",
        f"provision resolve --torch {seen.torch} --driver {shlex.quote(driver)}",
        source=toolkit.source
        if toolkit
        else ("https://docs.nvidia.com/deploy/cuda-compatibility/",),
        claim="driver-cuda-limit",
    )


def libcuda(seen: Seen) -> Outcome:
    """Can the loader, and triton, find libcuda?"""
    env = seen.env
    if env is None or env.ldconfig is None:
        return unknown("the loader's cache (ldconfig -p)")
    if seen.has_gpu is False and seen.driver is None:
        return skip("no GPU and no driver is here")
    listed = env.ldconfig.get("libcuda.so.1", ())
    call = seen.cuda_call
    if not listed and (call is None or not call.found):
        return bad(
            "error",
            "no libcuda.so.1 on the loader's path",
            "The driver's user-space half is missing. In a container it comes from the host: the "
            "container was started without its GPUs.",
            "Start the container with GPUs, or install the driver's libraries on the host.",
            "docker run --rm --gpus all IMAGE nvidia-smi" if seen.inside else "sudo ldconfig",
            source=_LIBCUDA,
            claim="image-brings-driver",
        )
    triton = seen.release.triton.version if seen.release and seen.release.triton else None
    old = triton is not None and not versions.at_least(triton, "2.2.0")
    if old and seen.cuda is not None and "libcuda.so" not in env.ldconfig:
        place = listed[0] if listed else "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
        link = place.rpartition(".1")[0]
        return bad(
            "error",
            f"libcuda.so.1 is found, the plain name libcuda.so is not (triton {triton})",
            "triton 2.0 and 2.1 link by the plain name; it ends as `cannot find -lcuda` or "
            "`libcuda.so cannot found!`.",
            "Make the link, and renew the loader's cache.",
            f"sudo ln -s {shlex.quote(place)} {shlex.quote(link)}",
            "sudo ldconfig",
            source=_LIBCUDA,
        )
    if not listed and seen.cuda is not None:
        return bad(
            "warn",
            f"libcuda is loaded from {call.file if call else 'somewhere'}, and `ldconfig -p` "
            "does not list it",
            "triton asks `ldconfig -p`, then LD_LIBRARY_PATH: torch runs, compiling fails.",
            "Renew the loader's cache, or name the folder for triton.",
            "sudo ldconfig",
            source=_LIBCUDA,
        )
    return good(", ".join(listed) or str(call.file if call else ""))


def devices(seen: Seen) -> Outcome:
    """Are the driver's device files there, and open to this user?"""
    env = seen.env
    if env is None or env.devices is None:
        return unknown("the files in /dev")
    if seen.facts.wsl:
        nodes = [d for d in env.devices if d.path == "/dev/dxg"]
        return good("/dev/dxg") if nodes else skip("WSL without a GPU")
    have = {d.path: d.usable for d in env.devices}
    if not have:
        return skip("no device file of the driver is here")
    closed = sorted(path for path, usable in have.items() if not usable)
    if closed:
        return bad(
            "error",
            f"this user cannot open {', '.join(closed)}",
            "CUDA opens them for reading and writing; without that it finds no device.",
            "See who may, and join that group.",
            "ls -l " + shlex.join(closed),
            "id",
            source=("https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",),
        )
    missing = [p for p in ("/dev/nvidiactl", "/dev/nvidia-uvm") if p not in have]
    if missing:
        return bad(
            "error",
            f"{', '.join(missing)} is not there, beside {', '.join(sorted(have))}",
            "nvidia-smi works without nvidia-uvm, CUDA does not.",
            "Load the module and make its files; into a container pass them too.",
            "sudo modprobe nvidia_uvm",
            "sudo nvidia-modprobe -c 0 -u",
            source=("https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",),
            claim="nvidia-smi-proof",
        )
    return good(", ".join(sorted(have)))


CHECKS = (
    Check("driver.loaded", "a driver is loaded for the GPU", loaded),
    Check("driver.run-floor", "the driver runs this build", run_floor),
    Check("driver.compile-floor", "the driver loads what torch.compile makes", compile_floor),
    Check("driver.native", "the driver speaks the build's CUDA", native),
    Check("driver.libcuda", "libcuda is where loader and triton look", libcuda),
    Check("driver.devices", "the device files are there and open", devices),
)
