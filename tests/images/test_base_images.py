"""What the other image tests stand on: the bases, secrets in builds, the index on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import SUITES, Engine

pytestmark = pytest.mark.images

INSTALL_PIP = (
    "RUN apt-get update && apt-get install -y --no-install-recommends python3-pip"
    " && rm -rf /var/lib/apt/lists/*"
)
CA_MOUNT = "RUN --mount=type=secret,id=ca,target=/run/secrets/ca.pem"
WITH_CA = "if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi"


@pytest.fixture
def tag(engine: Engine) -> Iterator[str]:
    """A name for one image, which is gone after the test."""
    name = "localhost/provision-test/scratch:base-images"
    yield name
    engine.remove_image(name)


def write_dockerfile(folder: Path, base: str, *lines: str) -> Path:
    """Write a Dockerfile that goes on from `base`."""
    (folder / "Dockerfile").write_text("\n".join([f"FROM {base}", *lines, ""]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("version", ["11", "12"])
def test_a_base_is_slim_and_says_its_release(
    engine: Engine, base_image: Callable[[str], str], version: str
) -> None:
    script = ". /etc/os-release; echo $VERSION_CODENAME; ls /usr/share/man /usr/bin/python3"
    done = engine.run(base_image(version), "sh", "-c", script)
    assert done.stdout.split() == [SUITES[version], "/usr/share/man:"]
    size = engine.docker("image", "inspect", "--format={{.Size}}", base_image(version))
    assert int(size.stdout) < 100_000_000


@pytest.mark.network
@pytest.mark.parametrize("version", ["11", "12"])
def test_pip_reaches_its_index_with_the_ca_secret_and_leaves_it_in_no_layer(
    engine: Engine,
    base_image: Callable[[str], str],
    ca_options: list[str],
    tag: str,
    version: str,
    tmp_path: Path,
) -> None:
    download = f"{CA_MOUNT} {WITH_CA}; pip download --no-deps --dest=/got six==1.17.0"
    context = write_dockerfile(tmp_path, base_image(version), INSTALL_PIP, download)
    built = engine.build(context, *ca_options, "--tag", tag)
    assert built.returncode == 0, built.stderr[-3000:]
    listed = engine.run(tag, "sh", "-c", "ls /got; test ! -s /run/secrets/ca.pem")
    assert listed.returncode == 0
    assert listed.stdout.split() == ["six-1.17.0-py2.py3-none-any.whl"]


def test_a_failing_step_fails_the_build(
    engine: Engine, base_image: Callable[[str], str], tag: str, tmp_path: Path
) -> None:
    context = write_dockerfile(tmp_path, base_image("12"), "RUN echo before && false")
    built = engine.build(context, "--no-cache", "--tag", tag)
    assert built.returncode != 0
    assert "before" in built.stderr
    assert not engine.has_image(tag)


def test_a_build_reaches_the_wheel_index_of_the_tests(
    engine: Engine,
    base_image: Callable[[str], str],
    torch_cpu_index: str,
    tag: str,
    tmp_path: Path,
) -> None:
    download = (
        f"RUN pip download --no-cache-dir --no-deps --index-url={torch_cpu_index}/cpu"
        " --dest=/got torch==2.13.0+cpu && ls /got && rm -r /got"
    )
    context = write_dockerfile(tmp_path, base_image("12"), INSTALL_PIP, download)
    built = engine.build(context, "--tag", tag)
    assert built.returncode == 0, built.stderr[-3000:]
    assert "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl" in built.stderr
