#!/usr/bin/env python3
"""Reads what a GPU host is and has; changes nothing. One file, standard library, Python 3.6+.

    python3 facts.py                 as a file
    ssh HOST python3 - < facts.py    over ssh, nothing is left behind

Prints one JSON object, schema provision.host-facts/1. null means "could not be read": a file that
this user may not read, a program that failed or did not answer. It never stands for "is not there":
that is false, an empty list, or {"present": false}. Sizes are bytes. `unreadable` says what failed.

With --root DIR the files of a recorded host are read below DIR, and its programs are not run: their
answers come from --answers FILE, a JSON list of [command line, exit status, standard output].
"""

import argparse
import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

Answers = Dict[str, Tuple[int, str]]
Facts = Dict[str, Any]
Packages = Optional[List[Tuple[str, str]]]

SCHEMA = "provision.host-facts/1"
TIMEOUT_S = 30
FILE_LIMIT = 1 << 20
NVIDIA = "0x10de"
FOLDERS = ("/", "/var", "/opt", "/tmp")
LIBCUDA = (
    "/usr/lib/*-linux-gnu/libcuda.so.[0-9]*",
    "/usr/lib/*-linux-gnu/nvidia/current/libcuda.so.[0-9]*",
    "/usr/lib64/libcuda.so.[0-9]*",
    "/usr/lib/wsl/lib/libcuda.so.[0-9]*",
)
OTHER_GPU_MODULES = ("nouveau", "nova_core", "nova_drm", "vfio_pci")
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "memory.total",
    "pci.bus_id",
)
DRIVER_PACKAGE = re.compile(
    r"^(nvidia-|libnvidia-|kmod-nvidia|dkms-nvidia|cuda-drivers|libcuda1$|libgl1-nvidia|libnvcuvid"
    r"|firmware-nvidia|xserver-xorg-video-nvidia|linux-(modules|objects|signatures)-nvidia)"
)
NOT_DRIVER = re.compile(r"container|nvidia-(cuda|docker|profiler|visual|texture|driver-pinning)")


class Host:
    """Files and programs of this host, or of a recorded one below `root`."""

    def __init__(self, root: str = "/", answers: Optional[Answers] = None) -> None:
        self.root = root
        self.recorded = answers
        self.unreadable: List[str] = []
        self.dpkg: Optional[str] = None

    def path(self, name: str) -> str:
        return os.path.join(self.root, name.lstrip("/"))

    def failed(self, what: str, why: object) -> None:
        line = "{}: {}".format(what, why)
        if line not in self.unreadable:
            self.unreadable.append(line)

    def read(self, name: str) -> Optional[str]:
        """The text of a file; "" when it is not there, None when it cannot be read."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path(name), flags)
            with os.fdopen(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError("not a regular file")  # noqa: TRY301
                return stream.read(FILE_LIMIT).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            self.failed(name, error.strerror or error)
            return None

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def names(self, folder: str) -> Optional[List[str]]:
        """Sorted names in a folder; [] when it is not there, None when it cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.failed(folder, error.strerror or error)
            return None

    def glob(self, pattern: str) -> List[str]:
        found = sorted(glob.glob(self.path(pattern)))
        return ["/" + os.path.relpath(name, self.root) for name in found]

    def program(self, name: str) -> Optional[str]:
        """Where a program is on PATH, or None."""
        if self.recorded is None:
            # Not everybody's PATH has the folders where dkms and mokutil are.
            path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin:/usr/local/bin"
            return shutil.which(name, path=path)
        return name if any(line.split()[0] == name for line in self.recorded) else None

    def ask(
        self, *argv: str, accept: Tuple[int, ...] = (0,)
    ) -> Tuple[Optional[int], Optional[str]]:
        """Exit status and output of a program; (None, None) when it gave no answer."""
        line = " ".join(argv)
        program = self.program(argv[0])
        if program is None:
            return None, None
        if self.recorded is not None:
            if line not in self.recorded:
                self.failed(line, "not in the recording")
                return None, None
            status, said = self.recorded[line]
        else:
            environ = dict(os.environ, LC_ALL="C", PATH=os.environ.get("PATH", os.defpath))
            try:
                done = subprocess.run(
                    (program,) + argv[1:],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    timeout=TIMEOUT_S,
                    check=False,
                    env=environ,
                )
            except subprocess.TimeoutExpired:
                self.failed(line, "no answer in {} s".format(TIMEOUT_S))
                return None, None
            except OSError as error:
                self.failed(line, error.strerror or error)
                return None, None
            status, said = done.returncode, done.stdout.decode("utf-8", "replace")
        if status not in accept:
            self.failed(line, "exit status {}".format(status))
            return status, None
        return status, said

    def space(self, folder: str) -> Optional[Facts]:
        """Total and free bytes of a folder's file system: as statvfs says, or a recorded df."""
        if self.recorded is None:
            try:
                status = os.statvfs(folder)
            except OSError as error:
                self.failed(folder, error.strerror or error)
                return None
            size = status.f_frsize
            return {"total": status.f_blocks * size, "free": status.f_bavail * size}
        said = self.said("df", "-Pk", folder)
        fields = said.strip().splitlines()[-1].split() if said and said.strip() else []
        if len(fields) < 6 or not (fields[1].isdigit() and fields[3].isdigit()):
            return None
        return {"total": int(fields[1]) * 1024, "free": int(fields[3]) * 1024}

    def said(self, *argv: str, accept: Tuple[int, ...] = (0,)) -> Optional[str]:
        """The output of a program, or None."""
        return self.ask(*argv, accept=accept)[1]


