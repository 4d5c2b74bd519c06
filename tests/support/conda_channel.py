"""A small conda channel made of real packages: archives with real files, hashes and repodata.

The interpreter that runs the tests is packed as `python`, its pip as a noarch package, a compiled
program with its build prefix inside as `greet`.
"""

import bz2
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard

from provisioner.conda.channel import CANONICAL

PLACEHOLDER = "/" + "placehold_" * 25 + "pla"
"""What the packages believe their prefix to be: 254 characters, as conda-build makes it."""

SNAPSHOT = Path(__file__).parent.parent / "data" / "conda_forge_snapshot"
"""A recorded piece of conda-forge: records without archives."""

EPOCH = 1_700_000_000
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_VERSION = f"{SERIES}.{sys.version_info.micro}"
SITE_PACKAGES = f"lib/python{SERIES}/site-packages"
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[os.uname().machine]

_SKIPPED = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter",
            "turtledemo", "ensurepip", "lib2to3", "pydoc_data")  # fmt: skip


@dataclass(frozen=True)
class File:
    """One file of a package; `target` makes it a link, with `mode` its prefix gets replaced."""

    data: bytes = b""
    executable: bool = False
    target: str | None = None
    mode: str | None = None


@dataclass(frozen=True, kw_only=True)
class Package:
    """What goes into one archive. `noarch` packages hold site-packages/ and python-scripts/."""

    name: str
    version: str
    build: str = "0"
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    noarch: bool = False
    entry_points: tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    timestamp: int = EPOCH

    @property
    def subdir(self) -> str:
        """The folder of the channel that holds it."""
        return "noarch" if self.noarch else SUBDIR

    @property
    def stem(self) -> str:
        """Its file name without the ending."""
        return f"{self.name}-{self.version}-{self.build}"

    def index(self) -> dict[str, Any]:
        """Return the content of info/index.json."""
        number = re.search(r"[0-9]+$", self.build)
        index = {
            "arch": None if self.noarch else os.uname().machine,
            "build": self.build,
            "build_number": int(number.group()) if number else 0,
            "constrains": list(self.constrains),
            "depends": list(self.depends),
            "name": self.name,
            "platform": None if self.noarch else "linux",
            "subdir": self.subdir,
            "timestamp": self.timestamp * 1000,
            "version": self.version,
        }
        return index | ({"noarch": "python"} if self.noarch else {})


def write_package(channel: Path, package: Package, *, ending: str = ".conda") -> Path:
    """Write the archive of `package` into its folder of the channel; returns its path."""
    folder = channel / package.subdir
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package.stem}{ending}"
    info = dict(_info(package))
    if ending == ".conda":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in (
                ("metadata.json", b'{"conda_pkg_format_version": 2}'),
                (f"pkg-{package.stem}.tar.zst", _zstd(_tar(package.files))),
                (f"info-{package.stem}.tar.zst", _zstd(_tar(info))),
            ):
                archive.writestr(zipfile.ZipInfo(name, (2023, 11, 14, 0, 0, 0)), data)
    else:
        path.write_bytes(bz2.compress(_tar({**package.files, **info}), 1))
    return path


def index_channel(channel: Path, base_url: str | None = None) -> None:
    """Write repodata.json for every folder; `base_url` (CEP 15) makes it answer with real URLs."""
    for subdir in (SUBDIR, "noarch"):
        folder = channel / subdir
        folder.mkdir(parents=True, exist_ok=True)
        info: dict[str, Any] = {"subdir": subdir}
        if base_url is not None:
            info["base_url"] = f"{base_url}/{subdir}/"
        repodata: dict[str, Any] = {"info": info, "packages": {}, "packages.conda": {}}
        repodata["repodata_version"] = 1 if base_url is None else 2
        for path in sorted(folder.iterdir()):
            if path.name.endswith(".conda"):
                repodata["packages.conda"][path.name] = record_of(path)
            elif path.name.endswith(".tar.bz2"):
                repodata["packages"][path.name] = record_of(path)
        (folder / "repodata.json").write_text(json.dumps(repodata, indent=1))


