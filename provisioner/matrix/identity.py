"""What tells two entries of a list in matrix.yaml apart, and how such a list is ordered."""

from __future__ import annotations

from typing import Any

from packaging.version import InvalidVersion, Version

from provisioner.matrix import model

IDENTITY: dict[type, str] = {
    model.Release: "torch",
    model.Variant: "tag",
    model.Triton: "version",
    model.PtxasOverride: "id",
    model.CudaMajor: "major",
    model.Toolkit: "series",
    model.ToolkitRelease: "version",
    model.DriverBranch: "branch",
    model.Capability: "capability",
    model.Gpu: "name",
    model.OperatingSystem: "id",
    model.CudaImage: "version",
    model.ContainerGate: "toolkit",
    model.KnownBad: "id",
    model.UnsupportedPlatform: "id",
}
"""The key that names an entry: releases by torch, variants by tag, GPUs by name, ..."""

ORDERED = frozenset(
    {
        model.Release,
        model.Variant,
        model.Triton,
        model.CudaMajor,
        model.Toolkit,
        model.ToolkitRelease,
        model.DriverBranch,
        model.Capability,
        model.CudaImage,
        model.ContainerGate,
    }
)
"""Lists that are kept in ascending order of their identity (variants: CUDA, then cpu)."""


def order_key(kind: type, identity: str) -> tuple[int, Any]:
    """Sorts identities of one ordered kind; what is no version comes last."""
    if kind is model.Variant:
        digits = identity.removeprefix("cu")
        return (0, int(digits)) if digits.isdecimal() else (1, 0)
    try:
        return (0, Version(identity))
    except InvalidVersion:
        return (1, 0)
