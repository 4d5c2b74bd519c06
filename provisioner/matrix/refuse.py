"""From a rejected request to a Refusal: what clashes, and the nearest cells that work.

Nearest cells are found by relaxing one axis of the request at a time and resolving again, so that
every suggestion is a cell by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import UsageError
from provisioner.matrix import versions
from provisioner.matrix.assemble import Chosen, assemble, cell_name
from provisioner.matrix.cell import Nearest, Refusal, Request
from provisioner.matrix.compiling import override_for, override_verified
from provisioner.matrix.request import read_request
from provisioner.matrix.resolve import Rejected, choose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.request import Want
    from provisioner.matrix.rules import Problem

_MOST = 3


def refusal(index: MatrixIndex, want: Want, rejected: Rejected) -> Refusal:
    """The refusal for a request against which the matrix speaks."""
    first, *rest = rejected.problems
    have: dict[str, str] = {}
    need: dict[str, list[str]] = {}
    for problem in rejected.problems:
        have.setdefault(problem.axis, problem.have)
        wanted = need.setdefault(problem.axis, [])
        if not any(problem.need.startswith(other) for other in wanted):
            wanted.append(problem.need)
    also = dict.fromkeys(_sentence(p) for p in rest)
    also.pop(_sentence(first), None)
    return Refusal(
        code=first.code,
        message=_sentence(first),
        also=tuple(also),
        have=have,
        need={axis: " and ".join(wanted) for axis, wanted in need.items()},
        source=first.source,
        nearest=nearest_cells(index, want, rejected),
        verified=first.verified,
    )


def _sentence(problem: Problem) -> str:
    text = problem.message.rstrip(".")
    keep = text.startswith(("torch", "cuda", "nvcc", "glibc", "ptxas", "provision.yaml"))
    return f"{text if keep else text[0].upper() + text[1:]}."


def nearest_cells(index: MatrixIndex, want: Want, rejected: Rejected) -> tuple[Nearest, ...]:
    """Up to three cells that work, each a small step from the request; () when out of scope.

    Each group of steps gives one cell, so that the three differ in kind; an unknown release gets
    more of the first group.
    """
    if want.unsupported is not None or any(g.embedded for g in want.gpus):
        return ()
    found: dict[str, Nearest] = {}
    unknown = rejected.problems[0].code == "torch.unknown"
    for group in _relaxed(index, want, rejected):
        quota = _MOST if unknown else 1
        for request, differs in group:
            least = _least(index, want.request, request)
            if least is None:
                continue
            differs = differs if least == request else ""
            relaxed = read_request(index, least)
            answer = choose(index, relaxed)
            if not isinstance(answer, Chosen):
                continue
            name = cell_name(relaxed, answer)
            if name in found:
                continue
            differs = differs or _what_differs(index, want, relaxed, answer)
            found[name] = Nearest(
                name=name, options=options_of(_pin(least, answer)), differs=differs
            )
            quota -= 1
            if len(found) == _MOST:
                return tuple(found.values())
            if quota == 0:
                break
    return tuple(found.values())


# What is given back first is what is hardest to change: the host, then what code is to do there.
_HARDEST = (
    *("driver", "os", "arch", "python_from", "compile", "torch"),
    *("python", "cuda", "flavour", "index", "ptxas", "without"),
)


def _least(index: MatrixIndex, asked: Request, relaxed: Request) -> Request | None:
    """The relaxed request with everything given back that need not have been given up.

    None where the relaxed request has no cell either.
    """
    answer = _answer(index, relaxed)
    while answer is not None:
        # A release once found may bear what none was found for before.
        starts = (relaxed, _pin(relaxed, answer))
        closest = min((_closer(index, asked, s) for s in starts), key=lambda r: _gap(asked, r))
        if _gap(asked, closest) >= _gap(asked, relaxed):
            return relaxed
        relaxed, answer = closest, _answer(index, closest)
    return None


def _gap(asked: Request, request: Request) -> int:
    """How many of the axes that were asked for a request has given up."""
    words = ((getattr(asked, axis), getattr(request, axis)) for axis in _HARDEST)
    return sum(word is not None and word != other for word, other in words)


def _closer(index: MatrixIndex, asked: Request, relaxed: Request) -> Request:
    for axis in _HARDEST:
        word = getattr(asked, axis)
        if word is not None and word != getattr(relaxed, axis):
            closer = msgspec.structs.replace(relaxed, **{axis: word})
            answer = _answer(index, closer)
            # Where a release that cannot compile is named, asking for it gives nothing back.
            if answer and (axis != "compile" or answer.candidate.release.compile.supported):
                relaxed = closer
    return relaxed


def _answer(index: MatrixIndex, request: Request) -> Chosen | None:
    """What fits a request; words that exclude each other fit nothing."""
    try:
        found = choose(index, read_request(index, request))
    except UsageError:
        return None
    return found if isinstance(found, Chosen) else None


def _pin(request: Request, answer: Chosen) -> Request:
    """The relaxed request with its release and variant named, so that it says what it gives."""
    c = answer.candidate
    cuda = c.variant.toolkit or "cpu"
    return msgspec.structs.replace(request, torch=c.release.torch, cuda=cuda)


_Step = tuple[Request, str]
"""A relaxed request and in what its cells differ; "" leaves that to `_what_differs`."""


def _relaxed(index: MatrixIndex, want: Want, rejected: Rejected) -> Iterator[list[_Step]]:
    """Groups of relaxed requests, the mildest first: one axis given up, then more."""
    base = want.request
    if want.variant is not None and "+" in (base.torch or ""):
        base = msgspec.structs.replace(
            base, torch=(base.torch or "").split("+")[0], cuda=base.cuda or want.variant
        )
    replace = msgspec.structs.replace
    axes = {p.axis for p in rejected.problems}
    code = rejected.problems[0].code
    if code == "driver.compile-floor":
        yield from _for_old_driver(index, base)
        yield [(replace(base, driver=None), "")]
    yield _other_torch(index, want, base)[: _MOST * 3]
    if base.cuda is not None:
        yield _other_cuda(index, want, base)
        # Neither is to be had: the closest release that has some CUDA build for this machine.
        any_cuda = replace(base, cuda=None)
        loosened = msgspec.structs.replace(want, variant=None)
        yield [(request, "") for request, _ in _other_torch(index, loosened, any_cuda)]
    if code == "gpu.host-arch":
        yield [(replace(base, arch=None), "the machine type of that GPU")]
    for axis in ("python", "os", "flavour", "index", "ptxas"):
        if getattr(base, axis) is not None:
            yield [(replace(base, **{axis: None}), "")]
    if "python" in axes and not base.without:
        both = replace(base, without=("torchaudio", "torchvision"))
        yield [(both, "without torchvision and torchaudio")]
    if base.python_from is not None:
        yield [(replace(base, python_from=None), "Python from conda")]
    about_compile = any("compile" in p.code for p in rejected.problems)
    if base.compile and about_compile:
        yield [(replace(base, compile=False), "eager mode only")]
        if base.torch is None:
            newest = replace(base, torch="latest", compile=False)
            yield [(newest, "the newest torch for this host, eager mode only")]
    if base.driver is not None and code.startswith("driver."):
        # What the host can have as it is comes before a change of the host.
        anything = replace(base, torch=None, cuda=None)
        if isinstance(choose(index, read_request(index, anything)), Chosen):
            yield [(anything, "")]
        elif code != "driver.compile-floor":
            yield from _for_old_driver(index, base)
    if base.driver is not None:
        yield [(replace(base, driver=None), "")]
    if base.python is not None and base.os is not None:
        yield [(replace(base, python=None, os=None), "another Python and OS")]
    yield [(replace(base, torch=None, cuda=None), "")]
    loose = replace(base, torch=None, cuda=None, python=None, os=None, index=None, ptxas=None)
    yield [(loose, "")]
    yield [(replace(loose, driver=None), "")]
    if about_compile:
        yield [(replace(loose, compile=False), "")]
        yield [(replace(loose, compile=False, driver=None), "")]


def _for_old_driver(index: MatrixIndex, base: Request) -> Iterator[list[_Step]]:
    """What a host held at an old driver can still have: eager mode, or another ptxas.

    Each with as much of the request as can be kept: else the newest torch, else any CUDA.
    """
    replace = msgspec.structs.replace
    if not base.compile:
        return
    kept = [base]
    if base.torch is not None:
        kept.append(replace(base, torch="latest"))
        if base.cuda is not None:
            kept.append(replace(base, torch="latest", cuda=None))
    elif base.cuda is not None:
        kept.append(replace(base, cuda=None))
    yield [(replace(request, compile=False), "") for request in kept]
    if base.ptxas is None:
        for override in index.matrix.ptxas_overrides:
            yield [(replace(request, ptxas=override.id), "") for request in kept]


def _what_differs(index: MatrixIndex, want: Want, asked: Want, answer: Chosen) -> str:
    """In what a cell that works differs from what was asked: only what was asked can differ."""
    before, after, c = want.request, asked.request, answer.candidate
    other: list[str] = []
    if before.torch is not None and (
        want.torch != c.release.torch
        if want.torch is not None
        else after.torch is None  # a range or `latest` was given up
    ):
        other.append("torch")
    if want.variant is not None and want.variant != c.variant.tag:
        other.append("CUDA")
    if want.python is not None and want.python != answer.python:
        other.append("Python")
    if want.os is not None and want.os != answer.system.id:
        other.append("OS")
    other += [a for a in ("index", "flavour") if getattr(before, a) != getattr(after, a)]
    listed = [*([", ".join(other[:-1])] if other[:-1] else []), *other[-1:]]
    parts = ["another " + " and ".join(listed)] if other else []
    if before.ptxas != after.ptxas:
        entry = override_for(index, c, asked) if after.ptxas else None
        sure = entry is None or override_verified(entry, c, asked)
        text = "another ptxas" + ("" if sure else " (unverified)")
        parts.append(text if after.ptxas else "triton's own ptxas")
    if before.compile and not after.compile:
        parts.append("eager mode only")
    if before.driver is not None and after.driver is None:
        parts.append(_other_driver(index, want, asked, answer))
    return ", ".join(parts)


def _other_driver(index: MatrixIndex, want: Want, asked: Want, answer: Chosen) -> str:
    """Which driver a host needs in place of the one it has."""
    lasts = [g.capability.driver_branch_last for g in want.gpus]
    last = min((number for number in lasts if number is not None), default=None)
    if last is not None and versions.major(want.driver or "0") > last:
        return f"an older driver on the host, of branch {last} or before"
    driver = assemble(index, asked, answer).cell.driver
    floors = [driver.compile_floor if asked.request.compile else None, driver.run_floor]
    named = [floor for floor in (*floors, driver.gpu_floor) if floor is not None]
    if not named:
        return "no driver named"
    need = max(named, key=versions.key)
    return f"driver {need} or newer on the host"


def _other_torch(index: MatrixIndex, want: Want, base: Request) -> list[_Step]:
    """The same request with the closest release: nearest minor series first, its newest patch."""
    if want.torch is None:
        return []
    here = _number(want.torch)

    def distance(torch: str) -> tuple[int, int]:
        patch = (*versions.key(torch), 0, 0)[2]
        return abs(_number(torch) - here), -patch

    others = sorted((r.torch for r in index.newest_first if r.torch != want.torch), key=distance)
    cuda = base.cuda or want.variant
    return [
        (msgspec.structs.replace(base, torch=torch, cuda=cuda), "another torch")
        for torch in others
        if cuda is None or (torch, want.variant or "") in index.variants
    ]


def _other_cuda(index: MatrixIndex, want: Want, base: Request) -> list[_Step]:
    """The same release with the closest CUDA series; never a cpu build in place of a CUDA one."""
    if want.variant in {None, "cpu"}:
        return [(msgspec.structs.replace(base, cuda=None), "another CUDA")]
    digits = (want.variant or "").removeprefix("cu")
    asked = _number(f"{digits[:-1]}.{digits[-1]}")
    releases = [index.releases[want.torch]] if want.torch in index.releases else index.newest_first
    series = {v.toolkit for r in releases for v in r.variants if v.toolkit is not None}
    ordered = sorted(series, key=lambda s: (abs(_number(s) - asked), s))
    return [(msgspec.structs.replace(base, cuda=s), "another CUDA") for s in ordered]


def _number(series: str) -> int:
    """A series as one number, so that distances between series can be compared."""
    first, second = (*versions.key(series), 0)[:2]
    return first * 100 + second


def options_of(request: Request) -> tuple[str, ...]:
    """The command-line options that spell a request."""
    out: list[str] = []
    for option, value in (
        ("--torch", request.torch),
        ("--cuda", request.cuda),
        ("--python", request.python),
        ("--os", request.os),
        ("--arch", request.arch),
        ("--driver", request.driver),
        ("--flavour", request.flavour),
        ("--python-from", request.python_from),
        ("--index", request.index),
        ("--ptxas", request.ptxas),
    ):
        if value is not None:
            out += [option, value]
    for gpu in request.gpu:
        out += ["--gpu", gpu]
    for name in request.without:
        out += ["--without", name]
    if not request.compile:
        out.append("--no-compile")
    return tuple(out)
