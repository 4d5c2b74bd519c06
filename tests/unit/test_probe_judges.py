"""The judges of the probe: each way in which compiling can fail or not happen has its check."""

from collections.abc import Callable
from typing import Any

import pytest
from probe_facts import Seen, child, compiler, cpu_cell, cuda_cell, folder, library, run

from provisioner.verify import probe

Change = Callable[[Seen], object]
CHECKS = {check.id: check for check in probe.CHECKS}
STAGES = probe.STAGES


def judged(seen: Seen) -> dict[str, str]:
    """Status of each check, judged stage by stage as the probe does."""
    statuses: dict[str, str] = {}
    for stage in STAGES:
        results = probe.judge_stage(seen, stage)
        statuses |= {check.id: finding.status for check, finding in results}
    return statuses


def decided(seen: Seen) -> tuple[str, str, int]:
    """The deciding check, the verdict and the exit code."""
    results = [r for stage in STAGES for r in probe.judge_stage(seen, stage)]
    failure = probe.first_failure(results)
    return (failure[0].id if failure else "", *probe.decide(seen, results))


def test_good_cells_are_verified() -> None:
    assert decided(cpu_cell()) == ("", "verified", 0)
    assert decided(cuda_cell()) == ("", "verified", 0)
    assert set(judged(cpu_cell()).values()) == {"pass", "skip"}


def test_cuda_cell_judged_on_the_cpu_is_deferred() -> None:
    seen = cpu_cell(promised="cuda", cc=compiler(name="gcc"))
    seen["look"]["triton"] = {"version": "3.6.0", "error": None}
    seen["look"]["ptxas"] = {"path": "/t", "version": "12.9.86", "error": None, "named": None}
    assert decided(seen) == ("", "cpu-verified-cuda-deferred", 0)


def test_recompile_counts_are_those_of_the_release() -> None:
    """In 2.0 each shape is compiled anew; more than usual is told and no failure."""
    seen = cpu_cell()
    counted = seen["children"]["cold"]["dynamic"]
    counted["None"]["graphs"] = 4
    assert judged(seen)["dynamic"] == "warn"
    assert decided(seen) == ("", "verified", 0)
    assert probe.usual_graphs("2.0.1+cu117") == {"True": 1, "None": 4, "False": 4}
    seen["version"] = "2.0.1+cpu"
    assert probe.judge_dynamic(seen).status == "pass"


def test_half_precision_follows_the_device() -> None:
    assert probe.runs_for(cpu_cell()) == (*probe.RUNS, "bf16")
    assert probe.runs_for(cuda_cell()) == (*probe.RUNS, "fp16", "bf16")
    old = cuda_cell()
    old["look"]["device"]["capability"] = [7, 0]
    assert probe.runs_for(old) == (*probe.RUNS, "fp16")


def test_the_drivers_floor_is_that_of_the_gpu() -> None:
    seen = cuda_cell(expect={"compile_floor_by_arch": {"9.0": "525.60.13", "10.0": "999.1"}})
    assert judged(seen)["driver"] == "pass"
    seen["look"]["device"]["driver"] = "525.60.11"
    told = next(f for c, f in probe.judge_stage(seen, "look") if c.id == "driver")
    assert (told.status, "525.60.13" in told.remedy) == ("fail", True)
    assert judged(cuda_cell())["driver"] == "skip"


def test_another_ptxas_that_cannot_be_used_is_a_warning() -> None:
    seen = cuda_cell()
    named = {"path": "/bin/false", "version": None, "error": "/bin/false: status 1, no word"}
    seen["look"]["ptxas"]["named"] = named
    assert judged(seen)["ptxas"] == "warn"


def test_speed_is_told_and_a_slow_down_is_no_failure() -> None:
    measured = {"small": {"error": None, "speedup": 0.7}}
    seen = cpu_cell(speed=child("speed", speed=measured))
    assert judged(seen)["speed"] == "pass"
    results = [r for stage in STAGES for r in probe.judge_stage(seen, stage)]
    assert probe.build_report(seen, results)["speed"] == measured


def test_each_device_has_its_own_criteria() -> None:
    cpu, cuda = judged(cpu_cell()), judged(cuda_cell())
    assert (cpu["kernel-file"], cpu["loaded"], cpu["cubin"], cpu["launched"]) == (
        "pass",
        "pass",
        "skip",
        "skip",
    )
    assert (cuda["kernel-file"], cuda["loaded"], cuda["cubin"], cuda["launched"]) == (
        "skip",
        "skip",
        "pass",
        "pass",
    )


