"""Facts as the probe gathers them, for its judges: one good CPU cell, one good CUDA cell."""

from typing import Any

from provisioner.verify.probe import host_machine

Seen = dict[str, Any]


def folder(**changes: Any) -> dict[str, Any]:
    """Facts of a folder that can hold compiled code."""
    good = {
        "path": "/tmp",
        "exists": True,
        "judged": "/tmp",
        "error": None,
        "writable": True,
        "noexec": False,
        "free_mb": 5000,
        "owner": 1000,
        "variable": "",
    }
    return good | changes


def run(**changes: Any) -> dict[str, Any]:
    """The record of one run in a child that proves what it should."""
    good = {
        "unique_graphs": 1,
        "graph_breaks": 0,
        "aot_ok": 1,
        "aot_not_ok": 0,
        "first_call_s": 1.0,
        "error_compiled": 1e-7,
        "error_eager": 1e-7,
    }
    return good | changes


def child(phase: str, **changes: Any) -> dict[str, Any]:
    """The record of a child that came to its end."""
    function = run(witness=[2.0, 2.0], kernels=[])
    good = {
        "phase": phase,
        "returncode": 0,
        "signal": None,
        "timed_out": False,
        "wall_s": 10.0,
        "stage": "maps",
        "done": True,
        "stderr_tail": "",
        "mapped_so": ["cache/ab/kernel.so"],
        "runs": {
            "function": function,
            "counted": function | {"compiles": 1, "calls": 2},
            "net": run(),
            "train": run(),
            "fp16": run(floor=5e-3, error_compiled=1e-3, error_eager=1e-3),
            "bf16": run(floor=4e-2, error_compiled=1e-2, error_eager=1e-2),
        },
        "dynamic": {
            mode: {"graphs": graphs, "right": True, "error": None}
            for mode, graphs in (("True", 1), ("None", 2), ("False", 4))
        },
    }
    return good | changes


def library(path: str, **changes: Any) -> dict[str, Any]:
    """What the probe read of one built library on x86-64 (or on whatever runs this)."""
    good = {
        "bytes": 17000,
        "machine": host_machine(),
        "whole": True,
        "problem": None,
        "path": path,
        "marked": True,
    }
    return good | changes


def compiler(**changes: Any) -> dict[str, Any]:
    """Facts of a compiler that builds and loads a library."""
    good = {
        "tried": ["g++"],
        "name": "g++",
        "path": "/usr/bin/g++",
        "version": "g++ 12.2.0",
        "problem": None,
        "said": "",
    }
    return good | changes


def cpu_cell(**changes: Any) -> Seen:
    """Everything seen of a CPU cell that deserves `verified`."""
    seen: Seen = {
        "expect": {},
        "promised": "cpu",
        "device": "cpu",
        "strict_cache": False,
        "eager": False,
        "seconds": {"total": 20.0},
        "version": "2.13.0+cpu",
        "found": {"file": "/env/torch/__init__.py", "version": "2.13.0+cpu", "cuda": None},
        "dists": [{"version": "2.13.0", "path": "/env"}],
        "python": "3.11.7",
        "env": {},
        "tmp": folder(),
        "user": {"uid": 1000, "name": "ann", "error": None, "home": "/h", "home_writable": True},
        "user_cache": folder(path="/tmp/torchinductor_ann"),
        "base": "/tmp",
        "cxx": compiler(),
        "headers": {"include": "/usr/include/python3.11", "expected": "", "problem": None},
        "look": {
            "torch": "2.13.0+cpu",
            "cuda": None,
            "file": "/env/torch/__init__.py",
            "has_compile": True,
            "refusal": None,
            "numpy": {"version": "2.1.0", "error": None},
            "backends": ["cudagraphs", "inductor"],
            "capture": {"graphs": 1, "same": False, "disabled": False, "defined_in": "torch"},
            "suppress_errors_was": False,
            "tracers": [],
            "device": {"error": None, "name": None, "capability": None, "driver": None},
        },
        "children": {"cold": child("cold"), "warm": child("warm")},
        "files": {
            "kinds": {"kernel_so": 1, "isa_probe_so": 1},
            "kernel_so": [library("cache/ab/kernel.so")],
            "isa_probe_so": [library("cache/cd/probe.so", marked=False)],
            "other_so": [],
            "cubin": [],
            "marked_sources": ["cache/ab/kernel.cpp"],
        },
        "constant": "0.123457",
        "kept": None,
    }
    return seen | changes


def cuda_cell(**changes: Any) -> Seen:
    """Everything seen of a CUDA cell on a GPU host that deserves `verified`."""
    seen = cpu_cell(
        promised="cuda",
        device="cuda",
        version="2.11.0+cu130",
        found={"file": "/env/torch/__init__.py", "version": "2.11.0+cu130", "cuda": "13.0"},
        cc=compiler(name="gcc", tried=["gcc", "clang"]),
    )
    seen["look"] |= {
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "triton": {"version": "3.6.0", "error": None},
        "ptxas": {"path": "/t/ptxas", "version": "12.9.86", "error": None, "named": None},
        "device": {"error": None, "name": "H200", "capability": [9, 0], "driver": "580.1"},
    }
    for one in seen["children"].values():
        one["mapped_so"] = []
        one["runs"]["function"]["kernels"] = ["triton_poi_fused_add_cos_mul_sin_0"]
    seen["files"] |= {"kernel_so": [], "isa_probe_so": [], "cubin": [{"bytes": 9000}]}
    return seen | changes
