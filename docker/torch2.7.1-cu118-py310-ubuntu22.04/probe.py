#!/usr/bin/env python3
"""Proves (or refutes) that torch.compile works for the interpreter that runs this file.

One file, standard library and torch alone: copy it anywhere and run it with the interpreter
to be judged. Python 3.8 to 3.15, torch 1.13 to 2.15, CPU and CUDA.

    python probe.py [--device cpu|cuda|auto] [--expect FILE_OR_JSON] [--report FILE] [--json]
                    [--keep] [--timeout SECONDS] [--strict-cache] [--speed]

How it judges. The parent never imports torch. It looks at the environment, then starts this
same file twice as a child in an empty private cache: once cold, once on the cache that the
first one left. The child compiles a function with a constant drawn a moment ago, a network
and a training step, and tells what it saw; a child that crashes or hangs is a verdict, not an
accident. A graph must have been captured, machine code for exactly this constant must have
been built and mapped (CPU) or launched (CUDA), its result must differ from the eager one in
the one way that only traced code can produce, and it must agree with a float64 reference.

Exit codes: 0 verified; 3 this torch has no torch.compile (or the cell is eager-only);
4 switched off by the environment; 5 this Python is not supported by this torch;
10 the compile failed, or its tools cannot work; 11 compiled but not proven; 12 numbers differ;
13 the child crashed or hung; 20 the cell's torch or a package that the cell names is missing,
unusable or another one; 21 the device asked for is not usable; 2 wrong usage.
Only 0 is a pass; 3 is one only for a cell that declares itself eager-only.

In a program: `verify(Options(device="cpu"))` returns the report as a dictionary.
"""

from __future__ import annotations

import os
import sys


def _leave_own_folder() -> None:
    """Take this file's folder off sys.path, where a `glob.py` beside it would shadow modules."""
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0] or ".") == here:
        del sys.path[0]


if __name__ == "__main__":
    _leave_own_folder()

import time  # noqa: E402 (after the folder is gone from sys.path)

# All but the names above is imported where it is used, typing not at all: whoever imports this
# file for one function does not pay for the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Json = Dict[str, Any]
    Tell = Callable[[str, Any], None]
    Step = Tuple[Any, Json, bool]
    Judge = Callable[[Json], "Finding"]
    Judged = List[Tuple["Check", "Finding"]]

SCHEMA = "provision.report/1"

# --------------------------------------------------------------------------------------------
# 1. Words: exit codes, findings, options
# --------------------------------------------------------------------------------------------

VERIFIED, USAGE, NO_COMPILE, SWITCHED_OFF, PYTHON_TOO_NEW = 0, 2, 3, 4, 5
COMPILE_FAILED, NOT_PROVEN, NUMBERS_DIFFER, CHILD_DIED = 10, 11, 12, 13
WRONG_TORCH, NO_DEVICE = 20, 21

DEFAULT_TIMEOUT = 420.0  # seconds for one child: a cold start on two slow cores fits
ROOM_MB = 200  # what a private cache may need: precompiled headers alone take 160 MB from 2.8
OLD_ROOM_MB = 32  # up to 2.7 a cache holds a few small libraries
NOEXEC = 8  # ST_NOEXEC of statvfs, which Python names only where the platform does
MARK = "@@probe"  # starts each line by which a child reports
FLOOR_FP32 = 1e-5  # allowed error relative to the largest value, with TF32 off
WITNESS = 2.0  # compiled minus eager, see make_function
RUNS = ("function", "counted", "net", "train")
# Runs in fewer bits, and the error that is allowed in them relative to the largest value: eager
# code in those types is off as much.
HALF = {"fp16": ("float16", 5e-3), "bf16": ("bfloat16", 4e-2)}
SHAPES = (5, 6, 7, 8)  # row counts for the recompile counts; 0 and 1 are special to torch
WATCHED = ("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCHINDUCTOR_", "TRITON_", "TORCH_LOGS")
WATCHED_NAMES = (
    "CC CXX HOME USER LOGNAME TMPDIR TEMP TMP PYTHONPATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES"
).split()


class Finding:
    """What one check found: status (pass, warn, fail or skip), what was seen, what to do."""

    def __init__(self, status: str, detail: str, remedy: str = "") -> None:
        self.status = status
        self.detail = detail
        self.remedy = remedy


class Check:
    """One row of the table of checks.

    `stage` says when it can be judged: `facts` before anything is tried, `tools` after the
    compilers were, `look` from what a child saw before it compiled, `run` from compiled code.
    `exit_code` is that of a failure. A failed `gate` leaves the checks below it in the same
    stage without anything to judge.
    """

    def __init__(
        self, name: str, stage: str, exit_code: int, judge: Judge, gate: bool = False
    ) -> None:
        self.id = name
        self.stage = stage
        self.exit_code = exit_code
        self.judge = judge
        self.gate = gate


class Options:
    """What to verify and how; `expect` is the cell's promise, see `read_expect`.

    `timeout` is in seconds, for each of the two children.
    """

    def __init__(
        self,
        device: str = "auto",
        expect: Optional[Json] = None,
        timeout: float = DEFAULT_TIMEOUT,
        keep: bool = False,
        strict_cache: bool = False,
        speed: bool = False,
    ) -> None:
        self.device = device
        self.expect = expect
        self.timeout = timeout
        self.keep = keep
        self.strict_cache = strict_cache
        self.speed = speed


class UsageError(Exception):
    """The caller gave something that cannot be understood."""


def ok(detail: str) -> Finding:
    """Return a passed finding."""
    return Finding("pass", detail)


def warn(detail: str, remedy: str) -> Finding:
    """Return a finding that does not decide."""
    return Finding("warn", detail, remedy)


def fail(detail: str, remedy: str) -> Finding:
    """Return a finding that decides."""
    return Finding("fail", detail, remedy)


def skip(reason: str) -> Finding:
    """Return a finding that says why nothing was judged."""
    return Finding("skip", reason)


def release(version: Optional[str]) -> Tuple[int, int]:
    """Return (major, minor) of a version text; (0, 0) where there is none."""
    major, _, rest = (version or "").partition(".")
    minor = rest.partition(".")[0].partition("+")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def public(version: str) -> str:
    """Return the version without its local label: 2.0.1+cu117 gives 2.0.1."""
    return version.partition("+")[0]


EXPECT_TYPES: Dict[str, Tuple[type, ...]] = {
    "name": (str,),
    "torch": (str,),
    "local_version": (str, type(None)),
    "cuda": (str, type(None)),
    "python": (str,),
    "compile": (bool,),
    "device": (str,),
    "torchvision": (str, type(None)),
    "torchaudio": (str, type(None)),
    "compile_floor_by_arch": (dict,),
}


def read_expect(text: Optional[str]) -> Optional[Json]:
    """Return the cell's promise from JSON text or from the file that holds it.

    Known keys: name, torch ("2.0.1"), local_version ("2.0.1+cu117", as torch.__version__
    reports it), cuda ("11.7", null for a CPU cell), python ("3.10"), compile (false for an
    eager-only cell), device ("cuda" or "cpu"), torchvision, torchaudio,
    compile_floor_by_arch ({"8.0": "525.60.13"}, oldest driver by compute capability). What is
    absent is not checked; other keys are kept for the report.
    """
    import json

    if text is None:
        return None
    source = "--expect"
    if not text.lstrip().startswith("{"):
        source = text
        try:
            with open(text, encoding="utf-8") as handle:
                text = handle.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError("--expect: cannot read %s: %s" % (source, error)) from None
    try:
        expect = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError("%s is not JSON: %s" % (source, error)) from None
    if not isinstance(expect, dict):
        raise UsageError("%s must hold one JSON object" % source)
    for key, types in EXPECT_TYPES.items():
        if key in expect and not isinstance(expect[key], types):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise UsageError("%s: %s must be %s, not %r" % (source, key, names, expect[key]))
    if expect.get("device", "cpu") not in ("cpu", "cuda"):
        raise UsageError("%s: device must be cpu or cuda, not %r" % (source, expect["device"]))
    return expect


# --------------------------------------------------------------------------------------------
# 2. The parent looks: facts about the environment, without torch
# --------------------------------------------------------------------------------------------


def run_program(command: List[str], folder: str, size: int = 1500) -> Tuple[int, str]:
    """Return (exit status, end of what it said); 127 where it cannot be started."""
    import subprocess

    env = dict(os.environ, TMPDIR=folder)
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=env,
            timeout=60.0,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "no answer in 60 s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, tail(done.stdout.decode("utf-8", "replace"), size)


def tail(text: str, size: int) -> str:
    """Return the end of a text."""
    return text.strip()[-size:]


