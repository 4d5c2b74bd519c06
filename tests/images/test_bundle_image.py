"""An image from a bundle alone: the client without a route, the steps without a network."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from cell_images import CANARY, NEW, ArchiveMirror, Workshop, secret_files
from support.engine import Completed, Engine
from support.locking import Indexes
from support.needs import skip_or_fail

from provisioner.bundle.model import read_bundle

pytestmark = [pytest.mark.images, pytest.mark.network, pytest.mark.timeout(900)]

RESULT = "localhost/provision-test/from-bundle:environment"


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A bundle with images, whose origins are gone; `told` is what `provision bundle` printed."""

    engine: Engine
    folder: Path
    told: dict[str, object]

    @property
    def base(self) -> str:
        return read_bundle(self.folder).images[0].name

    def without_route(self, *command: str, cwd: Path) -> Completed:
        environ = {**self.engine.environ, "PROVISION_DOCKER": str(self.engine.client)}
        return subprocess.run(
            ["unshare", "--net", *command], cwd=cwd, env=environ, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def carried(
    engine: Engine,
    base_image: Callable[[str], str],
    ca_bundle: Path | None,
    archive: ArchiveMirror,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Carried]:
    """A cell whose torch is a module of one line: it installs like any other."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        skip_or_fail("system", "this user may not make a network namespace (unshare -n)")
    folder = tmp_path_factory.mktemp("bundle")
    indexes = Indexes()
    indexes.torch.add("torch", "2.13.0+cpu", uploaded=None)
    indexes.package.add("numpy", "2.3.0")
    with ExitStack() as stack:
        stack.enter_context(indexes.package.serve())
        torch = stack.enter_context(indexes.torch.serve())
        workshop = Workshop(
            case=NEW,
            engine=engine,
            base=base_image(NEW.debian),
            root=folder / "root",
            secrets=secret_files(folder, ca_bundle, archive.netrc),
            mirrors={
                "torch_index": torch.removesuffix("/simple"),
                "package_index": indexes.package.url,
                "apt": archive.url,
            },
        )
        workshop.prepare()
        words = [f"--out={folder / 'carried'}", f"--root={workshop.root}", "--no-tool", "--json"]
        words += [f"--base-image={workshop.base}", "--network=host"]
        words += [f"--secret={name}={path}" for name, path in workshop.secrets.items()]
        words += [f"--mirror={name}={url}" for name, url in workshop.mirrors.items()]
        done = workshop.provision("bundle", NEW.name, *words)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    shutil.rmtree(workshop.root)
    found = Carried(engine=engine, folder=folder / "carried", told=json.loads(done.stdout))
    try:
        yield found
    finally:
        engine.remove_image(RESULT)
        engine.remove_image(found.base)


def test_the_whole_build_runs_on_what_the_bundle_has(carried: Carried, tmp_path: Path) -> None:
    """Everything is installed; the verification then refuses a torch that is none."""
    assert not carried.engine.has_image(carried.base)  # the engine was left as it was
    command = [sys.executable, "-m", "provisioner", "build", "--bundle", str(carried.folder)]
    done = carried.without_route(*command, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["code"]) == (1, "build.verify-failed"), told
    assert carried.engine.has_image(carried.base)
    check = [sys.executable, "-m", "provisioner", "bundle", "--check", str(carried.folder)]
    assert carried.without_route(*check, cwd=tmp_path).returncode == 0  # nothing came into it


def test_plain_docker_builds_it_too_and_leaves_no_wheel_in_a_layer(
    carried: Carried, tmp_path: Path
) -> None:
    folder, engine = carried.folder, carried.engine
    load = [str(engine.client), "load", "--input", str(folder / "images" / "base.tar")]
    assert carried.without_route(*load, cwd=tmp_path).returncode == 0
    command = [str(engine.client), "build", "--network=none", "--target=environment"]
    command += ["--file", f"{folder}/docker/{NEW.name}/Dockerfile", "--tag", RESULT, str(folder)]
    done = carried.without_route(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    code = "import torch, numpy; print(torch.VERSION, numpy.VERSION)"
    ran = engine.run(RESULT, "/opt/env/bin/python", "-c", code, options=("--network=none",))
    assert ran.stdout.strip() == "2.13.0+cpu 2.3.0", ran.stderr
    find = "find / -xdev -name '*.whl' -path '*bundle*'; ls -A / | grep bundle; exit 0"
    ran = engine.run(RESULT, "sh", "-c", find)
    assert "whl" not in ran.stdout


def test_no_password_and_no_address_got_into_the_bundle(carried: Carried) -> None:
    for path in carried.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert CANARY.encode() not in data, path
            if path.suffix != ".tar":
                assert b"http://127.0.0.1" not in data, path


def test_an_image_that_was_exchanged_is_not_built_on(carried: Carried, tmp_path: Path) -> None:
    """With a list that was written anew for it: the layers in the file are what counts."""
    import hashlib

    import msgspec

    from provisioner.bundle import model

    copy = tmp_path / "copy"
    shutil.copytree(carried.folder, copy, copy_function=lambda a, b: Path(b).hardlink_to(a))
    bundle = read_bundle(copy)
    image = msgspec.structs.replace(
        bundle.images[0], layers=(*bundle.images[0].layers[:-1], f"sha256:{'0' * 64}")
    )
    bundle = msgspec.structs.replace(bundle, images=(image,))
    for name, data in (
        (model.MANIFEST, model.bundle_bytes(bundle)),
        (model.SUMS, model.sums_bytes(bundle)),
    ):
        (copy / name).unlink()
        (copy / name).write_bytes(data)
    assert hashlib.sha256(model.bundle_bytes(bundle)).hexdigest() != carried.told["sha256"]
    command = [sys.executable, "-m", "provisioner", "build", "--bundle", str(copy), "--json"]
    done = carried.without_route(*command, cwd=tmp_path)
    assert json.loads(done.stdout)["error"]["code"] == "bundle.other-image"
