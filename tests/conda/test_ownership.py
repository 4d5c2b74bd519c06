"""`env check` on environments that were broken on purpose: each break is found and named."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support import conda_channel as cc
from support.cells import cell_of
from support.contentwheel import content_wheel, torch_wheel

from provisioner.conda import prefix as prefixes
from provisioner.conda.install import InstallOptions, install_conda
from provisioner.env import pip
from provisioner.env.check import CheckOptions, check_env
from provisioner.env.expected import Expected, expected_of
from provisioner.env.finding import Finding
from provisioner.env.inventory import read_inventory
from provisioner.errors import FindingError, OutsideError

CELL = msgspec.structs.replace(
    expected_of(cell_of(torch="2.0.1", cuda="11.8")[0]),
    torchvision=None,
    torchaudio=None,
    requirements=("torch==2.0.1+cu118",),
)


def with_family(*pins: str) -> Expected:
    """The cell with more of torch's family, or another torch."""
    torch = () if any(pin.startswith("torch==") for pin in pins) else CELL.requirements
    return msgspec.structs.replace(CELL, requirements=(*torch, *pins))


@pytest.fixture(scope="module")
def pristine(
    lock: Path, installing: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """conda's half with pip's torch in it, as it should be."""
    prefix = tmp_path_factory.mktemp("pristine") / "env"
    install_conda(lock, prefix, InstallOptions(environ=installing))
    wheel = torch_wheel(prefix.parent, "2.0.1+cu118", "11.8")
    run_pip(prefix, installing, "install", "--no-deps", str(wheel))
    return prefix


class Environment:
    """A copy to be broken, and what the check says of it."""

    def __init__(self, pristine: Path, prefix: Path, environ: dict[str, str]) -> None:
        shutil.copytree(pristine, prefix, symlinks=True)
        marker = prefixes.read_marker(prefix) or {}
        prefixes.write_marker(prefix, {**marker, "prefix": str(prefix)})
        self.prefix = prefix
        self.environ = environ
        self.site = prefix / cc.SITE_PACKAGES
        self.wheels = prefix.with_name("wheels")
        self.checked: dict[str, list[Finding]] = {}

    def pip(self, *words: str) -> None:
        self.checked.clear()
        run_pip(self.prefix, self.environ, *words)

    def check(self, cell: Expected | None = CELL, **environ: str) -> list[Finding]:
        key = repr((cell, sorted(environ.items())))
        if key not in self.checked:
            options = CheckOptions(cell=cell, environ=self.environ | environ)
            self.checked[key] = check_env(self.prefix, options)
        return self.checked[key]

    def codes(self, cell: Expected | None = CELL, **environ: str) -> set[str]:
        return {finding.code for finding in self.check(cell, **environ)}

    def found(self, code: str, **environ: str) -> Finding:
        return next(finding for finding in self.check(CELL, **environ) if finding.code == code)


def run_pip(prefix: Path, environ: dict[str, str], *words: str) -> None:
    command = [
        str(prefix / "bin" / "python"),
        "-I",
        "-m",
        "pip",
        "--disable-pip-version-check",
        *words,
    ]
    done = subprocess.run(
        command,
        env=environ | {"PIP_NO_INDEX": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def environment(pristine: Path, installing: dict[str, str], tmp_path: Path) -> Environment:
    return Environment(pristine, tmp_path / "env", installing)


def test_an_environment_as_it_was_installed_has_no_finding(environment: Environment) -> None:
    assert environment.check() == []
    owned = read_inventory(environment.prefix).of_conda()
    assert owned == {
        "numpy": "1.26.4",
        "six": "1.16.0",
        "pip": read_inventory(environment.prefix).of_conda()["pip"],
    }


def test_pip_over_conda_with_the_same_version(environment: Environment) -> None:
    body = {"numpy/__init__.py": b"__version__ = '1.26.4'\n"}
    wheel = content_wheel(environment.wheels, "numpy", "1.26.4", body)
    environment.pip("install", "--no-deps", "--force-reinstall", str(wheel))
    finding = environment.found("env.conda-replaced")
    assert "pip put numpy 1.26.4 over conda's package numpy" in finding.message
    assert any(path.endswith("numpy-1.26.4.dist-info/INSTALLER") for path in finding.paths)


def test_pip_over_conda_with_another_version(environment: Environment) -> None:
    body = {"numpy/__init__.py": b"__version__ = '1.26.5'\n"}
    wheel = content_wheel(environment.wheels, "numpy", "1.26.5", body)
    environment.pip("install", "--no-deps", str(wheel))
    finding = environment.found("env.two-owners")
    assert "pip's numpy 1.26.5 and conda's package numpy both own" in finding.message
    assert finding.paths == (f"{cc.SITE_PACKAGES}/numpy/__init__.py",)
    assert {"env.conda-distribution-gone", "env.file-changed"} <= environment.codes()


def test_another_project_that_brings_a_file_of_condas(environment: Environment) -> None:
    wheel = content_wheel(environment.wheels, "sixer", "1.0", {"six.py": b"evil = 1\n"})
    environment.pip("install", "--no-deps", str(wheel))
    assert environment.found("env.two-owners").paths == (f"{cc.SITE_PACKAGES}/six.py",)


def test_pip_removed_what_conda_owns(environment: Environment) -> None:
    environment.pip("uninstall", "--yes", "six")
    assert environment.codes() == {"env.conda-distribution-gone", "env.file-missing"}


def test_a_deleted_file(environment: Environment) -> None:
    (environment.site / "six.py").unlink()
    finding = environment.found("env.file-missing")
    assert finding.message == f"1 file of conda's six 1.16.0 is missing: {cc.SITE_PACKAGES}/six.py."
    assert environment.codes() == {"env.file-missing"}


def test_a_half_overwritten_torch(environment: Environment) -> None:
    library = environment.site / "torch" / "lib" / "libtorch.so"
    with library.open("r+b") as stream:
        stream.write(b"\x00" * 700)
    (environment.site / "torch" / "version.py").write_bytes(b"cuda = '11.8'\nother = 1\n")
    finding = environment.found("env.file-changed")
    assert "2 files of pip's torch 2.0.1+cu118 are not as installed" in finding.message


def test_a_program_of_conda_that_was_patched_in_place(environment: Environment) -> None:
    with (environment.prefix / "bin" / "greet").open("ab") as stream:
        stream.write(b"!")
    assert environment.found("env.file-changed").paths == ("bin/greet",)


def test_a_link_that_leads_elsewhere(environment: Environment) -> None:
    link = environment.prefix / "bin" / "python3"
    link.unlink()
    link.symlink_to("/usr/bin/env")
    assert environment.found("env.file-changed").paths == ("bin/python3",)


def test_an_interpreter_that_does_not_start_is_a_finding(environment: Environment) -> None:
    (environment.prefix / "lib" / f"python{cc.SERIES}" / "encodings" / "__init__.py").unlink()
    assert environment.codes() == {"env.file-missing", "env.python-broken"}


def test_a_second_torch_in_the_user_site(environment: Environment, tmp_path: Path) -> None:
    base = tmp_path / "user"
    user = base / "lib" / f"python{cc.SERIES}" / "site-packages"
    wheel = torch_wheel(tmp_path, "2.4.1+cpu", None)
    environment.pip("install", "--no-deps", "--target", str(user), str(wheel))
    assert environment.codes(PYTHONUSERBASE=str(base)) == {
        "env.foreign-path",
        "env.torch-twice",
        "env.torch-variant",  # it comes first in an import, too
    }
    assert environment.codes(PYTHONUSERBASE=str(base), PYTHONNOUSERSITE="1") == set()
    finding = environment.found("env.foreign-path", PYTHONUSERBASE=str(base))
    assert "the user's own site folder" in finding.message


def test_a_folder_of_pythonpath_comes_before_everything(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "mine" / "torch").mkdir(parents=True)
    (tmp_path / "mine" / "torch" / "__init__.py").write_text(
        "class version: cuda = None\n__version__ = '1.0'\n"
    )
    codes = environment.codes(PYTHONPATH=str(tmp_path / "mine"))
    assert codes == {"env.foreign-path", "env.torch-twice", "env.torch-variant"}
    assert (
        "PYTHONPATH"
        in environment.found("env.foreign-path", PYTHONPATH=str(tmp_path / "mine")).message
    )


def test_a_pth_file_that_leads_out(environment: Environment, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (environment.site / "escape.pth").write_text(f"# editable\n{outside}\n")
    assert environment.codes() == {"env.pth-escape", "env.foreign-path"}


def test_a_pth_file_that_runs_code_and_belongs_to_nobody(environment: Environment) -> None:
    (environment.site / "evil.pth").write_text("import os; os.environ['X'] = '1'\n")
    assert environment.codes() == {"env.pth-unowned"}


def test_two_distributions_of_pip_with_one_file(environment: Environment) -> None:
    for name, text in (("one", b"a = 1\n"), ("two", b"a = 2\n")):
        body = {"shared/__init__.py": text, "empty/__init__.py": b""}
        wheel = content_wheel(environment.wheels, name, "1.0", body)
        environment.pip("install", "--no-deps", str(wheel))
    codes = environment.codes()
    assert codes == {"env.two-distributions", "env.file-changed"}
    finding = environment.found("env.two-distributions")
    assert finding.paths == (f"{cc.SITE_PACKAGES}/shared/__init__.py",)


def test_what_pip_check_says(environment: Environment) -> None:
    wheel = content_wheel(environment.wheels, "needy", "1.0", {"needy.py": b""}, ["absent>=2"])
    environment.pip("install", "--no-deps", str(wheel))
    assert "absent" in environment.found("env.pip-check").message
    assert environment.codes() == {"env.pip-check"}


@pytest.mark.parametrize(
    ("cell", "codes"),
    [
        (msgspec.structs.replace(CELL, local_version="2.0.1+cu117"), {"env.torch-variant"}),
        (msgspec.structs.replace(with_family("torch==2.1.2+cu118"), local_version="2.1.2+cu118"),
         {"env.family-version", "env.torch-variant"}),
        (with_family("torch==2.0.1+cu117"), {"env.torch-variant"}),
        (msgspec.structs.replace(CELL, device="cpu"), {"env.torch-variant"}),
        (with_family("torchvision==0.15.2+cu118"), {"env.family-missing"}),
        (None, set()),
    ],
)  # fmt: skip
def test_a_torch_that_is_not_the_cells(
    environment: Environment, cell: Expected | None, codes: set[str]
) -> None:
    assert environment.codes(cell) == codes


def test_a_cell_whose_torch_is_missing_or_broken(environment: Environment) -> None:
    (environment.site / "torch" / "__init__.py").write_text("raise ImportError('libcudart')\n")
    assert environment.codes() == {"env.file-changed", "env.torch-broken"}
    environment.pip("uninstall", "--yes", "torch")
    assert environment.codes() == {"env.torch-missing"}


def test_a_family_of_mixed_variants_and_cuda_on_a_cpu_cell(environment: Environment) -> None:
    for name, version in (("torchvision", "0.15.2+cpu"), ("nvidia_cublas_cu11", "11.10")):
        wheel = content_wheel(environment.wheels, name, version, {f"{name}.py": b""})
        environment.pip("install", "--no-deps", str(wheel))
    cell = with_family("torchvision==0.15.2+cu118")
    assert environment.codes(cell) == {"env.family-variant"}
    assert environment.codes() == {"env.family-uncalled"}
    assert "env.cuda-on-cpu" in environment.codes(msgspec.structs.replace(cell, device="cpu"))


def test_cuda_of_another_series_and_a_second_torch_under_another_name(
    environment: Environment,
) -> None:
    for name, version in (("nvidia_cublas_cu12", "12.1.3.1"), ("pytorch", "1.0.2")):
        wheel = content_wheel(environment.wheels, name, version, {f"{name}.py": b""})
        environment.pip("install", "--no-deps", str(wheel))
    assert environment.codes() == {"env.other-cuda", "env.second-torch"}


def test_the_dry_run_sees_what_names_alone_do_not(environment: Environment, tmp_path: Path) -> None:
    """The lock says six 1.16.0 as conda does, but pip would not take conda's for it."""
    shutil.rmtree(environment.site / "six-1.16.0.dist-info")
    options = pip.PipOptions(environ=environment.environ, wheels=tmp_path)
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"six==1.16.0 --hash=sha256:{'a' * 64}\n")
    inventory = read_inventory(environment.prefix)
    six = next(package for package in inventory.conda if package.name == "six")
    as_owned = replace(
        inventory,
        distributions=(
            *inventory.distributions,
            replace(inventory.distributions[0], name="six", version="1.16.0", owner=six.name),
        ),
    )
    python = environment.prefix / "bin" / "python"
    with pytest.raises(FindingError) as caught:
        pip.install(python, [pip.PipPart(file=lock)], as_owned, options)
    assert caught.value.code == "env.pip-over-conda"


def test_nothing_to_check_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as caught:
        check_env(tmp_path)
    assert caught.value.code == "env.no-environment"
    assert list(tmp_path.iterdir()) == []
