"""A snapshot of conda-forge to solve on, and a small channel of real packages to install from."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import conda_channel as cc
from support.conda_server import ChannelServer, serve_channel

from provisioner.conda.install import InstallOptions, install_conda

_SETTINGS = ("CONDA_", "MAMBA_", "PROVISION_", "PIP_", "PYTHON", "UV_", "RATTLER_", "NETRC")


@pytest.fixture(scope="session")
def clean_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment without settings of package tools, and with a cache and home of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
    home = tmp_path_factory.mktemp("home")
    return kept | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


@pytest.fixture(scope="session")
def solving(clean_environ: dict[str, str]) -> dict[str, str]:
    """The environment in which conda-forge is the snapshot."""
    return clean_environ | {"PROVISION_CONDA_CHANNEL_MAP": f"conda-forge=file://{cc.SNAPSHOT}"}


@pytest.fixture(scope="session")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel of real archives: python, pip, six, numpy, greet."""
    folder = tmp_path_factory.mktemp("channel")
    packages = [
        cc.python_package(),
        cc.pip_package(),
        cc.native_package("numpy", "1.26.4", b"__version__ = '1.26.4'\n"),
    ]
    for package in packages:
        cc.write_package(folder, package)
    six = cc.pure_package("six", "1.16.0", b"__version__ = '1.16.0'\n")
    cc.write_package(folder, six, ending=".tar.bz2")
    cc.write_package(folder, cc.greet_package(folder / "build"))
    cc.index_channel(folder)
    return folder


@pytest.fixture(scope="session")
def archives(channel: Path) -> list[Path]:
    """The archives of the channel."""
    found = [*channel.rglob("*.conda"), *channel.rglob("*.tar.bz2")]
    return sorted(found, key=lambda path: path.name)


@pytest.fixture(scope="session")
def lock(archives: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lock of the whole channel under conda-forge's name."""
    path = tmp_path_factory.mktemp("lock") / "conda-linux-64.lock"
    path.write_text(cc.explicit_lock(archives))
    return path


@pytest.fixture(scope="session")
def installing(clean_environ: dict[str, str], channel: Path) -> dict[str, str]:
    """The environment in which conda-forge is the small channel."""
    return clean_environ | {"PROVISION_CONDA_CHANNEL_MAP": f"conda-forge=file://{channel}"}


@pytest.fixture
def make_prefix(lock: Path, installing: dict[str, str], tmp_path: Path) -> Callable[[], Path]:
    """Install the lock into a new prefix."""

    def made(name: str = "env") -> Path:
        prefix = tmp_path / name
        store = Path(installing["XDG_CACHE_HOME"]) / "store"
        install_conda(lock, prefix, InstallOptions(environ=installing, store=store))
        return prefix

    return made


@pytest.fixture
def snapshot_server(tmp_path: Path) -> Iterator[ChannelServer]:
    """The snapshot over HTTP, as a mirror of conda-forge: its paths start with /conda-forge/."""
    (tmp_path / "conda-forge").symlink_to(cc.SNAPSHOT)
    with serve_channel(tmp_path) as server:
        yield server
