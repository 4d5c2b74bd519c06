"""The probe on a real torch: what it proves of a good one, and how it lives through a bad end."""

import ctypes
import json
from pathlib import Path

import jsonschema
from support.needs import skip_or_fail
from torch_env import QUICK, Outcome, TorchEnv

from provisioner.errors import Exit
from provisioner.verify import probe, report


def test_a_good_environment_is_verified(torch: TorchEnv, verified: Outcome) -> None:
    """A build for CUDA that was judged on the CPU says that the other half is still to come."""
    deferred = torch.build.cuda is not None
    assert verified.code == 0, verified.stdout
    assert verified.report["verdict"] == ("cpu-verified-cuda-deferred" if deferred else "verified")
    assert verified.report["torch"] == torch.build.local
    assert {c["status"] for c in verified.report["checks"]} <= {"pass", "skip"}
    assert max(map(len, verified.stdout.splitlines())) <= 80
    jsonschema.validate(verified.report, report.json_schema())
    model = report.parse_report(json.dumps(verified.report).encode(), "here")
    assert report.exit_status(model) is (Exit.DONE)


def test_its_report_shows_the_evidence(torch: TorchEnv, verified: Outcome) -> None:
    artefacts, details = verified.report["artefacts"], verified.report["details"]
    assert artefacts["kernel_so"] >= 1
    assert artefacts["cpp"] > artefacts["kernel_so"]
    kernels = {kernel["path"] for kernel in details["cache"]["kernel_so"] if kernel["marked"]}
    cold, warm = details["children"]
    for child in (cold, warm):
        assert kernels & set(child["mapped_so"])
        assert set(child["runs"]) == {*probe.RUNS, "bf16"}
        assert child["runs"]["counted"]["calls"] >= 1
        for run in child["runs"].values():
            assert run["error_compiled"] < run.get("floor", 1e-5)
    hits = [child["runs"]["net"]["cache_hits"] for child in (cold, warm)]
    if torch.build.release >= (2, 5):  # whole graphs are found again since the cache of them is on
        assert hits == [0, 1]
        first = [child["runs"]["function"]["first_call_s"] for child in (cold, warm)]
        assert first[0] > first[1]
    else:
        assert hits == [0, 0]


def test_nothing_is_left_behind(verified: Outcome) -> None:
    assert list(Path(verified.report["details"]["tmp"]["judged"]).iterdir()) == []


def test_the_private_folder_is_kept_on_request(torch: TorchEnv, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "PATH": "/nowhere"}
    outcome = torch.probe("--keep", env=env)
    assert [str(path) for path in tmp_path.iterdir()] == [outcome.report["details"]["kept"]]


def test_a_child_that_crashes(torch: TorchEnv) -> None:
    code = "if phase:\n    import ctypes\n    ctypes.string_at(0)\n"
    outcome = torch.probe(env=torch.start_up("crash", code))
    assert (outcome.decided, outcome.code) == ("cold", 13)
    assert "died of SIGSEGV" in outcome.stdout


def test_a_child_that_hangs_is_ended_with_all_it_started(torch: TorchEnv) -> None:
    code = (
        "if phase:\n    import subprocess, time\n"
        "    subprocess.Popen(['sleep', '4242'])\n    time.sleep(4242)\n"
    )
    outcome = torch.probe("--timeout", "2", env=torch.start_up("hang", code))
    assert (outcome.decided, outcome.code) == ("cold", 13)
    assert "no result in 2 s" in outcome.stdout
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"4242" in read(p)]
    assert left == []


def read(path: Path) -> bytes:
    """The content of a file that may vanish."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


# Changes every kernel of the cold child before the warm one starts; the sources stay.
DAMAGE = """
if phase == "warm":
    import os
    for place, _, names in os.walk(os.environ["TORCHINDUCTOR_CACHE_DIR"]):
        for name in names:
            path = os.path.join(place, name)
            source = path[:-3] + ".cpp"
            if not name.endswith(".so") or not os.path.exists(source):
                continue
            if "_chk_kernel" not in open(source).read():
                {damage}
"""


def test_kernels_damaged_between_the_two_children(torch: TorchEnv) -> None:
    """A cut library kills whoever maps it: the parent lives and tells."""
    code = DAMAGE.format(damage="os.truncate(path, 1000)")
    outcome = torch.probe(env=torch.start_up("damaged", code) | QUICK)
    assert (outcome.decided, outcome.code) == ("warm", 13)
    assert outcome.report["details"]["children"][1]["signal"] == "SIGBUS"


def test_kernels_of_another_machine_in_the_warm_cache(torch: TorchEnv) -> None:
    """As a cache on a shared folder has them: whole libraries, for another kind of CPU."""
    machine = 62 if probe.host_machine() == 183 else 183
    damage = f"with open(path, 'r+b') as file: file.seek(18); file.write(bytes([{machine}, 0]))"
    code = DAMAGE.format(damage=damage)
    outcome = torch.probe(env=torch.start_up("foreign", code) | QUICK)
    assert (outcome.decided, outcome.code) == ("compile", 10)
    assert "The compile failed (warm" in " ".join(outcome.stdout.split())


def test_cuda_without_a_gpu_is_unjudged(torch: TorchEnv) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        skip_or_fail("no-gpu", "this machine has a CUDA driver")
    outcome = torch.probe("--device", "cuda")
    assert (outcome.decided, outcome.code) == ("device", 21)
    assert outcome.report["verdict"] == "unjudged"
    assert "--device cpu" in outcome.stdout