def first_line(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def find_torch() -> Optional[Json]:
    """Return file, version and CUDA of the torch that `import torch` would find, unimported."""
    import importlib.util
    import re

    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    found: Json = {"file": spec.origin, "version": None, "cuda": None}
    try:
        path = os.path.join(os.path.dirname(spec.origin), "version.py")
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
    except OSError:
        return found
    for key, name in (("version", "__version__"), ("cuda", "cuda")):
        match = re.search(r"^%s\b[^=\n]*=\s*['\"]([^'\"]+)['\"]" % name, text, re.MULTILINE)
        found[key] = match.group(1) if match else None
    return found


def list_torch_dists() -> List[Json]:
    """Return every torch on sys.path as {version, path}, in the order of sys.path.

    Both kinds count: distributions with metadata, and bare packages without.
    """
    from importlib import metadata

    seen: Dict[str, Json] = {}
    for dist in metadata.distributions(name="torch"):
        place = os.path.realpath(str(dist.locate_file("")))
        seen.setdefault(place, {"version": dist.version, "path": place})
    for entry in sys.path:
        place = os.path.realpath(entry or ".")
        if os.path.isfile(os.path.join(place, "torch", "__init__.py")):
            seen.setdefault(place, {"version": None, "path": place})
    order = [os.path.realpath(entry or ".") for entry in sys.path]
    return sorted(
        seen.values(), key=lambda d: order.index(d["path"]) if d["path"] in order else len(order)
    )


def look_at_folder(path: str) -> Json:
    """Return whether a folder can hold compiled code: {path, exists, writable, noexec, ...}.

    A folder that does not exist is judged by its nearest parent that does. Writing is tried,
    since neither permissions nor the free space tell of a full quota or a read-only mount.
    """
    place = os.path.abspath(path)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    facts: Json = {"path": path, "exists": os.path.isdir(path), "judged": place, "error": None}
    try:
        status = os.statvfs(place)
        facts["noexec"] = bool(status.f_flag & NOEXEC)
        facts["free_mb"] = status.f_bavail * status.f_frsize // 1_000_000
        facts["owner"] = os.stat(place).st_uid
    except OSError as error:
        facts.update(noexec=False, free_mb=0, owner=None, error=str(error))
    facts["error"] = try_to_write(place)
    facts["writable"] = facts["error"] is None
    return facts


def try_to_write(folder: str) -> Optional[str]:
    """Return why a small file cannot be written in a folder, or None."""
    name = os.path.join(folder, ".provision-probe-%d-%d" % (os.getpid(), time.time_ns()))
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            if os.write(handle, b"\0" * 65536) < 65536:
                return "No space left on device"
            os.fsync(handle)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        return error.strerror or str(error)
    return None


def temporary_folder() -> Tuple[str, str]:
    """Return (variable, folder) for temporary files as the environment names it.

    Python walks on to /var/tmp or the working directory where this folder is unusable;
    compilers do so by another order. The one that is named is the one to judge.
    """
    for variable in ("TMPDIR", "TEMP", "TMP"):
        if os.environ.get(variable):
            return variable, os.environ[variable]
    return "", "/tmp"


def look_at_user() -> Json:
    """Return who runs this: {uid, name, error, home, home_writable}."""
    import getpass

    facts: Json = {"uid": os.getuid(), "name": None, "error": None}
    try:
        facts["name"] = getpass.getuser()
    except (KeyError, OSError, ImportError) as error:  # KeyError up to 3.12, then OSError
        facts["error"] = "%s: %s" % (type(error).__name__, error)
    home = os.path.expanduser("~")
    facts["home"] = home if home != "~" else None
    facts["home_writable"] = home != "~" and os.path.isdir(home) and os.access(home, os.W_OK)
    return facts


def default_cache(user: Json, version: str) -> Optional[str]:
    """Return the folder that this user's compiled code would go to, None where torch fails."""
    import re

    if os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return os.environ["TORCHINDUCTOR_CACHE_DIR"]
    name = user["name"]
    if name is None:
        if release(version) < (2, 13):
            return None
        name = "uid_%d" % user["uid"]
    clean = re.sub(r'[\\/:*?"<>|]', "_", name)
    return os.path.join(temporary_folder()[1], "torchinductor_" + clean)


def system_packages() -> Dict[str, str]:
    """Return name and version of every package of the system, {} where neither tool is there.

    Images install compilers by name where no archive of fixed versions serves; this says which.
    """
    found: Dict[str, str] = {}
    for command in (
        ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"],
        ["rpm", "-qa", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n"],
    ):
        status, said = run_program(command, "/", size=10_000_000)
        if status == 0:
            for line in said.splitlines():
                name, _, version = line.partition(" ")
                found[name] = version
    return dict(sorted(found.items()))


def python_packages() -> Dict[str, str]:
    """Return name and version of every distribution that this interpreter sees."""
    from importlib import metadata

    found = {str(dist.metadata["Name"]): dist.version for dist in metadata.distributions()}
    return dict(sorted(found.items()))


def operating_system() -> Optional[str]:
    """Return the name of the system as /etc/os-release gives it."""
    for line in read_text("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return None


def python_headers() -> Tuple[Optional[str], str]:
    """Return (include folder that holds Python.h or None, folder where it was expected)."""
    import sysconfig

    folders = [
        sysconfig.get_path("include"),
        sysconfig.get_path("include", scheme="posix_prefix"),
    ]
    for folder in folders:
        if folder and os.path.isfile(os.path.join(folder, "Python.h")):
            return folder, folder
    return None, folders[-1] or "?"


CXX_TRIAL = """#include <cmath>
#include <vector>
#include <omp.h>
extern "C" double trial(double x) {
    std::vector<double> v(4, x);
    return std::sin(v[0]) + omp_get_max_threads();
}
"""
C_TRIAL = """#include <math.h>
double trial(double x) { return x + 1.0; }
"""
HEADER_TRIAL = "#include <Python.h>\nint trial(void) { return PY_MAJOR_VERSION; }\n"


def look_at_compiler(names: List[str], language: str, folder: str) -> Json:
    """Return what the first compiler found can do, by building and loading a small library.

    `g++ --version` proves nothing: a driver without its cc1plus answers as well. The library
    is loaded in a process of its own, since a bad one kills whoever maps it.
    """
    import shutil

    facts: Json = {"tried": names, "name": None, "version": None, "problem": None}
    for name in names:
        path = shutil.which(name)
        if path:
            facts.update(name=name, path=path)
            break
    else:
        facts["problem"] = "missing"
        return facts
    status, said = run_program([facts["name"], "--version"], folder)
    facts["version"] = first_line(said)
    flags = ["-std=c++17", "-fopenmp"] if language == "cpp" else []
    source = os.path.join(folder, "trial." + language)
    with open(source, "w", encoding="ascii") as handle:
        handle.write(CXX_TRIAL if language == "cpp" else C_TRIAL)
    target = os.path.join(folder, "trial-%s.so" % language)
    command = [facts["name"], *flags, "-O1", "-shared", "-fPIC", source, "-o", target]
    status, said = run_program(command, folder)
    facts.update(status=status, said=said)
    if status != 0:
        facts["problem"] = "fails"
        return facts
    image = read_elf(target)
    if not image["whole"] or image["machine"] != host_machine():
        facts.update(problem="output", said=image["problem"] or "built for another machine")
        return facts
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    status, said = run_program([sys.executable, "-S", "-E", "-c", load, target], folder)
    if status != 0:
        facts.update(problem="load", said=tail(said, 300))
    return facts


def look_at_headers(compiler: Optional[Json], folder: str) -> Json:
    """Return {include, expected, problem}: can this compiler read this interpreter's Python.h?"""
    include, expected = python_headers()
    facts: Json = {"include": include, "expected": expected, "problem": None}
    if include is None:
        facts["problem"] = "missing"
    elif compiler is not None:
        source = os.path.join(folder, "headers.c")
        with open(source, "w", encoding="ascii") as handle:
            handle.write(HEADER_TRIAL)
        command = [compiler["name"], "-fsyntax-only", "-I", include, source]
        status, said = run_program(command, folder)
        if status != 0:
            facts.update(problem="unreadable", said=said)
    return facts


def compiler_names(language: str, version: str) -> List[str]:
    """Return the compilers that this torch (C++) or its Triton (C) would look for, in order."""
    if language == "c":
        return [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if release(version) == (2, 0):  # 2.0 does not read CXX
        return ["g++"]
    return [os.environ.get("CXX") or "g++"]


def gather_facts(options: Options) -> Json:
    """Return what can be known before a child runs; the dictionary that all judges read."""
    expect = options.expect or {}
    found = find_torch()
    version = (found or {}).get("version") or ""
    built_cuda = (found or {}).get("cuda")
    if expect.get("device"):
        promised = expect["device"]
    elif "cuda" in expect:
        promised = "cuda" if expect["cuda"] else "cpu"
    else:
        promised = "cuda" if built_cuda else "cpu"
    seen: Json = {
        "expect": expect,
        "promised": promised,
        "device": promised if options.device == "auto" else options.device,
        "strict_cache": options.strict_cache,
        "eager": expect.get("compile") is False or (0, 0) < release(version) < (2, 0),
        "seconds": {},
        "children": {},
        "files": {},
        "found": found,
        "version": version,
        "dists": list_torch_dists(),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "env": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(WATCHED) or name in WATCHED_NAMES
        },
    }
    variable, folder = temporary_folder()
    seen["tmp"] = dict(look_at_folder(folder), variable=variable)
    seen["user"] = look_at_user()
    path = default_cache(seen["user"], version)
    seen["user_cache"] = look_at_folder(path) if path else None
    seen["base"] = choose_base(seen)
    return seen


def choose_base(seen: Json) -> Optional[str]:
    """Return the folder for the private cache, None where no folder would do.

    Normally the one for temporary files; where that is unusable but the environment names a
    cache folder that is usable, the user's code would work there, so the proof goes there.
    """
    if usable(seen["tmp"], seen["version"]) and seen["tmp"]["exists"]:
        return str(seen["tmp"]["judged"])
    cache = seen["user_cache"]
    if cache and seen["env"].get("TORCHINDUCTOR_CACHE_DIR") and usable(cache, seen["version"]):
        return str(cache["judged"])
    return None


def room_needed(version: str) -> int:
    """Return the megabytes without which this release cannot fill an empty cache."""
    return ROOM_MB if release(version) >= (2, 8) else OLD_ROOM_MB


def usable(folder: Json, version: str) -> bool:
    """Return whether compiled code can be written to a folder and run from it."""
    return folder["writable"] and not folder["noexec"] and folder["free_mb"] >= room_needed(version)


def gather_tools(seen: Json, private: str) -> None:
    """Add what the compilers and headers can do, tried out in the private folder."""
    import shutil

    folder = os.path.join(private, "trial")
    os.mkdir(folder)
    start = time.monotonic()
    seen["cxx"] = look_at_compiler(compiler_names("cpp", seen["version"]), "cpp", folder)
    seen["seconds"]["cxx"] = time.monotonic() - start
    start = time.monotonic()
    if needs_triton(seen):
        seen["cc"] = look_at_compiler(compiler_names("c", seen["version"]), "c", folder)
        seen["seconds"]["cc"] = time.monotonic() - start
        start = time.monotonic()
    working = [seen[key] for key in ("cxx", "cc") if key in seen and not seen[key]["problem"]]
    seen["headers"] = look_at_headers(working[0] if working else None, folder)
    seen["seconds"]["python-headers"] = time.monotonic() - start
    shutil.rmtree(folder, ignore_errors=True)


def needs_triton(seen: Json) -> bool:
    """Return whether Triton has to work: on CUDA, now or where a CUDA cell will run."""
    return "cuda" in (seen["device"], seen["promised"]) and not seen["eager"]


# --------------------------------------------------------------------------------------------
# 3. Files: ELF images and what lies in a cache
# --------------------------------------------------------------------------------------------


def read_elf(path: str) -> Json:
    """Return {bytes, machine, whole, problem} of an ELF file, from its headers alone.

    The section header table stands at the end of a linked library: where it reaches past the
    end of the file, the file was cut.
    """
    facts: Json = {"bytes": 0, "machine": None, "whole": False, "problem": None}
    try:
        facts["bytes"] = size = os.path.getsize(path)
        with open(path, "rb") as handle:
            head = handle.read(64)
    except OSError as error:
        facts["problem"] = error.strerror
        return facts
    if size == 0:
        facts["problem"] = "the file is empty"
    elif head[:4] != b"\x7fELF" or len(head) < 52:
        facts["problem"] = "not an ELF file"
    else:
        order = "big" if head[5] == 2 else "little"

        def number(start: int, count: int) -> int:
            return int.from_bytes(head[start : start + count], order)  # type: ignore[arg-type]

        facts["machine"] = number(18, 2)
        wide = head[4] == 2
        table = number(40, 8) if wide else number(32, 4)
        entry, count = (number(58, 2), number(60, 2)) if wide else (number(46, 2), number(48, 2))
        facts["whole"] = table + entry * count <= size
        if not facts["whole"]:
            facts["problem"] = "cut short at %d bytes" % size
    return facts


def host_machine() -> Optional[int]:
    """Return the ELF machine number of this interpreter (62 on x86-64, 183 on aarch64)."""
    machine: Optional[int] = read_elf(os.path.realpath(sys.executable))["machine"]
    return machine


def read_text(path: str) -> str:
    """Return a file's text, empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


# Vector-unit probes of Inductor define __avx_chk_kernel, __avx512_vnni_chk_kernel_1, ...
ISA_PROBE = r"_chk_kernel\w*\s*\("


def classify_library(path: str, constant: str) -> Tuple[str, bool]:
    """Return (kernel_so | isa_probe_so | other_so, whether its source has this run's constant).

    Inductor keeps the source beside each library it builds; a library without one (Triton's
    helper and launchers) is no CPU kernel, and a vector-unit probe is none either.
    """
    import re

    text = read_text(path[: -len(".so")] + ".cpp")
    if not text:
        return "other_so", False
    if re.search(ISA_PROBE, text):
        return "isa_probe_so", False
    return "kernel_so", constant in text


def inspect_cache(folder: str, constant: str) -> Json:
    """Return what lies below a private folder: counts by kind, kernels, marked sources."""
    kinds: Dict[str, int] = {}
    result: Json = {"kinds": kinds, "kernel_so": [], "isa_probe_so": [], "other_so": []}
    result.update(cubin=[], marked_sources=[], cache_entries={}, bytes=0)
    for place, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(place, name)
            short = os.path.relpath(path, folder)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            result["bytes"] += os.path.getsize(path)
            kind = os.path.splitext(name)[1].lstrip(".") or "none"
            for store in ("fxgraph", "aotautograd"):
                if store in short.split(os.sep):
                    kind = store
                    entries = result["cache_entries"]
                    entries[store] = entries.get(store, 0) + 1
            if kind == "so":
                kind, marked = classify_library(path, constant)
                result[kind].append(dict(read_elf(path), path=short, marked=marked))
            elif kind == "cubin":
                result["cubin"].append(dict(read_elf(path), path=short))
            elif kind in ("py", "cpp") and constant in read_text(path):
                result["marked_sources"].append(short)
            kinds[kind] = kinds.get(kind, 0) + 1
    return result


# --------------------------------------------------------------------------------------------
# 4. Judges of facts: before any child runs
# --------------------------------------------------------------------------------------------

DEBIAN = "Debian/Ubuntu: apt-get install %s; RHEL/Rocky: dnf install %s."
CXX_REMEDY = (
    "Install a working C++ compiler where the code runs, not only where it is built. "
    + DEBIAN % ("g++", "gcc-c++")
)
CC_REMEDY = (
    "Install a working C compiler where the code runs: Triton builds a helper at the first "
    "launch. " + DEBIAN % ("gcc libc6-dev", "gcc glibc-devel")
)
EXEC_REMEDY = (
    "Mount it with exec: docker run --read-only --tmpfs /tmp:exec (plain --tmpfs /tmp is "
    "noexec), or set TMPDIR to a folder that allows exec."
)
REBUILD_REMEDY = "Rebuild the environment from the cell's lock; mix no other torch into it."


def judge_python(seen: Json) -> Finding:
    """Is the interpreter the cell's?"""
    want = seen["expect"].get("python")
    have = "%s (%s)" % (seen["python"], sys.executable)
    if want is None:
        return ok(have)
    count = len(want.split("."))
    if seen["python"].split(".")[:count] == want.split("."):
        return ok(have)
    return fail(
        "This is Python %s; the cell promises Python %s." % (have, want),
        "Run the probe with the cell's own interpreter.",
    )


def judge_unique(seen: Json) -> Finding:
    """Is there exactly one torch on sys.path?"""
    dists = seen["dists"]
    if len(dists) <= 1:
        return ok("one torch on sys.path" if dists else "no torch on sys.path")
    places = "; ".join("%s in %s" % (d["version"] or "no metadata", d["path"]) for d in dists)
    return fail(
        "%d torch installs are on sys.path and the first wins without a word: %s."
        % (len(dists), places),
        "Unset PYTHONPATH or uninstall all but one (pip uninstall torch, once for each).",
    )


def judge_torch(seen: Json) -> Finding:
    """Is the torch on disk the cell's: version, local label, CUDA?"""
    expect, found = seen["expect"], seen["found"]
    promised = expect.get("local_version") or expect.get("torch")
    if found is None:
        return fail(
            "torch is not installed for %s." % sys.executable,
            "Install the cell's lock with this interpreter"
            + (" (torch %s)." % promised if promised else "."),
        )
    return judge_identity(expect, found["version"], found["cuda"], "on disk")


def judge_identity(
    expect: Json, version: Optional[str], cuda: Optional[str], where: str
) -> Finding:
    """Compare version and CUDA of a torch with what the cell promises."""
    text = version or "of unknown version"
    wanted_cuda = expect.get("cuda")
    if wanted_cuda and not cuda:
        return fail(
            "torch %s is a CPU build; the cell promises CUDA %s." % (text, wanted_cuda),
            "Install the CUDA build that the cell's lock names; an index or a resolver put a "
            "CPU wheel in its place.",
        )
    if "cuda" in expect and cuda != wanted_cuda:
        return fail(
            "torch %s was built for CUDA %s; the cell promises %s."
            % (text, cuda or "none (CPU)", wanted_cuda or "none (CPU)"),
            REBUILD_REMEDY,
        )
    for key in ("local_version", "torch"):
        want = expect.get(key)
        if want is None:
            continue
        have = text if "+" in want or key == "local_version" else public(text)
        if have != want:
            return fail(
                "torch %s is installed; the cell promises %s." % (text, want), REBUILD_REMEDY
            )
    return ok("torch %s, CUDA %s, %s" % (text, cuda or "none", where))


def judge_tmp(seen: Json) -> Finding:
    """Can compiled code live in the folder for temporary files?"""
    tmp = seen["tmp"]
    name = "%s=%s" % (tmp["variable"], tmp["path"]) if tmp["variable"] else tmp["path"]
    need = room_needed(seen["version"])
    if not tmp["exists"]:
        problem, remedy = "%s does not exist" % name, "Create it or unset %s." % tmp["variable"]
    elif not tmp["writable"]:
        full = "No space" in (tmp["error"] or "")
        problem = "%s cannot be written: %s" % (name, tmp["error"])
        remedy = (
            "Free space there, or set TMPDIR to a folder with room."
            if full
            else "Make it writable (docker run --read-only --tmpfs /tmp:exec) or set TMPDIR."
        )
    elif tmp["noexec"]:
        problem = "%s is mounted noexec: a compiled kernel cannot be loaded there" % name
        remedy = EXEC_REMEDY
    elif tmp["free_mb"] < need:
        problem = "%s has %d MB free; torch %s needs %d MB for compiled code" % (
            name,
            tmp["free_mb"],
            seen["version"] or "?",
            need,
        )
        remedy = "Free space there, or set TMPDIR to a folder with room."
    elif tmp["free_mb"] < ROOM_MB:
        return warn(
            "%s has only %d MB free." % (name, tmp["free_mb"]),
            "Give it %d MB: larger models fill it." % ROOM_MB,
        )
    else:
        return ok("%s: writable, exec, %d MB free" % (name, tmp["free_mb"]))
    if seen["base"] is not None:
        return warn(problem + "; TORCHINDUCTOR_CACHE_DIR is used in its place.", remedy)
    return fail(problem + ".", remedy)


def judge_user(seen: Json) -> Finding:
    """Can torch find out who the user is, and has the user a home?"""
    user, version = seen["user"], release(seen["version"])
    if user["name"] is None and version < (2, 13):
        cure = "" if version >= (2, 1) else " Even TORCHINDUCTOR_CACHE_DIR does not help in 2.0."
        detail = "uid %d has no passwd entry and USER, LOGNAME are unset: torch %s ends in %s.%s"
        return strict(
            seen,
            detail % (user["uid"], seen["version"], user["error"], cure),
            "Set USER (any name) and TORCHINDUCTOR_CACHE_DIR in the image, or give the uid a "
            "passwd entry.",
        )
    if needs_triton(seen) and not user["home_writable"]:
        return warn(
            "HOME (%s) is not a writable folder; Triton may want ~/.triton."
            % (user["home"] or "unset and no passwd entry"),
            "Set HOME to a writable folder, or TRITON_CACHE_DIR.",
        )
    return ok("uid %d, %s" % (user["uid"], user["name"] or "no name, which this torch allows"))


def strict(seen: Json, detail: str, remedy: str) -> Finding:
    """Return a finding about the user's defaults: a failure only under --strict-cache."""
    return fail(detail, remedy) if seen["strict_cache"] else warn(detail, remedy)


def judge_user_cache(seen: Json) -> Finding:
    """Would the user's own default cache folder work? (The proof uses a private one.)"""
    cache = seen["user_cache"]
    remedy = "Set TORCHINDUCTOR_CACHE_DIR to a private, writable folder on an exec mount."
    if cache is None:
        return strict(seen, "torch cannot name a default cache folder for this uid.", remedy)
    name = cache["path"]
    if not cache["writable"]:
        return strict(seen, "%s cannot be written: %s." % (name, cache["error"]), remedy)
    if cache["noexec"]:
        detail = "%s is mounted noexec: kernels cannot be loaded from it." % name
        return strict(seen, detail, EXEC_REMEDY)
    if cache["free_mb"] < ROOM_MB:
        detail = "%s has %d MB free; %d MB are asked for." % (name, cache["free_mb"], ROOM_MB)
        return strict(seen, detail, "Free space, or move the cache. " + remedy)
    if cache["exists"] and cache["owner"] != seen["user"]["uid"]:
        detail = "%s belongs to uid %s: its entries are unpickled, so its owner can run code here."
        return strict(seen, detail % (name, cache["owner"]), remedy)
    return ok("%s: writable, exec, %d MB free" % (name, cache["free_mb"]))


def judge_compiler(facts: Json, kind: str, remedy: str) -> Finding:
    """Turn what a compiler could do into a finding."""
    if facts["problem"] == "missing":
        variable = "CXX" if kind == "C++" else "CC"
        tried = " or ".join(facts["tried"])
        source = "%s is unset" % variable
        if os.environ.get(variable) in facts["tried"]:
            source = "%s names it" % variable
        detail = "No %s compiler: %s is not on PATH (%s)." % (kind, tried, source)
        return fail(detail, remedy)
    if facts["problem"] == "fails":
        return fail(
            "%s answers --version but cannot build a library: %s"
            % (facts["name"], worst_line(facts["said"])),
            remedy,
        )
    if facts["problem"] == "output":
        return fail(
            "%s ended well, but what it wrote is no library: %s." % (facts["name"], facts["said"]),
            remedy,
        )
    if facts["problem"] == "load":
        return fail(
            "A library built by %s cannot be loaded: %s" % (facts["name"], facts["said"]),
            EXEC_REMEDY if "failed to map" in facts["said"] else remedy,
        )
    return ok("%s (%s): builds and loads a library" % (facts["name"], facts["version"]))


def worst_line(said: str) -> str:
    """Return the line of a compiler's output that names the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "?")


def judge_cxx(seen: Json) -> Finding:
    """Does the C++ compiler build a library that loads? Needed for every CPU kernel."""
    finding = judge_compiler(seen["cxx"], "C++", CXX_REMEDY)
    if finding.status != "fail":
        return finding
    if seen["device"] == "cuda":
        return warn(finding.detail + " Kernels on CPU tensors cannot be built.", finding.remedy)
    hidden = hides_errors(seen)
    return fail(finding.detail + hidden, finding.remedy)


def hides_errors(seen: Json) -> str:
    """Return a sentence about the variable that would hide a failed compile from the user."""
    value = seen["env"].get("TORCHDYNAMO_SUPPRESS_ERRORS")
    if not value:  # any text counts in every release, 0 included
        return ""
    return " TORCHDYNAMO_SUPPRESS_ERRORS=%s hides this: code runs eagerly, without a word." % value


def judge_cc(seen: Json) -> Finding:
    """Does the C compiler work? Triton needs it on the GPU host, in every release."""
    if "cc" not in seen:
        return skip("a CPU cell needs no C compiler")
    return judge_compiler(seen["cc"], "C", CC_REMEDY)


def judge_headers(seen: Json) -> Finding:
    """Are Python.h and its companions there? CPU kernels from torch 2.3 on, Triton always."""
    headers = seen["headers"]
    if headers["problem"] is None:
        return ok("Python.h in %s" % headers["include"])
    version = "%d.%d" % sys.version_info[:2]
    remedy = "Install the headers of this interpreter. " + DEBIAN % (
        "python%s-dev" % version,
        "python%s-devel (or python3-devel)" % version,
    )
    if headers["problem"] == "missing":
        detail = "Python.h is missing (looked for in %s)." % headers["expected"]
    else:
        detail = "Python.h in %s cannot be compiled: %s" % (
            headers["include"],
            worst_line(headers.get("said", "")),
        )
    if needs_triton(seen) or release(seen["version"]) >= (2, 3):
        return fail(detail, remedy)
    return warn(detail + " CPU kernels of torch %s do without." % seen["version"], remedy)


# --------------------------------------------------------------------------------------------
# 5. Judges of the look: what a child saw of torch before it compiled anything
# --------------------------------------------------------------------------------------------

NOT_SEEN = skip("the child did not get that far")


def judge_import(seen: Json) -> Finding:
    """Does torch import, and is what was imported the cell's?"""
    look = seen["look"]
    if "import_error" in look:
        said = look["import_error"]
        remedy = "Rebuild the environment from its lock, with all dependencies (no --no-deps)."
        if "PYTHONPATH" in seen["env"]:
            remedy = "Unset PYTHONPATH (%s). " % seen["env"]["PYTHONPATH"] + remedy
        return fail("import torch failed: %s" % said, remedy)
    if "torch" not in look:
        return NOT_SEEN
    if "broken" in look:
        return fail(
            "torch %s imports, but is not whole: %s" % (look["torch"], look["broken"]),
            "Rebuild the environment from nothing: files of two releases may be mixed.",
        )
    if seen["found"] and not same_file(look["file"], seen["found"]["file"]):
        return fail(
            "%s was imported, not %s." % (look["file"], seen["found"]["file"]), REBUILD_REMEDY
        )
    if seen["version"] and look["torch"] != seen["version"]:
        return fail(
            "torch %s was imported, yet %s is on disk." % (look["torch"], seen["version"]),
            REBUILD_REMEDY,
        )
    return judge_identity(seen["expect"], look["torch"], look["cuda"], "imported")


def same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file."""
    return os.path.realpath(one) == os.path.realpath(other)


def judge_has_compile(seen: Json) -> Finding:
    """Has this release torch.compile at all, and does the cell want it?"""
    look = seen["look"]
    if "has_compile" not in look:
        return NOT_SEEN
    declared = seen["expect"].get("compile")
    if declared is False:
        return ok("the cell declares itself eager-only")
    if look["has_compile"]:
        return ok("torch.compile is there")
    promise = "the cell promises compilation" if declared else "nothing declares it eager-only"
    return fail(
        "torch %s has no torch.compile (it came with 2.0), and %s." % (look["torch"], promise),
        "Take a cell with torch 2.0 or later, or declare this one eager-only.",
    )


def judge_ceiling(seen: Json) -> Finding:
    """Does this release compile on this Python?"""
    look = seen["look"]
    if "refusal" not in look:
        return NOT_SEEN
    if look["refusal"] is None:
        return ok("torch %s compiles on Python %s" % (look["torch"], seen["python"]))
    newest = newest_python(look["torch"])
    limit = "Python %d.%d" % newest if newest else "an older Python"
    return fail(
        "torch %s does not compile on Python %s: %s"
        % (look["torch"], seen["python"], look["refusal"]),
        "Take %s, or a newer torch; eager code is not affected." % limit,
    )


# The newest Python on which each release compiles (matrix.yaml says the same, and why).
COMPILES_UP_TO = {
    (3, 10): ((2, 0),),
    (3, 11): ((2, 1), (2, 2), (2, 3)),
    (3, 12): ((2, 4), (2, 5)),
    (3, 13): ((2, 6), (2, 7), (2, 8), (2, 9)),
    (3, 14): ((2, 10), (2, 11), (2, 12), (2, 13), (2, 14)),
    (3, 15): ((2, 15),),
}


def newest_python(version: str) -> Optional[Tuple[int, int]]:
    """Return the newest Python on which a release compiles, None where it is not known."""
    return next((py for py, torches in COMPILES_UP_TO.items() if release(version) in torches), None)


def judge_numpy(seen: Json) -> Finding:
    """Do torch and numpy exchange arrays?"""
    numpy = seen["look"].get("numpy")
    if numpy is None:
        return NOT_SEEN
    if numpy["version"] is None and numpy["error"] is None:
        return skip("numpy is not installed")
    if numpy["error"] is None:
        return ok("numpy %s exchanges arrays with torch" % numpy["version"])
    remedy = "Rebuild the environment from its lock."
    if release(seen["version"]) < (2, 3) and release(numpy["version"]) >= (2, 0):
        remedy = "Pin numpy<2: torch below 2.3 was built against NumPy 1."
    return fail(
        "numpy %s does not work with torch %s: %s"
        % (numpy["version"], seen["look"]["torch"], numpy["error"]),
        remedy,
    )


def judge_companion(seen: Json, name: str) -> Finding:
    """Does a companion package that the cell names work with this torch?"""
    want = seen["expect"].get(name)
    if not want:
        return skip("the cell does not name %s" % name)
    have = seen["look"].get(name)
    if have is None:
        return NOT_SEEN
    remedy = "Install the %s that pairs with this torch (the cell says %s)." % (name, want)
    if have["error"] is not None:
        return fail("%s %s: %s" % (name, have["version"] or "", have["error"]), remedy)
    version = have["version"] if "+" in want else public(have["version"] or "")
    if version != want:
        return fail("%s %s is there; the cell promises %s." % (name, version, want), remedy)
    return ok("%s %s imports and works with this torch" % (name, have["version"]))


def judge_torchvision(seen: Json) -> Finding:
    """Does torchvision import, and does its nms operator run?"""
    return judge_companion(seen, "torchvision")


def judge_torchaudio(seen: Json) -> Finding:
    """Does torchaudio import against this torch?"""
    return judge_companion(seen, "torchaudio")


def judge_backends(seen: Json) -> Finding:
    """Is inductor among the back ends? (A static list: its presence alone proves nothing.)"""
    names = seen["look"].get("backends")
    if names is None:
        return NOT_SEEN
    if "inductor" in names:
        return ok(", ".join(names))
    return fail(
        "No inductor among the back ends: %s." % (", ".join(names) or "none"), REBUILD_REMEDY
    )


def switches(env: Json, version: str) -> Json:
    """Return the variables that switch compiling off, as this release reads them.

    TORCHDYNAMO_DISABLE counts when it is 1. TORCH_COMPILE_DISABLE counts when it is 1; up to
    2.7 any text counts, 0 included.
    """
    off = {}
    if env.get("TORCHDYNAMO_DISABLE") == "1":
        off["TORCHDYNAMO_DISABLE"] = "1"
    value = env.get("TORCH_COMPILE_DISABLE", "")
    if value == "1" or (value and release(version) < (2, 8)):
        off["TORCH_COMPILE_DISABLE"] = value
    return off


def judge_switches(seen: Json) -> Finding:
    """Does a variable or setting turn compiling off? Whether it did is seen, not assumed."""
    capture = seen["look"].get("capture")
    if capture is None:
        return NOT_SEEN
    off = switches(seen["env"], seen["version"])
    named = " and ".join("%s=%s" % pair for pair in off.items())
    if capture["graphs"] > 0:
        if off:
            return warn("%s is set, yet this torch compiles." % named, "Unset it.")
        return ok("no switch is set that turns compiling off")
    if off:
        meaning = ""
        if off.get("TORCH_COMPILE_DISABLE") not in (None, "1"):
            meaning = " (up to torch 2.7 any text counts as yes, 0 included)"
        return fail(
            "%s turns torch.compile off in torch %s%s: code runs eagerly, without a word."
            % (named, seen["look"]["torch"], meaning),
            "Unset %s where the code runs." % " and ".join(off),
        )
    if capture["disabled"]:
        return fail(
            "torch._dynamo.config.disable is set, and by no variable.",
            "Look for code that runs at start-up: sitecustomize, usercustomize, .pth files.",
        )
    return ok("no switch is set that turns compiling off")


def judge_capture(seen: Json) -> Finding:
    """Does TorchDynamo hand a graph to a back end of our own at all?"""
    capture = seen["look"].get("capture")
    if capture is None:
        return NOT_SEEN
    if capture["graphs"] > 0:
        return ok("TorchDynamo hands a graph to the back end")
    how = "ran without handing any graph to its back end"
    if capture["same"]:
        how = "handed back the very function it was given"
    return fail(
        "torch.compile (of %s) %s: code runs eagerly." % (capture["defined_in"], how),
        "Look for what replaces or bypasses it: sitecustomize, usercustomize, .pth files.",
    )


def judge_suppress(seen: Json) -> Finding:
    """Would errors of the compiler be hidden from the user?"""
    was = seen["look"].get("suppress_errors_was")
    if was is None:
        return NOT_SEEN
    if not was:
        return ok("suppress_errors is off")
    name = "TORCHDYNAMO_SUPPRESS_ERRORS"
    source = "%s=%s" % (name, seen["env"][name]) if name in seen["env"] else "start-up code"
    return warn(
        "suppress_errors is on (%s): a failed compile would run eagerly, without a word. It was "
        "switched off for this proof." % source,
        "Unset it where the code runs.",
    )


def judge_tracer(seen: Json) -> Finding:
    """Is a tracer or debugger active? It does not turn compiling off."""
    tracers = seen["look"].get("tracers")
    if tracers is None:
        return NOT_SEEN
    if not tracers:
        return ok("none is active")
    return warn(
        "Active: %s. Compiled code runs all the same." % ", ".join(tracers),
        "Set no breakpoint inside compiled code: it breaks the graph there.",
    )


def judge_triton(seen: Json) -> Finding:
    """Is Triton there? It makes every CUDA kernel."""
    if not needs_triton(seen):
        return skip("a CPU cell needs no Triton")
    triton = seen["look"].get("triton")
    if triton is None:
        return NOT_SEEN
    if triton["error"] is None:
        return ok("triton %s" % triton["version"])
    return fail(
        "Triton cannot be used: %s." % triton["error"],
        "Install the triton that this torch names in its metadata (a dependency of CUDA wheels).",
    )


def judge_ptxas(seen: Json) -> Finding:
    """Does the assembler that Triton brings run here? On a GPU nothing compiles without it."""
    if not needs_triton(seen):
        return skip("a CPU cell needs no assembler")
    found = seen["look"].get("ptxas")
    if found is None:
        return NOT_SEEN
    if found["version"] is None:
        return fail(
            "ptxas, Triton's assembler, cannot be used: %s." % found["error"],
            "Install triton again, whole; TRITON_PTXAS_PATH can name another ptxas.",
        )
    text = "ptxas %s (%s)" % (found["version"], found["path"])
    if found["named"] is not None and found["named"]["version"] is None:
        return warn(
            "TRITON_PTXAS_PATH names %s, which cannot be used: %s. Triton takes its own %s or "
            "fails, by release." % (found["named"]["path"], found["named"]["error"], text),
            "Correct TRITON_PTXAS_PATH, or unset it.",
        )
    return ok(text)


def judge_driver(seen: Json) -> Finding:
    """Is the driver new enough for what Triton assembles for this GPU, as the cell has it?"""
    device = seen["look"].get("device")
    if seen["device"] != "cuda" or seen["eager"]:
        return skip("judged on CUDA only")
    if device is None:
        return NOT_SEEN
    floors = seen["expect"].get("compile_floor_by_arch") or {}
    floor = floors.get("%d.%d" % tuple(device["capability"] or (0, 0)))
    if floor is None or device["driver"] is None:
        return skip("the cell names no compile floor for this GPU")
    if numbers(device["driver"]) < numbers(floor):
        return fail(
            "Driver %s runs this torch and cannot load what torch.compile makes for the %s: %s or "
            "newer is needed." % (device["driver"], device["name"], floor),
            "Install driver %s or newer on the host (branch %s)." % (floor, floor.split(".")[0]),
        )
    return ok("driver %s; the cell needs %s" % (device["driver"], floor))


def numbers(version: str) -> Tuple[int, ...]:
    """Return a version of numbers and dots so that versions compare."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def judge_device(seen: Json) -> Finding:
    """Is the device usable? On CUDA also: is it new enough for Triton?"""
    device = seen["look"].get("device")
    if device is None:
        return NOT_SEEN
    if seen["device"] == "cpu":
        if seen["promised"] == "cuda":
            return ok("cpu as asked; the cell promises CUDA, which stays to be verified")
        return ok("cpu")
    if device["error"] is not None:
        return fail(
            "CUDA is not usable: %s" % device["error"],
            "Run it where a GPU and its driver are (docker run --gpus all), or judge the CPU "
            "half alone with --device cpu.",
        )
    if tuple(device["capability"]) < (7, 0) and not seen["eager"]:
        return fail(
            "%s has compute capability %d.%d; Triton needs 7.0 or higher."
            % (device["name"], *device["capability"]),
            "Use a GPU of the Volta generation or newer; this one can run eager code only.",
        )
    return ok(
        "%s, capability %d.%d, driver %s"
        % (device["name"], *device["capability"], device["driver"] or "?")
    )


# --------------------------------------------------------------------------------------------
# 6. Judges of the run: what the compiled code left behind
# --------------------------------------------------------------------------------------------

# What a failed compile says, in words that a user can act on: (pattern, sentence, remedy).
COMPILE_RULES = (
    (r"No working C\+\+ compiler", "torch finds no C++ compiler.", CXX_REMEDY),
    (r"Failed to find C compiler", "Triton finds no C compiler.", CC_REMEDY),
    (
        r"Python\.h: No such file",
        "The interpreter's headers are missing.",
        "Install the headers of this interpreter. " + DEBIAN % ("python3-dev", "python3-devel"),
    ),
    (
        r"No space left on device|Errno 28",
        "The file system that holds the cache is full.",
        "Free space or set TMPDIR to a folder with %d MB." % ROOM_MB,
    ),
    (r"failed to map segment", "The cache lies on a noexec mount.", EXEC_REMEDY),
    (
        r"Errno 30|Read-only file system",
        "The cache folder cannot be written.",
        "Give it a writable mount: docker run --read-only --tmpfs /tmp:exec.",
    ),
    (
        r"getpwuid\(\): uid not found",
        "The uid has no passwd entry and USER is unset.",
        "Set USER, or give the uid a passwd entry.",
    ),
    (
        r"libcuda\.so cannot found|cannot find -lcuda",
        "Triton cannot find the driver's libcuda.",
        "Run with the NVIDIA container runtime; Triton 2.0 and 2.1 look for a file libcuda.so.",
    ),
    (
        r"too old to be supported by the triton",
        "The GPU is too old for Triton (capability below 7.0).",
        "Use a GPU of the Volta generation or newer.",
    ),
    (
        r"working triton installation|TritonMissing",
        "Triton is missing.",
        "Install the triton that this torch names in its metadata.",
    ),
    (
        r"file too short|invalid ELF header|/c\w{20,}\S*\.so: cannot open shared object",
        "A compiled kernel in the cache is damaged or made for another machine.",
        "Delete the cache folder; such an entry is never rebuilt.",
    ),
    (
        r"cannot execute|CppCompileError|C\+\+ compile error",
        "The C++ compiler fails on generated code.",
        CXX_REMEDY,
    ),
)


def ended_well(seen: Json, phase: str) -> Finding:
    """Did the child of one phase come to its end?"""
    child = seen["children"].get(phase)
    if child is None:
        return skip("not started")
    stage = "last stage: %s" % child["stage"]
    if child["timed_out"]:
        return fail(
            "The %s child gave no result in %.0f s and was ended (%s)."
            % (phase, child["wall_s"], stage),
            "Raise --timeout on a slow machine; else look at where it stood: details.children.",
        )
    if child["signal"]:
        hint = {
            "SIGBUS": "A damaged library was mapped: delete caches, reinstall torch.",
            "SIGSEGV": "Native code crashed: a damaged kernel, package or start-up hook (.pth).",
            "SIGILL": "The CPU lacks an instruction of this build.",
            "SIGKILL": "Something killed it, most often the memory limit: give it more.",
        }.get(child["signal"], "See the end of its output in details.children.")
        return fail("The %s child died of %s (%s)." % (phase, child["signal"], stage), hint)
    if child["returncode"] != 0 or not child["done"]:
        said = last_line(child["stderr_tail"])
        return fail(
            "The %s child ended with status %s (%s): %s"
            % (phase, child["returncode"], stage, said),
            "See the end of its output in details.children.",
        )
    return ok("ended well in %.1f s" % child["wall_s"])


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "?")


def judge_cold(seen: Json) -> Finding:
    """Did the child with the empty cache come to its end?"""
    return ended_well(seen, "cold")


def judge_warm(seen: Json) -> Finding:
    """Did a second process, on the cache of the first, come to its end?"""
    return ended_well(seen, "warm")


def runs_for(seen: Json) -> Tuple[str, ...]:
    """Return the names of the runs on this device: bf16 needs compute capability 8.0 on a GPU."""
    if seen["device"] == "cpu":
        return (*RUNS, "bf16")
    capability = (seen["look"].get("device") or {}).get("capability") or [0, 0]
    return (*RUNS, "fp16", *(["bf16"] if tuple(capability) >= (8, 0) else []))


def each_run(seen: Json) -> List[Tuple[str, Json]]:
    """Return ("cold function", record) for each run of each child that there was."""
    return [
        ("%s %s" % (phase, name), child["runs"][name])
        for phase, child in seen["children"].items()
        for name in runs_for(seen)
        if name in child["runs"]
    ]


def judge_compile(seen: Json) -> Finding:
    """Did every compile end without an error?"""
    for where, run in each_run(seen):
        error = run.get("error")
        if error is not None:
            said = "%s: %s" % (error["class"], error["message"])
            sentence, remedy = explain(said)
            text = "The compile failed (%s). %s" % (where, sentence)
            detail = "%s %s" % (text.strip(), shorten(worst_line(said), 300))
            return fail(detail + hides_errors(seen), remedy)
    return ok("no compile ended in an error")


def explain(said: str) -> Tuple[str, str]:
    """Return (sentence, remedy) for the message of a failed compile."""
    import re

    for pattern, sentence, remedy in COMPILE_RULES:
        if re.search(pattern, said):
            return sentence, remedy
    return "", "The whole message is in details.children of the report."


def shorten(text: str, size: int) -> str:
    """Return a text cut to a length, marked where it was cut."""
    return text if len(text) <= size else text[: size - 3] + "..."


def judge_runs(
    seen: Json, good: Callable[[Json], bool], tell: Callable[[Json], str], remedy: str
) -> Optional[Finding]:
    """Return a failure for the first run that is not good, None where all are."""
    for where, run in each_run(seen):
        if not good(run):
            return fail("%s: %s" % (where, tell(run)), remedy)
    return None


NOT_PROVEN_REMEDY = "Treat this environment as eager; details.children has the counters."


def one_whole_graph(run: Json) -> bool:
    """Return whether a run made exactly one graph, without a break and without an AOT failure."""
    breaks, bad = run.get("graph_breaks"), run.get("aot_not_ok")
    return run.get("unique_graphs") == 1 and breaks == 0 and bad == 0


def traced_result(run: Json) -> bool:
    """Return whether a run's result, where it has a witness, is that of traced code."""
    low, high = run.get("witness", (WITNESS, WITNESS))
    return all(v is not None and abs(v - WITNESS) <= 1e-2 for v in (low, high))


def judge_graphs(seen: Json) -> Finding:
    """Did TorchDynamo make exactly one whole graph of each run, and AOT no failure?"""

    def tell(run: Json) -> str:
        return "%s graphs, %s graph breaks, %s AOT failures; wanted 1, 0, 0." % (
            run.get("unique_graphs"),
            run.get("graph_breaks"),
            run.get("aot_not_ok"),
        )

    return judge_runs(seen, one_whole_graph, tell, NOT_PROVEN_REMEDY) or ok(
        "one whole graph in each of %d runs" % len(each_run(seen))
    )


def judge_ran(seen: Json) -> Finding:
    """Was the code that Inductor returned really called?"""

    def good(run: Json) -> bool:
        return "calls" not in run or (run["compiles"] >= 1 and run["calls"] >= 1)

    def tell(run: Json) -> str:
        counts = (run["compiles"], run["calls"])
        return "Inductor compiled %d times and its result was called %d times." % counts

    return judge_runs(seen, good, tell, NOT_PROVEN_REMEDY) or ok(
        "the code that Inductor returned was called"
    )


def judge_witness(seen: Json) -> Finding:
    """Does the result differ from the eager one by 2, as only traced code makes it?"""

    def tell(run: Json) -> str:
        return "compiled minus eager is %s; traced code gives %s." % (run["witness"], WITNESS)

    remedy = "What ran was not the traced code. " + NOT_PROVEN_REMEDY
    failure = judge_runs(seen, traced_result, tell, remedy)
    return failure or ok("the traced branch ran: compiled minus eager is 2")


def judge_source(seen: Json) -> Finding:
    """Was source generated for this very run (its constant stands in it)?"""
    marked = seen["files"]["marked_sources"]
    if marked:
        return ok("the constant of this run stands in %d generated sources" % len(marked))
    return fail("No generated source holds the constant of this run.", NOT_PROVEN_REMEDY)


def judge_kernel_file(seen: Json) -> Finding:
    """CPU: is there a whole kernel library for this machine, other than the vector probes?"""
    if seen["device"] != "cpu":
        return skip("judged on the CPU only")
    kernels, machine = seen["files"]["kernel_so"], host_machine()
    probes = len(seen["files"]["isa_probe_so"])
    for kernel in kernels:
        if not kernel["whole"] or kernel["machine"] != machine:
            problem = kernel["problem"] or "built for ELF machine %s" % kernel["machine"]
            return fail(
                "%s: %s (this machine: %s)." % (kernel["path"], problem, machine),
                "Delete the cache folder: a damaged kernel is never rebuilt.",
            )
    if not kernels:
        return fail(
            "No kernel library was built (%d vector-unit probes do not count)." % probes,
            NOT_PROVEN_REMEDY,
        )
    return ok("%d kernel libraries, %d vector-unit probes" % (len(kernels), probes))


def judge_loaded(seen: Json) -> Finding:
    """CPU: was a kernel of this run mapped into the child, in both phases?

    Where a kernel's own source holds the constant, one of those must have been mapped.
    """
    if seen["device"] != "cpu":
        return skip("judged on the CPU only")
    kernels = seen["files"]["kernel_so"]
    tied = [k["path"] for k in kernels if k["marked"]] or [k["path"] for k in kernels]
    for phase, child in seen["children"].items():
        if not set(tied) & set(child["mapped_so"]):
            return fail("The %s child mapped no kernel of this run." % phase, NOT_PROVEN_REMEDY)
    return ok("a kernel of this run is mapped in: %s" % ", ".join(seen["children"]))


def judge_cubin(seen: Json) -> Finding:
    """CUDA: did Triton make GPU machine code?"""
    if seen["device"] != "cuda":
        return skip("judged on CUDA only")
    cubins = [c for c in seen["files"]["cubin"] if c["bytes"] > 0]
    if not cubins:
        return fail("No .cubin lies in the fresh cache.", NOT_PROVEN_REMEDY)
    return ok("%d cubins" % len(cubins))


def judge_launched(seen: Json) -> Finding:
    """CUDA: did the GPU run a kernel that Triton made, in both phases?"""
    if seen["device"] != "cuda":
        return skip("judged on CUDA only")
    for phase, child in seen["children"].items():
        kernels = child["runs"].get("function", {}).get("kernels", [])
        if not any(name.startswith("triton_") for name in kernels):
            return fail(
                "The profiler saw no triton_ kernel on the GPU in the %s child (seen: %s)."
                % (phase, ", ".join(kernels[:4]) or "nothing"),
                NOT_PROVEN_REMEDY,
            )
    return ok("triton kernels ran on the GPU in: %s" % ", ".join(seen["children"]))


def judge_numerics(seen: Json) -> Finding:
    """Do results and gradients agree with a float64 reference?

    Allowed: 1e-5 of the largest value, or four times the error that eager code makes.
    """
    if seen["eager"]:
        return judge_eager_numerics(seen)
    worst = 0.0
    for where, run in each_run(seen):
        have, eager = run.get("error_compiled"), run.get("error_eager")
        floor = run.get("floor", FLOOR_FP32)
        limit = max(floor, 4 * eager) if eager is not None else floor
        if have is None or not have <= limit:
            return fail(
                "%s: error against float64 is %s of the largest value; %.1e is allowed."
                % (where, "not a number" if have is None else "%.1e" % have, limit),
                "Do not use this environment: compiled code gives wrong numbers.",
            )
        if "floor" not in run:
            worst = max(worst, have)
    return ok("largest error of fp32 against float64: %.1e of the largest value" % worst)


def judge_eager_numerics(seen: Json) -> Finding:
    """Does eager code agree with a float64 reference, in a cell that has only that?"""
    proof = seen["children"]["cold"].get("eager")
    error = proof["error"] if proof else None
    if error is None or not error <= FLOOR_FP32:
        return fail(
            "Eager code is off by %s of the largest value; %.1e is allowed." % (error, FLOOR_FP32),
            "Do not use this environment: eager code gives wrong numbers.",
        )
    return ok("eager code against float64: %.1e of the largest value" % error)


def judge_complete(seen: Json) -> Finding:
    """Were all four runs done? (A child stops at the first run that proves nothing.)"""
    for phase, child in seen["children"].items():
        missing = [name for name in runs_for(seen) if name not in child["runs"]]
        if missing:
            detail = "The %s child left no record of: %s." % (phase, ", ".join(missing))
            return fail(detail, NOT_PROVEN_REMEDY)
    return ok("%d runs in: %s" % (len(runs_for(seen)), ", ".join(seen["children"])))


def judge_dynamic(seen: Json) -> Finding:
    """Over several shapes: are results right, and as many graphs made as this release makes?"""
    counted = seen["children"]["cold"].get("dynamic")
    if counted is None:
        return skip("not reached")
    told = ", ".join("%s: %s" % (mode, counted[mode]["graphs"]) for mode in DYNAMIC)
    for mode in DYNAMIC:
        if counted[mode]["error"] is not None:
            return fail(
                "dynamic=%s cannot be traced: %s" % (mode, counted[mode]["error"]),
                "Shapes that change will not compile. sympy and mpmath do that arithmetic: install "
                "the releases that this torch names.",
            )
        if not counted[mode]["right"]:
            detail = "dynamic=%s gives wrong results over shapes %s." % (mode, SHAPES)
            return fail(detail, "Do not use this environment: compiled code gives wrong numbers.")
    wanted = usual_graphs(seen["version"])
    text = "graphs for %d shapes by dynamic= : %s" % (len(SHAPES), told)
    if {mode: counted[mode]["graphs"] for mode in DYNAMIC} == wanted:
        return ok(text)
    return warn(
        "%s; this release makes %s." % (text, ", ".join("%s: %d" % i for i in wanted.items())),
        "torch._dynamo.config was changed, or a tracer is at work: more recompiles cost time.",
    )


DYNAMIC = {"True": True, "None": None, "False": False}


def usual_graphs(version: str) -> Json:
    """Return how many graphs torch makes for four shapes, by the value of dynamic=."""
    # From 2.1 on the second shape makes a dynamic graph; 2.0 compiles each shape anew.
    usual = 2 if release(version) >= (2, 1) else len(SHAPES)
    return {"True": 1, "None": usual, "False": len(SHAPES)}


def judge_speed(seen: Json) -> Finding:
    """What did compiling gain? Less than nothing is possible and no failure of the environment."""
    record = seen.get("speed")
    if record is None:
        return skip("not asked for (--speed)")
    if not record["done"]:
        how = (
            "gave no answer in time"
            if record["timed_out"]
            else "ended with %s" % (record["signal"] or "status %s" % record["returncode"])
        )
        detail = "The child that measures speed %s (last: %s)." % (how, record["stage"])
        return fail(detail, "details.speed_child of the report has what it said last.")
    measured = record.get("speed", {})
    for name, one in measured.items():
        if one.get("error") is not None:
            return fail("%s: %s" % (name, one["error"]), NOT_PROVEN_REMEDY)
    return ok(", ".join("%s %.2fx" % (n, one["speedup"]) for n, one in measured.items()))


CHECKS: Tuple[Check, ...] = (
    Check("python", "facts", WRONG_TORCH, judge_python),
    Check("torch-unique", "facts", WRONG_TORCH, judge_unique),
    Check("torch", "facts", WRONG_TORCH, judge_torch),
    Check("tmp", "facts", COMPILE_FAILED, judge_tmp),
    Check("user", "facts", COMPILE_FAILED, judge_user),
    Check("user-cache", "facts", COMPILE_FAILED, judge_user_cache),
    Check("cxx", "tools", COMPILE_FAILED, judge_cxx),
    Check("cc", "tools", COMPILE_FAILED, judge_cc),
    Check("python-headers", "tools", COMPILE_FAILED, judge_headers),
    Check("torch-import", "look", WRONG_TORCH, judge_import, gate=True),
    Check("has-compile", "look", NO_COMPILE, judge_has_compile, gate=True),
    Check("python-ceiling", "look", PYTHON_TOO_NEW, judge_ceiling, gate=True),
    Check("numpy", "look", WRONG_TORCH, judge_numpy),
    Check("torchvision", "look", WRONG_TORCH, judge_torchvision),
    Check("torchaudio", "look", WRONG_TORCH, judge_torchaudio),
    Check("backends", "look", NOT_PROVEN, judge_backends),
    Check("switches", "look", SWITCHED_OFF, judge_switches, gate=True),
    Check("capture", "look", NOT_PROVEN, judge_capture, gate=True),
    Check("suppress-errors", "look", NOT_PROVEN, judge_suppress),
    Check("tracer", "look", NOT_PROVEN, judge_tracer),
    Check("device", "look", NO_DEVICE, judge_device, gate=True),
    Check("driver", "look", COMPILE_FAILED, judge_driver),
    Check("triton", "look", COMPILE_FAILED, judge_triton),
    Check("ptxas", "look", COMPILE_FAILED, judge_ptxas),
    Check("cold", "run", CHILD_DIED, judge_cold, gate=True),
    Check("compile", "run", COMPILE_FAILED, judge_compile, gate=True),
    Check("warm", "run", CHILD_DIED, judge_warm, gate=True),
    Check("graphs", "run", NOT_PROVEN, judge_graphs),
    Check("ran", "run", NOT_PROVEN, judge_ran),
    Check("witness", "run", NOT_PROVEN, judge_witness),
    Check("source", "run", NOT_PROVEN, judge_source),
    Check("kernel-file", "run", NOT_PROVEN, judge_kernel_file),
    Check("loaded", "run", NOT_PROVEN, judge_loaded),
    Check("cubin", "run", NOT_PROVEN, judge_cubin),
    Check("launched", "run", NOT_PROVEN, judge_launched),
    Check("numerics", "run", NUMBERS_DIFFER, judge_numerics),
    Check("complete", "run", NOT_PROVEN, judge_complete),
    Check("dynamic", "run", COMPILE_FAILED, judge_dynamic),
    Check("speed", "speed", CHILD_DIED, judge_speed),
)


# What is judged in a cell that has eager code alone; all else is about compiled code.
EAGER_TOO = (
    "python torch-unique torch torch-import has-compile numpy torchvision torchaudio device cold "
    "numerics"
).split()


STAGES = ("facts", "tools", "look", "run", "speed")


def judge_stage(seen: Json, stage: str) -> Judged:
    """Return the findings of all checks of one stage, in the order of the table."""
    results: Judged = []
    stopped = ""
    for check in CHECKS:
        if check.stage != stage:
            continue
        if stopped:
            finding = skip("not reached: %s failed" % stopped)
        elif seen["eager"] and check.id not in EAGER_TOO:
            finding = skip("an eager-only cell compiles nothing")
        else:
            finding = check.judge(seen)
        results.append((check, finding))
        if check.gate and finding.status == "fail":
            stopped = check.id
    return results


def first_failure(results: Judged) -> Optional[Tuple[Check, Finding]]:
    """Return the failure that decides, None where nothing failed."""
    return next((pair for pair in results if pair[1].status == "fail"), None)


# --------------------------------------------------------------------------------------------
# 7. The child: sees torch, compiles, tells. It never judges itself
# --------------------------------------------------------------------------------------------


def child_main(phase: str) -> int:
    """Do one child's work; what it saw goes out as marked lines on the original stdout."""
    import faulthandler
    import json

    job: Json = json.loads(sys.stdin.read())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what torch and compilers print must not mix with the marked lines
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, job["timeout"] - 2.0))

    def tell(section: str, data: Any) -> None:
        out.write("%s %s %s\n" % (MARK, job["nonce"], json.dumps({section: data})))
        out.flush()

    seen: Json = job["seen"]
    seen["look"] = {}
    torch = look_at_torch(seen, phase, tell)
    decided = first_failure(judge_stage(seen, "look")) if phase == "cold" else None
    if torch is not None and decided is None:
        if seen["eager"]:
            tell("stage", "eager")
            tell("eager", prove_eager(torch, job["device"]))
        else:
            if phase == "speed":
                measure_all(torch, job, tell)
            else:
                compile_all(torch, job, tell)
            if phase == "cold":
                tell("stage", "dynamic")
                tell("dynamic", count_graphs(torch))
    tell("memory_kb", peak_memory())
    tell("done", True)
    faulthandler.cancel_dump_traceback_later()
    return 0


def peak_memory() -> int:
    """Return the largest resident size of this process in KiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def look_at_torch(seen: Json, phase: str, tell: Tell) -> Any:
    """Import torch and look at it step by step; return the module, None where a step stopped.

    Each step tells its result at once, so that a crash in it leaves the ones before. The warm
    child takes only the steps that it needs to compile.
    """
    look: Json = seen["look"]
    torch: Any = None
    for name, step in LOOK_STEPS:
        if phase != "cold" and name in COLD_ONLY:
            continue
        tell("stage", name)
        start = time.monotonic()
        try:
            torch, more, go_on = step(torch, seen)
        except Exception as error:  # a damaged install fails in many ways; the text tells
            more, go_on = explain_broken(name, error, look), False
        look.update(more)
        look["seconds"] = dict(look.get("seconds", {}), **{name: time.monotonic() - start})
        tell("look", look)
        if not go_on:
            return torch if seen["eager"] and look.get("torch") else None
    return torch


def explain_broken(step: str, error: Exception, look: Json) -> Json:
    """Return what a failed step means: an unsupported Python, or a torch that is not whole."""
    said = "%s: %s" % (type(error).__name__, shorten(first_line(str(error)), 300))
    newest = newest_python(look.get("torch", ""))
    if newest is not None and sys.version_info[:2] > newest:
        return {"refusal": said}
    return {"broken": "%s (at %s)" % (said, step)}


def step_import(_torch: Any, _seen: Json) -> Step:
    """Import torch."""
    try:
        import torch
    except Exception as error:  # ImportError, OSError, ValueError, AttributeError: all seen
        return None, {"import_error": "%s: %s" % (type(error).__name__, error)}, False
    facts = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "file": torch.__file__,
        "has_compile": hasattr(torch, "compile"),
    }
    return torch, facts, True


def step_packages(torch: Any, seen: Json) -> Step:
    """Try numpy and the companions that the cell names; stop where only eager code is wanted."""
    facts: Json = {"numpy": try_numpy(torch)}
    for name, trial in (("torchvision", try_torchvision), ("torchaudio", try_torchaudio)):
        if seen["expect"].get(name):
            facts[name] = try_package(name, trial, torch)
    if seen["eager"] or not seen["look"]["has_compile"]:
        return torch, dict(facts, **look_at_device(torch, seen)), False
    return torch, facts, True


def try_package(name: str, trial: Callable[[Any], None], torch: Any) -> Json:
    """Return {version, error} of a package after one use of it."""
    import importlib

    facts: Json = {"version": None, "error": None}
    try:
        module = importlib.import_module(name)
        facts["version"] = str(getattr(module, "__version__", "")) or None
        trial(torch)
    except Exception as error:  # whatever it is, it is the finding
        facts["error"] = "%s: %s" % (type(error).__name__, shorten(first_line(str(error)), 300))
    return facts


def try_numpy(torch: Any) -> Json:
    """Exchange an array both ways; numpy that is not installed at all is no error."""
    import importlib.util

    if importlib.util.find_spec("numpy") is None:
        return {"version": None, "error": None}

    def trial(torch: Any) -> None:
        there = torch.ones(2).numpy()
        if float(torch.from_numpy(there + 1).sum()) != 4.0:
            raise RuntimeError("arrays come back changed")

    return try_package("numpy", trial, torch)


def try_torchvision(torch: Any) -> None:
    """Run torchvision's own C++ operator: a wrong pairing imports and only then fails."""
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8]), 0.5)
    if kept.tolist() != [0]:
        raise RuntimeError("torchvision::nms gives a wrong answer")