def put(path: str, value: Any) -> Change:
    """A change of one fact, named by its path."""

    def change(seen: Seen) -> None:
        *parents, last = path.split("/")
        place = seen
        for parent in parents:
            place = place[parent]
        place[last] = value

    return change


COLD = "children/cold/"
FUNCTION = COLD + "runs/function/"
ERROR = {"class": "torch._inductor.exc.InductorError", "message": "", "traceback": ""}

CPU_FAILURES: list[tuple[Change, str, int]] = [
    (put("expect", {"python": "3.10"}), "python", 20),
    (
        put("dists", [{"version": "2.6.0", "path": "/a"}, {"version": None, "path": "/b"}]),
        "torch-unique",
        20,
    ),
    (put("found", None), "torch", 20),
    (put("expect", {"torch": "2.12.0"}), "torch", 20),
    (put("expect", {"local_version": "2.13.0+cu118"}), "torch", 20),
    (put("expect", {"cuda": "11.8"}), "torch", 20),
    (put("look/torch", "2.12.0+cpu"), "torch-import", 20),
    (put("look/file", "/elsewhere/torch/__init__.py"), "torch-import", 20),
    (put("look", {"import_error": "ImportError: libcudnn.so.8"}), "torch-import", 20),
    (put("look/broken", "AttributeError: no _make_dual (at dynamo)"), "torch-import", 20),
    (put("look/has_compile", False), "has-compile", 3),
    (put("look/refusal", "Python 3.11+ not yet supported for torch.compile"), "python-ceiling", 5),
    (put("look/numpy/error", "RuntimeError: Numpy is not available"), "numpy", 20),
    (put("look/backends", ["cudagraphs"]), "backends", 11),
    (put("look/capture/graphs", 0), "capture", 11),
    (put("cxx/problem", "missing"), "cxx", 10),
    (put("cxx/problem", "fails"), "cxx", 10),
    (put("cxx/problem", "output"), "cxx", 10),
    (put("cxx/problem", "load"), "cxx", 10),
    (put("headers/problem", "missing"), "python-headers", 10),
    (put("headers/problem", "unreadable"), "python-headers", 10),
    (put(COLD + "signal", "SIGBUS"), "cold", 13),
    (put(COLD + "timed_out", True), "cold", 13),
    (put(COLD + "returncode", 1), "cold", 13),
    (put(COLD + "done", False), "cold", 13),
    (put("children/warm/signal", "SIGBUS"), "warm", 13),
    (put(FUNCTION + "error", ERROR), "compile", 10),
    (put(FUNCTION + "unique_graphs", 0), "graphs", 11),
    (put(FUNCTION + "unique_graphs", 2), "graphs", 11),
    (put(FUNCTION + "graph_breaks", 1), "graphs", 11),
    (put(FUNCTION + "aot_not_ok", 1), "graphs", 11),
    (put("children/warm/runs/net/unique_graphs", 0), "graphs", 11),
    (put(COLD + "runs/counted/calls", 0), "ran", 11),
    (put(COLD + "runs/counted/compiles", 0), "ran", 11),
    (put(FUNCTION + "witness", [0.0, 0.0]), "witness", 11),
    (put(FUNCTION + "witness", [2.0, None]), "witness", 11),
    (put("files/marked_sources", []), "source", 11),
    (put("files/kernel_so", []), "kernel-file", 11),
    (put("files/kernel_so", [library("k.so", whole=False, problem="cut")]), "kernel-file", 11),
    (put("files/kernel_so", [library("k.so", machine=183 + 62)]), "kernel-file", 11),
    (put("children/warm/mapped_so", ["cache/cd/probe.so"]), "loaded", 11),
    (
        put("files/kernel_so", [library("other.so"), library("cache/ab/kernel.so", marked=False)]),
        "loaded",
        11,
    ),
    (put(COLD + "runs/train/error_compiled", 1e-3), "numerics", 12),
    (put(COLD + "runs/net/error_compiled", None), "numerics", 12),
    (put(COLD + "runs/bf16/error_compiled", 0.1), "numerics", 12),
    (put(COLD + "runs", {"function": run(witness=[2.0, 2.0])}), "complete", 11),
    (put(COLD + "dynamic/None/error", "ImportError: mpmath"), "dynamic", 10),
    (put(COLD + "dynamic/True/right", False), "dynamic", 10),
    (put("speed", child("speed", done=False, returncode=-11, signal="SIGSEGV")), "speed", 13),
    (put("speed", child("speed", done=False, timed_out=True)), "speed", 13),
    (put("speed", child("speed", speed={"small": {"error": "RuntimeError"}})), "speed", 13),
]


