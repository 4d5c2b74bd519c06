"""Containers: the start gate of NVIDIA's images, CDI files, GPUs that a variable hides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_GATE = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
)
_CDI = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
    "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828",
)


def gate(seen: Seen) -> Outcome:
    """Would the image's own NVIDIA_REQUIRE_CUDA let it start on this driver?"""
    wanted = seen.variables.get("NVIDIA_REQUIRE_CUDA")
    if not wanted:
        return skip("NVIDIA_REQUIRE_CUDA is not set here")
    if seen.driver is None:
        return unknown("the version of the driver")
    series = re.search(r"cuda>=([0-9]+\.[0-9]+)", wanted)
    if series is None:
        return unknown(f"NVIDIA_REQUIRE_CUDA={wanted[:60]}")
    branch = seen.index.branch_of(seen.driver)
    if versions.at_least(branch.cuda, series[1]):
        return good(f"driver {seen.driver} speaks CUDA {branch.cuda}, the image asks {series[1]}")
    listed = {int(n) for n in re.findall(r"driver>=([0-9]+),driver<[0-9]+", wanted)}
    fact = next((g for g in seen.index.matrix.container_gates if g.toolkit == series[1]), None)
    listed |= set(fact.branches) if fact else set()
    if versions.major(seen.driver) in listed:
        return good(f"the image lets branch {branch.branch} in")
    off = seen.variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true")
    return bad(
        "note" if off else "error",
        f"the image asks for cuda>={series[1]}; driver {seen.driver} speaks CUDA {branch.cuda}"
        + (", and NVIDIA_DISABLE_REQUIRE is set" if off else ""),
        "The container runtime refuses to start it: unsatisfied condition. Wheels inside may run "
        "all the same, by minor-version compatibility.",
        "Install a newer driver, take an image without CUDA of its own, or switch the gate off "
        "where driver.run-floor passes.",
        *seen.newer_driver(seen.index.run_floor(series[1]).run_floor),
        "docker run --rm --gpus all -e NVIDIA_DISABLE_REQUIRE=1 IMAGE",
        source=fact.source if fact else _GATE,
        claim="cuda-11-7-driver",
    )


def cdi(seen: Seen) -> Outcome:
    """Do the CDI files name the driver that is here?"""
    specs = seen.facts.containers.cdi
    if specs is None:
        return unknown("the CDI files")
    if not specs:
        return skip("no CDI file is here")
    driver = seen.driver
    stale = [
        spec
        for spec in specs
        if spec.gone or (driver and spec.versions and driver not in spec.versions)
    ]
    if not stale:
        return good(", ".join(spec.path for spec in specs))
    first = stale[0]
    what = (
        f"{first.path} names {len(first.gone)} files that are gone, {first.gone[0]}"
        if first.gone
        else f"{first.path} is of driver {', '.join(first.versions)}, {driver} is loaded"
    )
    return bad(
        "error",
        what,
        "It was written for another driver or other GPUs: containers do not start, or get "
        "libraries that do not fit the module.",
        "Write it anew after every change of the driver or of MIG.",
        f"sudo nvidia-ctk cdi generate --output={first.path}",
        source=_CDI,
    )


def hidden(seen: Seen) -> Outcome:
    """Does a variable hide the GPUs?"""
    if seen.env is None:
        return unknown("the environment variables")
    visible = seen.variables.get("CUDA_VISIBLE_DEVICES")
    passed = seen.variables.get("NVIDIA_VISIBLE_DEVICES")
    if seen.has_gpu is False and not seen.inside:
        return skip("no GPU is here")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return bad(
            "error" if seen.cuda else "note",
            f"CUDA_VISIBLE_DEVICES={visible!r}",
            "It hides every GPU: torch.cuda.is_available() is False.",
            "Unset it, or name the GPUs.",
            "unset CUDA_VISIBLE_DEVICES",
            source=("https://docs.nvidia.com/cuda/cuda-c-programming-guide/",),
        )
    if seen.inside and passed in ("", "void", "none"):
        return bad(
            "error" if seen.cuda else "note",
            f"NVIDIA_VISIBLE_DEVICES={passed!r}",
            "The container runtime passes no GPU in.",
            "Start the container with its GPUs.",
            "docker run --rm --gpus all IMAGE",
            source=_GATE,
        )
    capabilities = seen.variables.get("NVIDIA_DRIVER_CAPABILITIES")
    if seen.inside and capabilities and not re.search(r"\b(all|compute)\b", capabilities):
        return bad(
            "error" if seen.cuda else "note",
            f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",
            "Without `compute` the container gets no libcuda.",
            "Ask for it.",
            "docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",
            source=_GATE,
        )
    return good("no variable hides a GPU")


def runtime(seen: Seen) -> Outcome:
    """Can Docker on this GPU host give its GPUs to a container?"""
    tools = seen.facts.containers
    if seen.inside:
        return skip("in a container")
    if seen.has_gpu is False:
        return skip("no GPU is here")
    if tools.docker is None or tools.nvidia_ctk is None:
        return unknown("docker and nvidia-ctk")
    if not tools.docker.present:
        return skip("docker is not installed")
    if tools.docker_runtimes is None:
        return unknown("/etc/docker/daemon.json")
    if not tools.nvidia_ctk.present:
        return bad(
            "warn",
            "docker is installed, nvidia-container-toolkit is not",
            "docker run --gpus stops with: could not select device driver.",
            "Install the toolkit and tell docker of it; docker then restarts.",
            "sudo apt-get install nvidia-container-toolkit",
            "sudo nvidia-ctk runtime configure --runtime=docker",
            "sudo systemctl restart docker",
            source=_GATE,
        )
    if "nvidia" not in tools.docker_runtimes and not seen.facts.containers.cdi:
        return bad(
            "warn",
            f"nvidia-ctk {tools.nvidia_ctk.version} is installed, docker knows no runtime of it "
            "and there is no CDI file",
            "--gpus works through the toolkit's hook, Compose and Kubernetes want the runtime.",
            "Tell docker of it; docker then restarts, and its containers with it.",
            "sudo nvidia-ctk runtime configure --runtime=docker",
            "sudo systemctl restart docker",
            source=_GATE,
        )
    return good(f"nvidia-ctk {tools.nvidia_ctk.version}")


CHECKS = (
    Check("container.gate", "the image starts on this driver", gate),
    Check("container.cdi", "CDI files fit the driver", cdi),
    Check("container.hidden", "no variable hides the GPUs", hidden),
    Check("container.runtime", "docker can pass GPUs in", runtime),
)
