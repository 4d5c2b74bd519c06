"""environment.yml names a package once, whoever bounds it."""

import pytest

from provisioner.render.conda import merged


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["pip", "numpy<2"], ["pip", "numpy<2"]),
        (["numpy<2", "pip", "numpy>=1.24"], ["numpy<2,>=1.24", "pip"]),
        (["numpy<2", "numpy"], ["numpy<2"]),
        (["numpy<2", "numpy<2"], ["numpy<2"]),
        (["numpy", "numpy=1.24"], ["numpy=1.24"]),
        (["numpy=1.24", "numpy<2"], ["numpy<2,=1.24.*"]),
        (["numpy<2", "numpy==1.24.1,!=1.25"], ["numpy<2,==1.24.1,!=1.25"]),
    ],
)
def test_two_bounds_of_one_package_are_one_spec(specs: list[str], expected: list[str]) -> None:
    assert merged(specs) == expected


def test_the_joined_bounds_all_hold() -> None:
    rattler = pytest.importorskip("rattler")
    [spec] = merged(["numpy=1.24", "numpy<2", "numpy!=1.24.1"])
    version = rattler.VersionSpec(str(rattler.MatchSpec(spec, strict=False).version))
    fits = [v for v in ("1.23.9", "1.24.0", "1.24.1", "1.24.2", "1.25.0", "2.0")
            if version.matches(rattler.Version(v))]  # fmt: skip
    assert fits == ["1.24.0", "1.24.2"]
