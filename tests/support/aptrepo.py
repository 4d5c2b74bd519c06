"""A flat apt repository with NVIDIA's package names, signed by a throwaway key.

The packages are tiny. What they do is real: `nvidia-kernel-dkms` brings the source of a kernel
module, which the distribution's dkms compiles against the distribution's headers, and
`nvidia-persistenced` a service. Depends are `>=` where the vendor's are, so that a version that is
asked of the meta package alone moves nothing below it.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

ARCH = "amd64"
MODULE = '#include <linux/module.h>\n{body}MODULE_LICENSE("GPL");\nMODULE_VERSION("{version}");\n'
MAKEFILE = "obj-m := nvidia.o\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n"
DKMS = """\
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make KDIR=$kernel_source_dir"
CLEAN="rm -f *.o"
AUTOINSTALL="yes"
"""
UNIT = """\
[Unit]
Description=NVIDIA Persistence Daemon
[Service]
ExecStart=/usr/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
# As dh-dkms writes them.
POSTINST = """\
#!/bin/sh
set -e
[ "$1" != configure ] || /usr/lib/dkms/common.postinst {name} {version} "" "" ""
"""
PRERM = """\
#!/bin/sh
[ ! -x /usr/sbin/dkms ] || dkms remove -m {name} -v {version} --all >/dev/null 2>&1
exit 0
"""


@dataclass(kw_only=True)
class Package:
    """What dpkg-deb is given. `files` are paths from the root, `scripts` maintainer scripts."""

    name: str
    version: str
    depends: str = ""
    conflicts: str = ""
    files: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)


def family(upstream: str, *, breaks: bool = False) -> list[Package]:
    """The driver's packages of one version, as upstream names it; `breaks`: it does not compile."""
    version = f"{upstream}-1"
    body = "#error broken\n" if breaks else ""

    def modules(name: str, other: str) -> Package:
        source = f"/usr/src/nvidia-{upstream}"
        told = {"name": "nvidia", "version": upstream}
        return Package(
            name=name,
            version=version,
            depends="dkms",
            conflicts=other,
            files={
                f"{source}/nvidia.c": MODULE.format(body=body, version=upstream),
                f"{source}/Makefile": MAKEFILE,
                f"{source}/dkms.conf": DKMS.format(**told),
            },
            scripts={"postinst": POSTINST.format(**told), "prerm": PRERM.format(**told)},
        )

    def plain(name: str, depends: str = "", files: dict[str, str] | None = None) -> Package:
        return Package(name=name, version=version, depends=depends, files=files or {})

    at_least = f">= {upstream}"
    return [
        plain("cuda-drivers", f"nvidia-driver ({at_least}), nvidia-kernel-dkms ({at_least})"),
        plain("nvidia-open", f"nvidia-driver ({at_least}), nvidia-kernel-open-dkms ({at_least})"),
        plain(
            "nvidia-driver",
            f"nvidia-driver-libs ({at_least}), nvidia-smi ({at_least}), "
            f"nvidia-persistenced ({at_least})",
        ),
        plain("nvidia-driver-libs", f"libcuda1 ({at_least}), libnvidia-ml1 ({at_least})"),
        plain("libcuda1"),
        plain("libnvidia-ml1"),
        plain("nvidia-smi", f"libnvidia-ml1 ({at_least})"),
        plain("nvidia-fabricmanager"),
        plain(
            "nvidia-persistenced",
            files={"/usr/lib/systemd/system/nvidia-persistenced.service": UNIT},
        ),
        modules("nvidia-kernel-dkms", "nvidia-kernel-open-dkms"),
        modules("nvidia-kernel-open-dkms", "nvidia-kernel-dkms"),
    ]


@dataclass(frozen=True, kw_only=True)
class Key:
    """A throwaway key of a GnuPG home."""

    home: Path
    fingerprint: str

    def armoured(self) -> bytes:
        """The public half, as a repository publishes it."""
        return _gpg(self.home, "--armor", "--export", self.fingerprint)


def make_key(home: Path, name: str) -> Key:
    """Make a key without passphrase; needs gpg."""
    home.mkdir(mode=0o700, exist_ok=True)
    user = f"{name} <{name}@example.invalid>"
    _gpg(home, "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", "never")
    rows = _gpg(home, "--with-colons", "--list-keys", f"{name}@").decode().splitlines()
    found = next(row for row in rows if row.startswith("fpr:"))
    return Key(home=home, fingerprint=found.split(":")[9])


def stop_agent(home: Path) -> None:
    """End the agent that gpg started for a home."""
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def _gpg(home: Path, *arguments: str) -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
    done = subprocess.run([*command, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def build(packages: Iterable[Package], folder: Path) -> None:
    """Make the .deb files and the index in `folder`; sign() makes it a repository."""
    folder.mkdir(parents=True, exist_ok=True)
    stanzas = []
    for package in packages:
        path = folder / f"{package.name}_{package.version.replace(':', '%3a')}_{ARCH}.deb"
        control = _control(package)
        if not path.exists():
            _deb(package, control, path)
        content = path.read_bytes()
        stanzas.append(
            f"{control}Filename: ./{path.name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    (folder / "Packages").write_text("\n".join(stanzas), encoding="utf-8")


def sign(folder: Path, key: Key) -> None:
    """Write Release and InRelease over the index, as the vendor's repository has them."""
    index = (folder / "Packages").read_bytes()
    release = (
        "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: x86_64\n"
        f"Date: {formatdate(usegmt=True).replace('GMT', 'UTC')}\nSHA256:\n"
        f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    )
    (folder / "Release").write_text(release, encoding="utf-8")
    (folder / "InRelease").unlink(missing_ok=True)
    sign_as = ["--local-user", key.fingerprint, "--output", str(folder / "InRelease")]
    _gpg(key.home, *sign_as, "--clearsign", str(folder / "Release"))


def _control(package: Package) -> str:
    more = "".join(
        f"{name}: {value}\n"
        for name, value in (("Depends", package.depends), ("Conflicts", package.conflicts))
        if value
    )
    return (
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: {ARCH}\n"
        f"Maintainer: nobody <nobody@example.invalid>\n{more}Description: stand-in\n"
    )


def _deb(package: Package, control: str, path: Path) -> None:
    tree = path.with_suffix(".tree")
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(control, encoding="utf-8")
    for name, text in package.scripts.items():
        script = tree / "DEBIAN" / name
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
    for name, text in package.files.items():
        place = tree / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tree)
