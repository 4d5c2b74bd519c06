"""A conda-compatible executable on py-rattler: as much of conda as conda-lock asks for.

    python -m provisioner.conda.shim create --dry-run --json --prefix P -c conda-forge python=3.10

It needs no conda, reads no configuration and solves for the platform that CONDA_SUBDIR or
`--platform` names, with the virtual packages that it is given; it never looks at this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence  # noqa: TC003 - part of public signatures
from pathlib import Path
from typing import Any, NoReturn

from provisioner import __version__
from provisioner.conda import virtual
from provisioner.conda.channel import channels_of, redacted
from provisioner.errors import Exit, OutsideError, ProvisionError, UsageError

CONDA_VERSION = "26.1.0"
"""What we say we are: conda-lock asks for nothing that this version of conda lacks."""

REPORT_VARIABLE = "PROVISION_CONDA_REPORT"
"""A file that gets the error as JSON; conda-lock passes only a part of it on, with a traceback."""

LICENSES_VARIABLE = "PROVISION_CONDA_LICENSES"
"""A file that gets the license of each package of a solution, which conda-lock does not keep."""

CONSTRAINTS_VARIABLE = "PROVISION_CONDA_CONSTRAINTS"
NEWER_VARIABLE = "PROVISION_CONDA_EXCLUDE_NEWER"
OFFLINE_VARIABLE = "PROVISION_OFFLINE"
_EXCEPTIONS = {
    "conda.unsatisfiable": "UnsatisfiableError",
    "conda.unknown-package": "PackagesNotFoundError",
    "conda.bad-spec": "InvalidMatchSpec",
    "conda.channel-missing": "UnavailableInvalidChannel",
    "conda.channel-denied": "CondaHTTPError",
    "conda.channel-unreachable": "CondaHTTPError",
    "conda.channel-tls": "CondaSSLError",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("conda.usage", f"{self.prog.removeprefix('conda ')}: {message}.")


def main(arguments: Sequence[str]) -> int:
    """Runs a command; prints its result, or its error as JSON or in one line. Returns a status."""
    as_json = "--json" in arguments
    try:
        options = _parser().parse_args(list(arguments))
        result = options.run(options)
    except ProvisionError as error:
        _print_error(error, as_json=as_json)
        return int(error.exit_status)
    except Exception as error:  # noqa: BLE001 - the caller is a program that wants JSON, not a trace
        text = redacted(f"{type(error).__name__}: {error}", os.environ)[:500]
        _print_error(ProvisionError("provision.bug", f"{text}."), as_json=as_json)
        return int(Exit.BUG)
    if result is not None:
        print(json.dumps(result, indent=2, sort_keys=True))  # noqa: T201
    return int(Exit.DONE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="conda", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="version", version=f"conda {CONDA_VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name in ("create", "install", "update"):
        command = commands.add_parser(name, allow_abbrev=False)
        command.set_defaults(run=_create if name == "create" else _install)
        _add_solve_options(command)
    listing = commands.add_parser("list", allow_abbrev=False)
    listing.add_argument("-p", "--prefix", required=True)
    listing.add_argument("--json", action="store_true")
    listing.add_argument("--no-pip", action="store_true")
    listing.set_defaults(run=_list)
    info = commands.add_parser("info", allow_abbrev=False)
    info.add_argument("--json", action="store_true")
    info.set_defaults(run=_info)
    running = commands.add_parser("run", allow_abbrev=False)
    running.add_argument("-p", "--prefix", required=True)
    running.add_argument("words", nargs=argparse.REMAINDER)
    running.set_defaults(run=_run)
    return parser


def _add_solve_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-p", "--prefix")
    command.add_argument("-c", "--channel", action="append", default=[])
    command.add_argument("--platform", "--subdir", default=None)
    command.add_argument("--file")
    command.add_argument("-d", "--dry-run", action="store_true")
    command.add_argument("--json", action="store_true")
    command.add_argument("--offline", action="store_true")
    for flag in ("--override-channels", "--strict-channel-priority", "--copy", "--no-pip"):
        command.add_argument(flag, action="store_true")
    command.add_argument("-y", "--yes", action="store_true")
    command.add_argument("-q", "--quiet", action="store_true")
    command.add_argument("specs", nargs="*")


def _create(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.file is not None:
        return _create_from_file(options)
    if not options.dry_run:
        raise UsageError(
            "conda.usage",
            "Specs are only solved here (--dry-run); what is installed comes from a lock (--file).",
        )
    return _plan(options, _solve(options, []), [])


def _install(options: argparse.Namespace) -> dict[str, Any]:
    if not options.dry_run or options.prefix is None:
        raise UsageError("conda.usage", "An environment is changed by a new lock (--dry-run -p).")
    installed = _installed(Path(options.prefix))
    return _plan(options, _solve(options, installed), installed)


def _solve(options: argparse.Namespace, installed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from provisioner.conda import rattler

    platform = options.platform or os.environ.get("CONDA_SUBDIR") or _own_platform()
    made_up = [name for name in options.channel if virtual.is_virtual_channel(name)]
    channels = channels_of([n for n in options.channel if n not in made_up], os.environ)
    if not channels:
        raise UsageError("conda.no-channel", "No channel is named (--channel NAME).")
    if not options.specs and not installed:
        raise UsageError("conda.no-specs", "Nothing is asked for.")
    packages = [found for name in made_up for found in virtual.from_channel(name, platform)]
    question = rattler.Question(
        platform=platform,
        specs=tuple(options.specs),
        channels=channels,
        virtual=tuple(packages) or virtual.from_overrides(os.environ),
        constraints=tuple(os.environ.get(CONSTRAINTS_VARIABLE, "").splitlines()),
        installed=tuple(installed),
        exclude_newer=_newest(os.environ.get(NEWER_VARIABLE, "")),
        cache=_cache(),
        offline=options.offline or os.environ.get(OFFLINE_VARIABLE) == "1",
    )
    solution = rattler.solve(question)
    if kept := os.environ.get(LICENSES_VARIABLE):
        licenses = {record["name"]: record.get("license") for record in solution}
        Path(kept).write_text(json.dumps(licenses, sort_keys=True), encoding="utf-8")
    return solution


def _newest(text: str) -> Any:
    import datetime as dt

    if not text:
        return None
    try:
        # The whole of that day counts.
        day = dt.date.fromisoformat(text) + dt.timedelta(days=1)
    except ValueError:
        raise UsageError("conda.bad-date", f"{text!r} is not a date such as 2024-09-01.") from None
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.timezone.utc)


def _cache() -> Path | None:
    from provisioner.matrix.cache import cache_directory

    base = cache_directory()
    return None if base is None else base / "conda" / "repodata"


def _own_platform() -> str:
    machine = os.uname().machine
    if machine not in virtual.SUBDIRS:
        raise UsageError("conda.platform", f"There is no platform for {machine}: use --platform.")
    return virtual.SUBDIRS[machine]


def _plan(
    options: argparse.Namespace,
    solution: list[dict[str, Any]],
    installed: list[dict[str, Any]],
) -> dict[str, Any]:
    """The answer to --dry-run as conda gives it: what to fetch, what to link."""
    before = {record["fn"] for record in installed}
    changed = [record for record in solution if record["fn"] not in before]
    return {
        "success": True,
        "dry_run": True,
        "prefix": options.prefix,
        "actions": {
            "PREFIX": options.prefix,
            "FETCH": changed,
            "LINK": [_link(record) for record in changed],
        },
    }


def _link(record: dict[str, Any]) -> dict[str, Any]:
    name: str = record["fn"]
    return {
        "base_url": record["channel"],
        "build_number": record.get("build_number", 0),
        "build_string": record["build"],
        "channel": record["channel"].rpartition("/")[2],
        "dist_name": name.removesuffix(".conda").removesuffix(".tar.bz2"),
        "name": record["name"],
        "platform": record["subdir"],
        "version": record["version"],
    }


def _installed(prefix: Path) -> list[dict[str, Any]]:
    """The records in a prefix's conda-meta, sorted by name."""
    try:
        paths = sorted((prefix / "conda-meta").glob("*.json"))
        records = [json.loads(path.read_bytes()) for path in paths]
    except (OSError, ValueError) as error:
        raise OutsideError(
            "conda.prefix-unreadable", f"{prefix}/conda-meta cannot be read: {error}."
        ) from None
    if not paths:
        raise OutsideError("conda.no-prefix", f"{prefix} is no conda environment.")
    return sorted(records, key=lambda record: str(record["name"]))


