"""Options that commands share, each declared once: for the command line, the environment, the file.

`@matrix_options` and `@cell_options` hand the command one `settings` (see settings.py);
`@common_options` hands it one `out`. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, cast

import click

from provisioner.cli.output import Output

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds in a range; `nan` is in none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number


class Option(NamedTuple):
    """One option. `kind`: a word, a list (repeatable, commas too), a switch, pairs ORIGIN=URL."""

    name: str
    kind: Literal["word", "list", "switch", "path", "paths", "pairs"]
    metavar: str
    help: str
    flags: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As people type it: --python-from."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable: PROVISION_PYTHON_FROM."""
        return "PROVISION_" + self.name.upper()


CELL: tuple[Option, ...] = (
    Option(
        "torch", "word", "VERSION", "2.0.1, 2.0.1+cu118, latest, or a range such as >=2.1,<2.5."
    ),
    Option("cuda", "word", "SERIES", "11.8, cu118, or cpu."),
    Option("python", "word", "SERIES", "3.10."),
    Option("os", "word", "ID", "ubuntu22.04, debian12, el9, ..."),
    Option("arch", "word", "ARCH", "x86_64 or aarch64."),
    Option("gpu", "list", "GPU", "A name (A100) or compute capability (8.0); repeatable."),
    Option("driver", "word", "VERSION", "The driver of the host: 535.104.05, or a branch: 535."),
    Option("flavour", "word", "FLAVOUR", "slim, or devel for a CUDA toolkit with nvcc."),
    Option("compile", "switch", "", "--no-compile takes a cell that is eager-only (-eager)."),
    Option("python_from", "word", "WHERE", "conda, or base for the Python of the base image."),
    Option("index", "word", "WHICH", "package or torch: which index serves torch."),
    Option("ptxas", "word", "ID", "Another ptxas for old drivers, such as ptxas118."),
    Option("without", "list", "NAME", "Leave out torchvision or torchaudio; repeatable."),
)
"""The options that select a cell."""

MATRIX: tuple[Option, ...] = (
    Option("matrix", "path", "FILE", "Use this matrix instead of the shipped one."),
    Option("overlay", "paths", "FILE", "Lay this over the matrix; repeatable."),
)
MIRROR = Option("mirror", "pairs", "ORIGIN=URL", "Take an origin from a mirror; repeatable.")
FILE = Option("file", "path", "FILE", "Read a project's provision.yaml.", ("-f",))


def common_options(function: F) -> F:
    """Adds --json and -v; the command gets `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option("-v", "--verbose", count=True, help="Say more on standard error.")
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, verbose: int, **kwargs: Any) -> Any:
        return function(*args, out=Output(json=as_json, verbose=verbose), **kwargs)

    return cast("F", command)


def matrix_options(function: F) -> F:
    """Adds --matrix and --overlay; the command gets `settings`."""
    return _with_settings(function, MATRIX)


def index_options(function: F) -> F:
    """Adds the matrix and the mirrors of its origins; the command gets `settings`."""
    return _with_settings(function, (*MATRIX, MIRROR))


def cell_options(function: F) -> F:
    """Adds everything that selects a cell, -f, mirrors and the matrix; it gets `settings`."""
    return _with_settings(function, (*CELL, FILE, MIRROR, *MATRIX))


def _with_settings(function: F, options: tuple[Option, ...]) -> F:
    @functools.wraps(function)
    def with_settings(*args: Any, **kwargs: Any) -> Any:
        import os

        from provisioner.cli.settings import settings_from

        line = {option.name: kwargs.pop(_parameter(option)) for option in options}
        return function(*args, settings=settings_from(options, line, os.environ), **kwargs)

    command: Any = with_settings
    for option in reversed(options):
        command = _declare(option)(command)
    return cast("F", command)


def _parameter(option: Option) -> str:
    return f"set_{option.name}"


def _declare(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if option.kind == "switch":
        return click.option(
            f"{option.flag}/--no-{option.name}",
            _parameter(option),
            default=None,
            help=f"{option.help} [env: PROVISION_NO_{option.name.upper()}]",
        )
    return click.option(
        *option.flags,
        option.flag,
        _parameter(option),
        metavar=option.metavar,
        multiple=option.kind in {"list", "paths", "pairs"},
        help=f"{option.help} [env: {option.variable}{'_ORIGIN' * (option.kind == 'pairs')}]",
    )
