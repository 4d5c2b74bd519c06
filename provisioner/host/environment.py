#!/usr/bin/env python3
"""Reads what a Python program started here would meet; changes nothing.

    PYTHON environment.py FOLDER_OF_PROBE [FOLDER_OF_FACTS]

With the second folder the facts of the host (facts.py) come first, these as their `environment`.
Run by the interpreter that is to be judged, with nothing but its standard library, Python 3.8 or
newer. What decides is read as the system decides it: the loader's own maps after `import torch`, a
real call of cuInit and of NVML, a real compile. Each of these runs in a forked process of its own
with a time limit, so that a library that crashes or hangs is an answer and not an accident.

Prints one JSON object, schema provision.environment-facts/1. null is "could not be read", never
"is not there". Sizes are bytes.
"""
# ruff: noqa: BLE001, FURB167, PTH110, PTH112, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208
# ruff: noqa: S108, SIM905, SLF001, UP006, UP031, UP032, UP035, UP045

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

    Json = Dict[str, Any]

SCHEMA = "provision.environment-facts/1"
LIMIT_S = 120.0  # a cold import of torch from a slow disk takes its time
CALL_LIMIT_S = 30.0
BIG = 64 << 20

OF_INTEREST = re.compile(
    r"^(torch|torchvision|torchaudio|torchtext|triton|pytorch[_-]triton.*|numpy|setuptools|nvidia[_-].*"
    r"|mkl|intel[_-]openmp|packaging|jax|tensorflow|pytorch|pytorch-cuda|libtorch|cudatoolkit"
    r"|cuda-.*|libstdcxx.*)$"
)
LIBRARIES = re.compile(
    r"/(lib(cublas|cublasLt|cudart|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nvJitLink|nvrtc"
    r"|nccl|cupti|cuda|nvidia-ml|gomp|iomp5|omp|mkl\w*|stdc\+\+|gcc_s|torch\w*|c10\w*)"
    r"(-[0-9a-f]+)?\.so[0-9.]*)$"
)
PREFIXES = (
    "TORCH", "TRITON_", "PYDEVD", "DEBUGPY", "NVIDIA_", "CUDA_", "KMP_",
)  # fmt: skip
NAMES = frozenset(
    "CC CXX HOME USER LOGNAME TMPDIR TEMP TMP PYTHONPATH PYTHONHOME PYTHONNOUSERSITE LD_PRELOAD "
    "LD_LIBRARY_PATH ATEN_CPU_CAPABILITY PYTHONBREAKPOINT COVERAGE_PROCESS_START LOCAL_RANK "
    "LOCAL_WORLD_SIZE WORLD_SIZE VIRTUAL_ENV CONDA_PREFIX OMP_NUM_THREADS".split()
)
CPU_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
NVML_PERSISTENCE_ON = 1
CU_MAJOR, CU_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


# --- what files and programs say: pure ---------------------------------------------------------


def libraries_in(maps: str) -> List[str]:
    """Paths of the libraries of interest in a /proc/PID/maps, each once, in order of address."""
    found: Dict[str, None] = {}
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and LIBRARIES.search(fields[5].replace(" (deleted)", "")):
            found[fields[5]] = None
    return list(found)


def loader_cache(said: str) -> Dict[str, List[str]]:
    """Name -> paths, in the loader's order, of the libraries of interest in `ldconfig -p`."""
    found: Dict[str, List[str]] = {}
    for line in said.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and LIBRARIES.search("/" + name.split()[0]):
            found.setdefault(name.split()[0], []).append(path)
    return found


def mount_of(path: str, mounts: str) -> Optional[Json]:
    """The file system that holds a path, from /proc/mounts: {point, type, options}."""
    best: Optional[Json] = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[1])
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best["point"])):
            best = {"point": point, "type": fields[2], "options": fields[3].split(",")}
    return best


def cpu_of(cpuinfo: str) -> Optional[Json]:
    """Model and the vector units of the first processor in /proc/cpuinfo."""
    if not cpuinfo.strip():
        return None
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.M)
    have = None if flags is None else flags.group(1).split()
    return {
        "model": model.group(1).strip() if model else None,
        "flags": None if have is None else [flag for flag in CPU_FLAGS if flag in have],
    }


def nvcc_release(said: str) -> Optional[str]:
    """11.8.89 of `nvcc --version`, None where it says something else."""
    found = re.search(r"release [0-9.]+, V([0-9.]+)", said)
    return found.group(1) if found else None


def newest_glibcxx(content: bytes) -> Optional[str]:
    """The newest GLIBCXX version that a libstdc++ offers."""
    minors = [int(m) for m in re.findall(rb"\bGLIBCXX_3\.4\.([0-9]{1,3})\b", content)]
    return "3.4.{}".format(max(minors)) if minors else None