def _list(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [_link(record) for record in _installed(Path(options.prefix))]


def _info(_options: argparse.Namespace) -> dict[str, Any]:
    from provisioner.conda.rattler import version

    # conda-lock looks into these folders for records of what need not be fetched. There are none.
    packages = os.environ.get("CONDA_PKGS_DIRS")
    return {
        "conda_version": CONDA_VERSION,
        "provision_version": __version__,
        "py_rattler_version": version(),
        "platform": os.environ.get("CONDA_SUBDIR") or _own_platform(),
        "pkgs_dirs": [packages] if packages else [],
        "envs_dirs": [],
        "channels": [],
        "virtual_pkgs": [
            [package.name, package.version, package.build]
            for package in virtual.from_overrides(os.environ)
        ],
    }


def _create_from_file(options: argparse.Namespace) -> dict[str, Any] | None:
    from provisioner.conda.install import InstallOptions, install_conda

    if options.prefix is None or options.specs:
        raise UsageError("conda.usage", "create --file LOCK needs --prefix and takes no specs.")
    prefix = Path(options.prefix).absolute()
    offline = options.offline or os.environ.get(OFFLINE_VARIABLE) == "1"
    # conda-lock renders lists with MD5 alone for this; conda accepts them, so the executable does.
    install_conda(
        Path(options.file),
        prefix,
        InstallOptions(offline=offline, accept_md5=True, environ=os.environ),
    )
    return {"success": True, "prefix": str(prefix)} if options.json else None


def _run(options: argparse.Namespace) -> None:
    """Replaces this process by a program of the environment."""
    prefix = Path(options.prefix).absolute()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise UsageError("conda.usage", "run needs a command.")
    environ = os.environ | {
        "PATH": f"{prefix}/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CONDA_PREFIX": str(prefix),
    }
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606 - that is what `run` is for
    except OSError as error:
        reason = f"{words[0]} cannot be run: {error.strerror}."
        raise OutsideError("conda.run", reason) from None


def _print_error(error: ProvisionError, *, as_json: bool) -> None:
    shown = {
        "success": False,
        "message": redacted(error.message, os.environ),
        "exception_name": _EXCEPTIONS.get(error.code, "CondaError"),
        "error": error.to_dict(),
    }
    text = redacted(json.dumps(shown, indent=2, ensure_ascii=False), os.environ)
    report = os.environ.get(REPORT_VARIABLE)
    if report:
        Path(report).write_text(text, encoding="utf-8")
    if as_json:
        print(text)  # noqa: T201
    else:
        print(f"conda: {shown['message']} [{error.code}]", file=sys.stderr)  # noqa: T201


def run_and_leave() -> NoReturn:
    """Runs the command line of this process and ends it without the interpreter's own ending.

    After a solve the library's threads can crash it there, when the answer was already right.
    """
    try:
        try:
            status = main(sys.argv[1:])
        except SystemExit as stop:  # --version and --help
            status = stop.code if isinstance(stop.code, int) else 0
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader went away, or its disk is full
        status = int(Exit.OUTSIDE)
    os._exit(status)


if __name__ == "__main__":
    run_and_leave()