@pytest.mark.parametrize(("change", "check", "code"), CPU_FAILURES)
def test_what_goes_wrong_is_found_by_its_check(change: Change, check: str, code: int) -> None:
    seen = cpu_cell()
    change(seen)
    verdict = "unjudged" if code == 3 else "failed"
    assert decided(seen) == (check, verdict, code)


NO_PTXAS = {"path": None, "version": None, "error": "there is none in triton", "named": None}
CUDA_FAILURES: list[tuple[Change, str, str, int]] = [
    (put("look/device/error", "Found no NVIDIA driver"), "device", "unjudged", 21),
    (put("look/device/capability", [6, 1]), "device", "unjudged", 21),
    (put("look/triton/error", "ModuleNotFoundError: triton"), "triton", "failed", 10),
    (put("look/ptxas", NO_PTXAS), "ptxas", "failed", 10),
    (put("expect", {"compile_floor_by_arch": {"9.0": "580.65.06"}}), "driver", "failed", 10),
    (put(COLD + "runs/fp16/error_compiled", 0.1), "numerics", "failed", 12),
    (put("cc/problem", "missing"), "cc", "failed", 10),
    (put("files/cubin", []), "cubin", "failed", 11),
    (put("files/cubin", [{"bytes": 0}]), "cubin", "failed", 11),
    (put(FUNCTION + "kernels", ["void at::native::add"]), "launched", "failed", 11),
    (put("children/warm/runs/function/kernels", []), "launched", "failed", 11),
]


@pytest.mark.parametrize(("change", "check", "verdict", "code"), CUDA_FAILURES)
def test_what_goes_wrong_on_cuda(change: Change, check: str, verdict: str, code: int) -> None:
    seen = cuda_cell()
    change(seen)
    assert decided(seen) == (check, verdict, code)


def test_every_check_has_a_case_that_fails() -> None:
    """A check that cannot fail is none; those that only ever warn are named here."""
    only_warn = {"suppress-errors", "tracer"}
    elsewhere = {"tmp", "user", "user-cache", "torchvision", "torchaudio", "switches"}
    failed = {check for _, check, _ in CPU_FAILURES} | {check for _, check, _, _ in CUDA_FAILURES}
    assert failed | only_warn | elsewhere == set(CHECKS)


@pytest.mark.parametrize(
    ("env", "version", "off"),
    [
        ({"TORCHDYNAMO_DISABLE": "1"}, "2.0.1", ["TORCHDYNAMO_DISABLE"]),
        ({"TORCHDYNAMO_DISABLE": "0"}, "2.0.1", []),
        ({"TORCH_COMPILE_DISABLE": "1"}, "2.13.0", ["TORCH_COMPILE_DISABLE"]),
        ({"TORCH_COMPILE_DISABLE": "0"}, "2.7.1", ["TORCH_COMPILE_DISABLE"]),
        ({"TORCH_COMPILE_DISABLE": "0"}, "2.8.0", []),
        ({"TORCH_COMPILE_DISABLE": ""}, "2.0.1", []),
        ({"TORCH_COMPILE_DISABLE": "0"}, "2.10.0", []),
    ],
)
def test_switches_in_each_releases_meaning(env: Seen, version: str, off: list[str]) -> None:
    assert list(probe.switches(env, version)) == off
    seen = cpu_cell(env=env, version=version)
    seen["look"]["torch"] = version
    seen["look"]["capture"]["graphs"] = 0
    check, verdict, code = decided(seen)
    assert (check, verdict, code) == (
        ("switches", "failed", 4) if off else ("capture", "failed", 11)
    )


def test_a_switch_that_this_torch_ignores_only_warns() -> None:
    assert judged(cpu_cell(env={"TORCHDYNAMO_DISABLE": "1"}))["switches"] == "warn"


