"""Read what a compilation left: PTX and cubin headers, messages; used by `ptxas_evidence.py`."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

EM_CUDA = 190
TELLING = re.compile("error|fatal|fault|not supported", re.IGNORECASE)


def read_cubin(path: Path) -> dict[str, Any]:
    """What a cubin's ELF header says: machine, compute capability, CUDA series of its assembler.

    The low byte of e_flags is the capability; e_version holds the series, times ten (118: 11.8).
    """
    head = path.read_bytes()[:64]
    if head[:4] != b"\x7fELF":
        return {"machine": None}
    machine, version = struct.unpack_from("<HI", head, 18)
    (flags,) = struct.unpack_from("<I", head, 48)
    return {"machine": machine, "sm": flags & 0xFF, "cuda": f"{version // 10}.{version % 10}"}


def read_ptx(path: Path) -> dict[str, str]:
    """PTX ISA version and target that triton asked for."""
    text = path.read_text()
    version = re.search(r"^\.version\s+(\S+)", text, re.MULTILINE)
    target = re.search(r"^\.target\s+([\w]+)", text, re.MULTILINE)
    return {
        "ptx_version": version.group(1) if version else "none",
        "ptx_target": target.group(1) if target else "none",
    }


def plain(message: str) -> str:
    """A message without this machine's paths, cut to what says why."""
    lines = [re.sub(r"(/[\w.+-]+)+/?", "FILE", line).strip() for line in message.splitlines()]
    telling = [line for line in lines if TELLING.search(line)]
    return " | ".join(dict.fromkeys(telling or [line for line in lines if line][-1:]))[:240]


def judge(event: dict[str, Any], out: Path, target: int) -> dict[str, Any]:
    """What became of one kernel: name, ok, message, PTX header and cubin header."""
    name = event["done"]
    row: dict[str, Any] = {"kernel": name, "ok": event["ok"]}
    if (out / f"{name}.ptx").is_file():
        row |= read_ptx(out / f"{name}.ptx")
    if event["ok"]:
        row |= read_cubin(out / f"{name}.cubin")
        if (row["machine"], row.get("sm")) != (EM_CUDA, target):
            row |= {"ok": False, "message": "the file made is no cubin for this target"}
    else:
        row["message"] = f"{event['error']}: {plain(event['message'])}"
    return row


def group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One entry of the table: what is the same for all kernels of a run, then each kernel."""
    kernels = {row["kernel"]: "ok" if row["ok"] else row["message"] for row in rows}
    same: dict[str, Any] = {"ok": sum(row["ok"] for row in rows), "of": len(rows)}
    for key in ("ptx_version", "ptx_target", "machine", "sm", "cuda"):
        seen = sorted({row[key] for row in rows if row.get(key) is not None})
        same[key] = seen[0] if len(seen) == 1 else seen
    failing = {r["kernel"]: r["repeat_failures"] for r in rows if "repeat_failures" in r}
    return same | ({"repeat_failures": failing} if failing else {}) | {"kernels": kernels}


def compare(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Whether the other assembler takes every kernel that triton's own one takes.

    `refused`: those that it never took. `unsteady`: those that one of the two took at times only,
    by whom. A kernel that fails with both (bfloat16 below 8.0) says nothing about the other.
    `assembles` also wants at least one kernel, and cubins of the other's own CUDA series alone.
    """

    def took(entry: dict[str, Any]) -> set[str]:
        now_and_then = entry.get("repeat_failures", {})
        return {k for k, said in entry["kernels"].items() if said == "ok" or k in now_and_then}

    refused = sorted(took(own) - took(other))
    unsteady = {
        who: sorted(entry["repeat_failures"])
        for who, entry in (("own", own), ("other", other))
        if "repeat_failures" in entry
    }
    right = other["cuda"] == other["ptxas_release"] and bool(took(other))
    return {"assembles": right and not refused, "kernels": len(took(other)), "refused": refused,
            "unsteady": unsteady}  # fmt: skip
