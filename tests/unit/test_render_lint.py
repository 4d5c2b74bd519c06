"""hadolint and shellcheck find nothing in what is rendered, and would find what they should."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import skip_or_fail
from support.rendering import every_cell, rendered, resolved

SCRIPTS = Path(sys.executable).parent


def linter(name: str) -> str:
    """A linter of the development dependencies."""
    found = shutil.which(name, path=f"{SCRIPTS}") or shutil.which(name)
    if found is None:
        skip_or_fail(
            "system", f"{name} is not installed: it is one of the development dependencies"
        )
    return found


def lint(command: list[str], *paths: Path) -> str:
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stdout.strip()), done.stderr
    return done.stdout


@pytest.fixture
def dockerfiles(tmp_path: Path) -> list[Path]:
    """Dockerfiles of every cell at its defaults, and of each other kind."""
    kinds = [
        resolved(torch="2.0.1", cuda="11.7", python_from="base", os="debian11"),
        resolved(torch="2.0.1", cuda="11.8", python_from="base", ptxas="ptxas118"),
        resolved(torch="2.6.0", cuda="12.4", os="el9", flavour="devel"),
        resolved(torch="2.11.0", cuda="13.0", arch="aarch64"),
        resolved(torch="2.0.1", cuda="11.8", compile=False),
        resolved(torch="2.13.0", cuda="13.0", gpu=("A100",), driver="535.183.01"),
        resolved(cuda="11.8", name="own", packages={"apt": ("git", "less=551-2")}),
    ]
    paths = []
    for number, resolution in enumerate([*every_cell(), *kinds]):
        path = tmp_path / f"{number}.Dockerfile"
        path.write_text(rendered(resolution)["docker/Dockerfile"], encoding="ascii")
        paths.append(path)
    return paths


def test_hadolint_finds_nothing_in_any_dockerfile(dockerfiles: list[Path]) -> None:
    assert lint([linter("hadolint"), "--no-color"], *dockerfiles) == ""


def test_hadolint_sees_what_one_line_lets_it_ignore(dockerfiles: list[Path]) -> None:
    path = dockerfiles[0]
    text = path.read_text(encoding="ascii")
    assert text.count("hadolint ignore=") == 1
    path.write_text(text.replace("# hadolint ignore=", "# "), encoding="ascii")
    assert "DL3008" in lint([linter("hadolint"), "--no-color"], path)


def test_shellcheck_finds_nothing_in_the_launcher(tmp_path: Path) -> None:
    for eager in (False, True):
        files = rendered(resolved(torch="2.0.1", cuda="11.8", compile=not eager))
        path = tmp_path / f"provision-verify-{eager}"
        path.write_text(files["docker/provision-verify"], encoding="ascii")
        assert lint([linter("shellcheck")], path) == ""
        assert ("-ne 3" in path.read_text(encoding="ascii")) == eager