def test_dynamo_disabled_by_start_up_code() -> None:
    seen = cpu_cell()
    seen["look"]["capture"] |= {"graphs": 0, "disabled": True}
    assert decided(seen) == ("switches", "failed", 4)


@pytest.mark.parametrize(
    ("tmp", "words"),
    [
        (folder(noexec=True), "tmpfs /tmp:exec"),
        (folder(writable=False, error="No space left on device"), "Free space"),
        (folder(writable=False, error="Read-only file system"), "tmpfs /tmp:exec"),
        (folder(free_mb=150), "Free space"),
        (folder(exists=False, variable="TMPDIR", path="/nowhere"), "unset TMPDIR"),
    ],
)
def test_a_folder_that_cannot_hold_compiled_code(tmp: Seen, words: str) -> None:
    finding = probe.judge_tmp(cpu_cell(tmp=tmp, base=None))
    assert finding.status == "fail"
    assert words in finding.remedy
    # With a cache folder that works, compiled code does not depend on it.
    assert probe.judge_tmp(cpu_cell(tmp=tmp, base="/cache")).status == "warn"


def test_old_releases_need_less_room() -> None:
    seen = cpu_cell(tmp=folder(free_mb=150), version="2.0.1")
    assert probe.judge_tmp(seen).status == "warn"


@pytest.mark.parametrize(
    "cache",
    [
        folder(noexec=True),
        folder(writable=False, error="Permission denied"),
        folder(free_mb=1),
        folder(owner=0),
        None,
    ],
)
def test_the_users_cache_decides_only_when_strict(cache: Seen | None) -> None:
    assert probe.judge_user_cache(cpu_cell(user_cache=cache)).status == "warn"
    seen = cpu_cell(user_cache=cache, strict_cache=True)
    assert decided(seen) == ("user-cache", "failed", 10)


@pytest.mark.parametrize(
    ("version", "status"), [("2.0.1", "fail"), ("2.12.1", "fail"), ("2.13.0", "pass")]
)
def test_a_uid_without_a_name(version: str, status: str) -> None:
    user = cpu_cell()["user"] | {"name": None, "error": "KeyError: 'getpwuid()'"}
    seen = cpu_cell(user=user, version=version, strict_cache=True)
    assert probe.judge_user(seen).status == status


def test_headers_matter_from_torch_2_3_or_for_triton() -> None:
    headers = {"include": None, "expected": "/usr/include/python3.9", "problem": "missing"}
    assert probe.judge_headers(cpu_cell(headers=headers, version="2.2.2")).status == "warn"
    assert probe.judge_headers(cpu_cell(headers=headers, version="2.3.0")).status == "fail"
    old_cuda = cpu_cell(headers=headers, version="2.0.1", promised="cuda")
    assert probe.judge_headers(old_cuda).status == "fail"


def test_a_missing_cxx_is_no_failure_on_cuda() -> None:
    assert judged(cuda_cell(cxx=compiler(problem="missing")))["cxx"] == "warn"


def test_hidden_errors_are_told_with_the_failure() -> None:
    env = {"TORCHDYNAMO_SUPPRESS_ERRORS": "0"}
    seen = cpu_cell(env=env, cxx=compiler(problem="missing"))
    assert "TORCHDYNAMO_SUPPRESS_ERRORS=0 hides this" in probe.judge_cxx(seen).detail
    seen["children"]["cold"]["runs"]["function"]["error"] = ERROR
    assert "hides this" in probe.judge_compile(seen).detail
    assert "hides" not in probe.judge_cxx(cpu_cell(cxx=compiler(problem="missing"))).detail


@pytest.mark.parametrize(
    ("have", "status"),
    [
        ({"version": "0.15.2+cu117", "error": None}, "pass"),
        ({"version": "0.16.2", "error": None}, "fail"),
        ({"version": "0.15.2", "error": "operator torchvision::nms does not exist"}, "fail"),
    ],
)
def test_companions_that_the_cell_names(have: Seen, status: str) -> None:
    seen = cpu_cell(expect={"torchvision": "0.15.2", "torchaudio": None})
    seen["look"]["torchvision"] = have
    statuses = judged(seen)
    assert (statuses["torchvision"], statuses["torchaudio"]) == (status, "skip")


