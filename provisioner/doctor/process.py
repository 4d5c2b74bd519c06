"""What a process gets from machine and shell: vector units, switches of torch.compile, tracers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.verify.probe import switches

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

_ATEN = {"avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl")}


def vectors(seen: Seen) -> Outcome:
    """Has the processor the vector units that are asked for, and those that kernels use?"""
    cpu = seen.env.cpu if seen.env else None
    if cpu is None or cpu.flags is None:
        return unknown("the flags of the processor")
    if seen.facts.arch not in (None, "x86_64"):
        return skip(f"{seen.facts.arch} has no AVX")
    asked = seen.variables.get("ATEN_CPU_CAPABILITY", "").lower()
    lacking = [flag for flag in _ATEN.get(asked, ()) if flag not in cpu.flags]
    if lacking:
        return bad(
            "error",
            f"ATEN_CPU_CAPABILITY={asked}; this processor lacks {', '.join(lacking)}",
            "torch takes the word for it and dies with: Illegal instruction.",
            "Unset it: torch looks at the processor by itself.",
            "unset ATEN_CPU_CAPABILITY",
            source=("ATen/native/DispatchStub.cpp",),
            claim="avx-512",
        )
    if "avx" not in cpu.flags:
        return bad(
            "warn",
            f"{cpu.model or 'this processor'} has no AVX",
            "torch itself chooses its code at run time; libraries beside it (TensorFlow, some "
            "builds of numpy's kin) do not, and die with: Illegal instruction. A virtual machine "
            "often hides what the processor has.",
            "Pass the host's processor through to the virtual machine.",
            "lscpu",
            source=("ATen/native/DispatchStub.cpp",),
            claim="avx-512",
        )
    if "avx2" not in cpu.flags:
        return bad(
            "note",
            f"{cpu.model or 'this processor'} has no AVX2",
            "torch runs and compiles without vector code, several times slower on the CPU. A "
            "compile cache made on a machine with AVX2 does not work here.",
            "Give this machine a cache of its own.",
            "provision cache check",
            source=("ATen/native/DispatchStub.cpp",),
            claim="avx-512",
        )
    return good(", ".join(cpu.flags))


def switched_off(seen: Seen) -> Outcome:
    """Does a variable turn torch.compile off?"""
    if seen.env is None:
        return unknown("the environment variables")
    off = switches(dict(seen.variables), seen.torch or "")
    if not off:
        return good("no variable turns torch.compile off")
    named = ", ".join(f"{k}={v}" for k, v in off.items())
    return bad(
        "error" if seen.torch_label else "warn",
        named,
        "Code runs eagerly, without a word: fullgraph=True notices TORCH_COMPILE_DISABLE from "
        "torch 2.12 on, TORCHDYNAMO_DISABLE never. Up to 2.7 any text in the former counts as yes, "
        "0 too.",
        "Unset it where the code runs.",
        "unset " + " ".join(off),
        source=("torch/_dynamo/config.py, torch/__init__.py",),
        claim="final-check",
    )


def suppressed(seen: Seen) -> Outcome:
    """Are compile errors swallowed?"""
    if seen.env is None:
        return unknown("the environment variables")
    value = seen.variables.get("TORCHDYNAMO_SUPPRESS_ERRORS", "0")
    if value in ("", "0"):
        return good("compile errors are raised")
    return bad(
        "warn",
        f"TORCHDYNAMO_SUPPRESS_ERRORS={value}",
        "A failed compile ends in eager code and one line in the log: a broken compiler passes for "
        "a slow model.",
        "Unset it, then prove that compiling works.",
        "unset TORCHDYNAMO_SUPPRESS_ERRORS",
        "provision verify --host",
        source=("torch/_dynamo/config.py",),
        claim="old-gpu-silent",
    )


def tracer(seen: Seen) -> Outcome:
    """Is a debugger, a tracer or a coverage tool attached?"""
    if seen.env is None:
        return unknown("the process")
    hooks = [k for k in seen.variables if k.startswith(("PYDEVD", "DEBUGPY", "COVERAGE_PROCESS"))]
    if seen.variables.get("PYTHONBREAKPOINT", "0") not in ("", "0"):
        hooks.append("PYTHONBREAKPOINT")
    hooks += ["a trace function at start"] if seen.env.python.traced else []
    hooks += [f"process {seen.env.traced_by} traces this one"] if seen.env.traced_by else []
    if not hooks:
        return good("none")
    return bad(
        "note",
        ", ".join(hooks),
        "Compiled code runs all the same under a debugger or tracer. Only a breakpoint inside a "
        "compiled function breaks its graph there.",
        "Nothing; keep breakpoints out of compiled functions.",
        "env",
        source=("sys.settrace, pdb beside torch 2.0.1 to 2.14.1, measured",),
        claim="pdb-disables",
    )


CHECKS = (
    Check("process.vectors", "the processor has the vector units", vectors),
    Check("process.switched-off", "torch.compile is not switched off", switched_off),
    Check("process.suppressed", "compile errors are raised", suppressed),
    Check("process.tracer", "no debugger or tracer", tracer),
)
