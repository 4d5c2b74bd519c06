"""Compile what Inductor of torch 2.0.1 itself generates, for a GPU that need not be there.

Runs in an environment with torch 2.0.1 and triton 2.0.0 (`ptxas_evidence.py --inductor-python`).
Inductor lowers small graphs for a CUDA device, writes its Triton source, and its own autotuner
compiles every configuration ahead of time, just as its compile workers do. Two answers are
supplied, because Inductor asks them of a device: "CUDA is available" and the number of
multiprocessors (108, an A100's), which only decides how reductions are split.

usage and output: as `ptxas_kernels.py`, without kernel names
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._dynamo  # importing torch alone does not bring it in 2.0
import torch._inductor.cuda_properties as cuda_properties
import triton
import triton.compiler as triton_compiler
from torch._inductor.codecache import TritonCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Tensors = tuple[Tensor, ...]
    Graph = tuple[Callable[..., Tensors], list[Tensor]]

HALF = torch.float16


def pointwise(x: Tensor, y: Tensor) -> Tensors:
    return (torch.sin(x) * torch.cos(y) + 0.123457,)


def gelu_cast(x: Tensor) -> Tensors:
    done = torch.nn.functional.gelu(x)
    return done, done.to(torch.bfloat16)


def softmax_sum(x: Tensor) -> Tensors:
    return torch.softmax(x, -1), x.sum(-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensors:
    return (torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias),)


def column_sum(x: Tensor) -> Tensors:
    return (x.sum(0),)


def scatter_add(base: Tensor, index: Tensor, values: Tensor) -> Tensors:
    return (torch.ops.aten.index_put(base, [index], values, True),)


def graphs() -> dict[str, Graph]:
    """The functions and their example inputs (on the CPU; only shape and type count)."""
    x, row = torch.empty(64, 1000), torch.empty(1000)
    return {
        "pointwise": (pointwise, [x, x.clone()]),
        "gelu_cast": (gelu_cast, [x.to(HALF)]),
        "softmax_sum": (softmax_sum, [x]),
        "softmax_sum_fp16": (softmax_sum, [x.to(HALF)]),
        "layer_norm": (layer_norm, [x, row, row.clone()]),
        "column_sum": (column_sum, [torch.empty(100_000, 8)]),
        "scatter_add_fp16": (
            scatter_add,
            [row.to(HALF), torch.zeros(64, dtype=torch.int64), torch.empty(64, dtype=HALF)],
        ),
        "scatter_add": (scatter_add, [row, torch.zeros(64, dtype=torch.int64), torch.empty(64)]),
    }


def supply_device_answers() -> None:
    """Answer the questions that Inductor asks of a device while it writes code."""
    properties = types.SimpleNamespace(multi_processor_count=108, major=8, minor=0)
    cuda_properties._properties = lambda: {0: properties}  # noqa: SLF001 - asked for by name
    cuda_properties.set_compiler_worker_current_device(0)
    torch.cuda.is_available = lambda: True


def triton_sources(graph: Graph) -> list[str]:
    """The Triton modules that Inductor writes for this graph on a CUDA device."""
    function, inputs = graph
    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(
        *inputs
    )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    on_cuda = [
        FakeTensor(mode, torch.empty_like(tensor, device="meta"), torch.device("cuda:0"))
        for tensor in inputs
    ]
    lowering = GraphLowering(traced, num_static_inputs=0)
    debug = V.set_debug_handler(DebugContext())
    with V.set_graph_handler(lowering), V.set_fake_mode(mode), debug:
        lowering.run(*on_cuda)
        code = lowering.codegen()
    text = code[0] if isinstance(code, tuple) else code
    return re.findall(r"async_compile\.triton\('''(.*?)'''\)", text, flags=re.DOTALL)


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def compile_source(name: str, source: str, target: int, out: Path) -> None:
    cache = out / f"{name}.cache"
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    (out / f"{name}.py").write_text(source)
    say(start=name)
    try:
        TritonCodeCache.load(source).precompile(warm_cache_only_with_cc=target)
    except BaseException as error:  # noqa: BLE001 - pybind errors may derive from anything
        for ptx in cache.rglob("*.ptx"):
            shutil.copyfile(ptx, out / f"{name}.ptx")
        shutil.rmtree(cache, ignore_errors=True)
        say(done=name, ok=False, error=type(error).__name__, message=str(error)[-2000:])
        return
    found = sorted(cache.rglob("*.cubin"))
    for kind in ("ptx", "cubin"):
        shutil.copyfile(found[0].with_suffix(f".{kind}"), out / f"{name}.{kind}")
    say(done=name, ok=True, configurations=len(found))
    shutil.rmtree(cache)


def main(target: int, out: Path, libcuda_dir: str) -> None:
    triton_compiler.libcuda_dirs = lambda: [libcuda_dir]
    supply_device_answers()
    path, release = triton_compiler.path_to_ptxas()
    setup = {
        "triton": triton.__version__,
        "torch": f"real {torch.__version__}",
        "python": sys.version.split()[0],
        "ptxas_path": path,
        "ptxas_release": release,
    }
    say(setup=setup)
    for name, graph in graphs().items():
        for number, source in enumerate(triton_sources(graph)):
            compile_source(f"inductor_{name}_{number}", source, target, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
