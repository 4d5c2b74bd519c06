"""Where options come from, merged in one place: command line > environment > file > matrix.

`settings_from` is pure but for reading the project file that `-f` names.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - part of public signatures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.cli.project import ReadProject, option_values, read_project
from provisioner.errors import UsageError
from provisioner.matrix.cell import Request, UserPackages
from provisioner.matrix.model import Matrix, Origins

if TYPE_CHECKING:
    from provisioner.cli.options import Option

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_WORD = re.compile(r"[A-Za-z0-9<>=!~][A-Za-z0-9.+<>=!~,*_ -]{0,79}")
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%+-]+)*/?")
_ORIGINS = tuple(field.name for field in msgspec.structs.fields(Origins))


class Source(enum.IntEnum):
    """Where a value comes from; a higher one wins."""

    MATRIX = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One value with its source; `where` is as people know it: --torch, PROVISION_TORCH, a line."""

    value: Any
    source: Source
    where: str


class OpenMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded matrix with the mirrors of the user as its origins."""

    matrix: Matrix
    sha256: str
    paths: tuple[str, ...]
    digests: tuple[str, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked for, and how. `chosen` has every option that somebody set."""

    request: Request
    matrix: Path | None
    overlays: tuple[Path, ...]
    mirrors: dict[str, str]
    chosen: dict[str, Chosen]

    def where(self, option: str) -> str:
        """Where an option's value comes from, for people."""
        found = self.chosen.get(option)
        return found.where if found else "the matrix"

    def explain(self) -> list[dict[str, Any]]:
        """Every option that somebody set, for --json: option, value, source, where."""
        return [
            {
                "option": name,
                "value": found.value,
                "source": found.source.name.lower().replace("_", " "),
                "where": found.where,
            }
            for name, found in sorted(self.chosen.items())
        ]

    def open(self, *, cache: bool = True) -> OpenMatrix:
        """The matrix of these settings, loaded, with the mirrors as its origins."""
        from provisioner.matrix.load import load_matrix

        loaded = load_matrix(self.matrix, self.overlays, cache=cache)
        matrix = with_mirrors(loaded.matrix, self.mirrors)
        return OpenMatrix(
            matrix=matrix, sha256=loaded.sha256, paths=loaded.paths, digests=loaded.digests
        )


def with_mirrors(matrix: Matrix, mirrors: Mapping[str, str]) -> Matrix:
    """The matrix with each mirrored origin replaced."""
    if not mirrors:
        return matrix
    origins = {
        name: msgspec.structs.replace(getattr(matrix.origins, name), url=url)
        for name, url in mirrors.items()
    }
    return msgspec.structs.replace(
        matrix, origins=msgspec.structs.replace(matrix.origins, **origins)
    )


def settings_from(
    options: Sequence[Option], line: Mapping[str, Any], environment: Mapping[str, str]
) -> Settings:
    """The settings of a command: `line` has click's values by option name, None or () when unset.

    Raises UsageError (`request.<option>`, `mirror.<kind>`, `project.<kind>`).
    """
    names = {option.name: option for option in options}
    chosen: dict[str, Chosen] = {}
    project = _project(names, line, environment)
    if project is not None:
        _from_file(names, project, chosen)
    for option in options:
        if option.kind == "pairs":
            _mirror_variables(environment, chosen)
            _mirror_options(line[option.name], chosen)
            continue
        found = _variable(option, environment)
        if found is not None:
            chosen[option.name] = found
        value = line[option.name]
        if value is not None and value != ():
            chosen[option.name] = Chosen(
                value=_listed(option, value) if option.kind == "list" else _plain(option, value),
                source=Source.COMMAND_LINE,
                where=_flag(option, value),
            )
    for option in options:
        if option.kind in {"word", "list"} and option.name in chosen:
            _check_words(option, chosen[option.name])
    return _settings(chosen, project)