def try_torchaudio(torch: Any) -> None:
    """Use one function of torchaudio."""
    import torchaudio.functional  # type: ignore[import-not-found, unused-ignore]

    if not torch.isfinite(torchaudio.functional.gain(torch.ones(4), 1.0)).all():
        raise RuntimeError("torchaudio.functional.gain gives no finite numbers")


def step_ceiling(torch: Any, _seen: Json) -> Step:
    """Ask torch.compile itself whether this Python will do."""
    try:
        torch.compile(lambda x: x)
    except RuntimeError as error:
        if "Python" in str(error):
            return torch, {"refusal": first_line(str(error))}, False
        raise
    return torch, {"refusal": None}, True


def step_dynamo(torch: Any, _seen: Json) -> Step:
    """Import TorchDynamo; remember, then clear, suppress_errors; look for tracers."""
    from torch import _dynamo as dynamo  # in 2.0 `import torch` alone does not bring it

    config = dynamo.config
    was = bool(config.suppress_errors)
    config.suppress_errors = False
    tracers = [
        name
        for name, active in (
            ("sys.settrace", sys.gettrace() is not None),
            ("sys.setprofile", sys.getprofile() is not None),
        )
        if active
    ]
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        tools = [monitoring.get_tool(number) for number in range(6)]
        tracers += ["sys.monitoring tool %s" % tool for tool in tools if tool]
    facts = {"suppress_errors_was": was, "tracers": tracers}
    return torch, facts, True


