"""For each check a condition in which it fails and one in which it passes.

`GOOD` is a whole host: Ubuntu 22.04 with an A100 and torch 2.0.1+cu118, put together from what the
readers print. A condition is what differs from it, by dotted path.
"""

import copy
from typing import Any, NamedTuple

GB = 10**9
MB = 10**6
SITE = "/opt/env/lib/python3.10/site-packages"
TORCH = f"{SITE}/torch/lib"
NVIDIA = f"{SITE}/nvidia"


def dist(name: str, version: str, path: str = SITE, installer: str = "pip") -> dict[str, Any]:
    return {"name": name, "version": version, "path": path, "installer": installer}


def folder(path: str, **more: Any) -> dict[str, Any]:
    mount = {"point": "/", "type": "ext4", "options": ["rw"]}
    found = {"path": path, "judged": path, "exists": True, "writable": True, "noexec": False}
    return {**found, "free": 50 * GB, "owner": 1000, "mode": 0o700, "mount": mount, **more}


LIBRARIES = [
    f"{TORCH}/libtorch_cuda.so",
    f"{TORCH}/libgomp-a34b3233.so.1",
    f"{TORCH}/libcudart-d0da41ae.so.11.0",
    f"{TORCH}/libcublas.so.11",
    f"{TORCH}/libcudnn.so.8",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
]
GOOD: dict[str, Any] = {
    "schema": "provision.host-facts/1",
    "os": {"id": "ubuntu", "version": "22.04", "name": "Ubuntu 22.04.5 LTS"},
    "kernel": "5.15.0-163-generic",
    "arch": "x86_64",
    "glibc": "2.35",
    "pci": [{"address": "0000:17:00.0", "kind": "gpu", "model": "NVIDIA A100-SXM4-80GB"}],
    "driver": {
        "loaded": "535.288.01",
        "modules": "proprietary",
        "packages": [{"name": "nvidia-utils-535-server", "version": "535.288.01-0ubuntu1"}],
        "libraries": ["535.288.01"],
        "built_for": ["5.15.0-163-generic"],
        "other_sources": [],
    },
    "gpus": [
        {"name": "NVIDIA A100-SXM4-80GB", "compute_cap": "8.0", "driver_version": "535.288.01"}
    ],
    "secure_boot": False,
    "nouveau_loaded": False,
    "other_gpu_modules": [],
    "fabric_manager": {"present": False, "version": None, "active": False},
    "persistenced": True,
    "container": False,
    "wsl": False,
    "held": [],
    "unattended_upgrades": {"installed": False, "enabled": False, "spared": []},
    "containers": {
        "docker": {"present": True, "version": "28.2.2"},
        "nvidia_ctk": {"present": True, "version": "1.18.0"},
        "docker_runtimes": ["nvidia"],
        "cdi": [{"path": "/etc/cdi/nvidia.yaml", "versions": ["535.288.01"], "gone": []}],
    },
    "gcc": {"gcc": "11.4.0"},
    "library_path": {"etc_environment": False},
    "environment": {
        "schema": "provision.environment-facts/1",
        "python": {
            "version": "3.10.12",
            "executable": "/opt/env/bin/python",
            "prefix": "/opt/env",
            "base_prefix": "/usr",
            "path": ["/usr/lib/python3.10", SITE],
            "user_site": "/home/app/.local/lib/python3.10/site-packages",
            "user_site_enabled": False,
            "include": "/usr/include/python3.10",
        },
        "torch": {
            "file": f"{SITE}/torch/__init__.py",
            "version": "2.0.1+cu118",
            "cuda": "11.8",
            "places": [{"version": "2.0.1+cu118", "path": SITE}],
        },
        "imported": {
            "value": {
                "version": "2.0.1+cu118",
                "cuda": "11.8",
                "arch_list": [
                    "sm_37",
                    "sm_50",
                    "sm_60",
                    "sm_70",
                    "sm_75",
                    "sm_80",
                    "sm_86",
                    "sm_90",
                ],
                "cuda_available": True,
                "loaded": LIBRARIES,
            }
        },
        "distributions": [
            dist("torch", "2.0.1+cu118"),
            dist("torchvision", "0.15.2+cu118"),
            dist("torchaudio", "2.0.2+cu118"),
            dist("triton", "2.0.0"),
            dist("numpy", "1.26.4"),
            dist("setuptools", "69.5.1"),
        ],
        "conda": None,
        "variables": {"HOME": "/home/app", "USER": "app"},
        "user": {"uid": 1000, "name": "app"},
        "cpu": {"model": "AMD EPYC 7543", "flags": ["avx", "avx2", "fma"]},
        "traced_by": 0,
        "cache": folder("/tmp/torchinductor_app"),
        "tmp": folder("/tmp", owner=0, mode=0o1777),
        "shm": {"present": True, "total": 64 * GB, "free": 64 * GB},
        "compilers": {
            "trial": True,
            "c": {"tried": ["gcc"], "name": "gcc", "version": "gcc (Ubuntu 11.4.0) 11.4.0"},
            "cxx": {"tried": ["g++"], "name": "g++", "version": "g++ (Ubuntu 11.4.0) 11.4.0"},
            "headers": {
                "include": "/usr/include/python3.10",
                "expected": "/usr/include/python3.10",
            },
        },
        "nvcc": {
            "path": {"path": "/usr/local/cuda/bin/nvcc", "version": "11.8.89"},
            "home": {"path": None, "version": None},
            "usual": {"path": "/usr/local/cuda/bin/nvcc", "version": "11.8.89"},
        },
        "ptxas": {"path": f"{SITE}/triton/third_party/cuda/bin/ptxas", "version": "12.0.76"},
        "ldconfig": {
            "libcuda.so.1": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"],
            "libcuda.so": ["/usr/lib/x86_64-linux-gnu/libcuda.so"],
        },
        "libstdcxx": {
            "mapped": {"path": "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "newest": "3.4.30"},
            "system": {"path": "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "newest": "3.4.30"},
        },
        "devices": [
            {"path": "/dev/nvidia-uvm", "usable": True},
            {"path": "/dev/nvidia0", "usable": True},
            {"path": "/dev/nvidiactl", "usable": True},
        ],
        "driver": {
            "value": {
                "found": True,
                "init": 0,
                "file": "/usr/lib/x86_64-linux-gnu/libcuda.so.535.288.01",
                "version": "12.2",
                "devices": [{"name": "NVIDIA A100-SXM4-80GB", "capability": "8.0"}],
            }
        },
        "nvml": {
            "value": {
                "found": True,
                "init": 0,
                "driver": "535.288.01",
                "devices": [
                    {"name": "NVIDIA A100-SXM4-80GB", "capability": "8.0", "persistence": True}
                ],
            }
        },
    },
}

E = "environment."
V = E + "variables."
C = E + "driver.value."
NV = E + "nvml.value."
I = E + "imported.value."  # noqa: E741


class Condition(NamedTuple):
    """A check's answer where `changed` differs from GOOD; `cell` is what the cell would promise."""

    id: str
    status: str
    severity: str | None
    changed: dict[str, Any]
    cell: dict[str, str] | None = None


def gpu(name: str, capability: str) -> dict[str, Any]:
    return {
        NV + "devices": [{"name": name, "capability": capability, "persistence": True}],
        C + "devices": [{"name": name, "capability": capability}],
    }


def driver(version: str) -> dict[str, Any]:
    return {
        "driver.loaded": version,
        "driver.libraries": [version],
        NV + "driver": version,
        "gpus": [],
    }


def torch(label: str, cuda: str | None, arch: list[str] | None = None) -> dict[str, Any]:
    changed: dict[str, Any] = {
        E + "torch.version": label,
        E + "torch.cuda": cuda,
        I + "version": label,
        I + "cuda": cuda,
    }
    return changed if arch is None else {**changed, I + "arch_list": arch}


CPU = torch("2.0.1+cpu", None, [])
INSIDE = {"container": True}
SWITCHED = {
    "pci": [*GOOD["pci"], {"address": "0000:c4:00.0", "kind": "nvswitch"}],
}


def fails(check: str, severity: str, cell: dict[str, str] | None = None) -> Any:
    def made(changed: dict[str, Any]) -> Condition:
        return Condition(check, "fail", severity, changed, cell)

    return made


def passes(check: str, changed: dict[str, Any], cell: dict[str, str] | None = None) -> Condition:
    return Condition(check, "pass", None, changed, cell)


def other(check: str, status: str, changed: dict[str, Any]) -> Condition:
    return Condition(check, status, None, changed)


CDI = "/etc/cdi/nvidia.yaml"
UPGRADES = {"installed": True, "enabled": True, "spared": []}
REQUIRE = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=525,driver<526"
CELL = {"torch": "2.0.1", "cuda": "11.8"}
CONDA = {
    E + "conda": [{"name": "numpy", "version": "1.26.4", "build": "py310_0"}],
    E + "distributions": [dist("torch", "2.0.1+cu118"), dist("numpy", "1.26.4", SITE, "conda")],
}

CONDITIONS: list[Condition] = [
    passes("gpu.arch", {}),
    fails("gpu.arch", "error")(
        {**gpu("NVIDIA H200", "9.0"), **torch("2.0.1+cu117", "11.7", ["sm_70", "sm_80", "sm_86"])}
    ),
    fails("gpu.arch", "warn")(
        {**gpu("NVIDIA H200", "9.0"), I + "arch_list": ["sm_80", "compute_80"]}
    ),
    other("gpu.arch", "unknown", gpu("Frobnicator 9000", "") | {NV + "devices": [{}]}),
    other("gpu.arch", "skip", CPU),
    passes("gpu.compile", {}),
    fails("gpu.compile", "error")(gpu("NVIDIA GeForce GTX 1080", "6.1")),
    passes("gpu.driver", {}),
    fails("gpu.driver", "error")({**gpu("Tesla V100-SXM2-16GB", "7.0"), **driver("590.44.01")}),
    fails("gpu.driver", "error")({**gpu("NVIDIA B200", "10.0"), **driver("535.288.01")}),
    passes("driver.cuinit", {}),
    fails("driver.cuinit", "error")({C + "init": 100, C + "devices": []}),
    fails("driver.cuinit", "error")({C + "init": 802, C + "devices": []}),
    fails("driver.cuinit", "error")({C + "init": 999, C + "devices": []}),
    fails("driver.cuinit", "error")({E + "driver": {"died": "no answer in 30 s"}}),
    other("driver.cuinit", "skip", {C + "init": 803}),
    other("driver.cuinit", "skip", {E + "driver.value": {"found": False}}),
    passes("driver.mismatch", {}),
    fails("driver.mismatch", "error")({C + "init": 803, C + "devices": []}),
    fails("driver.mismatch", "error")({NV + "init": 18, NV + "driver": None}),
    fails("driver.mismatch", "error")({"driver.libraries": ["535.309.01"]}),
    other("driver.mismatch", "unknown", {"driver.loaded": None}),
    passes("driver.compat", {}),
    fails("driver.compat", "error")(
        {C + "init": 804, C + "file": "/usr/local/cuda-12.2/compat/libcuda.so.535.54.03"}
    ),
    fails("driver.compat", "note")(
        {C + "file": "/usr/local/cuda-12.2/compat/libcuda.so.535.54.03"}
    ),
    passes("driver.loaded", {}),
    fails("driver.loaded", "error")(
        {
            "driver.loaded": False,
            "driver.built_for": ["5.15.0-91-generic"],
            "gpus": [],
            E + "nvml.value": {"found": False},
        }
    ),
    fails("driver.loaded", "error")(
        {"driver.loaded": False, "gpus": [], E + "nvml.value": {"found": False}}
    ),
    other("driver.loaded", "unknown", {"driver.loaded": None, "gpus": None, E + "nvml": None}),
    passes("driver.run-floor", {}),
    fails("driver.run-floor", "error")(driver("440.33.01")),
    passes(
        "driver.run-floor",
        {**driver("440.33.01"), C + "file": "/usr/local/cuda-11.8/compat/libcuda.so.520.61.05"},
    ),
    passes("driver.compile-floor", {}),
    fails("driver.compile-floor", "error")(driver("470.256.02")),
    other(
        "driver.compile-floor",
        "skip",
        {**driver("470.256.02"), V + "TRITON_PTXAS_PATH": "/opt/ptxas118/bin/ptxas"},
    ),
    other("driver.compile-floor", "skip", torch("1.13.1+cu117", "11.7")),
    passes("driver.native", {}),
    fails("driver.native", "note")(driver("470.256.02")),
    passes("driver.libcuda", {}),
    fails("driver.libcuda", "error")({E + "ldconfig": {}, E + "driver.value": {"found": False}}),
    fails("driver.libcuda", "error")(
        {E + "ldconfig": {"libcuda.so.1": ["/usr/lib64/libcuda.so.1"]}}
    ),
    fails("driver.libcuda", "warn")({**torch("2.6.0+cu118", "11.8"), E + "ldconfig": {}}),
    other("driver.libcuda", "unknown", {E + "ldconfig": None}),
    passes("driver.devices", {}),
    fails("driver.devices", "error")(
        {E + "devices": [{"path": "/dev/nvidia0", "usable": False}]},
    ),
    fails("driver.devices", "error")(
        {
            E + "devices": [
                {"path": "/dev/nvidia0", "usable": True},
                {"path": "/dev/nvidiactl", "usable": True},
            ]
        }
    ),
    passes("driver.devices", {"wsl": True, E + "devices": [{"path": "/dev/dxg", "usable": True}]}),
    passes("host.upgrades", {}),
    fails("host.upgrades", "warn")({"unattended_upgrades": UPGRADES}),
    passes(
        "host.upgrades",
        {"unattended_upgrades": UPGRADES, "held": ["nvidia-utils-535-server"]},
    ),
    passes("host.upgrades", {"unattended_upgrades": {**UPGRADES, "spared": ["nvidia-"]}}),
    other("host.upgrades", "unknown", {"unattended_upgrades": None}),
    other("host.upgrades", "skip", {"unattended_upgrades": UPGRADES, **INSIDE}),
    passes(
        "host.fabric-manager",
        {
            **SWITCHED,
            "fabric_manager": {"present": True, "version": "535.288.01", "active": True},
        },
    ),
    fails("host.fabric-manager", "error")(SWITCHED),
    fails("host.fabric-manager", "error")(
        {
            **SWITCHED,
            "fabric_manager": {"present": True, "version": "535.261.03", "active": True},
        }
    ),
    fails("host.fabric-manager", "error")(
        {
            **SWITCHED,
            "fabric_manager": {"present": True, "version": "535.288.01", "active": False},
        }
    ),
    other("host.fabric-manager", "skip", {}),
    passes("host.persistence", {}),
    fails("host.persistence", "note")(
        {NV + "devices": [{"name": "NVIDIA A100", "capability": "8.0", "persistence": False}]}
    ),
    other("host.persistence", "unknown", {E + "nvml": None, "persistenced": False}),
    passes("host.secure-boot", {}),
    passes("host.secure-boot", {"secure_boot": True}),
    fails("host.secure-boot", "error")(
        {
            "secure_boot": True,
            "driver.loaded": False,
            "gpus": [],
            E + "nvml.value": {"found": False},
        }
    ),
    other("host.secure-boot", "unknown", {"secure_boot": None}),
    passes("host.other-driver", {}),
    fails("host.other-driver", "warn")({"other_gpu_modules": ["nouveau"]}),
    fails("host.other-driver", "error")(
        {
            "other_gpu_modules": ["nova_core"],
            "driver.loaded": False,
            "gpus": [],
            E + "nvml.value": {"found": False},
        }
    ),
    other("host.other-driver", "unknown", {"other_gpu_modules": None, "nouveau_loaded": None}),
    passes("packages.import", {}),
    fails("packages.import", "error")(
        {E + "imported": {"died": "OSError: libcublas.so.11: cannot open shared object file"}}
    ),
    other("packages.import", "skip", {E + "torch": None, E + "imported": None}),
    passes("packages.cell", {}, CELL),
    fails("packages.cell", "error", CELL)(torch("2.0.1+cu117", "11.7")),
    fails("packages.cell", "error", CELL)({E + "python.version": "3.11.2"}),
    other("packages.cell", "skip", {}),
    passes("packages.one-torch", {}),
    fails("packages.one-torch", "error")(
        {
            E + "torch.places": [
                {"version": "2.0.1+cu118", "path": SITE},
                {"version": "2.6.0", "path": "/home/app/.local/lib/python3.10/site-packages"},
            ]
        }
    ),
    fails("packages.one-torch", "warn")(
        {
            E + "python.user_site_enabled": True,
            E + "torch.file": "/home/app/.local/lib/python3.10/site-packages/torch/__init__.py",
        }
    ),
    passes("packages.two-owners", CONDA),
    fails("packages.two-owners", "error")(
        {**CONDA, E + "distributions": [dist("numpy", "2.0.2"), dist("torch", "2.0.1+cu118")]}
    ),
    other("packages.two-owners", "skip", {}),
    passes("packages.family", {}),
    fails("packages.family", "error")(
        {E + "distributions": [dist("torch", "2.0.1+cu118"), dist("torchvision", "0.16.0+cu118")]}
    ),
    fails("packages.family", "error")(
        {E + "distributions": [dist("torch", "2.0.1+cu118"), dist("torchaudio", "2.0.2+cpu")]}
    ),
    other("packages.family", "skip", {E + "distributions": [dist("torch", "2.0.1+cu118")]}),
    passes("packages.cpu-build", {}),
    fails("packages.cpu-build", "error")(CPU),
    fails("packages.cpu-build", "error", CELL)({**CPU, "pci": [], "gpus": [], E + "nvml": None}),
    other(
        "packages.cpu-build",
        "skip",
        {**CPU, "pci": [], "gpus": [], E + "nvml": None, E + "driver": None, E + "devices": []},
    ),
    other(
        "packages.cpu-build",
        "unknown",
        {
            **CPU,
            "pci": [],
            "gpus": [],
            E + "nvml": None,
            E + "driver": None,
            "wsl": True,
            E + "devices": [{"path": "/dev/dxg", "usable": True}],
        },
    ),
    passes("packages.numpy", {}),
    fails("packages.numpy", "error")(
        {E + "distributions": [dist("torch", "2.0.1+cu118"), dist("numpy", "2.2.6")]}
    ),
    fails("packages.numpy", "error")({I + "numpy_error": "RuntimeError: Numpy is not available"}),
    passes("packages.setuptools", {}),
    fails("packages.setuptools", "error")({E + "distributions": [dist("torch", "2.0.1+cu118")]}),
    fails("packages.setuptools", "warn")(
        {E + "distributions": [dist("torch", "2.0.1+cu118"), dist("setuptools", "82.0.0")]}
    ),
    passes("packages.triton", {}),
    fails("packages.triton", "error")({E + "distributions": [dist("triton", "3.2.0")]}),
    fails("packages.triton", "error")({E + "distributions": []}),
    passes("packages.python", {}),
    fails("packages.python", "error")({E + "python.version": "3.11.2"}),
    other("packages.python", "unknown", torch("2.99.0+cu118", "11.8")),
    passes("packages.known-bad", {}),
    fails("packages.known-bad", "error")(torch("2.6.0+cu126", "12.6")),
    fails("packages.known-bad", "warn")(torch("1.13.0+cu117", "11.7")),
    passes("libraries.cuda", {}),
    fails("libraries.cuda", "error")(
        {I + "loaded": [*LIBRARIES, "/usr/local/cuda-12.2/lib64/libcublasLt.so.12"]}
    ),
    fails("libraries.cuda", "warn")({I + "loaded": ["/usr/local/cuda-12.2/lib64/libcublas.so.12"]}),
    other("libraries.cuda", "skip", {E + "imported": {"died": "killed by signal 11"}}),
    passes("libraries.path", {}),
    fails("libraries.path", "warn")({V + "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/x"}),
    fails("libraries.path", "warn")({"library_path.etc_environment": "/usr/local/cuda/lib64"}),
    passes("libraries.path", {V + "LD_LIBRARY_PATH": "/opt/own/lib"}),
    passes("libraries.openmp", {}),
    fails("libraries.openmp", "warn")({I + "loaded": [*LIBRARIES, f"{SITE}/lib/libiomp5.so"]}),
    fails("libraries.openmp", "note")(
        {I + "loaded": [*LIBRARIES, f"{SITE}/numpy.libs/libgomp-9a.so.1"]}
    ),
    passes("libraries.mkl", {}),
    fails("libraries.mkl", "warn")(
        {I + "loaded": ["/opt/env/lib/libmkl_core.so.2", f"{SITE}/mkl/lib/libmkl_core.so.1"]}
    ),
    passes("libraries.glibc", {}),
    fails("libraries.glibc", "error")({"glibc": "2.12"}),
    other("libraries.glibc", "unknown", {"glibc": None}),
    passes("libraries.libstdcxx", {}),
    fails("libraries.libstdcxx", "warn")(
        {E + "libstdcxx.mapped": {"path": "/opt/env/lib/libstdc++.so.6", "newest": "3.4.26"}}
    ),
    other(
        "libraries.libstdcxx",
        "unknown",
        {E + "libstdcxx.mapped": {"path": "/opt/env/lib/libstdc++.so.6", "newest": None}},
    ),
    passes("toolkit.cc", {}),
    fails("toolkit.cc", "error")(
        {E + "compilers.c": {"tried": ["gcc", "clang"], "problem": "missing"}}
    ),
    fails("toolkit.cc", "error")(
        {
            E + "compilers.c": {
                "tried": ["gcc"],
                "name": "gcc",
                "problem": "fails",
                "said": "gcc: fatal error: cannot execute cc1: execvp: No such file",
            }
        }
    ),
    passes("toolkit.cxx", {}),
    fails("toolkit.cxx", "error")({E + "compilers.cxx": {"tried": ["g++"], "problem": "missing"}}),
    other("toolkit.cxx", "skip", torch("1.13.1+cu117", "11.7")),
    passes("toolkit.headers", {}),
    fails("toolkit.headers", "error")(
        {E + "compilers.headers": {"expected": "/usr/include/python3.10", "problem": "missing"}}
    ),
    fails("toolkit.headers", "note")(
        {
            **CPU,
            E + "compilers.headers": {"expected": "/usr/include/python3.10", "problem": "missing"},
        }
    ),
    passes("toolkit.nvcc", {}),
    fails("toolkit.nvcc", "warn")(
        {
            E + "nvcc.path.version": "12.4.131",
            E + "nvcc.usual.version": "12.4.131",
        }
    ),
    fails("toolkit.nvcc", "warn")(
        {
            V + "CUDA_HOME": "/usr/local/cuda-12.4",
            E + "nvcc.home": {"path": "/usr/local/cuda-12.4/bin/nvcc", "version": "12.4.131"},
        }
    ),
    fails("toolkit.nvcc", "warn")(
        {
            V + "CUDA_HOME": "/usr/local/cuda-9",
            E + "nvcc.home": {"path": "/usr/local/cuda-9/bin/nvcc", "version": None},
        }
    ),
    passes("toolkit.host-compiler", {}),
    fails("toolkit.host-compiler", "warn")(
        {E + "compilers.cxx.version": "g++ (Debian 12.2.0-14) 12.2.0", "gcc": {"gcc": "12.2.0"}}
    ),
    fails("toolkit.host-compiler", "warn")(
        {
            E + "compilers.cxx.version": "g++ (Debian 12.2.0-14) 12.2.0",
            "gcc": {"gcc": "12.2.0", "gcc-11": "11.3.0"},
        }
    ),
    fails("toolkit.host-compiler", "warn")({"glibc": "2.41"}),
    passes("toolkit.ptxas", {}),
    fails("toolkit.ptxas", "error")({E + "ptxas": {"error": "status 126, Permission denied"}}),
    fails("toolkit.ptxas", "error")(
        {
            V + "TRITON_PTXAS_PATH": "/nonexistent/ptxas",
            E + "ptxas.named": {"path": "/nonexistent/ptxas", "error": "status 127"},
        }
    ),
    fails("toolkit.ptxas", "error")(gpu("NVIDIA B200", "10.0")),
    passes("process.vectors", {}),
    fails("process.vectors", "error")({V + "ATEN_CPU_CAPABILITY": "avx512"}),
    fails("process.vectors", "note")({E + "cpu.flags": ["avx"]}),
    fails("process.vectors", "warn")({E + "cpu.flags": []}),
    other("process.vectors", "unknown", {E + "cpu": None}),
    passes("process.switched-off", {}),
    fails("process.switched-off", "error")({V + "TORCHDYNAMO_DISABLE": "1"}),
    fails("process.switched-off", "error")({V + "TORCH_COMPILE_DISABLE": "0"}),
    passes(
        "process.switched-off",
        {**torch("2.13.0+cu130", "13.0"), V + "TORCH_COMPILE_DISABLE": "0"},
    ),
    passes("process.suppressed", {}),
    fails("process.suppressed", "warn")({V + "TORCHDYNAMO_SUPPRESS_ERRORS": "1"}),
    passes("process.tracer", {}),
    fails("process.tracer", "note")({V + "PYDEVD_USE_CYTHON": "1"}),
    fails("process.tracer", "note")({E + "traced_by": 4711}),
    passes("cache.user", {}),
    fails("cache.user", "error")({E + "user": {"uid": 12345, "name": None}}),
    fails("cache.user", "warn")(
        {E + "user": {"uid": 12345, "name": None}, V + "TORCHINDUCTOR_CACHE_DIR": "/scratch/c"}
    ),
    passes("cache.writable", {}),
    fails("cache.writable", "error")(
        {E + "cache": folder("/tmp/torchinductor_app", writable=False, mode=0o500)}
    ),
    fails("cache.writable", "error")(
        {E + "cache": folder("/tmp/torchinductor_app", writable=False, owner=0, mode=0o755)}
    ),
    passes("cache.missing", {}),
    fails("cache.missing", "note")(
        {
            V + "TORCHINDUCTOR_CACHE_DIR": "/scratch/cache",
            E + "cache": folder("/scratch/cache", judged="/scratch", exists=False),
        }
    ),
    passes("cache.noexec", {}),
    fails("cache.noexec", "error")({E + "cache.noexec": True}),
    passes("cache.space", {}),
    fails("cache.space", "error")({E + "cache.free": 3 * MB}),
    other("cache.space", "unknown", {E + "cache.free": None}),
    passes("cache.network", {}),
    fails("cache.network", "warn")(
        {E + "cache.mount": {"point": "/home", "type": "nfs4", "options": ["rw"]}}
    ),
    passes("cache.shared", {}),
    fails("cache.shared", "error")({E + "cache.owner": 1001}),
    fails("cache.shared", "warn")({E + "cache.mode": 0o777}),
    fails("cache.shared", "note")({V + "LOCAL_WORLD_SIZE": "8"}),
    passes("cache.shm", {}),
    fails("cache.shm", "warn")({E + "shm": {"present": True, "total": 67108864, "free": 67108864}}),
    passes("cache.tmp", {}),
    fails("cache.tmp", "warn")({E + "tmp.free": 100 * MB}),
    fails("cache.tmp", "warn")({E + "tmp.noexec": True}),
    fails("cache.tmp", "error")(
        {E + "tmp.writable": False, E + "tmp.error": "Read-only file system"}
    ),
    passes("container.gate", {V + "NVIDIA_REQUIRE_CUDA": "cuda>=11.8 brand=tesla"}),
    passes("container.gate", {**driver("525.147.05"), V + "NVIDIA_REQUIRE_CUDA": REQUIRE}),
    fails("container.gate", "error")({**driver("515.105.01"), V + "NVIDIA_REQUIRE_CUDA": REQUIRE}),
    fails("container.gate", "note")(
        {
            **driver("515.105.01"),
            V + "NVIDIA_REQUIRE_CUDA": REQUIRE,
            V + "NVIDIA_DISABLE_REQUIRE": "1",
        }
    ),
    passes("container.cdi", {}),
    fails("container.cdi", "error")(
        {"containers.cdi": [{"path": CDI, "versions": ["535.161.08"], "gone": []}]}
    ),
    fails("container.cdi", "error")(
        {"containers.cdi": [{"path": CDI, "versions": [], "gone": ["/dev/nvidia7"]}]}
    ),
    other("container.cdi", "unknown", {"containers.cdi": None}),
    passes("container.hidden", {}),
    fails("container.hidden", "error")({V + "CUDA_VISIBLE_DEVICES": ""}),
    fails("container.hidden", "error")({**INSIDE, V + "NVIDIA_VISIBLE_DEVICES": "void"}),
    fails("container.hidden", "error")({**INSIDE, V + "NVIDIA_DRIVER_CAPABILITIES": "utility"}),
    passes("container.runtime", {}),
    fails("container.runtime", "warn")(
        {"containers.nvidia_ctk": {"present": False}, "containers.docker_runtimes": []}
    ),
    fails("container.runtime", "warn")(
        {"containers.docker_runtimes": [], "containers.cdi": []},
    ),
    other("container.runtime", "unknown", {"containers.docker": None}),
]


def changed_facts(changed: dict[str, Any]) -> dict[str, Any]:
    """GOOD with some values replaced, by dotted path (a variable's name has no dot)."""
    facts = copy.deepcopy(GOOD)
    for path, value in changed.items():
        *parents, last = path.split(".")
        place = facts
        for name in parents:
            place = place[name]
        place[last] = copy.deepcopy(value)
    return facts
