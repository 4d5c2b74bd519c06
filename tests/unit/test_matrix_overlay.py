"""Overlays: entries are merged by identity, null takes away, problems name the overlay's line."""

from pathlib import Path
from textwrap import dedent

import pytest
from support.matrices import SMALL, line_of

from provisioner.matrix.load import LoadedMatrix, load_matrix
from provisioner.matrix.problems import DocumentError


def laid_over(text: str, tmp_path: Path, name: str = "overlay.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def load(text: str, tmp_path: Path) -> LoadedMatrix:
    return load_matrix(SMALL, [laid_over(text, tmp_path)], cache=False)


def refused(text: str, tmp_path: Path) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        load(text, tmp_path)
    return caught.value


def test_an_empty_overlay_changes_nothing(tmp_path: Path) -> None:
    assert load("{}", tmp_path).matrix == load_matrix(SMALL, cache=False).matrix


def test_a_mapping_is_merged_key_by_key(tmp_path: Path) -> None:
    matrix = load("origins:\n  conda: {url: 'https://mirror.example/conda'}\n", tmp_path).matrix
    base = load_matrix(SMALL, cache=False).matrix
    assert matrix.origins.conda.url == "https://mirror.example/conda"
    assert matrix.origins.torch_index == base.origins.torch_index


def test_a_list_of_entries_is_merged_by_identity(tmp_path: Path) -> None:
    text = """
releases:
- torch: 2.0.1
  note: ours
  variants:
  - {tag: cu118, cudnn: 8.7.0.84}
gpus:
- {name: A100, aliases: [Ampere card]}
- {name: Our Card, capability: '9.0', kind: data-center}
"""
    matrix = load(text, tmp_path).matrix
    assert [release.torch for release in matrix.releases] == ["1.13.1", "2.0.1"]
    release = matrix.releases[1]
    assert release.note == "ours"
    assert [variant.tag for variant in release.variants] == ["cu117", "cu118", "cpu"]
    assert release.variants[1].cudnn == "8.7.0.84"
    assert release.variants[1].arch_list == ("7.0", "8.0", "9.0")
    assert [gpu.name for gpu in matrix.gpus] == ["Tesla V100", "A100", "Our Card"]
    assert matrix.gpus[1].aliases == ("Ampere card",)


def test_entries_may_be_named_by_a_mapping_and_taken_away_by_null(tmp_path: Path) -> None:
    text = """
releases:
  2.0.1:
    variants:
      cu118: {note: in-house}
gpus:
  A100: null
driver_branches:
  '470': {latest: 470.256.03}
cuda_images:
  11.8.0: null
"""
    matrix = load(text, tmp_path).matrix
    assert matrix.releases[1].variants[1].note == "in-house"
    assert [gpu.name for gpu in matrix.gpus] == ["Tesla V100"]
    assert matrix.driver_branches[0].latest == "470.256.03"
    assert matrix.cuda_images == ()


def test_a_new_entry_takes_its_place_in_the_order(tmp_path: Path) -> None:
    text = """
capabilities:
- {capability: '7.5', family: turing, modules: either, source: [notes]}
releases:
- torch: 2.0.1
  variants:
  - {tag: cu117, toolkit: '11.7'}
"""
    matrix = load(text, tmp_path).matrix
    assert [entry.capability for entry in matrix.capabilities] == [
        "7.0",
        "7.5",
        "8.0",
        "9.0",
        "10.0",
    ]


def test_plain_lists_and_values_are_replaced_whole(tmp_path: Path) -> None:
    matrix = load("defaults:\n  python: ['3.9']\n  os: [ubuntu22.04]\n", tmp_path).matrix
    assert matrix.defaults.python == ("3.9",)


def test_null_is_a_value_where_the_model_has_it_and_takes_away_elsewhere(tmp_path: Path) -> None:
    text = """
origins:
  torch_index: {url: null}
releases:
  2.0.1:
    variants:
      cu118: {built_with: null, ptx: null}
"""
    more = "releases: {2.0.1: {variants: {cu118: {ptx: ['9.0']}}}}"
    layers = [laid_over(more, tmp_path, "1.yaml"), laid_over(text, tmp_path, "2.yaml")]
    assert load_matrix(SMALL, layers[:1], cache=False).matrix.releases[1].variants[1].ptx
    matrix = load_matrix(SMALL, layers, cache=False).matrix
    assert matrix.origins.torch_index.url is None
    assert matrix.releases[1].variants[1].built_with is None
    assert matrix.releases[1].variants[1].ptx == ()


def test_several_overlays_are_laid_in_order(tmp_path: Path) -> None:
    first = laid_over("meta: {title: first, warn_after_days: 5}", tmp_path, "1.yaml")
    second = laid_over("meta: {title: second}", tmp_path, "2.yaml")
    loaded = load_matrix(SMALL, [first, second], cache=False)
    assert loaded.matrix.meta.title == "second"
    assert loaded.matrix.meta.warn_after_days == 5
    assert loaded.paths == (str(SMALL), str(first), str(second))
    other = load_matrix(SMALL, [second, first], cache=False)
    assert other.matrix.meta.title == "first"
    assert other.sha256 != loaded.sha256


def test_the_example_of_the_manual_is_an_overlay(tmp_path: Path) -> None:
    manual = (SMALL.parents[3] / "docs" / "matrix.md").read_text(encoding="utf-8")
    example = manual[manual.index("    # our.yaml") : manual.index("| in the overlay")]
    matrix = load_matrix(None, [laid_over(dedent(example), tmp_path)], cache=False).matrix
    assert matrix.gpus[-1].name == "Our Card"
    assert "11.7.1" not in [image.version for image in matrix.cuda_images]


BAD = [
    ("gpus:\n- {name: A100, capability: 8.0}\n", "unquoted-number", "8.0", "$.gpus[1].capability"),
    ("gpus:\n- {name: X1, kind: geforce}\n", "missing-key", "X1", "$.gpus[2].capability"),
    ("gpus:\n- {capability: '8.0'}\n", "overlay", "capability", "$.gpus[0]"),
    ("gpus:\n- {name: A100}\n- {name: 'A100'}\n", "duplicate-entry", "'A100'", "$.gpus[1]"),
    ("gpus:\n  Z9: null\n", "overlay", "Z9", "$.gpus"),
    ("gpus: none\n", "wrong-type", "gpus", "$.gpus"),
    ("colour: blue\n", "unknown-key", "colour", "$.colour"),
    ("- a\n", "wrong-type", "- a", "$"),
    ("defaults:\n\n  torch: 2.4.0\n", "dangling-reference", "torch", "$.defaults.torch"),
    (
        "toolkits:\n\n  '11.7': null\n",
        "dangling-reference",
        None,
        "$.releases[0].variants[0].toolkit",
    ),
    ("releases:\n  2.0.1:\n    glibc: null\n", "missing-key", "glibc", "$.releases[1].glibc"),
    ("a: &a x\n", "alias", "&a", "$.a"),
    ("releases:\n  2.0.1:\n    torch: 2.0.2\n", "dangling-reference", None, "$.defaults.torch"),
]


@pytest.mark.parametrize(("text", "kind", "at", "path"), BAD)
def test_a_problem_names_the_file_that_is_at_fault(
    text: str, kind: str, at: str | None, path: str, tmp_path: Path
) -> None:
    error = refused(text, tmp_path)
    told = [problem.to_dict("matrix") for problem in error.problems]
    file, line = str(SMALL), None
    if at is not None:
        file, line = str(tmp_path / "overlay.yaml"), line_of(text, at)
    matching = [
        entry
        for entry in told
        if (entry["code"], entry["path"], entry["file"]) == (f"matrix.{kind}", path, file)
        and line in {None, entry["line"]}
    ]
    assert matching, told
    assert error.next_step is not None
    assert f"validate {SMALL} --overlay {tmp_path / 'overlay.yaml'}" in error.next_step