def step_capture(torch: Any, _seen: Json) -> Step:
    """Compile with a back end of our own that only counts: does Dynamo hand it a graph?"""
    from torch import _dynamo as dynamo

    graphs: List[int] = []

    def counting(module: Any, _inputs: Any) -> Any:
        graphs.append(1)
        return module.forward

    def small(x: Any) -> Any:
        return torch.sin(x) + 1.0

    compiled = torch.compile(small, backend=counting)
    compiled(torch.ones(3))
    code = getattr(torch.compile, "__code__", None)
    capture = {
        "graphs": len(graphs),
        "same": compiled is small,
        "disabled": bool(dynamo.config.disable),
        "defined_in": getattr(code, "co_filename", str(torch.compile)),
    }
    dynamo.reset()
    return torch, {"capture": capture, "backends": list(dynamo.list_backends())}, True


def step_device(torch: Any, seen: Json) -> Step:
    """Look at the device; on CUDA, use it once."""
    return torch, look_at_device(torch, seen), True


def look_at_device(torch: Any, seen: Json) -> Json:
    """Return {device: ..., triton: ...} for the device to be judged."""
    facts: Json = {}
    device: Json = {"error": None, "name": None, "capability": None, "driver": None}
    if needs_triton(seen):
        facts["triton"] = find_triton()
        facts["ptxas"] = find_ptxas()
    if seen["device"] == "cuda":
        device["driver"] = driver_version()
        try:
            torch.zeros(1, device="cuda").add_(1).cpu()
            device["name"] = torch.cuda.get_device_name(0)
            device["capability"] = list(torch.cuda.get_device_capability(0))
        except Exception as error:  # RuntimeError, AssertionError, OSError: all seen
            device["error"] = shorten(first_line(str(error)), 300) or type(error).__name__
    facts["device"] = device
    return facts