def distribution_of(folder: str) -> Optional[Tuple[str, str]]:
    """(name, version) from the name of a .dist-info or .egg-info; None for any other name."""
    found = re.match(r"^(.+?)-([0-9][^-]*)(?:-py[0-9.]+.*)?\.(?:dist|egg)-info$", folder)
    return (re.sub(r"[-_.]+", "-", found.group(1)).lower(), found.group(2)) if found else None


def watched(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables that decide something here; no other value leaves the process."""
    return {k: environ[k] for k in sorted(environ) if k in NAMES or k.startswith(PREFIXES)}


# --- this process and its files -----------------------------------------------------------------


def read(path: str) -> Optional[str]:
    """A small text file; "" when it is not there, None when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(BIG).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError:
        return None


def names_in(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def python_facts() -> Json:
    import site
    import sysconfig

    return {
        "version": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "path": [entry for entry in sys.path if entry],
        "user_site": site.getusersitepackages(),
        "user_site_enabled": bool(site.ENABLE_USER_SITE),
        "include": sysconfig.get_path("include"),
        "traced": sys.gettrace() is not None or sys.getprofile() is not None,
    }


def distributions(path: Iterable[str]) -> List[Json]:
    """Name, version, place and installer of what is of interest, in the order of sys.path."""
    found = []
    seen = set()
    for entry in path:
        place = os.path.realpath(entry or ".")
        if place in seen:
            continue
        seen.add(place)
        for folder in names_in(place):
            named = distribution_of(folder)
            if named and OF_INTEREST.match(named[0]):
                said = (read(os.path.join(place, folder, "INSTALLER")) or "").strip()
                row = {"name": named[0], "version": named[1], "path": place}
                found.append(dict(row, installer=said or None))
    return found


def conda_packages(prefix: str) -> Optional[List[Json]]:
    """What conda wrote down about the prefix; None where it is no conda prefix."""
    folder = os.path.join(prefix, "conda-meta")
    if not os.path.isdir(folder):
        return None
    found = []
    for name in names_in(folder):
        parts = name[: -len(".json")].rsplit("-", 2) if name.endswith(".json") else []
        if len(parts) == 3 and OF_INTEREST.match(parts[0]):
            found.append({"name": parts[0], "version": parts[1], "build": parts[2]})
    return found


def ask(command: List[str], probe: ModuleType) -> Optional[str]:
    """What a program says, None when it cannot be run or fails."""
    status, said = probe.run_program(command, "/", size=BIG)
    return said if status == 0 else None


def folder_facts(path: Optional[str], probe: ModuleType) -> Optional[Json]:
    """What the probe says of a folder, with its file system, mode and owner."""
    if path is None:
        return None
    facts: Json = probe.look_at_folder(path)
    facts["free"] = None if facts.get("free_mb") is None else facts.pop("free_mb") * 1_000_000
    facts["mount"] = mount_of(os.path.realpath(facts["judged"]), read("/proc/mounts") or "")
    try:
        facts["mode"] = os.stat(facts["judged"]).st_mode & 0o7777
    except OSError:
        facts["mode"] = None
    return facts


def space_facts(path: str) -> Optional[Json]:
    try:
        status = os.statvfs(path)
    except FileNotFoundError:
        return {"present": False, "total": 0, "free": 0}
    except OSError:
        return None
    size = status.f_frsize
    return {"present": True, "total": status.f_blocks * size, "free": status.f_bavail * size}


def nvcc_facts(probe: ModuleType, environ: Mapping[str, str]) -> Json:
    """nvcc on PATH, the toolkit that CUDA_HOME names, and the one at /usr/local/cuda."""
    import shutil

    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    places = {
        "path": shutil.which("nvcc"),
        "home": os.path.join(named, "bin", "nvcc") if named else None,
        "usual": "/usr/local/cuda/bin/nvcc",
    }
    found: Json = {}
    known: Dict[str, Optional[str]] = {}
    for key, place in places.items():
        if place is None or not os.path.exists(place):
            found[key] = {"path": place if key == "home" else None, "version": None}
            continue
        real = os.path.realpath(place)
        if real not in known:
            known[real] = nvcc_release(ask([place, "--version"], probe) or "")
        found[key] = {"path": place, "version": known[real]}
    return found


def device_nodes() -> List[Json]:
    """The device files of the driver, and whether this user may use them."""
    found = []
    for name in names_in("/dev"):
        if re.match(r"^nvidia(\d+|ctl|-uvm|-modeset)$", name) or name == "dxg":
            path = "/dev/" + name
            found.append({"path": path, "usable": os.access(path, os.R_OK | os.W_OK)})
    return found


def compilers(probe: ModuleType, version: str, *, trial: bool) -> Json:
    """The C and C++ compilers that torch and triton would take; tried out where `trial`."""
    import shutil

    found: Json = {"trial": trial}
    if not trial:
        for key, language in (("c", "c"), ("cxx", "cpp")):
            names = probe.compiler_names(language, version)
            have = next((name for name in names if shutil.which(name)), None)
            problem = None if have else "missing"
            found[key] = {"tried": names, "name": have, "version": None, "problem": problem}
        folder, expected = probe.python_headers()
        problem = None if folder else "missing"
        found["headers"] = {"include": folder, "expected": expected, "problem": problem}
        return found
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="provision-doctor-")
    except OSError:
        return compilers(probe, version, trial=False)
    try:
        for key, language in (("c", "c"), ("cxx", "cpp")):
            names = probe.compiler_names(language, version)
            found[key] = probe.look_at_compiler(names, language, folder)
        working = [found[key] for key in ("cxx", "c") if not found[key]["problem"]]
        found["headers"] = probe.look_at_headers(working[0] if working else None, folder)
    except OSError:
        return compilers(probe, version, trial=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


# --- calls into libraries, each in a process of its own -----------------------------------------


def apart(call: Callable[[], Any], limit: float) -> Json:
    """{"value": ...} of a call made in a forked process, or {"died": why}."""
    import select
    import signal
    import time

    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(inlet)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            try:
                told = {"value": call()}
            except BaseException as error:  # whatever it is, it is the answer
                told = {"died": "{}: {}".format(type(error).__name__, str(error)[:600])}
            with os.fdopen(outlet, "wb") as stream:
                stream.write(json.dumps(told).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(outlet)
    data, end = b"", time.monotonic() + limit
    hung = False
    while True:
        ready, _, _ = select.select([inlet], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        chunk = os.read(inlet, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(inlet)
    _, status = os.waitpid(child, 0)
    if hung:
        return {"died": "no answer in {:g} s".format(limit)}
    if os.WIFSIGNALED(status):
        return {"died": "killed by signal {}".format(os.WTERMSIG(status))}
    try:
        told = json.loads(data)
    except ValueError:
        return {"died": "left without an answer"}
    return told if isinstance(told, dict) else {"died": "left without an answer"}


def library(name: str) -> Any:
    """A shared library as the loader finds it, None when there is none."""
    import ctypes

    try:
        return ctypes.CDLL(name)
    except OSError as error:
        if "cannot open shared object file" in str(error) and name in str(error):
            return None
        raise


def call_driver(cuda: Any = None) -> Json:
    """What libcuda answers: cuInit's status, the CUDA version it speaks, the GPUs."""
    import ctypes

    cuda = cuda or library("libcuda.so.1")
    if cuda is None:
        return {"found": False}
    maps = read("/proc/self/maps") or ""
    found: Json = {"found": True, "file": None, "version": None, "devices": []}
    for path in libraries_in(maps):
        if os.path.basename(path).startswith("libcuda.so"):
            found["file"] = path
    found["init"] = int(cuda.cuInit(0))
    number = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        found["version"] = "{}.{}".format(number.value // 1000, number.value % 1000 // 10)
    if found["init"] != 0 or cuda.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return found
    for index in range(number.value):
        text, major, minor = ctypes.create_string_buffer(128), ctypes.c_int(), ctypes.c_int()
        named = cuda.cuDeviceGetName(text, 128, index)
        status = cuda.cuDeviceGetAttribute(ctypes.byref(major), CU_MAJOR, index)
        status |= cuda.cuDeviceGetAttribute(ctypes.byref(minor), CU_MINOR, index)
        name = text.value.decode("utf-8", "replace") if named == 0 else None
        capability = "{}.{}".format(major.value, minor.value) if status == 0 else None
        found["devices"].append({"name": name, "capability": capability})
    return found


def call_nvml(nvml: Any = None) -> Json:
    """What NVML answers: its status, the driver's version, name and persistence of each GPU."""
    import ctypes

    nvml = nvml or library("libnvidia-ml.so.1")
    if nvml is None:
        return {"found": False}
    found: Json = {"found": True, "init": int(nvml.nvmlInit_v2()), "driver": None, "devices": []}
    if found["init"] != 0:
        return found
    text, count = ctypes.create_string_buffer(96), ctypes.c_uint(0)
    if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
        found["driver"] = text.value.decode("utf-8", "replace")
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        for index in range(count.value):
            handle, mode = ctypes.c_void_p(), ctypes.c_uint(0)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                found["devices"].append({"name": None, "capability": None, "persistence": None})
                continue
            major, minor = ctypes.c_int(), ctypes.c_int()
            named = nvml.nvmlDeviceGetName(handle, text, 96)
            able = nvml.nvmlDeviceGetCudaComputeCapability(
                handle, ctypes.byref(major), ctypes.byref(minor)
            )
            known = nvml.nvmlDeviceGetPersistenceMode(handle, ctypes.byref(mode)) == 0
            found["devices"].append(
                {
                    "name": text.value.decode("utf-8", "replace") if named == 0 else None,
                    "capability": "{}.{}".format(major.value, minor.value) if able == 0 else None,
                    "persistence": mode.value == NVML_PERSISTENCE_ON if known else None,
                }
            )
    nvml.nvmlShutdown()
    return found


def import_torch() -> Json:
    """Import torch and say what it is, what it can, and what the loader mapped for it."""
    import torch

    found: Json = {
        "version": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "file": torch.__file__,
        "arch_list": None,
        "numpy_error": None,
    }
    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # without a GPU, too
    if flags is not None:
        found["arch_list"] = str(flags()).split()
    elif found["cuda"] is None:
        found["arch_list"] = []
    try:
        torch.zeros(1).numpy()
    except Exception as error:
        found["numpy_error"] = "{}: {}".format(type(error).__name__, str(error)[:300])
    found["cuda_available"] = bool(torch.cuda.is_available())
    found["loaded"] = libraries_in(read("/proc/self/maps") or "")
    return found


def glibcxx(path: Optional[str]) -> Optional[Json]:
    if path is None:
        return None
    try:
        with open(path, "rb") as stream:
            return {"path": path, "newest": newest_glibcxx(stream.read(BIG))}
    except OSError:
        return {"path": path, "newest": None}


# --- all of it ----------------------------------------------------------------------------------


def load(folder: str, name: str) -> ModuleType:
    """A module of ours: the probe knows how torch looks for compilers, headers and its cache."""
    import importlib

    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def collect(probe: ModuleType) -> Json:
    """All facts of the environment that this interpreter gives, as plain values."""
    import ctypes  # once, for all the forks that call a library

    del ctypes
    environ = os.environ
    found = probe.find_torch()
    version = (found or {}).get("version") or ""
    user = probe.look_at_user()
    cache = ask(["/sbin/ldconfig", "-p"], probe)
    on_disk = None if cache is None else loader_cache(cache)
    imported = apart(import_torch, LIMIT_S) if found else None
    loaded = ((imported or {}).get("value") or {}).get("loaded") or []
    mapped = next((path for path in loaded if "libstdc++" in path), None)
    system = (on_disk or {}).get("libstdc++.so.6", [])
    return {
        "schema": SCHEMA,
        "python": python_facts(),
        "torch": None if found is None else dict(found, places=probe.list_torch_dists()),
        "imported": imported,
        "distributions": distributions(sys.path),
        "conda": conda_packages(sys.prefix),
        "variables": watched(environ),
        "user": user,
        "cpu": cpu_of(read("/proc/cpuinfo") or ""),
        "traced_by": traced_by(read("/proc/self/status") or ""),
        "cache": folder_facts(probe.default_cache(user, version), probe),
        "tmp": folder_facts(probe.temporary_folder()[1], probe),
        "shm": space_facts("/dev/shm"),
        "compilers": compilers(probe, version, trial=found is not None),
        "nvcc": nvcc_facts(probe, environ),
        "ptxas": probe.find_ptxas() if found else None,
        "ldconfig": on_disk,
        "libstdcxx": {
            "mapped": glibcxx(mapped),
            "system": glibcxx(system[0]) if mapped and system else None,
        },
        "devices": device_nodes(),
        "driver": apart(call_driver, CALL_LIMIT_S),
        "nvml": apart(call_nvml, CALL_LIMIT_S),
    }


def traced_by(status: str) -> Optional[int]:
    """The process that traces this one (a debugger, strace), 0 for none."""
    found = re.search(r"^TracerPid:\s*(\d+)", status, re.M)
    return int(found.group(1)) if found else None


def main(arguments: List[str]) -> int:
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0] or ".") == here:
        del sys.path[0]  # a module beside this file must not stand for one of the user's
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: environment.py FOLDER_OF_PROBE [FOLDER_OF_FACTS]\n")
        return 2
    told = collect(load(arguments[0], "probe"))
    if len(arguments) == 2:
        facts = load(arguments[1], "facts")
        told = dict(facts.collect(facts.Host()), environment=told)
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
