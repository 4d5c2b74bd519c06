"""Gather evidence: which ptxas assembles what which triton makes, without a GPU.

For each triton (wheels of the package index, x86-64) and each GPU target the kernels of
`ptxas_kernels.py` are compiled end to end by triton's own compiler, once with the ptxas inside its
wheel and once with TRITON_PTXAS_PATH pointing at another one (that of CUDA 11.8). Every cubin's ELF
header is read, and the same PTX is assembled again a few times (`repeat_failures`: an assembler may
crash now and then). `verdicts` sums it up for each triton and target: does the other ptxas assemble
whatever triton's own one does? Three more questions are answered along the way:

- "crossed": does the other ptxas take the PTX that triton wrote for its own one?
- "caches": does triton rebuild a kernel in a warm cache after TRITON_PTXAS_PATH changed?
- "drivers": with a libcuda.so.1 of an old driver (`--libcuda NAME=FILE`, e.g. out of a
  distribution's driver package), do triton's helper library and a launcher load?

`--inductor-python` names an interpreter with torch 2.0.1: Inductor's own kernels join the table.

What it can't tell: whether an old driver loads the cubins; that takes a GPU with such a driver.

usage: tools/ptxas_evidence.py [--triton 2.0.0 ...] [--target 80 ...] [--python python3.10]
                               [--libcuda 470.256.02=FILE ...] [--inductor-python FILE] [--out FILE]

Needs a C compiler, Python headers and, for one triton at a time, 1 GiB under .cache/. Takes about
two minutes for each triton on a quiet machine. pip's own settings (mirror, CA file) stay in force.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxas_read import compare, group, judge, plain, read_cubin, read_ptx

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = "provision.ptxas-evidence/1"
CODE = ("ptxas_evidence.py", "ptxas_inductor.py", "ptxas_kernels.py", "ptxas_read.py")
TOOLS = Path(__file__).resolve().parent
WORK = TOOLS.parent / ".cache" / "ptxas-evidence"
TRITONS = ("2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.3.1", "3.0.0")
TARGETS = (70, 75, 80, 86, 89, 90)
ASSEMBLER = "nvidia-cuda-nvcc-cu11==11.8.89"
SUPPORT = ("filelock", "numpy<2", "setuptools<81")  # what these tritons import but do not declare
INSTALL = ("install", "--quiet", "--no-deps", "--only-binary", ":all:")

# The driver calls that the helper libraries of triton 2.0 to 3.3 link against; none does anything.
STUB_CALLS = (
    "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxSetCurrent", "cuCtxSetLimit", "cuDeviceGet",
    "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuFuncGetAttribute",
    "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuGetErrorString", "cuLaunchKernel",
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyHtoD_v2", "cuModuleGetFunction",
    "cuModuleLoadData", "cuPointerGetAttribute",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One interpreter with a triton, and one choice of assembler and libcuda."""

    python: Path
    script: Path
    libcuda: Path  # folder
    triton: str
    override: Path | None = None  # TRITON_PTXAS_PATH

    def environment(self, scratch: Path) -> dict[str, str]:
        """The child's variables: nothing of the caller's TRITON_* or CUDA settings."""
        keep = {k: v for k, v in os.environ.items() if not re.match(r"TRITON|TORCH|CUDA|PYTHON", k)}
        keep |= {"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": str(self.libcuda)}
        keep |= {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor")}
        if self.override:
            keep["TRITON_PTXAS_PATH"] = str(self.override)
        return keep


# --- what a run needs -------------------------------------------------------------------------


def call(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def make_environment(python: str, triton: str) -> Path:
    """The interpreter of a fresh virtual environment that holds this triton and no torch."""
    home = WORK / f"triton-{triton}"
    shutil.rmtree(home, ignore_errors=True)
    call(python, "-m", "venv", home)
    made = home / "bin" / "python"
    call(made, "-m", "pip", *INSTALL, f"triton=={triton}", *SUPPORT)
    return made


def fetch_assembler(python: str, requirement: str) -> Path:
    """The ptxas of a package, unpacked under WORK."""
    home = WORK / "assembler"
    shutil.rmtree(home, ignore_errors=True)
    call(python, "-m", "pip", *INSTALL, "--target", home, requirement)
    return next(home.glob("nvidia/*/bin/ptxas"))


def stub_driver() -> Path:
    """A folder with a libcuda.so.1 whose calls all fail: enough to link and load the helpers."""
    home = WORK / "stub"
    home.mkdir(parents=True, exist_ok=True)
    source = home / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in STUB_CALLS))
    library = home / "libcuda.so.1"
    call("cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", library)
    return link_development_name(library)


def link_development_name(library: Path) -> Path:
    """The folder of libcuda.so.1, now with the name that linkers look for as well."""
    (library.parent / "libcuda.so").unlink(missing_ok=True)
    (library.parent / "libcuda.so").symlink_to(library.name)
    return library.parent