def test_numpy_2_with_an_old_torch_names_the_pin() -> None:
    seen = cpu_cell(version="2.0.1")
    seen["look"]["numpy"] = {"version": "2.0.2", "error": "RuntimeError: Numpy is not available"}
    assert "numpy<2" in probe.judge_numpy(seen).remedy
    seen["look"]["numpy"] = {"version": None, "error": None}
    assert probe.judge_numpy(seen).status == "skip"


def test_tracers_and_suppress_errors_only_warn() -> None:
    seen = cpu_cell()
    seen["look"] |= {"tracers": ["sys.settrace"], "suppress_errors_was": True}
    statuses = judged(seen)
    assert (statuses["tracer"], statuses["suppress-errors"]) == ("warn", "warn")
    assert decided(seen) == ("", "verified", 0)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("InvalidCxxCompiler: No working C++ compiler found in ...", "apt-get install g++"),
        ("Failed to find C compiler. Please specify via CC", "apt-get install gcc"),
        ("x.cpp:28:10: fatal error: Python.h: No such file or directory", "python3-dev"),
        ("/usr/bin/ld: final link failed: No space left on device", "Free space"),
        ("OSError: k.so: failed to map segment from shared object", "/tmp:exec"),
        ("OSError: [Errno 30] Read-only file system: '/cache/th'", "writable"),
        ("KeyError: 'getpwuid(): uid not found: 12345'", "USER"),
        ("AssertionError: libcuda.so cannot found!", "container runtime"),
        ("which is too old to be supported by the triton GPU compiler", "Volta"),
        ("ImportError: k.main.so: file too short", "Delete the cache"),
        (
            "OSError: /t/ee/ceetsenfwarpgusaeggvpdi7fd.so: cannot open shared object file",
            "Delete the cache",
        ),
        ("OSError: libcudnn.so.8: cannot open shared object file", "details.children"),
        ("g++: fatal error: cannot execute 'cc1plus'", "C++ compiler"),
        ("something that nobody has seen", "details.children"),
    ],
)
def test_messages_of_real_failures_lead_to_a_remedy(message: str, words: str) -> None:
    seen = cpu_cell()
    seen["children"]["cold"]["runs"]["function"]["error"] = ERROR | {"message": message}
    finding = probe.judge_compile(seen)
    assert finding.status == "fail"
    assert words in finding.remedy


EAGER = {"expect": {"compile": False}, "eager": True, "version": "1.13.1+cu117"}


def eager_cell(**changes: Any) -> Seen:
    """What is seen of torch 1.13.1."""
    seen = cpu_cell(**(EAGER | changes))
    seen["found"]["version"] = seen["look"]["torch"] = seen["version"]
    seen["look"]["has_compile"] = False
    seen["children"] = {"cold": child("cold", runs={}, eager={"error": 1e-7})}
    return seen


def test_eager_as_declared_promised_otherwise_or_not_at_all() -> None:
    assert decided(eager_cell()) == ("", "eager-as-declared", 3)
    promised = eager_cell(expect={"compile": True})
    assert decided(promised) == ("has-compile", "failed", 3)
    assert decided(eager_cell(expect={})) == ("has-compile", "unjudged", 3)


def test_an_eager_cuda_cell_needs_neither_triton_nor_a_new_gpu() -> None:
    assert decided(eager_cell(promised="cuda")) == ("", "eager-as-declared", 3)
    seen = eager_cell(promised="cuda", device="cuda")
    gpu = {"error": None, "name": "GTX 1080", "capability": [6, 1], "driver": "470.1"}
    seen["look"]["device"] = gpu
    assert decided(seen) == ("", "eager-as-declared", 3)


def test_an_eager_cell_with_wrong_numbers_or_another_torch_fails() -> None:
    wrong = eager_cell()
    wrong["children"]["cold"]["eager"] = {"error": None}
    assert decided(wrong) == ("numerics", "failed", 12)
    assert decided(eager_cell(expect={"compile": False, "torch": "1.13.0"}))[2] == 20


def test_what_lies_behind_a_failed_gate_is_not_judged() -> None:
    seen = cpu_cell()
    seen["look"] = {"import_error": "ImportError: libcudnn.so.8"}
    statuses = {c.id: f for c, f in probe.judge_stage(seen, "look")}
    assert statuses["has-compile"].detail == "not reached: torch-import failed"
    assert {f.status for c, f in statuses.items() if c != "torch-import"} == {"skip"}
