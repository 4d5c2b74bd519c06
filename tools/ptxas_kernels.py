"""Compile real kernels with the triton of this interpreter, for a GPU that need not be there.

Runs inside the virtual environments that `ptxas_evidence.py` makes (Python 3.8 or newer, triton
2.0 to 3.3); nothing here needs torch or a GPU. TRITON_PTXAS_PATH picks the assembler.

usage: python ptxas_kernels.py TARGET OUT LIBCUDA_DIR [KERNEL...]
       TARGET is a compute capability such as 80; each kernel leaves OUT/<kernel>.ptx and .cubin.

Prints one JSON object a line: {"setup": ...}, then {"start": KERNEL} and {"done": KERNEL, ...}
for each kernel, so that the reader knows which kernel was at work when a native abort ends this
process. Exit status 0 whenever all kernels were tried, whether or not they compiled.
"""

# ruff: noqa: SLF001 - old compilers have no public door for this

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple


class _AnyMeta(type):
    """Lets a class answer every attribute with itself."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Anything(metaclass=_AnyMeta):
    """Serves as base class, decorator and value while triton's modules are imported."""

    def __new__(cls, *args: object, **_kwargs: object) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else super().__new__(cls)


def stand_in_torch() -> str:
    """ "real" when torch can be imported; else put an empty stand-in in its place.

    These tritons import torch at module level and ask it only for the build kind (CUDA or ROCm)
    and, at launch, for the current device. The compiler takes the target from its caller.
    """
    try:
        return f"real {importlib.import_module('torch').__version__}"
    except ImportError:
        pass

    class _Torch(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything

    torch: Any = _Torch("torch")
    torch.__path__ = []
    torch.version = types.SimpleNamespace(hip=None, cuda=None)
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, set_device=lambda _: None,
        get_device_capability=lambda _=0: None,
    )  # fmt: skip
    native: Any = types.ModuleType("torch._C")
    native._cuda_getCurrentRawStream = lambda _: 0
    sys.modules.update({"torch": torch, "torch._C": native})
    return "stand-in"


TORCH = stand_in_torch()

import triton  # noqa: E402 - only after the stand-in
import triton.language as tl  # noqa: E402

VERSION: tuple[int, ...] = tuple(int(part) for part in triton.__version__.split(".")[:2])
if VERSION >= (3, 0):
    libdevice = importlib.import_module("triton.language.extra.cuda.libdevice")
else:
    libdevice = tl.math if VERSION > (2, 0) else tl.libdevice


