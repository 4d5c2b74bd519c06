"""playbooks/vars/<cell>.yml: what the roles are told about a cell.

Ansible runs what stands between {{ }} in a variable, so no value here may hold a brace.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from provisioner.errors import UsageError
from provisioner.matrix.hosts import driver_choice, host_facts, toolkit_choice
from provisioner.matrix.index import index_of
from provisioner.render.fileset import RenderedFile

if TYPE_CHECKING:
    from provisioner.matrix.hosts import HostFacts
    from provisioner.matrix.model import OperatingSystem
    from provisioner.render.context import CellContext

FOLDER: Final = "playbooks/vars"
_PLAIN = re.compile(r"[ -z|~]*")
_KEY = re.compile(r"[a-z][a-z0-9_.]*|[0-9]+")


def emit(context: CellContext) -> list[RenderedFile]:
    """Returns the variables of the cell for every system of the matrix.

    Raises UsageError for a value that Ansible might take for a template.
    """
    lines = [f"# {context.made_by}", "---", *_lines(_variables(context), 0)]
    return [
        RenderedFile(
            path=f"{FOLDER}/{context.name}.yml",
            content="".join(f"{line}\n" for line in lines).encode("ascii"),
            group=context.group,
        )
    ]


def _variables(context: CellContext) -> dict[str, Any]:
    cell, facts = context.cell, host_facts()
    cuda = cell.device == "cuda"
    if cell.cuda is not None and cell.cuda not in index_of(context.matrix).toolkits:
        raise _unsafe(cell.cuda, "the CUDA series of the cell")
    systems = context.matrix.operating_systems
    return {
        "gpu_preflight_cell": cell.name,
        "nvidia_driver_cell_branch": cell.driver.install,
        "nvidia_driver_sources": {s.id: _driver(context, facts, s) for s in systems if cuda},
        "cuda_toolkit_series": cell.cuda,
        "cuda_toolkit_sources": {s.id: _toolkit(context, facts, s) for s in systems if cuda},
        "cuda_toolkit_runfile_url": context.origins.cuda_runfile.url,
        "nvidia_repository_url": context.origins.cuda_repository.url,
        "nvidia_repository_keys": {
            name: _without_null({"file": key.file, "fingerprint": key.fingerprint})
            for key in facts.keys
            for name in key.repositories
            if cuda
        },
        "torch_env_cell": cell.name,
        "torch_env_packages": {s.id: _packages(context, s) for s in systems},
        "torch_env_pythons": {
            p.os: {"program": p.program, "packages": p.packages} for p in facts.pythons
        },
        "compile_check_cell": cell.name,
        "compile_check_device": cell.device,
    }


def _driver(context: CellContext, facts: HostFacts, system: OperatingSystem) -> dict[str, Any]:
    """By branch: packages with proprietary modules, and with open ones where they differ."""
    known = {branch for d in facts.drivers if system.id in d.os for branch in d.branches}
    default = context.cell.driver.install
    branches = sorted(known | ({default} if default is not None else set()))
    return {str(branch): _branch(context, facts, system, branch) for branch in branches}


def _branch(
    context: CellContext, facts: HostFacts, system: OperatingSystem, branch: int
) -> dict[str, Any]:
    arch = context.cell.arch
    closed = driver_choice(facts, system, branch, arch, open_modules=False)
    if closed.kind == "refused":
        return {"kind": closed.kind, "reason": closed.reason}
    known = next((b for b in index_of(context.matrix).branches if b.branch == branch), None)
    if known is None or known.open_modules == "none":
        return _without_null(msgspec.to_builtins(closed))
    opened = driver_choice(facts, system, branch, arch, open_modules=True)
    extra = {"packages_open": opened.packages, "stream_open": opened.stream}
    return _without_null({**msgspec.to_builtins(closed), **extra})


def _toolkit(context: CellContext, facts: HostFacts, system: OperatingSystem) -> dict[str, Any]:
    cell = context.cell
    choice = toolkit_choice(index_of(context.matrix), facts, system, str(cell.cuda), cell.arch)
    return _without_null(msgspec.to_builtins(choice))


def _packages(context: CellContext, system: OperatingSystem) -> list[str]:
    """What the environment needs of a system: a compiler, and headers where Python is its own."""
    names = system.packages
    wanted = {*names.compiler, *names.python, *names.certificates}
    if context.cell.python_from == "base":
        wanted |= set(names.python_headers)
    if system.id == context.cell.os:
        wanted |= set(context.cell.packages.apt)
    return sorted(wanted)


def _without_null(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, (), [])}


def _lines(values: dict[str, Any], depth: int) -> list[str]:
    """Block mappings two blanks deep; lists and scalars in JSON, which is YAML."""
    lines: list[str] = []
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise _unsafe(key, key)
        head = f"{'  ' * depth}{_scalar(key, key) if key.isdigit() else key}:"
        if isinstance(value, dict) and value:
            lines += [head, *_lines(value, depth + 1)]
        elif isinstance(value, dict):
            lines.append(f"{head} {{}}")
        elif isinstance(value, list | tuple):
            lines.append(f"{head} [{', '.join(_scalar(item, key) for item in value)}]")
        else:
            lines.append(f"{head} {_scalar(value, key)}")
    return lines


def _scalar(value: Any, field: str) -> str:
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        raise _unsafe(value, field)
    return msgspec.json.encode(value).decode("ascii")


def _unsafe(value: str, field: str) -> UsageError:
    shown = ascii(value[:120])
    return UsageError(
        "render.unsafe-value",
        f"{field} cannot be rendered into variables of a playbook: {shown} is unknown, or "
        "holds a brace or another character than printable ASCII.",
        facts={"field": field, "value": shown},
        next_step="Correct it in the request, in provision.yaml or in the matrix.",
    )
