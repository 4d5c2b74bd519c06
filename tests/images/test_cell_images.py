"""The proof: rendered Dockerfiles become images whose torch.compile works, or no image at all."""

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from cell_images import CANARY, ArchiveMirror, Image, Workshop

pytestmark = [pytest.mark.images, pytest.mark.network, pytest.mark.timeout(1800)]

SLIM_LIMIT = 300_000_000
VERIFY_STAGE = "FROM environment AS verify\n"


@pytest.fixture(params=["old", "new"])
def workshop(request: pytest.FixtureRequest) -> Workshop:
    """Each prepared cell in turn."""
    found: Workshop = request.getfixturevalue(f"{request.param}_workshop")
    return found


@pytest.fixture(params=["old", "new"])
def image(request: pytest.FixtureRequest) -> Image:
    """Each built cell in turn."""
    found: Image = request.getfixturevalue(f"{request.param}_image")
    return found


def altered(workshop: Workshop, folder: Path, *lines: str) -> Path:
    """A copy of the root with more lines in its verify stage; what comes before is cached."""
    root = folder / "root"
    shutil.copytree(workshop.root, root)
    path = root / "docker" / workshop.case.name / "Dockerfile"
    text = path.read_text(encoding="ascii")
    assert VERIFY_STAGE in text
    inserted = VERIFY_STAGE + "".join(f"{line}\n" for line in lines)
    path.write_text(text.replace(VERIFY_STAGE, inserted), encoding="ascii")
    return root


# --- before anything long starts ---


def test_a_build_without_a_lock_stops_at_once_and_names_the_command(
    workshop: Workshop, tmp_path: Path
) -> None:
    root = altered(workshop, tmp_path)
    lock = root / "lockfiles" / workshop.case.name / "requirements.txt"
    lock.unlink()
    done = workshop.docker_build(root, f"--build-arg=BASE_IMAGE={workshop.base}")
    assert done.returncode != 0
    assert f"run 'provision lock {workshop.case.name}'" in done.stderr
    assert "apt-get" not in re.sub(r"(?m)^.*\[base .*$", "", done.stderr)
    told = workshop.build(root, words=(workshop.case.name, "--locked"))
    assert told.returncode == 1
    assert json.loads(told.stdout)["error"]["code"] == "build.not-locked"
    next_step = json.loads(told.stdout)["error"]["next_step"]
    assert next_step == f"provision lock {workshop.case.name} --out {root}"