def find_triton() -> Json:
    """Return {version, error} of Triton, imported so that a broken one is seen."""
    import importlib

    try:
        module = importlib.import_module("triton")
    except Exception as error:  # whatever it is, it is the finding
        return {"version": None, "error": "%s: %s" % (type(error).__name__, error)}
    return {"version": str(getattr(module, "__version__", "?")), "error": None}


def find_ptxas() -> Json:
    """Return {path, version, error, named}: Triton's own ptxas, and what TRITON_PTXAS_PATH names.

    Where it lies in the package differs: third_party/cuda, common/../third_party, backends/nvidia.
    """
    import importlib.util

    named = os.environ.get("TRITON_PTXAS_PATH")
    found: Json = {"path": None, "version": None, "error": "there is none in triton"}
    spec = importlib.util.find_spec("triton")
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        for folder, _, files in os.walk(root):
            if "ptxas" in files and os.path.basename(folder) == "bin":
                found = ask_ptxas(os.path.join(folder, "ptxas"))
    found["named"] = ask_ptxas(named) if named else None
    if found["version"] is None and found["named"] and found["named"]["version"] is not None:
        return dict(found["named"], named=None)
    return found


def ask_ptxas(path: str) -> Json:
    """Return {path, version, error} of an assembler."""
    import re

    status, said = run_program([path, "--version"], os.path.dirname(path) or "/")
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    if status == 0 and version:
        return {"path": path, "version": version.group(1), "error": None}
    error = "%s: status %s, %s" % (path, status, shorten(first_line(said), 120) or "no word")
    return {"path": path, "version": None, "error": error}