def operating_system(host: Host) -> Optional[Facts]:
    text = host.read("/etc/os-release") or host.read("/usr/lib/os-release")
    if not text:
        return None
    fields = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            fields[name.strip()] = value.strip().strip("\"'")
    return {
        "id": fields.get("ID"),
        "version": fields.get("VERSION_ID"),
        "codename": fields.get("VERSION_CODENAME"),
        "like": fields.get("ID_LIKE", "").split(),
        "name": fields.get("PRETTY_NAME"),
    }


def line_of(text: Optional[str]) -> Optional[str]:
    """The first line of what was said, or None."""
    return text.strip().splitlines()[0].strip() if text and text.strip() else None


def glibc(host: Host) -> Optional[str]:
    if host.recorded is None:
        try:
            said = os.confstr("CS_GNU_LIBC_VERSION")
        except (OSError, ValueError):  # another C library: musl
            said = None
    else:
        said = host.said("getconf", "GNU_LIBC_VERSION")
    found = re.search(r"glibc ([0-9.]+)", said or "")
    return found.group(1) if found else None


def pci_devices(host: Host) -> Optional[List[Facts]]:
    """Displays (class 0x03) and NVSwitch bridges (0x0680) of NVIDIA, by their place on the bus."""
    if not host.exists("/sys/bus/pci/devices"):
        return None
    found = []
    for address in host.names("/sys/bus/pci/devices") or []:
        place = "/sys/bus/pci/devices/" + address
        if line_of(host.read(place + "/vendor")) != NVIDIA:
            continue
        kind = line_of(host.read(place + "/class")) or ""
        if not kind.startswith(("0x03", "0x0680")):
            continue
        link = host.path(place + "/driver")
        bound = os.path.basename(os.readlink(link)) if os.path.islink(link) else False
        found.append(
            {
                "address": address,
                "device": line_of(host.read(place + "/device")),
                "class": kind,
                "kind": "gpu" if kind.startswith("0x03") else "nvswitch",
                "bound_to": bound,
                "model": model_of(host, address),
            }
        )
    return found


