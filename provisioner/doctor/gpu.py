"""The GPU against the wheel, against triton, against the driver; and a driver really called."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions
from provisioner.matrix.rules import sass_for

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_CUDA_ERRORS = (
    "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html",
    "https://docs.nvidia.com/deploy/cuda-compatibility/",
)
_NO_DEVICE, _NOT_INITIALISED, _MISMATCH, _COMPAT, _MPS = 100, 802, 803, 804, 805
_NVML_MISMATCH = 18


def _resolve(seen: Seen) -> str:
    """The command that finds a build for what is here."""
    words = ["provision", "resolve"]
    for name in dict.fromkeys(g.capability for g in seen.gpus if g.capability):
        words += ["--gpu", name]
    words += ["--driver", seen.driver] if seen.driver else []
    return shlex.join(words)


def arch(seen: Seen) -> Outcome:
    """Does the wheel hold code that each GPU can run?"""
    if not seen.gpus:
        return skip("no GPU is here") if seen.has_gpu is False else unknown("which GPU it is")
    if seen.torch_label is None:
        return skip("no torch to hold the GPU against")
    if seen.cuda is None:
        return skip(f"{seen.build} is a build for the CPU")
    if seen.arch_list is None:
        return unknown(f"the architectures of {seen.build}")
    sass, ptx = seen.arch_list
    held = ", ".join(sass) + (f" and PTX {', '.join(ptx)}" if ptx else "")
    if all(gpu.capability is None for gpu in seen.gpus):
        return unknown("the compute capability of " + ", ".join(g.name for g in seen.gpus))
    for gpu in seen.gpus:
        if gpu.capability is None or sass_for(gpu.capability, sass) is not None:
            continue
        source = seen.variant.source if seen.variant else ("torch.cuda.get_arch_list()",)
        if any(versions.at_least(gpu.capability, target) for target in ptx):
            return bad(
                "warn",
                f"{gpu.name} has compute capability {gpu.capability}; {seen.build} holds {held}.",
                "There is no machine code for it: the driver compiles the PTX, which takes minutes "
                "at the first call and needs a driver as new as the build's CUDA.",
                "Take a build with code for this GPU.",
                _resolve(seen),
                source=source,
            )
        return bad(
            "error",
            f"{gpu.name} has compute capability {gpu.capability}; {seen.build} holds {held}.",
            "The first kernel fails: no kernel image is available for execution on the device. A "
            "newer driver does not change that.",
            "Install a build with code for this GPU.",
            _resolve(seen),
            source=source,
            claim="sm-90",
        )
    return good(f"{seen.build} holds code for " + ", ".join(g.name for g in seen.gpus))


def compiles(seen: Seen) -> Outcome:
    """Is each GPU new enough for Triton?"""
    rules = seen.index.matrix.compile_rules
    if not seen.gpus:
        return skip("no GPU is here") if seen.has_gpu is False else unknown("which GPU it is")
    old = [
        gpu
        for gpu in seen.gpus
        if gpu.capability and not versions.at_least(gpu.capability, rules.capability_min)
    ]
    if old:
        return bad(
            "error",
            ", ".join(f"{gpu.name}: compute capability {gpu.capability}" for gpu in old),
            f"Triton compiles for {rules.capability_min} and newer. torch.compile raises on this "
            "GPU; it does not fall back by itself.",
            "Run eager code there, or ask for a cell that says so.",
            f"provision resolve --gpu {old[0].capability} --no-compile",
            source=rules.source,
            claim="old-gpu-silent",
        )
    if any(gpu.capability is None for gpu in seen.gpus):
        return unknown("the compute capability of " + ", ".join(g.name for g in seen.gpus))
    return good(f"every GPU has {rules.capability_min} or newer")


def known_to_driver(seen: Seen) -> Outcome:
    """Does the driver know each GPU?"""
    if not seen.gpus:
        return skip("no GPU is here") if seen.has_gpu is False else unknown("which GPU it is")
    driver = seen.driver
    if driver is None:
        return unknown("the version of the driver")
    for gpu in seen.gpus:
        if gpu.fact is None:
            continue
        last, first = gpu.fact.capability.driver_branch_last, gpu.fact.driver_from
        if last is not None and versions.major(driver) > last:
            return bad(
                "error",
                f"{gpu.name} beside driver {driver}",
                f"Branch {last} is the last that knows {gpu.fact.capability.family} GPUs.",
                f"Go back to branch {last}.",
                *seen.newer_driver("0"),
                source=gpu.fact.source,
                claim="cuda-11-8-driver",
            )
        if first is not None and not versions.at_least(driver, first):
            return bad(
                "error",
                f"{gpu.name} beside driver {driver}",
                f"The first driver that knows this GPU is {first}.",
                "Install a newer driver, then restart.",
                *seen.newer_driver(first),
                source=gpu.fact.source,
            )
    if all(gpu.fact is None for gpu in seen.gpus):
        return unknown("the matrix has no " + ", ".join(g.name for g in seen.gpus))
    return good(f"driver {driver} knows " + ", ".join(g.name for g in seen.gpus))


def cuinit(seen: Seen) -> Outcome:
    """Does cuInit, really called, succeed?"""
    env = seen.env
    if env is None or env.driver is None:
        return skip("no interpreter was asked")
    if env.driver.died is not None:
        return bad(
            "error",
            f"cuInit: {env.driver.died}",
            "A driver that hangs or kills the process that calls it is not usable.",
            "Look at what the kernel says, then restart the host.",
            "sudo dmesg",
            source=_CUDA_ERRORS,
        )
    call = seen.cuda_call
    if call is None or not call.found:
        return skip("there is no libcuda.so.1 to call")
    if call.init == 0:
        names = ", ".join(d.name or "?" for d in call.devices) or "no device"
        return good(f"cuInit succeeds, CUDA {call.version}: {names}")
    if call.init in (_MISMATCH, _COMPAT):
        return skip(f"cuInit returned {call.init}: see driver.mismatch and driver.compat")
    if call.init == _NO_DEVICE and seen.has_gpu is False:
        return skip("cuInit finds no device, and there is no GPU here")
    if call.init == _NO_DEVICE:
        return bad(
            "error",
            "cuInit returned 100 (no CUDA-capable device)",
            "The library is there and sees no GPU: no device was passed in, CUDA_VISIBLE_DEVICES "
            "hides it, or its device files cannot be opened.",
            "Look at which devices this user sees.",
            "nvidia-smi -L",
            "ls -l /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm",
            source=_CUDA_ERRORS,
        )
    if call.init == _NOT_INITIALISED:
        return bad(
            "error",
            "cuInit returned 802 (system not yet initialised)",
            "On a machine with NVSwitch the fabric manager has not set up the switches.",
            "Start the fabric manager, of exactly the driver's version.",
            "sudo systemctl enable --now nvidia-fabricmanager",
            source=_CUDA_ERRORS,
        )
    return bad(
        "error",
        f"cuInit returned {call.init}",
        "Every CUDA program fails at its first call, whatever nvidia-smi shows.",
        "Reload nvidia_uvm while nothing uses the GPU; look at what the kernel says.",
        "sudo modprobe -r nvidia_uvm",
        "sudo modprobe nvidia_uvm",
        "sudo dmesg",
        source=_CUDA_ERRORS,
        claim="nvidia-smi-proof",
    )


def compat(seen: Seen) -> Outcome:
    """Is a forward-compatibility libcuda used where it cannot work (error 804)?"""
    call = seen.cuda_call
    if call is None or not call.found:
        return skip("libcuda was not called")
    where = call.file or "a libcuda of unknown place"
    if call.init == _COMPAT:
        return bad(
            "error",
            f"cuInit returned 804 with {where}",
            "A cuda-compat library stands before the driver's own, and this GPU or driver is not "
            "one that it supports (data-center GPUs and listed branches alone).",
            "Take the compat folder off the loader path, or give the host a newer driver.",
            "unset LD_LIBRARY_PATH",
            "sudo rm -f /etc/ld.so.conf.d/00-compat.conf",
            "sudo ldconfig",
            source=_CUDA_ERRORS,
        )
    if call.file and "/compat" in call.file:
        return bad(
            "note",
            f"libcuda comes from {call.file}",
            "A forward-compatibility library stands before the driver's own. It works here; on a "
            "host with another GPU or a newer driver it may not (error 803 or 804).",
            "Keep it only where the driver is older than the build needs.",
            "unset LD_LIBRARY_PATH",
            source=_CUDA_ERRORS,
        )
    return good(f"libcuda is the driver's own ({where})")


def mismatch(seen: Seen) -> Outcome:
    """Are the driver's libraries of the version of the loaded kernel module (error 803)?"""
    loaded = seen.facts.driver.loaded
    files = set(seen.facts.driver.libraries or ())
    call = seen.cuda_call
    said = []
    if call is not None and call.init == _MISMATCH:
        said.append("cuInit returned 803")
    if seen.nvml is not None and seen.nvml.init == _NVML_MISMATCH:
        said.append("NVML: driver/library version mismatch")
    if loaded and files and loaded not in files:
        said.append(f"module {loaded} is loaded, libraries {', '.join(sorted(files))} are there")
    if said:
        command = "sudo reboot"
        return bad(
            "error",
            "; ".join(said),
            "The libraries were changed under the module that runs. Programs that started before "
            "go on; every new one fails.",
            "Restart the host (from inside a container: the host's), then keep the driver's "
            "packages from changing by themselves.",
            command,
            "sudo apt-mark hold 'nvidia-*' 'libnvidia-*'",
            source=(
                *_CUDA_ERRORS,
                "https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3",
            ),
        )
    if not loaded:
        return skip("no nvidia module is loaded") if loaded is False else unknown("the module")
    if call is None or not call.found:
        return good(f"module {loaded}") if loaded in files else unknown("the driver's libraries")
    return good(f"module and libraries are {loaded}")


CHECKS = (
    Check("gpu.arch", "the wheel holds code for the GPU", arch),
    Check("gpu.compile", "Triton compiles for the GPU", compiles),
    Check("gpu.driver", "the driver knows the GPU", known_to_driver),
    Check("driver.cuinit", "cuInit succeeds", cuinit),
    Check("driver.mismatch", "driver libraries and kernel module agree", mismatch),
    Check("driver.compat", "libcuda is the driver's own", compat),
)