def driver_version() -> Optional[str]:
    """Return the version of the loaded NVIDIA kernel driver, None where there is none."""
    import re

    text = read_text("/proc/driver/nvidia/version")
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else None


LOOK_STEPS = (
    ("import", step_import),
    ("packages", step_packages),
    ("ceiling", step_ceiling),
    ("dynamo", step_dynamo),
    ("capture", step_capture),
    ("device", step_device),
)
COLD_ONLY = ("packages", "capture")


def number(value: float) -> Optional[float]:
    """Return a number that JSON can hold, None for nan and infinity."""
    value = float(value)
    return value if value - value == 0.0 else None


def relative_error(have: Any, reference: Any) -> Optional[float]:
    """Return the largest difference from a float64 reference, over the largest value of it."""
    difference = (have.detach().double() - reference.detach()).abs().max()
    return number(difference / reference.detach().abs().max().clamp_min(1e-300))


def prove_eager(torch: Any, device: str) -> Json:
    """Return how far eager code (and TorchScript, where there is no compile) is off float64."""
    torch.manual_seed(1234)
    x = torch.randn(64, 64).to(device)

    def function(x: Any) -> Any:
        return torch.sin(x) * torch.cos(x) + 0.5

    reference = function(x.double())
    error = relative_error(function(x), reference)
    if not hasattr(torch, "compile"):
        traced = torch.jit.trace(function, x)
        script = relative_error(traced(x), reference)
        error = None if error is None or script is None else max(error, script)
    return {"error": error}


def make_function(torch: Any, constant: float) -> Callable[[Any], Any]:
    """Return a function whose compiled result is exactly 2 above its eager one.

    Dynamo answers the question in it at trace time, so the 1.0 is only in traced code.
    """
    from torch import _dynamo as dynamo

    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None) or dynamo.is_compiling

    def function(x: Any) -> Any:
        y = torch.sin(x) * torch.cos(x) + constant
        if is_compiling():
            y = y + 1.0
        return y * 2.0

    return function


def make_net(torch: Any) -> Any:
    """Return a small network with a convolution, a normalisation and a softmax."""
    layers = torch.nn
    return layers.Sequential(
        layers.Conv2d(3, 8, 3, padding=1),
        layers.BatchNorm2d(8),
        layers.ReLU(),
        layers.Flatten(),
        layers.Linear(8 * 8 * 8, 10),
        layers.Softmax(dim=1),
    )


def run_function(torch: Any, job: Json, backend: Any = None) -> Json:
    """Compile and call the function twice; on CUDA the second call runs under the profiler."""
    function = make_function(torch, float(job["constant"]))
    x = torch.randn(64, 64).to(job["device"])
    more = {} if backend is None else {"backend": backend}
    with InductorCounted() as counts:
        compiled = torch.compile(function, fullgraph=True, **more)
        start = time.monotonic()
        result = compiled(x)
        wait(torch, job)
        seconds = time.monotonic() - start
        kernels = profiled(torch, job, lambda: compiled(x))
    eager = function(x)
    reference = function(x.double())
    gap = (result - eager).detach()
    return {
        **counts,
        "first_call_s": seconds,
        "witness": [number(gap.min()), number(gap.max())],
        "error_compiled": relative_error(result, reference + WITNESS),
        "error_eager": relative_error(eager, reference),
        "kernels": kernels,
    }


class InductorCounted:
    """Counts, as a context, what Inductor compiles and how often its results are called.

    A torch.compile that somebody has wrapped may take another back end without a word; its results
    are right and traced, but Inductor never sees them.
    """

    def __enter__(self) -> Json:
        import importlib

        # The attribute of torch._inductor may be the function of that name, not the module.
        self.module: Any = importlib.import_module("torch._inductor.compile_fx")
        self.real = self.module.compile_fx
        counts = {"compiles": 0, "calls": 0}

        def counted(*args: Any, **kwargs: Any) -> Any:
            inner = self.real(*args, **kwargs)
            counts["compiles"] += 1

            def call(*values: Any) -> Any:
                counts["calls"] += 1
                return inner(*values)

            return call

        setattr(self.module, "compile_fx", counted)  # noqa: B010 - a module for the type checker
        return counts

    def __exit__(self, *error: object) -> None:
        self.module.compile_fx = self.real


def run_counted(torch: Any, job: Json) -> Json:
    """The function again, by a back end that counts compiles and calls of what they return."""
    from torch._inductor.compile_fx import compile_fx

    counts = {"compiles": 0, "calls": 0}

    def counting(module: Any, inputs: Any) -> Any:
        inner = compile_fx(module, inputs)
        counts["compiles"] += 1

        def call(*args: Any) -> Any:
            counts["calls"] += 1
            return inner(*args)

        return call

    return dict(run_function(torch, job, counting), **counts)


def run_net(torch: Any, job: Json) -> Json:
    """The network in evaluation."""
    import copy

    net = make_net(torch).to(job["device"]).eval()
    double = copy.deepcopy(net).double()
    x = torch.randn(4, 3, 8, 8).to(job["device"])
    with torch.no_grad(), InductorCounted() as counts:
        eager, reference = net(x), double(x.double())
        compiled = torch.compile(net, fullgraph=True)
        start = time.monotonic()
        result = compiled(x)
        wait(torch, job)
    return {
        **counts,
        "first_call_s": time.monotonic() - start,
        "error_compiled": relative_error(result, reference),
        "error_eager": relative_error(eager, reference),
    }


