"""Version comparison by numbers agrees with PEP 440 wherever it is used."""

from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provisioner.matrix import versions

plain = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(
    lambda numbers: ".".join(map(str, numbers))
)
clauses = st.lists(
    st.tuples(st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), plain).map("".join),
    min_size=1,
    max_size=3,
).map(",".join)


@given(plain, clauses)
def test_plain_ranges_mean_what_pep_440_says(version: str, spec: str) -> None:
    assert versions.satisfies(version, spec) == SpecifierSet(spec).contains(version)


@given(plain, plain)
def test_order_is_that_of_pep_440(one: str, other: str) -> None:
    assert versions.at_least(one, other) == (Version(one) >= Version(other))


def test_what_is_not_plain_is_left_to_packaging() -> None:
    assert versions.satisfies("3.8.4", "~=3.8.0")
    assert not versions.satisfies("3.9.0", "~=3.8.0")
    assert versions.satisfies("2.0.1", "==2.0.*")
    assert versions.satisfies("2.1.0rc1", "<2.1.0,>=2.0") is False
