"""The dnf step of a rendered Dockerfile, run by sh on repository files as distributions ship them.

dnf alone is a stand-in: it keeps what it was called with and the repository files that it saw.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.rendering import rendered, resolved

ROCKY = """\
[baseos]
name=Rocky Linux $releasever - BaseOS
mirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=BaseOS-$releasever$rltype
#baseurl=http://dl.rockylinux.org/$contentdir/$releasever/BaseOS/$basearch/os/
gpgcheck=1
enabled=1
"""
ALMA = """\
[appstream]
name=AlmaLinux $releasever - AppStream
mirrorlist=https://mirrors.almalinux.org/mirrorlist/$releasever/appstream
# baseurl=https://repo.almalinux.org/almalinux/$releasever/AppStream/$basearch/os/
enabled=1
"""
FIXED = """\
[ubi-9-baseos-rpms]
name = Red Hat Universal Base Image 9 (RPMs) - BaseOS
baseurl = https://cdn-ubi.redhat.com/content/public/ubi/dist/ubi9/9/$basearch/baseos/os
enabled = 1
"""
NVIDIA = """\
[cuda-rhel9-x86_64]
name=cuda-rhel9-x86_64
baseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64
enabled=1
"""
STAND_IN = """\
#!/bin/sh
printf '%s\\n' "$*" >> "$SEEN/calls"
case "$1" in --setopt=reposdir=*) cp -a "${1#*reposdir=}" "$SEEN/repos" ;; esac
"""


class Step:
    """The step with its absolute paths moved below a folder."""

    def __init__(self, folder: Path) -> None:
        text = rendered(resolved(torch="2.6.0", cuda="12.4", os="el9"))["docker/Dockerfile"]
        found = re.search(
            r"(?s)RUN --mount=[^\n]*netrc \\\n(    set -eu; \\\n    cp .*?hawkey\.log)", text
        )
        assert found is not None
        self.repos, self.secrets = folder / "yum.repos.d", folder / "secrets"
        self.seen = folder / "seen"
        program = folder / "bin" / "dnf"
        for made in (self.repos, self.secrets, self.seen, program.parent):
            made.mkdir()
        program.write_text(STAND_IN, encoding="ascii")
        program.chmod(0o755)
        script = found[1]
        for old, new in (
            ("/etc/yum.repos.d", str(self.repos)),
            ("/tmp/repos", str(folder / "copy")),
            ("/run/secrets", str(self.secrets)),
            ("/var/", str(folder / "var") + "/"),
        ):
            assert old in script
            script = script.replace(old, new)
        self.script, self.copy, self.path = script, folder / "copy", program.parent

    def run(self, mirror: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", self.script],
            env={
                "PATH": f"{self.path}:/usr/bin:/bin",
                "DNF_MIRROR": mirror,
                "SEEN": str(self.seen),
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def saw(self, name: str) -> str:
        """A repository file as dnf found it."""
        return (self.seen / "repos" / name).read_text(encoding="ascii")


@pytest.fixture
def step(tmp_path: Path) -> Step:
    """The step, with the files of a Rocky base that also has NVIDIA's repository."""
    made = Step(tmp_path)
    (made.repos / "rocky.repo").write_text(ROCKY, encoding="ascii")
    (made.repos / "cuda.repo").write_text(NVIDIA, encoding="ascii")
    return made


def test_without_a_mirror_the_repositories_stay_as_the_base_has_them(step: Step) -> None:
    done = step.run()
    assert done.returncode == 0, done.stderr
    assert step.saw("rocky.repo") == ROCKY
    assert not (step.seen / "repos" / "cuda.repo").exists()
    assert (step.repos / "cuda.repo").is_file()
    assert not step.copy.exists()


def test_a_mirror_takes_the_place_of_every_repository(step: Step) -> None:
    (step.repos / "almalinux.repo").write_text(ALMA, encoding="ascii")
    done = step.run("https://mirror.example:8443/el")
    assert done.returncode == 0, done.stderr
    assert "baseurl=https://mirror.example:8443/el/$releasever/BaseOS/$basearch/os/\n" in step.saw(
        "rocky.repo"
    )
    assert "baseurl=https://mirror.example:8443/el/$releasever/AppStream/" in step.saw(
        "almalinux.repo"
    )
    assert "mirrorlist" not in step.saw("rocky.repo") + step.saw("almalinux.repo")
    assert (step.repos / "rocky.repo").read_text(encoding="ascii") == ROCKY


def test_a_repository_that_a_mirror_cannot_stand_for_stops_the_build(step: Step) -> None:
    (step.repos / "ubi.repo").write_text(FIXED, encoding="ascii")
    done = step.run("https://mirror.example/el")
    assert done.returncode != 0
    assert "cdn-ubi.redhat.com" in done.stderr
    assert "DNF_MIRROR cannot stand for the addresses above" in done.stderr
    assert not (step.seen / "calls").exists()


def test_user_and_password_of_the_mirror_come_from_the_secret_alone(step: Step) -> None:
    netrc = "machine other.example login no password wrong\n"
    netrc += (
        "machine mirror.example\n\tlogin reader\n\tpassword s3cret/+=\ndefault login a password b\n"
    )
    (step.secrets / "netrc").write_text(netrc, encoding="ascii")
    done = step.run("https://mirror.example:8443/el")
    assert done.returncode == 0, done.stderr
    assert "[baseos]\nusername=reader\npassword=s3cret/+=\n" in step.saw("rocky.repo")
    assert "s3cret" not in (step.seen / "calls").read_text(encoding="ascii") + done.stdout
    assert not step.copy.exists()
    shutil.rmtree(step.seen / "repos")
    assert step.run("https://unlisted.example/el").returncode == 0
    assert "username" not in step.saw("rocky.repo")


def test_certificates_to_trust_reach_dnf(step: Step) -> None:
    (step.secrets / "ca").write_text("PEM\n", encoding="ascii")
    assert step.run().returncode == 0
    calls = (step.seen / "calls").read_text(encoding="ascii")
    assert f"--setopt=sslcacert={step.secrets}/ca install -y" in calls