def test_build_does_the_whole_chain_from_options_alone(old_image: Image, tmp_path: Path) -> None:
    """Rendered, locked, built and verified in one command; the layers are those of the image."""
    workshop = old_image.workshop
    done = workshop.build(tmp_path, words=workshop.case.options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["cell"] == workshop.case.name
    assert told["report"]["verdict"] == old_image.told["report"]["verdict"]
    assert (tmp_path / "lockfiles" / workshop.case.name / "lock.json").is_file()
    assert Path(told["report_path"]).is_file()


def test_a_base_with_another_python_is_refused_before_packages_are_fetched(
    old_workshop: Workshop, new_image: Image
) -> None:
    new = new_image.workshop
    options = [f"--build-arg=BASE_IMAGE={new.base}", f"--build-arg=APT_MIRROR={new.mirrors['apt']}"]
    done = old_workshop.docker_build(old_workshop.root, *options, "--target=environment")
    assert done.returncode != 0
    assert "This cell needs Python 3.9, the base image has 3.11" in done.stderr
    assert re.search(
        r"\[base 3/4\] RUN[^\n]*\n(#\d+ sha256:[0-9a-f]+\n)?#\d+ CACHED", done.stderr
    ), "cells on one base do not share its layer"


@pytest.mark.parametrize("argument", ["APT_MIRROR", "APT_SECURITY_MIRROR", "PACKAGE_INDEX"])
def test_a_mirror_with_a_password_in_its_address_is_refused(
    workshop: Workshop, argument: str
) -> None:
    done = workshop.docker_build(
        workshop.root,
        f"--build-arg=BASE_IMAGE={workshop.base}",
        f"--build-arg={argument}=http://user:word@mirror.example/debian",
        "--target=base",
    )
    assert done.returncode != 0
    assert f"{argument} is an address without user, password and query" in done.stderr


def test_a_package_that_the_archive_lacks_is_not_taken_for_a_pattern(
    old_workshop: Workshop, tmp_path: Path
) -> None:
    """apt-get alone would install whatever has `python3`, a character and `x` in its name."""
    text = "{name: own, torch: 2.0.1, cuda: '11.7', os: debian11, python_from: base, "
    text += "packages: {apt: [less, python3.x]}}\n"
    (tmp_path / "provision.yaml").write_text(text, encoding="ascii")
    root = tmp_path / "root"
    done = old_workshop.provision("render", f"-f{tmp_path}/provision.yaml", f"--out={root}")
    assert done.returncode == 0, done.stderr
    case = replace(old_workshop.case, name=f"own--{old_workshop.case.name}")
    (root / "lockfiles" / case.name / "requirements.txt").write_text("# never read\n")
    own = replace(old_workshop, case=case)
    done = own.docker_build(root, f"--build-arg=BASE_IMAGE={own.base}", "--target=base")
    assert done.returncode != 0
    assert "No package is named python3.x here" in done.stderr
    assert "No package is named less" not in done.stderr


# --- the image ---


def test_the_build_proves_torch_compile_and_leaves_the_report(image: Image) -> None:
    told = image.told
    expected = {"old": "cpu-verified-cuda-deferred", "new": "verified"}
    kind = "new" if image.workshop.case.torch_index else "old"
    assert told["report"]["verdict"] == expected[kind]
    kept = json.loads(Path(told["report_path"]).read_text(encoding="utf-8"))
    inside = image.run("cat", "/usr/share/provision/report.json")
    assert json.loads(inside.stdout) == kept == told["report"]
    children = kept["details"]["children"]
    assert [child["phase"] for child in children] == ["cold", "warm"]
    assert kept["details"]["cache"]["kernel_so"]
    assert kept["details"]["user"]["uid"] == 10001
    assert told["size_bytes"] == image.inspect()["Size"]


def test_the_image_says_what_it_is(image: Image) -> None:
    config = image.inspect()["Config"]
    name = image.workshop.case.name
    spec = json.loads(image.run("cat", "/usr/share/provision/spec.json").stdout)
    assert spec["cell"]["name"] == name == config["Labels"]["io.provision.cell"]
    assert json.loads(config["Labels"]["io.provision.spec"])["cell"] == spec["cell"]
    assert config["User"] == "10001:10001"
    assert not config.get("Entrypoint")
    names = {variable.partition("=")[0] for variable in config["Env"]}
    assert "LD_LIBRARY_PATH" not in names
    assert ("NVIDIA_REQUIRE_CUDA" in names) == (spec["cell"]["device"] == "cuda")
    lock = image.workshop.root / "lockfiles" / name / "requirements.txt"
    inside = image.run("cat", "/usr/share/provision/requirements.txt").stdout
    assert inside == lock.read_text(encoding="ascii")


def test_exactly_the_locked_packages_are_installed(image: Image) -> None:
    listed = image.run(
        "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"
    )
    installed = {
        line.partition("==")[0].lower().replace("_", "-") for line in listed.stdout.split()
    }
    folder = image.workshop.root / "lockfiles" / image.workshop.case.name
    locked = {
        name.lower().replace("_", "-")
        for path in folder.glob("requirements*.txt")
        for name in re.findall(r"(?m)^([A-Za-z0-9._-]+)==", path.read_text(encoding="ascii"))
    }
    # What `python3 -m venv` brings by itself.
    assert installed - locked <= {"pip", "setuptools", "pkg-resources", "pkg_resources"}
    assert locked <= installed


def test_beside_base_and_packages_the_image_takes_at_most_300_mb(image: Image) -> None:
    engine = image.workshop.engine
    base = engine.docker("image", "inspect", "--format={{.Size}}", image.workshop.base)
    script = "du -s --apparent-size --block-size=1 /opt/env/lib/python3*/site-packages"
    packages = int(image.run("sh", "-c", script).stdout.split()[0])
    rest = image.told["size_bytes"] - int(base.stdout) - packages
    print(f"{image.workshop.case.name}: {rest / 1e6:.0f} MB beside base and site-packages")
    assert 100_000_000 < rest <= SLIM_LIMIT


def test_secrets_serve_the_build_and_are_in_no_layer(
    new_image: Image, archive: ArchiveMirror
) -> None:
    # Without the password from the secret the mirror would have served nothing.
    assert any(path.endswith(".deb") for path in archive.served)
    assert scan(new_image, CANARY.encode()) == set()
    assert scan(new_image, b"org.opencontainers.image.title")
    history = new_image.workshop.engine.docker("history", "--no-trunc", new_image.workshop.tag)
    assert CANARY not in history.stdout
    sources = new_image.run("sh", "-c", "cat /etc/apt/sources.list; ls /run/secrets /tmp")
    assert "127.0.0.1" not in sources.stdout
    assert "apt" not in sources.stdout.split("\n")[-1]


def scan(image: Image, needle: bytes) -> set[str]:
    """Names of files in the saved image, layers included, that hold `needle`."""
    engine = image.workshop.engine
    found: set[str] = set()
    command = [str(engine.client), "save", image.workshop.tag]
    with Popen(command, env=engine.environ, stdout=PIPE) as saved:
        assert saved.stdout is not None
        with tarfile.open(fileobj=saved.stdout, mode="r|") as outer:
            for member in outer:
                stream = outer.extractfile(member)
                if stream is None:
                    continue
                tail = b""
                while block := stream.read(1 << 22):
                    if needle in tail + block:
                        found.add(member.name)
                        break
                    tail = block[-len(needle) :]
    assert saved.returncode == 0
    return found


# --- no image where torch.compile does not work ---

SPOILT = {
    "without-a-compiler": (
        ("USER root", "RUN rm -f /usr/bin/*g++* /usr/bin/c++*", "USER 10001:10001"),
        r"FAILED \S+: .*C\+\+",
    ),
    "switched-off": (("ENV TORCHDYNAMO_DISABLE=1",), r"FAILED \S+: .*TORCHDYNAMO_DISABLE"),
    "falling-back-silently": (
        (
            "USER root",
            "RUN find /usr/lib/gcc /usr/libexec -name cc1plus -delete",
            "USER 10001:10001",
            "ENV TORCHDYNAMO_SUPPRESS_ERRORS=1",
        ),
        r"FAILED \S+: .*(g\+\+|C\+\+|compiler)",
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_build_that_could_not_compile_fails_with_one_clear_message(
    image: Image, how: str, tmp_path: Path
) -> None:
    workshop = image.workshop
    lines, message = SPOILT[how]
    tag = f"{workshop.tag}-{how}"
    root = altered(workshop, tmp_path, *lines)
    assert json.loads(workshop.build(root, tag).stdout)["error"]["code"] == "build.edited"
    done = workshop.build(root, tag, words=(workshop.case.name, "--edited"))
    assert done.returncode == 1, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "build.verify-failed"
    first, told = error["message"].split("\n")[:2]
    assert "its verification failed" in first
    joined = " ".join(error["message"].split())
    assert re.search(message, joined), error["message"]
    assert told.startswith("FAILED ")
    assert len(error["message"].split("\n")) <= 14
    assert not workshop.engine.has_image(tag)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("requirements", ["torch==2.0.1+cpu"], "torch is 2.0.1, the cell has 2.0.1+cpu"),
        ("device", "cpu", "the cell is for the CPU and takes no CUDA libraries"),
    ],
)
def test_an_environment_that_is_not_the_cells_is_no_image(
    old_image: Image, field: str, value: object, message: str, tmp_path: Path
) -> None:
    workshop = old_image.workshop
    root = altered(workshop, tmp_path)
    spec = root / "docker" / workshop.case.name / "spec.json"
    document = json.loads(spec.read_text(encoding="utf-8"))
    document["cell"][field] = value
    spec.write_text(json.dumps(document), encoding="utf-8")
    done = workshop.docker_build(root, f"--build-arg=BASE_IMAGE={workshop.base}")
    assert done.returncode != 0
    assert message in done.stderr


# --- the final image proves it again ---


@pytest.fixture
def hardened() -> tuple[str, ...]:
    """Options of a container that may write nowhere, by a user that nobody knows."""
    return ("--user=12345", "--read-only", "--network=none", "--cap-drop=ALL")


def test_it_runs_again_read_only_for_a_user_that_nobody_knows(
    old_image: Image, hardened: tuple[str, ...]
) -> None:
    options = (*hardened, "--tmpfs=/tmp:exec")
    done = old_image.run("provision-verify", "--device=cpu", "--json", options=options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    report = json.loads(done.stdout)
    assert report["details"]["user"]["uid"] == 12345
    assert report["verdict"] == "cpu-verified-cuda-deferred"


def test_a_cuda_cell_on_a_host_without_a_gpu_says_what_to_do(old_image: Image) -> None:
    done = old_image.run("provision-verify")
    assert done.returncode == 21
    assert done.stdout.startswith("FAILED device: CUDA is not usable")
    assert "docker run --gpus all" in " ".join(done.stdout.split())


def test_it_runs_again_as_it_is(new_image: Image) -> None:
    done = new_image.run("provision-verify", "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert json.loads(done.stdout)["verdict"] == "verified"


def test_without_exec_one_message_names_it(image: Image, hardened: tuple[str, ...]) -> None:
    done = image.run("provision-verify", options=(*hardened, "--tmpfs=/tmp"))
    assert done.returncode not in (0, 3)
    failed = [line for line in done.stdout.split("\n") if line.startswith("FAILED")]
    assert len(failed) == 1, done.stdout
    assert "exec" in done.stdout.split("verdict:")[0]