def _settings(chosen: dict[str, Chosen], project: ReadProject | None) -> Settings:
    def value(name: str, default: Any = None) -> Any:
        return chosen[name].value if name in chosen else default

    packages = UserPackages()
    if project is not None:
        own = project.project.packages
        packages = UserPackages(pip=own.pip, conda=own.conda, apt=own.apt)
    _refuse_silent_cpu(chosen)
    _one_of(chosen, "index", ("package", "torch"))
    _one_of(chosen, "without", ("torchaudio", "torchvision"))
    request = Request(
        torch=value("torch"),
        cuda=value("cuda"),
        python=value("python"),
        os=value("os"),
        arch=value("arch"),
        gpu=tuple(value("gpu", ())),
        driver=value("driver"),
        flavour=value("flavour"),
        compile=value("compile", True),
        python_from=value("python_from"),
        index=value("index"),
        ptxas=value("ptxas"),
        without=tuple(sorted(set(value("without", ())))),
        name=project.project.name if project else None,
        packages=packages,
    )
    matrix = value("matrix")
    return Settings(
        request=request,
        matrix=Path(matrix) if matrix else None,
        overlays=tuple(Path(path) for path in value("overlay", ())),
        mirrors={
            name.partition(".")[2]: found.value
            for name, found in sorted(chosen.items())
            if name.startswith("mirror.")
        },
        chosen=chosen,
    )


def _refuse_silent_cpu(chosen: Mapping[str, Chosen]) -> None:
    """A GPU that was named here and now is not overruled by a CPU build from further away."""
    gpu, cuda = chosen.get("gpu"), chosen.get("cuda")
    if gpu is None or cuda is None or str(cuda.value).strip().lower() not in {"cpu", "none"}:
        return
    if gpu.source > cuda.source:
        raise UsageError(
            "request.conflict",
            f"{gpu.where} names a GPU, and {cuda.where} asks for a build for the CPU.",
            facts={"gpu": list(gpu.value), "cuda": str(cuda.value)},
            next_step="Name the CUDA series with --cuda, or --cuda cpu if a CPU build is meant.",
        )


def _project(
    names: Mapping[str, Option], line: Mapping[str, Any], environment: Mapping[str, str]
) -> ReadProject | None:
    if "file" not in names:
        return None
    path = line["file"] or environment.get(names["file"].variable)
    return read_project(Path(path)) if path else None


def _from_file(
    names: Mapping[str, Option], project: ReadProject, chosen: dict[str, Chosen]
) -> None:
    """What the document says. Its paths are relative to its own folder."""
    for name, value in option_values(project.project).items():
        if name not in names:
            continue
        if name == "matrix":
            value = str(project.path.parent / value)
        elif name == "overlay":
            value = tuple(str(project.path.parent / entry) for entry in value)
        chosen[name] = Chosen(value=value, source=Source.FILE, where=project.place(name))
    for origin, url in project.project.mirrors.items():
        _mirror(origin, url, Source.FILE, project.place(f"mirrors.{origin}"), chosen)


def _variable(option: Option, environment: Mapping[str, str]) -> Chosen | None:
    name = option.variable
    if option.kind == "switch":
        name = f"PROVISION_NO_{option.name.upper()}"
    text = environment.get(name, "").strip()
    if not text:
        return None
    value: Any = text
    if option.kind == "switch":
        if text.lower() not in _TRUE | _FALSE:
            raise UsageError(
                f"request.{option.name}", f"{name} is {text!r}; expected 1 or 0.", facts={}
            )
        value = text.lower() in _FALSE
    elif option.kind == "list":
        value = _listed(option, (text,))
    elif option.kind == "paths":
        value = tuple(part for part in text.split(os.pathsep) if part)
    return Chosen(value=value, source=Source.ENVIRONMENT, where=name)


def _plain(option: Option, value: Any) -> Any:
    if option.kind in {"word", "path"} and not str(value).strip():
        raise _bad_value(option, str(value), option.flag)
    return value


def _listed(option: Option, values: Sequence[str]) -> tuple[str, ...]:
    """Repeated and comma separated values as one list, without repetition, in the order given."""
    parts = [part.strip() for value in values for part in value.split(",")]
    if not all(parts):
        raise _bad_value(option, ",".join(values), option.flag)
    return tuple(dict.fromkeys(parts))