@triton.jit
def pointwise(in0, in1, out, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    a = tl.load(in0 + xindex, xmask)
    b = tl.load(in1 + xindex, xmask)
    tl.store(out + xindex, tl.sin(a) * tl.cos(b) + 0.123457 + a * b, xmask)


@triton.jit
def special_functions(in0, out, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    a = tl.load(in0 + xindex, xmask)
    gelu = a * 0.5 * (1.0 + libdevice.erf(a * 0.7071067811865476))
    tl.store(out + xindex, libdevice.tanh(gelu) + tl.exp(a) + tl.log(a) + tl.sqrt(a), xmask)


@triton.jit
def half_conversions(in_fp16, in_bf16, out_fp16, out_bf16, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    a = tl.load(in_fp16 + xindex, xmask).to(tl.float32)
    b = tl.load(in_bf16 + xindex, xmask).to(tl.float32)
    tl.store(out_fp16 + xindex, (a + b).to(tl.float16), xmask)
    tl.store(out_bf16 + xindex, (a * b).to(tl.bfloat16), xmask)


@triton.jit
def reduction(in0, out, xnumel, rnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rbase = tl.arange(0, RBLOCK)[None, :]
    acc = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        mask = (rindex < rnumel) & xmask
        a = tl.load(in0 + (rindex + rnumel * xindex), mask, other=0)
        acc = tl.where(mask, acc + a, acc)
    tl.store(out + xindex, tl.sum(acc, 1)[:, None], xmask)


@triton.jit
def softmax(in0, out, stride, cols, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    a = tl.load(in0 + row * stride + offsets, mask, other=float("-inf")).to(tl.float32)
    shifted = tl.exp(a - tl.max(a, 0))
    tl.store(out + row * stride + offsets, shifted / tl.sum(shifted, 0), mask)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, am, bk, cm,
           TF32: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: N803  # fmt: skip
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * am + rk[None, :]
    b = b_ptr + rk[:, None] * bk + rn[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for left in range(0, k, BK):
        a_tile = tl.load(a, rk[None, :] < k - left, other=0.0)
        b_tile = tl.load(b, rk[:, None] < k - left, other=0.0)
        acc += tl.dot(a_tile, b_tile, allow_tf32=TF32)
        a += BK
        b += BK * bk
    mask = (rm[:, None] < m) & (rn[None, :] < n)
    tl.store(c_ptr + rm[:, None] * cm + rn[None, :], acc, mask)


@triton.jit
def atomic_add(values, indices, out, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    where = tl.load(indices + xindex, xmask)
    tl.atomic_add(out + where, tl.load(values + xindex, xmask), xmask)


@triton.jit
def dropout(in0, out, seed, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    keep = tl.rand(seed, xindex) > 0.1
    tl.store(out + xindex, tl.where(keep, tl.load(in0 + xindex, xmask) / 0.9, 0.0), xmask)


@triton.jit
def convert_fp8(in0, out, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    tl.store(out + xindex, tl.load(in0 + xindex, xmask).to(tl.float16) + 1.0, xmask)


@triton.jit
def convert_to_fp8(in0, out, xnumel, XBLOCK: tl.constexpr):  # noqa: N803
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    tl.store(out + xindex, tl.load(in0 + xindex, xmask).to(out.dtype.element_ty), xmask)


class Kernel(NamedTuple):
    """One compilation: the function, its argument types and its compile-time constants."""

    fn: Any
    signature: str  # types of the arguments that are not constants, in order
    constants: dict[str, Any]
    since: tuple[int, ...] = (2, 0)


# Driver calls newer than CUDA 11.4 (driver 470) that some triton knows; all but the first are 11.8.
NEWER_CALLS = ("cuTensorMapEncodeTiled", "cuLaunchKernelEx", "cuOccupancyMaxActiveClusters")

TILE = {"BM": 64, "BN": 64, "BK": 32}
LINE = {"XBLOCK": 1024}
_MM = "i32,i32,i32,i32,i32,i32"

KERNELS: dict[str, Kernel] = {
    "pointwise_sin_cos": Kernel(pointwise, "*fp32,*fp32,*fp32,i32", LINE),
    "special_functions": Kernel(special_functions, "*fp32,*fp32,i32", LINE),
    "half_conversions": Kernel(half_conversions, "*fp16,*bf16,*fp16,*bf16,i32", LINE),
    "reduction_sum": Kernel(reduction, "*fp32,*fp32,i32,i32", {"XBLOCK": 8, "RBLOCK": 512}),
    "softmax": Kernel(softmax, "*fp32,*fp32,i32,i32", {"BLOCK": 1024}),
    "softmax_fp16": Kernel(softmax, "*fp16,*fp16,i32,i32", {"BLOCK": 1024}),
    "matmul_fp16": Kernel(matmul, f"*fp16,*fp16,*fp16,{_MM}", dict(TILE, TF32=True)),
    "matmul_bf16": Kernel(matmul, f"*bf16,*bf16,*bf16,{_MM}", dict(TILE, TF32=True)),
    "matmul_fp32_tf32": Kernel(matmul, f"*fp32,*fp32,*fp32,{_MM}", dict(TILE, TF32=True)),
    "matmul_fp32_ieee": Kernel(matmul, f"*fp32,*fp32,*fp32,{_MM}", dict(TILE, TF32=False)),
    "atomic_add_fp32": Kernel(atomic_add, "*fp32,*i64,*fp32,i32", LINE),
    "atomic_add_fp16": Kernel(atomic_add, "*fp16,*i64,*fp16,i32", LINE),
    "dropout": Kernel(dropout, "*fp32,*fp32,i32,i32", LINE),
    "fp8_e5m2_read": Kernel(convert_fp8, "*fp8e5,*fp16,i32", LINE, (2, 2)),
    "fp8_e5m2_write": Kernel(convert_to_fp8, "*fp16,*fp8e5,i32", LINE, (2, 2)),
    "fp8_e4m3_read": Kernel(convert_fp8, "*fp8e4nv,*fp16,i32", LINE, (2, 2)),
    "fp8_e4m3_write": Kernel(convert_to_fp8, "*fp16,*fp8e4nv,i32", LINE, (2, 2)),
}


def compile_kernel(kernel: Kernel, target: int) -> dict[str, Any]:
    """What triton made of one kernel, by stage ("ptx" is text, "cubin" bytes).

    Pointers and integers are declared divisible by 16, as Inductor does for aligned tensors: that
    is what brings vector loads and asynchronous copies into the code. From triton 2.0 to 2.3 the
    launcher is built and loaded too; from 3.0 on that is done here.
    """
    names: list[str] = kernel.fn.arg_names
    free = [index for index, name in enumerate(names) if name not in kernel.constants]
    by_index = dict(zip(free, kernel.signature.split(",")))  # noqa: B905 - Python 3.8
    constants = {names.index(name): value for name, value in kernel.constants.items()}
    if VERSION < (2, 3):
        inner = ".compiler" if VERSION > (2, 0) else ""
        compiler = importlib.import_module("triton.compiler" + inner)
        configs = [compiler.instance_descriptor(set(free), set())]
        done = triton.compile(kernel.fn, signature=by_index, constants=constants, cc=target,
                              configs=configs, num_warps=4)  # fmt: skip
        return dict(done.asm)
    compiler = importlib.import_module("triton.compiler.compiler")
    options = {"num_warps": 4}
    if VERSION < (3, 0):
        attrs = compiler.AttrsDescriptor(divisible_by_16=set(free))
        source = compiler.ASTSource(kernel.fn, by_index, constants, attrs)
        return dict(triton.compile(source, ("cuda", target), options).asm)
    backends = importlib.import_module("triton.backends.compiler")
    by_name = {names[index]: type_ for index, type_ in by_index.items()}
    if VERSION < (3, 2):
        attrs = compiler.AttrsDescriptor(divisible_by_16=set(free))
        source = compiler.ASTSource(kernel.fn, by_index, constants, attrs)
    elif VERSION < (3, 3):
        attrs = backends.AttrsDescriptor.from_hints(dict.fromkeys(free, 16))
        source = compiler.ASTSource(kernel.fn, by_name, kernel.constants, attrs)
    else:
        hints = {(index,): [["tt.divisibility", 16]] for index in free}
        every = {name: by_name.get(name, "constexpr") for name in names}
        source = compiler.ASTSource(kernel.fn, every, kernel.constants, hints)
    done = triton.compile(source, backends.GPUTarget("cuda", target, 32), options)
    importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(source, done.metadata)
    return {stage: done.asm[stage] for stage in ("ptx", "cubin")}


def point_at(libcuda_dir: str) -> None:
    """Make triton link its helpers against the libcuda of this folder, whatever the host has.

    From triton 2.2 on TRITON_LIBCUDA_PATH does this; older ones ask the dynamic linker's cache.
    """
    os.environ["TRITON_LIBCUDA_PATH"] = libcuda_dir
    if VERSION < (2, 2):
        build: Any = importlib.import_module(
            "triton.common.build" if VERSION > (2, 0) else "triton.compiler"
        )
        build.libcuda_dirs = lambda: [libcuda_dir]


def helper_library() -> str | None:
    """Build and import triton's driver helper (`cuda_utils`); the error, or None when it loads."""
    try:
        if VERSION > (2, 0):
            where = "triton.backends.nvidia" if VERSION >= (3, 0) else "triton.runtime"
            importlib.import_module(f"{where}.driver").CudaUtils()
        else:
            old: Any = importlib.import_module("triton.compiler")
            old.init_cuda_utils()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return f"{type(error).__name__}: {error}"
    return None


def chosen_ptxas() -> tuple[str, str]:
    """Path and CUDA release of the assembler that triton chose."""
    if VERSION >= (3, 0):
        backend: Any = importlib.import_module("triton.backends.nvidia.compiler")
        path, release = backend._path_to_binary("ptxas")
    else:
        older = "triton.common.backend" if VERSION > (2, 0) else "triton.compiler"
        backend = importlib.import_module(older)
        path, release = backend.path_to_ptxas()
    return str(path), str(release)


def driver_library(libcuda_dir: str) -> dict[str, Any]:
    """CUDA version of the libcuda in use and the newer entry points that it lacks."""
    library = ctypes.CDLL(f"{libcuda_dir}/libcuda.so.1")
    version = ctypes.c_int(0)
    if hasattr(library, "cuDriverGetVersion"):
        library.cuDriverGetVersion(ctypes.byref(version))
    return {"cuda": version.value, "lacks": [n for n in NEWER_CALLS if not hasattr(library, n)]}


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def attempt(name: str, target: int, out: Path) -> dict[str, Any]:
    """Compile one kernel in a cache of its own; leaves its PTX even when the assembly failed."""
    shared = os.environ.get("KERNELS_CACHE_DIR")
    cache = Path(shared) if shared else out / f"{name}.cache"
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    result: dict[str, Any] = {"ok": True}
    try:
        asm = compile_kernel(KERNELS[name], target)
        (out / f"{name}.ptx").write_text(asm["ptx"])
        (out / f"{name}.cubin").write_bytes(asm["cubin"])
    except BaseException as error:  # noqa: BLE001 - pybind errors may derive from anything
        result = {"ok": False, "error": type(error).__name__, "message": str(error)}
        for ptx in cache.rglob("*.ptx"):
            shutil.copyfile(ptx, out / f"{name}.ptx")
    if not shared:
        shutil.rmtree(cache, ignore_errors=True)
    return result


def main(target: int, out: Path, libcuda_dir: str, wanted: list[str]) -> None:
    point_at(libcuda_dir)
    os.environ["TRITON_CACHE_DIR"] = str(out / "helper.cache")
    path, release = chosen_ptxas()
    names = wanted or [name for name, kernel in KERNELS.items() if kernel.since <= VERSION]
    setup = {
        "triton": triton.__version__,
        "torch": TORCH,
        "python": sys.version.split()[0],
        "ptxas_path": path,
        "ptxas_release": release,
        "helper_error": helper_library(),
        "libcuda": driver_library(libcuda_dir),
        "kernels": names,
    }
    say(setup=setup)
    for name in names:
        say(start=name)
        say(done=name, **attempt(name, target, out))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(inspect.cleandoc(__doc__ or ""))
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
