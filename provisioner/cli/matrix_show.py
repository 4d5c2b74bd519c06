"""`provision matrix show`: one release, toolkit, GPU, driver branch or operating system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.options import common_options, matrix_options
from provisioner.cli.output import Output, print_refusal, wrap

if TYPE_CHECKING:
    from collections.abc import Collection

    from provisioner.cli.settings import Settings

_LABEL = 16


@click.command("show")
@click.argument("name")
@matrix_options
@common_options
def command(settings: Settings, out: Output, name: str) -> int | None:
    """Show what the matrix says about NAME.

    NAME is a torch release (2.0.1), a toolkit series (11.8), a GPU (A100) or compute capability
    (8.0), an operating system (ubuntu22.04), or driver:535. Where names meet, put the kind before
    it: torch:, toolkit:, gpu:, driver:, os:.
    """
    from provisioner.matrix.cell import Refusal
    from provisioner.matrix.show import look_up

    matrix = settings.open().matrix
    found = look_up(matrix, name)
    if isinstance(found, Refusal):
        return print_refusal(out, found, "provision matrix show")
    if out.json:
        out.result(found.object)
        return None
    lines = release_page(found.object) if found.kind == "torch" else plain_page(found.object)
    for line in lines:
        out.line(line)
    return None


def release_page(release: dict[str, Any]) -> list[str]:
    """A release for people, at most 80 columns."""
    compile_ = f"up to Python {release['compile_python_max']}" if release["compile"] else "no"
    pairs = [
        ("released", release["released"]),
        ("torchvision", _pin(release, "torchvision")),
        ("torchaudio", _pin(release, "torchaudio")),
        ("triton", _pin(release, "triton") if release["triton"] else "none"),
        ("python", " ".join(release["python"])),
        ("python (aarch64)", " ".join(release["python_aarch64"])),
        ("torch.compile", compile_),
        ("glibc", f"{release['glibc']} or newer"),
        ("requires", ", ".join(release["requires"])),
        ("other builds", " ".join(release["other_builds"])),
    ]
    lines = [f"torch {release['torch']}"]
    for label, value in pairs:
        lines += _labelled(label, value)
    lines += ["", "Builds"]
    for build in release["builds"]:
        lines += _build(build, release["pypi_variant"])
    if release["unverified"]:
        lines += ["", *_labelled("not confirmed", ", ".join(release["unverified"]))]
    if release["note"]:
        lines += ["", *wrap(release["note"])]
    lines += ["", *_labelled("read from", ", ".join(release["source"]))]
    return lines


def plain_page(entry: dict[str, Any]) -> list[str]:
    """Any other entry for people: one labelled line per fact that is known."""
    lines: list[str] = []
    unsure = set(entry["unverified"])
    last = [key for key in ("torch", "torch_unverified", "note", "source") if key in entry]
    shown = [key for key in entry if key not in last and not _hidden(key)]
    width = max(len(key) for key in (*shown, *last))
    for number, key in enumerate((*shown, *last)):
        value = entry[key]
        if key.startswith("torch") and isinstance(value, list) and value:
            value = _builds(value)
        if value in (None, (), [], {}):
            if key not in unsure:
                continue
            value = "none known"
        sure = key not in unsure and not (number == 0 and "all" in unsure)
        nested = {name.partition(".")[2] for name in unsure if name.startswith(f"{key}.")}
        label = "torch ?" if key == "torch_unverified" else key.replace("_", " ")
        lines += _labelled(label, _text(value, nested) + ("" if sure else " ?"), width)
    if unsure or entry.get("torch_unverified"):
        whole = " (all of this entry)" if "all" in unsure else ""
        lines += ["", f"?: not confirmed at first hand{whole}."]
    return lines


def _builds(labels: list[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    return f"{len(labels)} builds from {labels[0]} to {labels[-1]} (provision matrix list)"


def _hidden(key: str) -> bool:
    """Whether a field is told as a mark, or not meant for people."""
    return key in {"schema", "verified", "unverified"} or key.endswith("_verified")


def _pin(release: dict[str, Any], name: str) -> str:
    requires = release[f"{name}_requires"]
    asks = "asks for no torch" if name != "triton" else "asked for by no rule"
    if requires:
        asks = f"torch asks {requires}" if name == "triton" else f"asks torch{requires}"
    return f"{release[name]} ({asks})"


def _build(build: dict[str, Any], pypi_variant: str) -> list[str]:
    words = []
    if build["toolkit"]:
        words.append(f"CUDA {build['built_with'] or build['toolkit']}")
    if build["cudnn"]:
        words.append(f"cuDNN {build['cudnn']}")
    if build["arch_list"]:
        words.append("code for " + " ".join(build["arch_list"]))
    if build["ptx"]:
        words.append("PTX for " + " ".join(build["ptx"]))
    if build["tag"] == pypi_variant:
        words.append("the build of the package index")
    if build["published"] != "yes":
        words.append(f"published: {build['published']}")
    if not build["verified"]:
        words.append("not confirmed at first hand")
    if not build["arch_list_verified"]:
        words.append("code list not confirmed")
    return wrap("; ".join(words) or "no CUDA", " " * 10, f"  {build['tag']:<8}")


def _labelled(label: str, value: str, width: int = _LABEL) -> list[str]:
    if not value:
        return []
    return wrap(value, " " * (width + 2), f"{label:<{width}}  ")


def _text(value: Any, unsure: Collection[str] = ()) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(
            f"{key}: {_text(item)}{' ?' * (key in unsure)}"
            for key, item in value.items()
            if item and not _hidden(key) and key not in {"source", "note"}
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(
            str(item.get("version")) if isinstance(item, dict) else str(item) for item in value
        )
    return str(value)