def explicit_lock(archives: Iterable[Path], base: str = f"{CANONICAL}/conda-forge") -> str:
    """Return an explicit list of archives, as `provision lock` writes it."""
    lines = ["@EXPLICIT"]
    for path in archives:
        record = record_of(path)
        name = f"{path.parent.name}/{path.name}"
        lines += [f"{base}/{name}#{record['md5']}", f"# sha256 {record['sha256']}  {name}"]
    return "\n".join(lines) + "\n"


def record_of(path: Path) -> dict[str, Any]:
    """Return the repodata record of an archive: its index.json with size and hashes."""
    data = path.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(_info_tar(path, data))) as tar:
        member = tar.extractfile("info/index.json")
        assert member is not None
        index: dict[str, Any] = json.load(member)
    return index | {
        "size": len(data),
        "md5": hashlib.md5(data).hexdigest(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _info_tar(path: Path, data: bytes) -> bytes:
    if not path.name.endswith(".conda"):
        return bz2.decompress(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(n for n in archive.namelist() if n.startswith("info-"))
        return zstandard.ZstdDecompressor().decompress(archive.read(name))


def dist_info(
    name: str,
    version: str,
    body: Mapping[str, bytes],
    root: str = "site-packages",
    requires: Iterable[str] = (),
    installer: str | None = "conda",
) -> dict[str, File]:
    """Return a Python distribution as files below `root`, with METADATA, INSTALLER and RECORD."""
    folder = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = dict(body) | {
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if installer is not None:
        files[f"{folder}/INSTALLER"] = f"{installer}\n".encode()
    record = "".join(f"{path},{_record_hash(data)},{len(data)}\n" for path, data in files.items())
    files[f"{folder}/RECORD"] = (record + f"{folder}/RECORD,,\n").encode()
    return {f"{root}/{path}": File(data) for path, data in files.items()}


def python_package() -> Package:
    """Return the interpreter that runs the tests, as a package that any prefix can hold."""
    base = Path(sys.base_prefix)
    binary = Path(os.path.realpath(sys.executable))
    stdlib = Path(sysconfig.get_path("stdlib"))
    home = str(base).encode()
    files: dict[str, File] = {}
    for path in _stdlib_files(stdlib):
        name = f"lib/python{SERIES}/{path.relative_to(stdlib)}"
        data = _without_distribution_layout(path.name, path.read_bytes())
        if path.name.startswith("_sysconfigdata") and home != b"/usr":
            files[name] = File(data.replace(home, PLACEHOLDER.encode()), mode="text")
        else:
            files[name] = File(data)
    files.pop(f"lib/python{SERIES}/EXTERNALLY-MANAGED", None)
    if b"dist-packages" in (stdlib / "site.py").read_bytes():
        files[f"lib/python{SERIES}/sitecustomize.py"] = File(_CUSTOMIZE.encode())
    files[f"bin/python{SERIES}"] = File(binary.read_bytes(), executable=True)
    for alias in ("python", "python3"):
        files[f"bin/{alias}"] = File(target=f"python{SERIES}")
    files[f"{SITE_PACKAGES}/README.txt"] = File(b"Third-party packages go here.\n")
    return Package(name="python", version=PYTHON_VERSION, build="h0_0", files=files)


def pip_package() -> Package:
    """Return the pip of the tests' environment as a noarch package with entry points."""
    distribution = importlib.metadata.distribution("pip")
    files: dict[str, File] = {}
    body: dict[str, bytes] = {}
    for entry in distribution.files or ():
        name = str(entry)
        if name.startswith("pip/") and "__pycache__" not in name:
            body[name] = Path(str(entry.locate())).read_bytes()
    files |= dist_info("pip", distribution.version, body)
    return Package(
        name="pip", version=distribution.version, build="pyh0_0", noarch=True, files=files,
        depends=(f"python >={SERIES}",), entry_points=("pip = pip._internal.cli.main:main",),
    )  # fmt: skip


def pure_package(name: str, version: str, code: bytes, **fields: Any) -> Package:
    """Return a noarch package with one module of that name."""
    files = dist_info(name, version, {f"{name}.py": code})
    package = Package(name=name, version=version, build="pyh0_0", noarch=True, files=files)
    return replace(package, depends=(f"python >={SERIES}",), **fields)


def native_package(name: str, version: str, code: bytes) -> Package:
    """Return a package for one Python series that holds one module, as compiled ones are made."""
    root = SITE_PACKAGES
    return Package(
        name=name, version=version, build="py0_0", depends=(f"python {SERIES}.*",),
        files=dist_info(name, version, {f"{name}/__init__.py": code}, root),
    )  # fmt: skip


def greet_package(folder: Path) -> Package:
    """Compile a program and its library: both know their build prefix, in data and run path."""
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    folder.mkdir(parents=True)
    library, program = folder / "libgreet.so", folder / "greet"
    (folder / "lib.c").write_text(f'const char *home(void) {{ return "{PLACEHOLDER}/share"; }}\n')
    (folder / "main.c").write_text(
        "#include <stdio.h>\nconst char *home(void);\nint main(void) { puts(home()); return 0; }\n"
    )
    language = ["-x", "c"] if compiler.endswith("g++") and shutil.which("cc") else []
    subprocess.run([compiler, *language, "-shared", "-fPIC", "-o", library, folder / "lib.c"],
                   check=True)  # fmt: skip
    subprocess.run(
        [compiler, *language, "-o", program, folder / "main.c", f"-L{folder}", "-lgreet",
         f"-Wl,-rpath,{PLACEHOLDER}/lib"], check=True,
    )  # fmt: skip
    script = f"#!{PLACEHOLDER}/bin/python\nimport sys\nprint(sys.prefix)\n".encode()
    return Package(
        name="greet", version="1.0", build="h0_0", depends=("python",),
        files={
            "lib/libgreet.so": File(library.read_bytes(), executable=True, mode="binary"),
            "bin/greet": File(program.read_bytes(), executable=True, mode="binary"),
            "bin/where": File(script, executable=True, mode="text"),
            "share/greet.conf": File(f"home = {PLACEHOLDER}\n".encode(), mode="text"),
        },
    )  # fmt: skip


def _stdlib_files(stdlib: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(stdlib):
        names[:] = sorted(n for n in names if n not in _SKIPPED and not n.startswith("config-"))
        for name in sorted(files):
            path = Path(folder, name)
            unused = name.startswith(("_codecs_", "_test", "_xxtest", "turtle"))
            if path.exists() and not unused and not name.endswith((".pyc", ".a", ".exe")):
                yield path


def _without_distribution_layout(name: str, data: bytes) -> bytes:
    """Let pip install into site-packages where Debian would have it elsewhere."""
    if name == "sysconfig.py":
        return data.replace(b"prefix_scheme = 'posix_local'", b"prefix_scheme = 'posix_prefix'")
    return data


_CUSTOMIZE = """import os, site, sys
version = "python%d.%d" % sys.version_info[:2]
site.addsitedir(os.path.join(sys.prefix, "lib", version, "site-packages"))
"""
"""For a Python whose frozen `site` knows dist-packages alone."""


def _info(package: Package) -> Iterator[tuple[str, File]]:
    yield "info/index.json", _json(package.index())
    yield "info/files", File("".join(f"{name}\n" for name in sorted(package.files)).encode())
    paths = [_path_entry(name, file) for name, file in sorted(package.files.items())]
    yield "info/paths.json", _json({"paths": paths, "paths_version": 1})
    if package.noarch:
        noarch = {"entry_points": list(package.entry_points), "type": "python"}
        yield "info/link.json", _json({"noarch": noarch, "package_metadata_version": 1})


def _path_entry(name: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "_path": name,
        "path_type": "softlink" if file.target else "hardlink",
        "sha256": hashlib.sha256(file.data).hexdigest(),
        "size_in_bytes": len(file.data),
    }
    if file.mode is not None:
        entry |= {"file_mode": file.mode, "prefix_placeholder": PLACEHOLDER}
    return entry


def _json(value: Any) -> File:
    return File(json.dumps(value, indent=1, sort_keys=True).encode())


def _tar(files: Mapping[str, File]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mtime = EPOCH
            member.mode = 0o755 if file.executable else 0o644
            if file.target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, file.target
                tar.addfile(member)
            else:
                member.size = len(file.data)
                tar.addfile(member, io.BytesIO(file.data))
    return stream.getvalue()


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(data)


def _record_hash(data: bytes) -> str:
    import base64

    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
