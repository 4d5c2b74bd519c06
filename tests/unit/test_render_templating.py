"""The four-step programs do what Jinja does with the same templates, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from support.rendering import every_cell, facts

from provisioner.render import templating
from provisioner.render.context import CellContext
from provisioner.render.dockerfile import template_values
from provisioner.render.quote import Safe
from provisioner.render.templating import TEMPLATES, TemplateError, compile_template, fill


def filled(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **values: Any) -> str:
    """The outcome of a template that is not one of ours."""
    (tmp_path / "t.j2").write_text(source, encoding="ascii")
    monkeypatch.setattr(templating, "TEMPLATES", tmp_path)
    templating._program.cache_clear()
    try:
        return fill("t.j2", values).decode("ascii")
    finally:
        templating._program.cache_clear()


def test_every_dockerfile_is_what_jinja_itself_makes_of_it() -> None:
    source = (TEMPLATES / "Dockerfile.j2").read_text(encoding="ascii")
    template = templating.environment().from_string(source)
    for resolution in every_cell()[::7]:
        values = template_values(CellContext(resolution, facts()))
        assert fill("Dockerfile.j2", values).decode("ascii") == template.render(values)


def test_a_value_that_nothing_checked_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert filled("{{ a }}", monkeypatch, tmp_path, a=Safe("x")) == "x"
    with pytest.raises(TemplateError, match="which nothing checked"):
        filled("{{ a }}", monkeypatch, tmp_path, a="x")


def test_a_name_that_was_not_given_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(TemplateError, match="which was not given"):
        filled("{{ a }}", monkeypatch, tmp_path)
    with pytest.raises(TemplateError, match="which was not given"):
        filled("{% if a %}x{% endif %}", monkeypatch, tmp_path)


def test_a_value_with_jinja_in_it_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert filled("{{ a }}", monkeypatch, tmp_path, a=Safe("{{ b }}")) == "{{ b }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ a | upper }}", "{{ a() }}", "{{ a + b }}", "{{ a[0] }}", "{{ 'text' }}",
        "{% set a = b %}", "{% if a == b %}{% endif %}", "{% if a %}{% elif b %}{% endif %}",
        "{% include 'other' %}", "{% macro m() %}{% endmacro %}", "{{ a.b.c }}",
    ],
)  # fmt: skip
def test_a_template_that_computes_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match=r"t\.j2, line 1"):
        compile_template(source, "t.j2")


def test_a_program_is_kept_and_used_again_without_jinja(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert filled("{{ a }}!", monkeypatch, tmp_path, a=Safe("x")) == "x!"

    def no_jinja() -> None:
        raise AssertionError("Jinja was asked again")

    monkeypatch.setattr(templating, "environment", no_jinja)
    assert filled("{{ a }}!", monkeypatch, tmp_path, a=Safe("y")) == "y!"
    with pytest.raises(AssertionError, match="Jinja was asked again"):
        filled("{{ a }}?", monkeypatch, tmp_path, a=Safe("y"))