def model_of(host: Host, address: str) -> Optional[str]:
    """The name that the loaded driver gives, else that of the list of PCI names, else None."""
    text = host.read("/proc/driver/nvidia/gpus/{}/information".format(address))
    found = re.search(r"^Model:\s*(.+?)\s*$", text or "", re.M)
    if found:
        return found.group(1)
    said = host.said("lspci", "-D", "-s", address)
    found = re.search(r"NVIDIA Corporation .*\[([^]]+)\]", said or "")
    return found.group(1) if found else None


def dpkg_rows(host: Host) -> Optional[List[Tuple[str, str, str]]]:
    """(state, name, version) of everything that dpkg knows; None when it gave no answer."""
    form = "${db:Status-Abbrev}\\t${binary:Package}\\t${Version}\\n"
    said = host.dpkg if host.dpkg is not None else host.said("dpkg-query", "-W", "-f=" + form)
    host.dpkg = said  # asked twice: for what is installed and for what is held
    if said is None:
        return None
    rows = [line.split("\t") for line in said.splitlines()]
    return [(r[0], r[1].split(":")[0], r[2]) for r in rows if len(r) == 3]


def packages(host: Host) -> Packages:
    """Every installed package as (name, version); None when the package manager gave no answer."""
    if host.program("dpkg-query"):
        rows = dpkg_rows(host)
        if rows is None:
            return None
        # Second letter: what is, not what is wanted (`hi` is held and installed, `rc` is gone).
        return [(name, version) for state, name, version in rows if state[1:2] not in "nc"]
    if host.program("rpm"):
        said = host.said("rpm", "-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n")
        if said is None:
            return None
        pairs = [line.partition("\t") for line in sorted(said.splitlines()) if "\t" in line]
        return [(name, version) for name, _, version in pairs]
    host.failed("packages", "neither dpkg-query nor rpm")
    return None


def driver(host: Host, installed: Packages) -> Facts:
    version = host.read("/proc/driver/nvidia/version")
    loaded: Any = line_of(host.read("/sys/module/nvidia/version")) or False
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", version or "")
    if version is None:
        loaded = None
    elif found:
        loaded = found.group(1)
    flavour = None
    if loaded and version:
        flavour = "open" if "Open Kernel Module" in version else "proprietary"
    return {
        "loaded": loaded,
        "modules": flavour,
        "packages": None
        if installed is None
        else [
            {"name": name, "version": number}
            for name, number in installed
            if DRIVER_PACKAGE.search(name) and not NOT_DRIVER.search(name)
        ],
        "libraries": driver_libraries(host),
        "dkms": dkms(host),
        "built_for": module_files(host),
        "other_sources": other_sources(host),
    }


def driver_libraries(host: Host) -> List[str]:
    """Versions in the names of the libcuda files of the system: what a run file leaves, too."""
    found = set()
    for pattern in LIBCUDA:
        for name in host.glob(pattern):
            match = re.search(r"\.so\.([0-9]{3,}\.[0-9.]+)$", name)
            if match:
                found.add(match.group(1))
    return sorted(found)


def dkms(host: Host) -> Optional[List[Facts]]:
    """What dkms knows of nvidia modules: added, built or installed, and for which kernel."""
    if host.program("dkms") is None:
        return []
    said = host.said("dkms", "status")
    if said is None:
        return None
    rows = []
    for line in said.splitlines():
        # dkms 2: nvidia, 470.1, 5.4.0-1, x86_64: installed; dkms 3: nvidia/535.1, 6.1.0-1, ...
        head, _, state = line.partition(": ")
        fields = [field.strip() for field in re.split(r"[,/]", head)]
        if fields[0].startswith("nvidia") and len(fields) > 1:
            kernel = fields[2] if len(fields) > 2 else None
            row = {"module": fields[0], "version": fields[1], "kernel": kernel}
            rows.append(dict(row, state=state.split(" ")[0].strip() or None))
    return rows


def module_files(host: Host) -> Optional[List[str]]:
    """Kernels below /lib/modules for which an nvidia module file is there."""
    kernels: Set[str] = set()
    names = host.names("/lib/modules")
    for kernel in names or []:
        for _, _, files in os.walk(host.path("/lib/modules/" + kernel)):
            if any(re.match(r"nvidia(-current)?(-open)?\.ko(\.(xz|gz|zst))?$", f) for f in files):
                kernels.add(kernel)
    return None if names is None else sorted(kernels)