def _flag(option: Option, value: Any) -> str:
    return f"--no-{option.name}" if value is False else option.flag


def _check_words(option: Option, chosen: Chosen) -> None:
    """No value that could mean something to a shell, a Dockerfile or YAML goes any further."""
    for word in (chosen.value,) if isinstance(chosen.value, str) else chosen.value:
        if not _WORD.fullmatch(word):
            raise _bad_value(option, word, chosen.where)


def _bad_value(option: Option, value: str, where: str) -> UsageError:
    return UsageError(
        f"request.{option.name.replace('_', '-')}",
        f"{value!r} is not a valid value for {where}: expected {option.help.rstrip('.')}.",
        facts={"value": value},
    )


def _one_of(chosen: Mapping[str, Chosen], name: str, allowed: tuple[str, ...]) -> None:
    found = chosen.get(name)
    if found is None:
        return
    for value in (found.value,) if isinstance(found.value, str) else found.value:
        if value not in allowed:
            raise UsageError(
                f"request.{name}",
                f"{value!r} is not a valid value for {found.where}: "
                f"expected {' or '.join(allowed)}.",
                facts={"value": value},
            )


def _mirror_variables(environment: Mapping[str, str], chosen: dict[str, Chosen]) -> None:
    prefix = "PROVISION_MIRROR_"
    for name in sorted(environment):
        if name.startswith(prefix) and environment[name].strip():
            origin = name.removeprefix(prefix).lower()
            _mirror(origin, environment[name].strip(), Source.ENVIRONMENT, name, chosen)


def _mirror_options(pairs: Sequence[str], chosen: dict[str, Chosen]) -> None:
    for pair in pairs:
        origin, equals, url = pair.partition("=")
        if not equals:
            raise UsageError(
                "mirror.syntax",
                f"{redacted(pair)!r} is not a valid value for --mirror: expected ORIGIN=URL.",
                facts={"origins": _ORIGINS},
            )
        where = f"--mirror {origin}"
        _mirror(origin.strip().replace("-", "_"), url.strip(), Source.COMMAND_LINE, where, chosen)


def _mirror(origin: str, url: str, source: Source, where: str, chosen: dict[str, Chosen]) -> None:
    if origin not in _ORIGINS:
        import difflib

        close = difflib.get_close_matches(origin, _ORIGINS, n=1)
        raise UsageError(
            "mirror.unknown-origin",
            f"{where}: there is no origin {origin!r}.",
            facts={"origins": _ORIGINS},
            next_step=f"Did you mean {close[0]}?" if close else None,
        )
    chosen[f"mirror.{origin}"] = Chosen(
        value=mirror_url(origin, url, where), source=source, where=where
    )


def mirror_url(origin: str, url: str, where: str) -> str:
    """A mirror's address, checked. An image registry may be written without https://.

    Raises UsageError for other schemes, for a query or fragment, and for a user or password: those
    would end up in files and images.
    """
    if origin == "image_registry" and "://" not in url:
        url = f"https://{url}"
    if "@" in url:
        raise UsageError(
            "mirror.credentials",
            f"{where}: the address holds a user or password: {redacted(url)}.",
            next_step="Take them out of the address and give them as the secret "
            "(see docs/mirrors.md); provision writes no credentials into files.",
        )
    if not _URL.fullmatch(url):
        raise UsageError(
            "mirror.url",
            f"{where}: {redacted(url)!r} is not an address that a build can use: expected "
            "http:// or https://, a host and a path, without query or fragment.",
            next_step="Serve a local folder by http: a build in an image cannot read file://.",
        )
    return url.rstrip("/")


def redacted(url: str) -> str:
    """The address without what stands before an @: it may be a password."""
    scheme, _, rest = url.rpartition("://")
    if "@" not in rest:
        return url
    return (
        f"{scheme}://***@{rest.rpartition('@')[2]}" if scheme else f"***@{rest.rpartition('@')[2]}"
    )