def run_train(torch: Any, job: Json) -> Json:
    """One training step; all gradients are compared, relative to the largest of them."""
    import copy

    net = make_net(torch).to(job["device"]).train()
    twin, double = copy.deepcopy(net), copy.deepcopy(net).double()
    x = torch.randn(4, 3, 8, 8).to(job["device"])
    target = torch.randn(4, 10).to(job["device"])

    def gradients(model: Any, owner: Any, x: Any, target: Any) -> Any:
        ((model(x) * target).sum()).backward()
        return torch.cat([p.grad.detach().double().flatten() for p in owner.parameters()])

    reference = gradients(double, double, x.double(), target.double())
    eager = gradients(twin, twin, x, target)
    with InductorCounted() as counts:
        compiled = torch.compile(net, fullgraph=True)
        start = time.monotonic()
        result = gradients(compiled, net, x, target)
        wait(torch, job)
    return {
        **counts,
        "first_call_s": time.monotonic() - start,
        "error_compiled": relative_error(result, reference),
        "error_eager": relative_error(eager, reference),
    }


def wait(torch: Any, job: Json) -> None:
    """Wait for the GPU, where there is one."""
    if job["device"] == "cuda":
        torch.cuda.synchronize()


def profiled(torch: Any, job: Json, call: Callable[[], Any]) -> List[str]:
    """Call once more; return the names of the kernels that ran on the GPU, [] on the CPU.

    Inductor marks launches on the CPU side by the same names, so only events of the GPU count.
    """
    if job["device"] != "cuda":
        call()
        return []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    on_gpu = [e.name for e in profiler.events() if "CUDA" in str(e.device_type)]
    return sorted(set(on_gpu))


def run_half(torch: Any, job: Json, name: str) -> Json:
    """A function in a type of 16 bits; the reference takes the same rounded input in float64."""
    kind, floor = HALF[name]
    x = torch.randn(64, 64).to(job["device"]).to(getattr(torch, kind))

    def function(x: Any) -> Any:
        return torch.sin(x) * torch.cos(x) + x

    with InductorCounted() as counts:
        compiled = torch.compile(function, fullgraph=True)
        start = time.monotonic()
        result = compiled(x)
        wait(torch, job)
        seconds = time.monotonic() - start
    reference = function(x.double())
    return {
        **counts,
        "first_call_s": seconds,
        "floor": floor,
        "error_compiled": relative_error(result, reference),
        "error_eager": relative_error(function(x), reference),
    }


RUN_FUNCTIONS: Dict[str, Callable[[Any, Json], Json]] = {
    "function": run_function,
    "counted": run_counted,
    "net": run_net,
    "train": run_train,
    "fp16": lambda torch, job: run_half(torch, job, "fp16"),
    "bf16": lambda torch, job: run_half(torch, job, "bf16"),
}


def compile_all(torch: Any, job: Json, tell: Tell) -> None:
    """Do the four runs, each from a clean Dynamo with empty counters; stop at a bad one."""
    from torch import _dynamo as dynamo

    counters = dynamo.utils.counters
    if job["device"] == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    for name in runs_for(job["seen"]):
        tell("stage", name)
        dynamo.reset()
        counters.clear()
        torch.manual_seed(1234)
        try:
            record = RUN_FUNCTIONS[name](torch, job)
        except Exception as error:  # whatever it is, it is the finding
            tell("run:" + name, dict(read_counters(counters), error=describe(error)))
            break
        record.update(read_counters(counters))
        tell("run:" + name, record)
        if not (one_whole_graph(record) and traced_result(record)):
            break  # nothing is proven any more, the rest would only take time
    tell("stage", "maps")
    tell("mapped_so", mapped_libraries(job["private"]))


def count_graphs(torch: Any) -> Json:
    """Return {graphs, right, error} over SHAPES for each value of dynamic=.

    A back end that only counts: what Inductor does with a graph is judged elsewhere.
    """
    from torch import _dynamo as dynamo

    def function(x: Any) -> Any:
        return (torch.sin(x) * x.shape[0]).sum(0) + 1.0

    counted: Json = {}
    for name, dynamic in DYNAMIC.items():
        dynamo.reset()
        made: List[int] = []

        def counting(module: Any, inputs: Any, made: List[int] = made) -> Any:
            made.append(len(inputs))
            return module.forward

        record: Json = {"graphs": 0, "right": True, "error": None}
        try:
            compiled = torch.compile(function, backend=counting, dynamic=dynamic)
            for rows in SHAPES:
                x = torch.arange(rows * 3.0).reshape(rows, 3)
                record["right"] = record["right"] and torch.allclose(compiled(x), function(x))
        except Exception as error:  # whatever it is, it is the finding
            record["error"] = shorten("%s: %s" % (type(error).__name__, error), 300)
        record["graphs"] = len(made)
        counted[name] = record
    dynamo.reset()
    return counted


def describe(error: BaseException) -> Json:
    """Return class, message and the end of the traceback of an error."""
    import traceback

    lines = traceback.format_exception(type(error), error, error.__traceback__)
    inner = getattr(error, "inner_exception", None) or error.__cause__
    message = str(error)
    if inner is not None and type(inner).__name__ not in message:
        message = "%s (%s: %s)" % (message, type(inner).__name__, inner)
    name = "%s.%s" % (type(error).__module__, type(error).__name__)
    return {"class": name, "message": tail(message, 4000), "traceback": tail("".join(lines), 4000)}


def read_counters(counters: Any) -> Json:
    """Return what Dynamo, AOT and Inductor counted in this run."""
    stats, aot = counters["stats"], counters["aot_autograd"]
    return {
        "unique_graphs": stats.get("unique_graphs", 0),
        "graph_breaks": sum(counters["graph_break"].values()),
        "aot_ok": aot.get("ok", 0),
        "aot_not_ok": aot.get("not_ok", 0),
        "cache_hits": counters["inductor"].get("fxgraph_cache_hit", 0),
        "cache_misses": counters["inductor"].get("fxgraph_cache_miss", 0),
    }


def mapped_libraries(folder: str) -> List[str]:
    """Return the libraries below a folder that are mapped into this process."""
    found = set()
    for line in read_text("/proc/self/maps").splitlines():
        path = line.split(None, 5)[-1]
        if path.startswith(folder + os.sep) and path.endswith(".so"):
            found.add(os.path.relpath(path, folder))
    return sorted(found)


WARM_UP, REPETITIONS = 10, 50


def make_dense(torch: Any) -> Any:
    """Return two matrix products with an activation between: what max-autotune searches for."""
    layers = torch.nn
    return layers.Sequential(layers.Linear(512, 512), layers.ReLU(), layers.Linear(512, 512))


def make_resnet18(torch: Any) -> Any:
    """Return a ResNet-18 (He et al. 2015, 11.7 million parameters) with random weights."""
    layers = torch.nn

    class Block(layers.Module):  # type: ignore[misc,name-defined]
        def __init__(self, width_in: int, width: int, stride: int) -> None:
            super().__init__()
            self.first = layers.Conv2d(width_in, width, 3, stride, 1, bias=False)
            self.first_norm = layers.BatchNorm2d(width)
            self.second = layers.Conv2d(width, width, 3, 1, 1, bias=False)
            self.second_norm = layers.BatchNorm2d(width)
            self.short = layers.Sequential()
            if stride != 1 or width_in != width:
                self.short = layers.Sequential(
                    layers.Conv2d(width_in, width, 1, stride, bias=False),
                    layers.BatchNorm2d(width),
                )

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.first_norm(self.first(x)))
            return torch.relu(self.second_norm(self.second(y)) + self.short(x))

    parts = [
        layers.Conv2d(3, 64, 7, 2, 3, bias=False),
        layers.BatchNorm2d(64),
        layers.ReLU(),
        layers.MaxPool2d(3, 2, 1),
    ]
    width_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [Block(width_in, width, stride), Block(width, width, 1)]
        width_in = width
    parts += [layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(512, 1000)]
    return layers.Sequential(*parts)


def measure_all(torch: Any, job: Json, tell: Tell) -> None:
    """Measure eager against compiled code: a small network, ResNet-18, on a GPU its modes too."""
    cuda = job["device"] == "cuda"
    large = (16, 3, 224, 224) if cuda else (1, 3, 128, 128)
    cases: List[Tuple[str, Any, Tuple[int, ...], Optional[str]]] = [
        ("small", make_net, (64, 3, 8, 8), None),
        ("resnet18", make_resnet18, large, None),
    ]
    if cuda:
        cases.append(("resnet18 reduce-overhead", make_resnet18, large, "reduce-overhead"))
        # On the convolutions of ResNet-18 the search takes minutes; on two products, seconds.
        cases.append(("dense max-autotune", make_dense, (256, 512), "max-autotune"))
    measured: Json = {}
    for name, make, shape, mode in cases:
        tell("stage", name)
        try:
            measured[name] = measure(torch, job, make, shape, mode)
        except Exception as error:  # whatever it is, it is the finding
            measured[name] = {"error": shorten("%s: %s" % (type(error).__name__, error), 500)}
        tell("speed", measured)


def measure(torch: Any, job: Json, make: Any, shape: Tuple[int, ...], mode: Optional[str]) -> Json:
    """Return the medians of single calls in milliseconds, the compile outside of the clock.

    Order: eager, compiled, eager, compiled, so that a machine that slows down is seen (`drift`).
    """
    from torch import _dynamo as dynamo

    dynamo.reset()
    counters = dynamo.utils.counters
    counters.clear()
    torch.manual_seed(1234)
    net = make(torch).to(job["device"]).eval()
    x = torch.randn(*shape).to(job["device"])
    more = {} if mode is None else {"mode": mode}
    peak = 0
    with torch.no_grad():
        compiled = torch.compile(net, **more)
        start = time.monotonic()
        result = compiled(x)
        wait(torch, job)
        seconds = time.monotonic() - start
        error = relative_error(result.clone(), net.double()(x.double()))
        net.float()
        if job["device"] == "cuda":
            torch.cuda.reset_peak_memory_stats()
        rounds = [time_calls(torch, job, call, x) for call in (net, compiled, net, compiled)]
        if job["device"] == "cuda":
            peak = torch.cuda.max_memory_allocated()
    eager, fast = rounds[0] + rounds[2], rounds[1] + rounds[3]
    inductor = counters["inductor"]
    return {
        "error": None,
        "speedup": middle(eager) / middle(fast),
        "eager_ms": spread(eager),
        "compiled_ms": spread(fast),
        "drift": middle(rounds[2]) / middle(rounds[0]),
        "compile_s": seconds,
        "relative_error": error,
        "mode": mode or "default",
        "dtype": "float32",
        "shape": list(shape),
        "repetitions": len(fast),
        "peak_gpu_bytes": peak or None,
        "cudagraphs": {key: n for key, n in sorted(inductor.items()) if "cudagraph" in key},
        "gpu": torch.cuda.get_device_name(0) if job["device"] == "cuda" else None,
    }


def time_calls(torch: Any, job: Json, call: Any, x: Any) -> List[float]:
    """Return the milliseconds of single calls, after the warm-up."""
    times: List[float] = []
    for turn in range(WARM_UP + REPETITIONS):
        if job["device"] == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call(x)
            end.record()
            torch.cuda.synchronize()
            spent = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            call(x)
            spent = (time.perf_counter() - start) * 1e3
        if turn >= WARM_UP:
            times.append(float(spent))
    return times


def middle(values: List[float]) -> float:
    """Return the median."""
    import statistics

    return statistics.median(values)


def spread(values: List[float]) -> Json:
    """Return median, 10th and 90th percentile."""
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return {
        "median": round(middle(ordered), 4),
        "p10": round(ordered[tenth], 4),
        "p90": round(ordered[-1 - tenth], 4),
    }


# --------------------------------------------------------------------------------------------
# 8. The parent runs children
# --------------------------------------------------------------------------------------------


def draw_constant() -> str:
    """Return a fresh six-digit constant; its text is its repr, so generated code holds it."""
    import random

    digits = random.SystemRandom().randrange(10_000, 99_999)
    return "0.%d%d" % (digits, random.SystemRandom().randrange(1, 10))


def child_environment(private: Optional[str]) -> Dict[str, str]:
    """Return the environment of a child: everything private, the switches untouched."""
    env = dict(os.environ)
    if private is not None:
        cache = os.path.join(private, "cache")
        temporary = os.path.join(private, "tmp")
        for folder in (cache, temporary):
            os.makedirs(folder, exist_ok=True)
        env["TORCHINDUCTOR_CACHE_DIR"] = cache
        env["TRITON_CACHE_DIR"] = os.path.join(cache, "triton")
        env["TMPDIR"] = temporary
    env.setdefault("USER", "probe")
    return env


def run_child(phase: str, job: Json, env: Dict[str, str]) -> Json:
    """Start one child, wait for it at most job["timeout"] seconds, return its record."""
    import secrets
    import signal
    import subprocess
    import threading

    nonce = secrets.token_hex(8)
    command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "_child", phase]
    start = time.monotonic()
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    )
    streams: Dict[str, List[bytes]] = {"stdout": [], "stderr": []}

    def drain(name: str) -> None:
        for line in getattr(process, name):
            streams[name].append(line)
            if name == "stderr":
                del streams[name][:-200]

    readers = [threading.Thread(target=drain, args=(name,), daemon=True) for name in streams]
    for reader in readers:
        reader.start()
    timed_out = False
    try:
        send_job(process, dict(job, nonce=nonce))
        process.wait(job["timeout"])
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        # compile workers share the session and may outlive a child that crashed or hangs
        end_group(process.pid)
        process.wait()
        for reader in readers:
            reader.join(5.0)
    code = process.returncode
    record = read_marks(b"".join(streams["stdout"]), nonce)
    record.update(phase=phase, returncode=code, timed_out=timed_out)
    record["signal"] = signal.Signals(-code).name if code < 0 and not timed_out else None
    record["wall_s"] = time.monotonic() - start
    record["stderr_tail"] = tail(b"".join(streams["stderr"]).decode("utf-8", "replace"), 4000)
    return record