def other_sources(host: Host) -> List[str]:
    """Traces of a driver that no package manager knows."""
    marks = ["/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer"]
    marks += ["/var/lib/nvidia/log", "/var/log/nvidia-installer.log"]
    return [mark for mark in marks if host.exists(mark)]


def rows_of(said: str, fields: Sequence[str]) -> List[Facts]:
    rows: List[Facts] = []
    for line in said.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            known = [None if v.startswith("[") or v == "N/A" else v for v in values]
            rows.append(dict(zip([f.replace(".", "_") for f in fields], known)))  # noqa: B905 - of 3.10
    return rows


def gpus(host: Host) -> Optional[List[Facts]]:
    """One row for each GPU as nvidia-smi tells it; [] where there is no nvidia-smi."""
    if host.program("nvidia-smi") is None:
        return []
    # Drivers before 510 know no compute_cap, and answer nothing at all when asked for it.
    for fields in (GPU_FIELDS, tuple(field for field in GPU_FIELDS if field != "compute_cap")):
        query = "--query-gpu=" + ",".join(fields)
        status, said = host.ask("nvidia-smi", query, "--format=csv,noheader,nounits")
        if said is not None:
            return [dict({"compute_cap": None}, **row) for row in rows_of(said, fields)]
        if status is None:
            break  # it hung: asking once more would only take as long again
    return None


def gpu_processes(host: Host) -> Optional[List[Facts]]:
    if host.program("nvidia-smi") is None:
        return []
    fields = ("pid", "process_name", "used_memory")
    query = "--query-compute-apps=" + ",".join(fields)
    said = host.said("nvidia-smi", query, "--format=csv,noheader,nounits")
    return None if said is None else rows_of(said, fields)


def secure_boot(host: Host) -> Optional[bool]:
    """Whether Secure Boot is on: the firmware's variable, else mokutil. False without EFI."""
    if not host.exists("/sys/firmware/efi"):
        # A container and a recorded tree without /sys tell nothing about the machine.
        return False if host.exists("/sys/firmware") else None
    for name in host.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        try:
            with open(host.path(name), "rb") as stream:
                content = stream.read(16)
            if len(content) >= 5:  # four bytes of attributes, then the value
                return content[4] == 1
        except OSError as error:  # noqa: PERF203
            host.failed(name, error.strerror or error)
    said = host.said("mokutil", "--sb-state", accept=(0, 1)) or ""
    found = re.search(r"SecureBoot (enabled|disabled)", said)
    return found.group(1) == "enabled" if found else None


def modules_loaded(host: Host) -> Optional[List[str]]:
    text = host.read("/proc/modules")
    if text is None or not host.exists("/proc/modules"):
        return None
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def in_container(host: Host) -> Optional[bool]:
    """Whether this is a container, as its engine marks it; None where nothing tells."""
    if host.exists("/.dockerenv") or host.exists("/run/.containerenv"):
        return True
    text = host.read("/proc/1/cgroup")
    if not text:
        return None
    return bool(re.search(r"docker|kubepods|containerd|libpod|lxc", text))


def held(host: Host) -> Optional[List[str]]:
    """Packages that the administrator froze: dpkg holds, dnf versionlock."""
    if host.program("dpkg-query"):
        # What `apt-mark hold` writes down, at a hundredth of the cost of asking apt-mark.
        rows = dpkg_rows(host)
        return None if rows is None else sorted({row[1] for row in rows if row[0][:1] == "h"})
    text = host.read("/etc/dnf/plugins/versionlock.list")
    if text is None:
        return None
    return sorted(t for t in text.split("\n") if t.strip() and not t.startswith("#"))