def real_driver(name: str, file: Path) -> Path:
    """A folder that offers this real libcuda under the names triton uses."""
    home = WORK / f"libcuda-{name}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "libcuda.so.1").unlink(missing_ok=True)
    (home / "libcuda.so.1").symlink_to(file.resolve())
    return link_development_name(home / "libcuda.so.1")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe_ptxas(path: Path) -> dict[str, str]:
    """Exact version and hash of an assembler."""
    text = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return {"version": found.group(1) if found else text.strip(), "sha256": sha256(path)}


def assemble(ptxas: Path, ptx: Path, target: str) -> subprocess.CompletedProcess[str]:
    """One run of an assembler outside triton; its output is thrown away."""
    command = (str(ptxas), "-v", f"--gpu-name={target}", str(ptx), "-o", str(ptx) + ".out")
    return subprocess.run(command, capture_output=True, text=True)


# --- compiling --------------------------------------------------------------------------------


def child(bench: Bench, target: int, out: Path, kernels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The events that one child printed; a death in the middle of a kernel becomes its result."""
    where = (str(target), str(out), str(bench.libcuda))
    done = subprocess.run(
        [str(bench.python), str(bench.script), *where, *kernels],
        env=bench.environment(out),
        capture_output=True,
        text=True,
        timeout=900,
    )
    open_kernel = None
    for line in done.stdout.splitlines():
        event = json.loads(line)
        open_kernel = event.get("start") if "done" not in event else None
        yield event
    if open_kernel:
        message = f"exit status {done.returncode}\n{done.stderr[-2000:]}"
        yield {"done": open_kernel, "ok": False, "error": "Crash", "message": message}
    elif done.returncode:
        raise SystemExit(f"{bench.script.name} with triton {bench.triton}: {done.stderr[-2000:]}")


def repeat_failures(ptxas: Path, ptx: Path, target: int, times: int) -> int:
    """How many of several assemblies of the same PTX fail."""
    variant = "a" if read_ptx(ptx)["ptx_target"].endswith("a") else ""
    return sum(assemble(ptxas, ptx, f"sm_{target}{variant}").returncode != 0 for _ in range(times))


def run(bench: Bench, target: int, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Set-up and rows of one bench and target; after a crash a child goes on behind it."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    setup: dict[str, Any] = {}
    wanted: list[str] = []
    while True:
        events = list(child(bench, target, out, wanted))
        setup = setup or events[0]["setup"]
        rows += [judge(event, out, target) for event in events if "done" in event]
        seen = {row["kernel"] for row in rows}
        wanted = [name for name in setup.get("kernels", ()) if name not in seen]
        if not wanted:
            return setup, rows


# --- the questions ----------------------------------------------------------------------------


def crossed(ptxas: Path, out: Path, target: int) -> dict[str, Any]:
    """How the other assembler takes PTX that was written for triton's own one."""
    result: dict[str, Any] = {"tried": 0, "taken": 0, "ptx_versions": set(), "messages": set()}
    for ptx in sorted(out.glob("*.ptx")):
        head = read_ptx(ptx)
        done = assemble(ptxas, ptx, f"sm_{target}")
        result["tried"] += 1
        result["taken"] += done.returncode == 0
        result["ptx_versions"].add(head["ptx_version"])
        if done.returncode:
            first = done.stderr.partition("\n")[0] or f"exit status {done.returncode}"
            result["messages"].add(plain(first))
    return {k: sorted(v) if isinstance(v, set) else v for k, v in result.items()}


def cache_follows(own: Bench, other: Bench) -> dict[str, Any]:
    """CUDA series of one kernel, compiled again and again in one cache while assemblers change.

    The last time the other assembler also stands first on PATH: triton 2.0 looks only there.
    """
    assert other.override is not None
    path = os.environ["PATH"]
    made = []
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        os.environ["KERNELS_CACHE_DIR"] = f"{folder}/cache"
        for bench, first in (
            (own, path),
            (other, path),
            (other, f"{other.override.parent}:{path}"),
        ):
            os.environ["PATH"] = first
            list(child(bench, 80, Path(folder), ["pointwise_sin_cos"]))
            made.append(read_cubin(Path(folder) / "pointwise_sin_cos.cubin")["cuda"])
    del os.environ["KERNELS_CACHE_DIR"]
    os.environ["PATH"] = path
    return dict(zip(("own", "variable_set", "variable_and_path_set"), made, strict=True))


def driver_loads(bench: Bench, name: str) -> dict[str, Any]:
    """Whether triton's helper library and a launcher load against this libcuda."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        setup, *events = child(bench, 80, Path(folder), ["pointwise_sin_cos"])
    facts = setup["setup"]
    launcher = next(event for event in events if "done" in event)
    error = facts["helper_error"]
    return {
        "driver": name,
        "triton": bench.triton,
        "cuda_of_driver": "{}.{}".format(*divmod(facts["libcuda"]["cuda"] // 10, 100)),
        "calls_it_lacks": facts["libcuda"]["lacks"],
        "helper_library": plain(error) if error else "loads",
        "launcher": "loads" if launcher["ok"] else plain(launcher["message"]),
    }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to try."""

    targets: Sequence[int]
    repeats: int
    other: Path  # the other ptxas
    stub: Path
    drivers: dict[str, Path]  # name -> folder


def repeat(rows: list[dict[str, Any]], ptxas: Path, out: Path, target: int, times: int) -> None:
    """Add `repeat_failures` to the rows whose PTX assembles, but not every time.

    On a row that failed it counts the further failures, so fewer than `times`, maybe none.
    """
    for row in rows:
        if "ptx_target" not in row:
            continue
        failed = repeat_failures(ptxas, out / f"{row['kernel']}.ptx", target, times)
        if failed if row["ok"] else failed < times:
            row["repeat_failures"] = failed


def study(own: Bench, plan: Plan, answers: dict[str, Any]) -> None:
    """All questions for one triton; fills `answers`."""
    label = answers["assembler"]["version"]
    other = Bench(**{**vars(own), "override": plan.other})
    scratch = WORK / "scratch"
    for target in plan.targets:
        pair = []
        for bench, ptxas in ((own, "own"), (other, label)):
            out = scratch / ptxas
            setup, rows = run(bench, target, out)
            version = setup["ptxas_release"]
            repeat(rows, Path(setup["ptxas_path"]), out, target, plan.repeats)
            fixed = {"triton": own.triton, "ptxas": ptxas, "ptxas_release": version}
            where = answers["inductor" if own.script.name == "ptxas_inductor.py" else "table"]
            pair.append({**fixed, "target": f"sm_{target}", **group(rows)})
            where.append(pair[-1])
            answers["interpreters"][own.triton + f" ({setup['torch']} torch)"] = setup["python"]
            if bench is own:
                answers["own_ptxas"][own.triton] = describe_ptxas(Path(setup["ptxas_path"]))
            print(f"triton {own.triton} sm_{target} ptxas {version}: "
                  f"{sum(r['ok'] for r in rows)} of {len(rows)}", file=sys.stderr)  # fmt: skip
        fixed = {"triton": own.triton, "target": f"sm_{target}", "by": own.script.name}
        answers["verdicts"].append({**fixed, **compare(*pair)})
        if own.script.name == "ptxas_kernels.py":
            result = crossed(plan.other, scratch / "own", target)
            answers["crossed"].append({"triton": own.triton, "target": f"sm_{target}", **result})
        shutil.rmtree(scratch)
    if own.script.name == "ptxas_kernels.py":
        answers["caches"].append({"triton": own.triton, **cache_follows(own, other)})
        for name, folder in plan.drivers.items():
            bench = Bench(**{**vars(other), "libcuda": folder})
            answers["drivers"].append(driver_loads(bench, name))


def dump(answers: dict[str, Any]) -> str:
    """JSON with one row of a table a line."""
    parts = []
    for key, value in answers.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--triton", nargs="+", default=list(TRITONS), metavar="VERSION")
    parser.add_argument("--target", nargs="+", type=int, default=list(TARGETS), metavar="80")
    parser.add_argument("--python", default="python3.10", help="for the environments; 3.8 to 3.11")
    parser.add_argument("--assembler", default=ASSEMBLER, help="package with the other ptxas")
    parser.add_argument("--repeats", type=int, default=8, help="more assemblies of each PTX")
    parser.add_argument("--libcuda", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--inductor-python", type=Path, help="interpreter that has torch 2.0.1")
    parser.add_argument("--out", type=Path, help="default: standard output")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    WORK.mkdir(parents=True, exist_ok=True)
    other = fetch_assembler(chosen.python, chosen.assembler)
    named = (item.split("=", 1) for item in chosen.libcuda)
    libraries = {name: Path(file) for name, file in named}
    drivers = {name: real_driver(name, file) for name, file in libraries.items()}
    plan = Plan(
        targets=chosen.target,
        repeats=chosen.repeats,
        other=other,
        stub=stub_driver(),
        drivers=drivers,
    )
    answers: dict[str, Any] = {
        "schema": SCHEMA,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "made_by": "tools/ptxas_evidence.py; no GPU, libcuda is a stub except under `drivers`",
        "code": {name: sha256(TOOLS / name) for name in CODE},
        "repeats": chosen.repeats,
        "machine": f"{platform.system()} {platform.machine()}",
        "assembler": {"package": chosen.assembler, **describe_ptxas(other)},
        "libcuda": {name: sha256(file) for name, file in libraries.items()},
        "own_ptxas": {}, "interpreters": {}, "verdicts": [], "drivers": [], "caches": [],
        "crossed": [], "inductor": [], "table": [],
    }  # fmt: skip
    for version in chosen.triton:
        python = make_environment(chosen.python, version)
        script = TOOLS / "ptxas_kernels.py"
        study(Bench(python=python, script=script, libcuda=plan.stub, triton=version), plan, answers)
        shutil.rmtree(WORK / f"triton-{version}")
    if chosen.inductor_python:
        script = TOOLS / "ptxas_inductor.py"
        bench = Bench(
            python=chosen.inductor_python, script=script, libcuda=plan.stub, triton="2.0.0"
        )
        study(bench, plan, answers)
    text = dump(answers)
    if chosen.out:
        part = chosen.out.with_name(chosen.out.name + ".part")
        part.write_text(text)
        part.replace(chosen.out)
    else:
        print(text, end="")
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
