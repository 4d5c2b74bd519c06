"""The fact reader on recorded hosts: what is there, what is not, and what is not known."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import READER, facts_of

from provisioner.host.facts import SCHEMA, Host, collect


def test_it_is_python_3_6_and_the_standard_library_alone() -> None:
    """Hosts of EL8 and Debian 10 have no newer one; nothing is installed there first."""
    tree = ast.parse(READER.read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported <= {
        "argparse", "glob", "json", "os", "re", "shutil", "stat", "subprocess", "sys",
    }  # fmt: skip
    origins = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert origins == {"typing"}
    later = {"capture_output", "text", "missing_ok"}  # arguments of 3.7 and 3.8
    assert not later & {
        keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call)
        for keyword in node.keywords
    }  # fmt: skip


def test_a_bare_host_has_no_driver_and_no_gpu(tmp_path: Path) -> None:
    facts = facts_of("debian12-bare", tmp_path)
    assert facts["schema"] == SCHEMA
    assert facts["os"]["id"] == "debian"
    assert facts["os"]["codename"] == "bookworm"
    assert (facts["kernel"], facts["arch"], facts["glibc"]) == ("6.1.0-37-amd64", "x86_64", "2.36")
    assert facts["pci"] == []
    assert facts["gpus"] == []
    # A package that was removed and left its configuration is not installed.
    assert facts["driver"]["packages"] == []
    assert facts["driver"]["loaded"] is False
    assert facts["secure_boot"] is False
    assert facts["nouveau_loaded"] is False
    assert facts["held"] == []
    assert facts["unattended_upgrades"] == {"installed": False, "enabled": False, "spared": []}
    assert facts["nvcc"] == {"present": False, "version": None}
    assert facts["disk"]["/"] == {"total": 103079200 * 1024, "free": 90640000 * 1024}
    assert facts["unreadable"] == []


def test_a_gpu_host_tells_what_is_loaded_and_what_is_installed(tmp_path: Path) -> None:
    facts = facts_of("ubuntu22.04-a100-535", tmp_path)
    driver = facts["driver"]
    assert driver["loaded"] == "535.288.01"
    assert driver["modules"] == "proprietary"
    assert [package["name"] for package in driver["packages"]] == [
        "nvidia-driver-535-server",
        "libnvidia-compute-535-server",
    ]
    assert driver["packages"][0]["version"] == "535.309.01-0ubuntu0.22.04.2"
    assert driver["built_for"] == ["5.15.0-163-generic"]
    assert [(d["kind"], d["model"]) for d in facts["pci"]] == [
        ("gpu", "NVIDIA A100-SXM4-80GB"),
        ("nvswitch", None),
    ]
    assert facts["gpus"][0]["compute_cap"] == "8.0"
    assert facts["gpu_processes"] == [
        {"pid": "4711", "process_name": "python3", "used_memory": None}
    ]
    assert facts["secure_boot"] is True
    assert facts["held"] == ["nvidia-driver-535-server"]
    assert facts["unattended_upgrades"] == {
        "installed": True,
        "enabled": True,
        "spared": ["linux-"],
    }
    assert facts["containers"]["docker"] == {"present": True, "version": "28.2.2"}
    assert facts["containers"]["docker_runtimes"] == ["nvidia"]
    assert facts["containers"]["cdi_specs"] == ["/var/run/cdi/nvidia.yaml"]
    assert facts["cuda_toolkits"] == ["/usr/local/cuda-11.8"]
    assert facts["nvcc"]["version"] == "11.8.89"
    assert facts["gcc"] == {"gcc": "11.4.0"}
    assert facts["library_path"]["etc_environment"] == "/usr/local/cuda/lib64"
    assert facts["library_path"]["ld_so_conf"] == {
        "/etc/ld.so.conf.d/cuda.conf": ["/usr/local/cuda-11.8/lib64"]
    }
    assert facts["disk"]["/dev/shm"] is None
    assert facts["unreadable"] == ["df -Pk /dev/shm: exit status 1"]


def test_a_run_file_driver_is_seen_beside_no_package(tmp_path: Path) -> None:
    facts = facts_of("el9-h100-runfile", tmp_path)
    assert facts["os"]["like"] == ["rhel", "centos", "fedora"]
    assert facts["driver"]["loaded"] == "580.159.04"
    assert facts["driver"]["modules"] == "open"
    assert facts["driver"]["packages"] == []
    assert facts["driver"]["other_sources"] == [
        "/usr/bin/nvidia-uninstall",
        "/var/log/nvidia-installer.log",
    ]
    assert facts["pci"][0]["model"] == "H100 SXM5 80GB"
    assert facts["gpus"] is None  # nvidia-smi is there and failed
    assert facts["gpu_processes"] is None
    assert facts["held"] == ["kernel-0:5.14.0-570.12.1.el9_6.*"]
    assert facts["unattended_upgrades"]["installed"] is True


def test_what_cannot_be_read_is_unknown_and_never_absent(tmp_path: Path) -> None:
    facts = facts_of("unreadable", tmp_path)
    for name in ("os", "kernel", "arch", "glibc", "pci", "secure_boot", "nouveau_loaded", "held"):
        assert facts[name] is None, name
    assert facts["unattended_upgrades"] is None
    assert facts["driver"]["packages"] is None
    assert facts["driver"]["dkms"] is None
    assert facts["nvcc"] == {"present": True, "version": None}
    assert "dkms status: exit status 1" in facts["unreadable"]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            "nvidia-current/535.261.03, 6.1.0-37-amd64, x86_64: installed\n",
            [("nvidia-current", "535.261.03", "6.1.0-37-amd64", "installed")],
        ),
        (
            "nvidia, 470.256.02, 5.10.0-33-amd64, x86_64: built\nzfs, 2.0.3: added\n",
            [("nvidia", "470.256.02", "5.10.0-33-amd64", "built")],
        ),
        ("nvidia-current/535.261.03: added\n", [("nvidia-current", "535.261.03", None, "added")]),
        (
            "nvidia/580.82.07, 6.8.0-90, x86_64: installed (WARNING! Diff between modules!)\n",
            [("nvidia", "580.82.07", "6.8.0-90", "installed")],
        ),
    ],
)
def test_both_wordings_of_dkms_are_understood(
    said: str, wanted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    facts = collect(Host(str(tmp_path), {"dkms status": (0, said)}))
    rows = facts["driver"]["dkms"]
    assert [(r["module"], r["version"], r["kernel"], r["state"]) for r in rows] == wanted


@pytest.mark.parametrize(("last", "wanted"), [(1, True), (0, False)])
def test_the_firmware_says_whether_secure_boot_is_on(
    last: int, wanted: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    (folder / name).write_bytes(bytes([6, 0, 0, 0, last]))
    assert collect(Host(str(tmp_path), {}))["secure_boot"] is wanted


def test_a_recorded_host_never_asks_a_program_of_this_machine(tmp_path: Path) -> None:
    command = [sys.executable, str(READER), "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["arch"] is None
    assert facts["containers"]["docker"]["present"] is False


def test_this_machine_is_read_through_standard_input() -> None:
    """As over ssh: `ssh HOST python3 - < facts.py`."""
    done = subprocess.run(
        [sys.executable, "-I", "-"], input=READER.read_bytes(), capture_output=True, check=True
    )
    facts = json.loads(done.stdout)
    assert facts["kernel"]
    assert facts["arch"]
    assert facts["disk"]["/"]["total"] > 0


def test_a_bad_recording_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "answers.json"
    bad.write_text("[1]")
    command = [sys.executable, str(READER), "--answers", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


QUERY = "nvidia-smi --query-gpu={} --format=csv,noheader,nounits"
FIELDS = "index,name,uuid,driver_version,compute_cap,memory.total,pci.bus_id"


def test_a_driver_without_compute_cap_still_tells_its_gpus(tmp_path: Path) -> None:
    """Branch 470 refuses the whole question for one field that it does not know."""
    answers = {
        QUERY.format(FIELDS): (2, 'Field "compute_cap" is not a valid field to query.\n'),
        QUERY.format(FIELDS.replace("compute_cap,", "")): (
            0,
            "0, Tesla K80, GPU-1, 470.256.02, 11441, 00000000:00:1E.0\n",
        ),
    }
    (row,) = collect(Host(str(tmp_path), answers))["gpus"]
    assert (row["name"], row["driver_version"], row["compute_cap"]) == (
        "Tesla K80",
        "470.256.02",
        None,
    )


def test_the_driver_of_a_run_file_is_known_by_its_library(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.535.288.01"):
        (folder / name).touch()
    assert collect(Host(str(tmp_path), {}))["driver"]["libraries"] == ["535.288.01"]


def test_a_cdi_specification_tells_its_driver_and_what_is_gone(tmp_path: Path) -> None:
    spec = tmp_path / "etc/cdi/nvidia.yaml"
    spec.parent.mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    spec.write_text(
        "containerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\n    hostPath: /dev/nvidiactl\n"
        "  mounts:\n  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08\n"
        "    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08\n"
    )
    assert collect(Host(str(tmp_path), {}))["containers"]["cdi"] == [
        {
            "path": "/etc/cdi/nvidia.yaml",
            "versions": ["535.161.08"],
            "gone": ["/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08"],
        }
    ]


@pytest.mark.parametrize(("said", "active"), [("active\n", True), ("failed\n", False)])
def test_the_fabric_manager_is_a_package_and_a_service(
    said: str, active: bool, tmp_path: Path
) -> None:
    form = "${db:Status-Abbrev}\\t${binary:Package}\\t${Version}\\n"
    row = "ii \tnvidia-fabricmanager-535\t535.288.01-1\n"
    answers = {
        f"dpkg-query -W -f={form}": (0, row),
        "systemctl is-active nvidia-fabricmanager": (0 if active else 3, said),
    }
    facts = collect(Host(str(tmp_path), answers))
    assert facts["fabric_manager"] == {"present": True, "version": "535.288.01", "active": active}


@pytest.mark.parametrize(
    ("path", "text", "name", "value"),
    [
        ("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n", "wsl", True),
        ("proc/sys/kernel/osrelease", "6.1.0-37-amd64\n", "wsl", False),
        ("proc/modules", "nova_core 1 0 - Live 0x0\n", "other_gpu_modules", ["nova_core"]),
        (".dockerenv", "", "container", True),
        ("proc/1/cgroup", "0::/init.scope\n", "container", False),
    ],
)
def test_what_kind_of_machine_it_is(
    path: str, text: str, name: str, value: object, tmp_path: Path
) -> None:
    place = tmp_path / path
    assert collect(Host(str(tmp_path), {}))[name] in (None, []), "nothing there tells"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    assert collect(Host(str(tmp_path), {}))[name] == value