def unattended_upgrades(host: Host, installed: Packages) -> Optional[Facts]:
    """Whether updates are installed by themselves."""
    if installed is None:
        return None
    names = {name for name, _ in installed}
    if "unattended-upgrades" in names:
        said = host.said("apt-config", "dump")
        if said is None:
            return {"installed": True, "enabled": None, "spared": None}
        on = re.search(r'^APT::Periodic::Unattended-Upgrade "([^"]*)"', said, re.M)
        spared = re.findall(r'^Unattended-Upgrade::Package-Blacklist:: "([^"]+)"', said, re.M)
        enabled = on is not None and on.group(1) not in ("0", "")
        return {"installed": True, "enabled": enabled, "spared": sorted(spared)}
    if "dnf-automatic" in names:
        text = host.read("/etc/dnf/automatic.conf")
        on = re.search(r"^\s*apply_updates\s*=\s*(yes|true|1)\b", text or "", re.M | re.I)
        return {
            "installed": True,
            "enabled": None if text is None else bool(on),
            "spared": None,
        }
    return {"installed": False, "enabled": False, "spared": []}


def tool(host: Host, name: str, *arguments: str) -> Facts:
    """Whether a program is on PATH, and the version that it tells."""
    if host.program(name) is None:
        return {"present": False, "version": None}
    found = re.search(r"[0-9]+(\.[0-9]+)+", host.said(name, *arguments) or "")
    return {"present": True, "version": found.group(0) if found else None}


def containers(host: Host) -> Facts:
    text = host.read("/etc/docker/daemon.json")
    specs = sorted(
        name
        for folder in ("/etc/cdi", "/var/run/cdi")
        for kind in ("yaml", "yml", "json")
        for name in host.glob("{}/*.{}".format(folder, kind))
    )
    runtimes = None
    if text == "":
        runtimes = []
    elif text is not None:
        try:
            runtimes = sorted(json.loads(text).get("runtimes", {}))
        except (ValueError, AttributeError, TypeError) as error:
            host.failed("/etc/docker/daemon.json", error)
    return {
        "docker": tool(host, "docker", "--version"),
        "podman": tool(host, "podman", "--version"),
        "nvidia_ctk": tool(host, "nvidia-ctk", "--version"),
        "docker_runtimes": runtimes,
        "cdi_specs": specs,
        "cdi": cdi(host, specs),
    }


def cdi(host: Host, specs: List[str]) -> Optional[List[Facts]]:
    """Of each CDI specification: driver versions in it, and files that it names and are gone."""
    found = []
    for name in specs:
        text = host.read(name)
        if text is None:
            return None
        paths = re.findall(r"""["']?hostPath["']?\s*:\s*["']?(/[^"'\s,}]+)""", text)
        versions = re.findall(r"\.so\.([0-9]{3,}\.[0-9]+(?:\.[0-9]+)?)\b", text)
        gone = sorted({path for path in paths if not host.exists(path)})
        found.append({"path": name, "versions": sorted(set(versions)), "gone": gone})
    return found


def fabric_manager(host: Host, installed: Packages) -> Optional[Facts]:
    """The package of the fabric manager and whether it runs; {"present": False} without one."""
    if installed is None:
        return None
    name = re.compile(r"^(cuda-drivers-|nvidia-)?fabric-?manager(-[0-9]+)?$")
    versions = [version for package, version in installed if name.match(package)]
    if not versions:
        return {"present": False, "version": None, "active": False}
    said = host.said("systemctl", "is-active", "nvidia-fabricmanager", accept=(0, 3, 4))
    active = None if said is None else said.strip() == "active"
    return {"present": True, "version": upstream(versions[0]), "active": active}


def upstream(version: str) -> str:
    """1:535.261.03-1 -> 535.261.03."""
    return version.rpartition(":")[2].partition("-")[0]


def nvcc(host: Host) -> Facts:
    if host.program("nvcc") is None:
        return {"present": False, "version": None}
    found = re.search(r"release [0-9.]+, V([0-9.]+)", host.said("nvcc", "--version") or "")
    return {"present": True, "version": found.group(1) if found else None}