def send_job(process: Any, job: Json) -> None:
    """Write a child's job to its stdin; a child that is gone already tells by its status."""
    import json

    try:
        process.stdin.write(json.dumps(job).encode("utf-8"))
        process.stdin.close()
    except BrokenPipeError:
        return


def end_group(group: int) -> None:
    """End what is left of a child's process group."""
    import signal

    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def read_marks(output: bytes, nonce: str) -> Json:
    """Return the record that a child told by its marked lines."""
    import json

    record: Json = {"stage": "start", "runs": {}, "mapped_so": [], "done": False, "look": {}}
    start = ("%s %s " % (MARK, nonce)).encode("ascii")
    for line in output.splitlines():
        if not line.startswith(start):
            continue
        try:
            told = json.loads(line[len(start) :].decode("utf-8"))
        except ValueError:  # the last line of a child that died while writing it
            continue
        for section, data in told.items():
            if section.startswith("run:"):
                record["runs"][section[4:]] = data
            else:
                record[section] = data
    return record


# --------------------------------------------------------------------------------------------
# 9. From facts to verdict
# --------------------------------------------------------------------------------------------


def verify(options: Optional[Options] = None) -> Json:
    """Return the report on the interpreter that runs this: see `build_report` for its shape."""
    import shutil
    import tempfile

    start = time.monotonic()
    options = options or Options()
    seen = gather_facts(options)
    private = None
    if seen["base"] is not None:
        private = os.path.realpath(tempfile.mkdtemp(prefix="provision-probe-", dir=seen["base"]))
    try:
        results = judge_everything(seen, options, private)
    finally:
        if private is not None and not options.keep:
            shutil.rmtree(private, ignore_errors=True)
    seen["seconds"]["total"] = time.monotonic() - start
    seen["kept"] = private if options.keep else None
    return build_report(seen, results)


def judge_everything(seen: Json, options: Options, private: Optional[str]) -> Judged:
    """Return all findings, stage by stage; a failed stage is the last one that is judged."""
    results: Judged = []
    for stage in STAGES:
        failure = first_failure(results)
        if failure is not None:
            reason = "not reached: %s failed" % failure[0].id
            results += [(check, skip(reason)) for check in CHECKS if check.stage == stage]
        else:
            if stage == "tools" and private is not None and not seen["eager"]:
                gather_tools(seen, private)
            if stage == "look":
                run_phase("cold", seen, options, private)
            if stage == "speed" and options.speed and not seen["eager"]:
                run_phase("speed", seen, options, private)
            judged = judge_stage(seen, stage)
            if stage == "run" and first_failure(judged) is None and not seen["eager"]:
                run_phase("warm", seen, options, private)
                judged = judge_stage(seen, stage)
            results += judged
    return results


def run_phase(phase: str, seen: Json, options: Options, private: Optional[str]) -> None:
    """Run one child and add its record, and what it left in the private folder, to the facts."""
    if "constant" not in seen:
        seen["constant"] = draw_constant()
    slim = ("expect", "promised", "device", "eager", "env", "version", "found", "python")
    job = {
        "seen": {key: seen[key] for key in (*slim, "strict_cache")},
        "constant": seen["constant"],
        "device": seen["device"],
        "private": private,
        "timeout": options.timeout,
    }
    child = run_child(phase, job, child_environment(private))
    seen["seconds"][phase] = child["wall_s"]
    if phase == "speed":  # measured, not judged by what it compiled
        seen["speed"] = child
        return
    seen["children"][phase] = child
    if phase == "cold":
        seen["look"] = child["look"]
        note_seconds(seen)
    if private is not None:
        seen["files"] = inspect_cache(private, seen["constant"])


def note_seconds(seen: Json) -> None:
    """Give the checks of the look the seconds of the step that they judge."""
    steps = seen["look"].get("seconds", {})
    for check, step in (
        ("torch-import", "import"),
        ("numpy", "packages"),
        ("python-ceiling", "ceiling"),
        ("suppress-errors", "dynamo"),
        ("capture", "capture"),
        ("device", "device"),
    ):
        seen["seconds"][check] = steps.get(step, 0.0)


def decide(seen: Json, results: Judged) -> Tuple[str, int]:
    """Return (verdict, exit code)."""
    failure = first_failure(results)
    if failure is not None:
        code = failure[0].exit_code
        undeclared = code == NO_COMPILE and seen["expect"].get("compile") is None
        return ("unjudged" if code == NO_DEVICE or undeclared else "failed"), code
    if seen["eager"]:
        return "eager-as-declared", NO_COMPILE
    if is_deferred(seen):
        return "cpu-verified-cuda-deferred", VERIFIED
    return "verified", VERIFIED


def build_report(seen: Json, results: Judged) -> Json:
    """Return the report: schema, verdict, torch, cuda, device, checks, artefacts, speed, details.

    The summary fields are a stable contract; everything else that was seen is in `details`.
    """
    verdict, code = decide(seen, results)
    look, found = seen.get("look", {}), seen["found"] or {}
    checks = [
        {
            "id": check.id,
            "status": finding.status,
            "seconds": round(seen["seconds"].get(check.id, 0.0), 3),
            "detail": finding.detail,
            "remedy": finding.remedy,
        }
        for check, finding in results
    ]
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "torch": look.get("torch") or found.get("version"),
        "cuda": look["cuda"] if "cuda" in look else found.get("cuda"),
        "device": seen["device"],
        "checks": checks,
        "artefacts": dict(sorted(seen["files"].get("kinds", {}).items())),
        "speed": (seen.get("speed") or {}).get("speed", {}),
        "details": build_details(seen, checks, verdict, code),
    }


def build_details(seen: Json, checks: List[Json], verdict: str, code: int) -> Json:
    """Return everything that was seen, for `details` of the report."""
    look, device = seen.get("look", {}), seen.get("look", {}).get("device") or {}
    cxx, cc, headers = (seen.get(key) or {} for key in ("cxx", "cc", "headers"))
    deferred = [{"check": "cuda", "why": "deferred to the host that has the GPU"}]
    skipped = [{"check": c["id"], "why": c["detail"]} for c in checks if c["status"] == "skip"]
    return {
        "verified": verdict == "verified",
        "exit_code": code,
        "reasons": [c["id"] + ": " + c["detail"] for c in checks if c["status"] == "fail"],
        "warnings": [c["id"] + ": " + c["detail"] for c in checks if c["status"] == "warn"],
        "promised_device": seen["promised"],
        "expect": seen["expect"],
        "cuda_build": look.get("cuda") is not None,
        "python": seen["python"],
        "executable": sys.executable,
        "gpu": device.get("name"),
        "capability": device.get("capability"),
        "driver": device.get("driver"),
        "torch_file": look.get("file") or (seen["found"] or {}).get("file"),
        "torch_dists": seen["dists"],
        "packages": {name: look[name] for name in PACKAGES if name in look},
        "backends": look.get("backends", []),
        "system": operating_system(),
        "system_packages": system_packages(),
        "python_packages": python_packages(),
        "toolchain": {
            "cxx": cxx.get("path"),
            "cxx_version": cxx.get("version"),
            "cc": cc.get("path"),
            "python_h": headers.get("include"),
        },
        "env": seen["env"],
        "switched_off_by": switches(seen["env"], seen["version"]),
        "tmp": seen["tmp"],
        "user": seen["user"],
        "user_cache": seen["user_cache"],
        "suppress_errors_was": look.get("suppress_errors_was"),
        "constant": seen.get("constant"),
        "cache": seen["files"],
        "children": list(seen["children"].values()),
        "speed_child": seen.get("speed"),
        "timing": timing(seen),
        "machine": host_machine(),
        "skipped": skipped + (deferred if is_deferred(seen) else []),
        "kept": seen["kept"],
        "probe_sha256": own_hash(),
    }


def is_deferred(seen: Json) -> bool:
    """Return whether the cell promises CUDA and only the CPU was judged."""
    return bool(seen["promised"] == "cuda" and seen["device"] == "cpu")


PACKAGES = ("numpy", "torchvision", "torchaudio", "triton")


def timing(seen: Json) -> Json:
    """Return wall seconds, and the seconds of each first compiled call, cold and warm."""
    result: Json = {"total_s": round(seen["seconds"]["total"], 3)}
    for phase, child in seen["children"].items():
        calls = {
            name: round(run["first_call_s"], 3)
            for name, run in child["runs"].items()
            if "first_call_s" in run
        }
        result[phase] = {"wall_s": round(child["wall_s"], 3), "first_call_s": calls}
    return result


def own_hash() -> str:
    """Return the sha256 of this file: which code judged."""
    import hashlib

    with open(__file__, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()


# --------------------------------------------------------------------------------------------
# 10. Output and command line
# --------------------------------------------------------------------------------------------

WIDTH = 80


def wrap(text: str, label: str) -> List[str]:
    """Return lines of at most 80 columns with a hanging label."""
    import textwrap

    plain = " ".join(text.split())
    lines: List[str] = textwrap.wrap(
        plain, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
    )
    return lines


def summarise(report: Json) -> str:
    """Return the short text for people: what decided and its remedy first, or the warnings."""
    checks, details = report["checks"], report["details"]
    lines: List[str] = []
    failed = [check for check in checks if check["status"] == "fail"]
    warned = [check for check in checks if check["status"] == "warn"]
    if failed:
        lines += wrap(failed[0]["detail"], "FAILED %s: " % failed[0]["id"])
        lines += wrap(failed[0]["remedy"], "  remedy: ")
        others = ["%s (%s)" % (c["id"], c["status"]) for c in failed[1:] + warned]
        if others:
            lines += wrap(", ".join(others) + "; the report has them", "  also: ")
    else:
        for check in warned:
            lines += wrap(check["detail"], "warning %s: " % check["id"])
            lines += wrap(check["remedy"], "  remedy: ")
    statuses = [check["status"] for check in checks]
    told = ", ".join(
        "%d %s" % (statuses.count(status), status)
        for status in ("pass", "warn", "fail", "skip")
        if status in statuses
    )
    subject = "torch %s on %s, Python %s" % (report["torch"], report["device"], details["python"])
    lines += wrap("%s (exit code %d)" % (report["verdict"], details["exit_code"]), "verdict: ")
    lines += wrap("%s; checks: %s" % (subject, told), "  seen: ")
    times = details["timing"]
    parts = ["%s %.1f s" % (p, times[p]["wall_s"]) for p in ("cold", "warm") if p in times]
    lines += wrap(", ".join(parts + ["total %.1f s" % times["total_s"]]), "  time: ")
    if details["kept"]:
        lines.append("  kept: " + details["kept"])
    return "\n".join(lines)


def check_folder(path: Optional[str]) -> None:
    """Refuse a report that could not be written, before anything long starts."""
    if not path:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError("--report: no such folder: %s" % folder)
    if os.path.isdir(path):
        raise UsageError("--report: %s is a folder" % path)
    trial = "%s.%d.part" % (path, os.getpid())
    try:
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        os.unlink(trial)
    except OSError as error:
        raise UsageError("--report: cannot write %s: %s" % (path, error.strerror)) from None


def write_report(report: Json, path: str) -> None:
    """Write the report whole or not at all."""
    import json

    text = json.dumps(report, indent=2) + "\n"
    temporary = "%s.%d.part" % (path, os.getpid())
    try:
        # Whoever else may write to that folder must not lead us elsewhere by a link.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o644), "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise UsageError("--report: cannot write %s: %s" % (path, error.strerror)) from None


def parse(arguments: List[str]) -> Any:
    """Return the parsed command line."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="probe.py", description="Prove that torch.compile works for this interpreter."
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--expect", metavar="FILE_OR_JSON", help="the cell's promise")
    parser.add_argument("--report", metavar="FILE", help="write the JSON report there")
    parser.add_argument("--json", action="store_true", help="print the JSON report")
    parser.add_argument("--keep", action="store_true", help="keep the private cache folder")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS")
    parser.add_argument(
        "--strict-cache", action="store_true", help="an unusable default cache folder fails"
    )
    parser.add_argument(
        "--speed", action="store_true", help="measure eager against compiled code, too"
    )
    options = parser.parse_args(arguments)
    if not 1.0 <= options.timeout <= 86400.0:
        parser.error("--timeout takes 1 to 86400 seconds")
    return options


def main(arguments: List[str]) -> int:
    """Run the command line; return the exit code."""
    import json
    import signal

    if arguments[:1] == ["_child"]:
        return child_main(arguments[1])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = parse(arguments)
    try:
        check_folder(options.report)
        expect = read_expect(options.expect)
        report = verify(
            Options(
                options.device,
                expect,
                options.timeout,
                options.keep,
                options.strict_cache,
                options.speed,
            )
        )
    except UsageError as error:
        print("probe.py: %s" % error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("probe.py: interrupted", file=sys.stderr)
        return 130
    try:
        print(json.dumps(report, indent=2) if options.json else summarise(report), flush=True)
    except BrokenPipeError:  # whoever reads has seen enough; the verdict stands
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        if options.report:
            write_report(report, options.report)
    except UsageError as error:  # a disk that filled up meanwhile: the verdict was told
        print("probe.py: %s" % error, file=sys.stderr)
        return USAGE
    return int(report["details"]["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
