"""Fills the templates of this package. Only checked text gets through."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.render.quote import Safe

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).resolve().parent / "templates"


def fill(template: str, values: dict[str, Any]) -> bytes:
    """Returns the filled template as ASCII bytes.

    An unknown name and a value that is not `Safe` are errors of this program, not of the user.
    """
    return _environment().get_template(template).render(values).encode("ascii")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=_only_safe,
        autoescape=False,  # noqa: S701 - no HTML; `quote` checks every value
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )


def _only_safe(value: object) -> object:
    if isinstance(value, Safe):
        return value
    raise TypeError(f"a template prints {type(value).__name__} {value!r}, which nothing checked")