def compilers(host: Host) -> Facts:
    """Versions of gcc by name: the default and those with a number."""
    if host.recorded is not None:
        names = {line.split()[0] for line in host.recorded}
    else:
        names = {os.path.basename(name) for name in host.glob("/usr/bin/gcc*")}
    found = {}
    for name in sorted(names):
        if re.match(r"^gcc(-[0-9]+)?$", name):
            found[name] = line_of(host.said(name, "-dumpfullversion", "-dumpversion"))
    return found


def library_path(host: Host) -> Facts:
    """Places that put libraries before those of an environment, for every user."""
    text = host.read("/etc/environment")
    found = re.search(r"^\s*(?:export\s+)?LD_LIBRARY_PATH\s*=\s*(.*?)\s*$", text or "", re.M)
    value = None if text is None else (found.group(1).strip("\"'") if found else False)
    lines = {}
    for name in host.glob("/etc/ld.so.conf.d/*.conf"):
        content = host.read(name)
        if content is not None and re.search(r"cuda|nvidia", content):
            kept = [part.strip() for part in content.splitlines()]
            lines[name] = [part for part in kept if part and not part.startswith("#")]
    return {"etc_environment": value, "ld_so_conf": lines}


def disk(host: Host) -> Facts:
    """Free and total bytes of the file system of some folders."""
    found = {}
    for folder in FOLDERS + ("/dev/shm",):
        found[folder] = host.space(folder)
    return found


def collect(host: Host) -> Facts:
    """All facts of a host, as plain values."""
    installed = packages(host)
    loaded = modules_loaded(host)
    kernel = line_of(host.read("/proc/sys/kernel/osrelease"))
    python = host.said("python3", "-ISc", "import sys; print('%d.%d.%d' % sys.version_info[:3])")
    return {
        "schema": SCHEMA,
        "os": operating_system(host),
        "kernel": kernel,
        "arch": os.uname().machine if host.recorded is None else line_of(host.said("uname", "-m")),
        "glibc": glibc(host),
        "pci": pci_devices(host),
        "driver": driver(host, installed),
        "gpus": gpus(host),
        "gpu_processes": gpu_processes(host),
        "secure_boot": secure_boot(host),
        "nouveau_loaded": None if loaded is None else "nouveau" in loaded,
        "other_gpu_modules": None
        if loaded is None
        else [name for name in OTHER_GPU_MODULES if name in loaded],
        "fabric_manager": fabric_manager(host, installed),
        "persistenced": host.exists("/run/nvidia-persistenced/socket"),
        "container": in_container(host),
        "wsl": None if kernel is None else "microsoft" in kernel.lower(),
        "held": held(host),
        "unattended_upgrades": unattended_upgrades(host, installed),
        "containers": containers(host),
        "cuda_toolkits": host.glob("/usr/local/cuda-[0-9]*"),
        "nvcc": nvcc(host),
        "gcc": compilers(host),
        "python3": line_of(python),
        "library_path": library_path(host),
        "disk": disk(host),
        "unreadable": host.unreadable,
    }


def read_answers(path: str) -> Answers:
    """The recorded answers of programs: command line -> (exit status, output)."""
    with open(path, "rb") as stream:
        rows = json.loads(stream.read().decode("utf-8"))
    return {line: (status, said) for line, status, said in rows}


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(description="Reads what a GPU host is and has.")
    parser.add_argument("--root", default="/", metavar="DIR", help="a recorded host's files")
    parser.add_argument("--answers", metavar="FILE", help="a recorded host's programs")
    options = parser.parse_args(arguments)
    answers = None
    try:
        if options.answers:
            answers = read_answers(options.answers)
        elif os.path.abspath(options.root) != "/":
            answers = {}
    except (OSError, ValueError, TypeError) as error:
        sys.stderr.write("facts: {}: {}\n".format(options.answers, error))
        return 2
    text = json.dumps(collect(Host(options.root, answers)), indent=2)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
