"""Reading a request: from a user's words to axes of the matrix.

A word that cannot be understood is a UsageError; a well-formed value that the matrix does not know
is left for `resolve` to refuse, with the nearest that it knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from provisioner.errors import UsageError
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.matrix.cell import Request
    from provisioner.matrix.index import GpuFact, MatrixIndex

_TORCH = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6}){1,2})(?:\+([a-z0-9.]{1,32}))?")
_DRIVER = re.compile(r"[0-9]{3}(\.[0-9]{1,3}){0,2}")
_SERIES = re.compile(r"([0-9]{2}\.[0-9])(\.[0-9]+)*")
_LONGEST_RANGE = 200
_ARCHES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "x86-64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "sbsa": "aarch64",
}


class Want(msgspec.Struct, frozen=True):
    """A request in the matrix's own terms. None leaves an axis open.

    `torch` is an exact version; `torch_range` a specifier; `newest` asks for the newest that fits.
    `bridged` takes builds that run through a compatibility package, also where none was named.
    """

    request: Request
    torch: str | None
    torch_range: str | None
    newest: bool
    variant: str | None
    python: str | None
    os: str | None
    arch: str
    gpus: tuple[GpuFact, ...]
    driver: str | None
    flavour: str
    python_from: str
    unsupported: tuple[str, str] | None = None
    bridged: bool = False


def read_request(index: MatrixIndex, request: Request) -> Want:
    """The request in the matrix's own terms; raises UsageError on words that make no sense."""
    defaults = index.matrix.defaults
    if request.packages.conda and (request.python_from or defaults.python_from) == "base":
        raise UsageError(
            "request.packages",
            "packages.conda needs a conda environment, and python_from base has none: "
            f"{', '.join(request.packages.conda)} would be left out.",
            next_step="Take python_from: conda, or name the packages under pip or apt.",
        )
    torch, label, torch_range, newest = _torch(request.torch)
    variant, unsupported = _variant(index, request.cuda, label)
    if unsupported is None:
        unsupported = _unsupported_gpu(index, request)
    gpus = () if unsupported else _gpus(index, request.gpu)
    boards = {gpu.host_arch for gpu in gpus if gpu.host_arch is not None}
    python, driver = _python(request.python), _driver(index, request.driver)
    system = _os(index, request.os) if unsupported is None else None
    arch = _arch(request.arch, boards.pop() if len(boards) == 1 else defaults.arch)
    if unsupported is None:
        # The same request in other words is the same request: what is recorded of it, too.
        request = msgspec.structs.replace(
            request,
            torch=torch or torch_range or ("latest" if newest else None),
            cuda=variant,
            python=python,
            os=system,
            arch=request.arch and arch,
            gpu=tuple(gpu.label for gpu in gpus),
            driver=driver,
            without=tuple(sorted(set(request.without))),
        )
    return Want(
        request=request,
        torch=torch,
        torch_range=torch_range,
        newest=newest,
        variant=variant,
        python=python,
        os=system,
        arch=arch,
        gpus=gpus,
        driver=driver,
        flavour=_choice("flavour", request.flavour, ("slim", "devel"), defaults.flavour),
        python_from=_choice(
            "python-from", request.python_from, ("conda", "base"), defaults.python_from
        ),
        unsupported=unsupported,
    )


def _usage(axis: str, value: str, expected: str, hint: str | None = None) -> UsageError:
    return UsageError(
        f"request.{axis}",
        f"{value!r} is not a valid value for --{axis}: expected {expected}.",
        facts={"value": value},
        next_step=hint,
    )


def _torch(text: str | None) -> tuple[str | None, str | None, str | None, bool]:
    if text is None:
        return None, None, None, False
    text = text.strip().removeprefix("torch").removeprefix("===").strip()
    if text.lower() == "latest":
        return None, None, None, True
    match = _TORCH.fullmatch(text.removeprefix("==") if "," not in text else text)
    if match:
        version, label = match.groups()
        if version.count(".") == 1:
            return None, label, f"=={version}.*", False  # a series, as everywhere else
        return version, label, None, False
    if text[:1] in "<>=~!" and len(text) <= _LONGEST_RANGE:
        from packaging.specifiers import InvalidSpecifier

        from provisioner.matrix.versions import specifier

        compact = text.replace(" ", "")
        try:
            specifier(compact)
        except InvalidSpecifier as exc:
            raise _usage("torch", text, "a PEP 440 range such as '>=2.1,<2.5'") from exc
        return None, None, compact, False
    raise _usage("torch", text, "a version (2.0.1), 2.0.1+cu118, a range (>=2.1,<2.5) or `latest`")


def _variant(
    index: MatrixIndex, cuda: str | None, label: str | None
) -> tuple[str | None, tuple[str, str] | None]:
    """(variant tag, unsupported platform as (word, reason)) of --cuda and of a torch label."""
    asked = _cuda_tag(cuda, index) if cuda is not None else None
    for word in (label, asked):
        if word is None:
            continue
        for platform in index.matrix.unsupported:
            if any(word.startswith(prefix) for prefix in platform.matches):
                return None, (word, platform.reason)
    if label is not None and not re.fullmatch(r"cpu|cu[0-9]{2,4}", label):
        raise _usage("torch", f"+{label}", "a label such as +cu118 or +cpu")
    if label is not None and asked is not None and label != asked:
        raise UsageError(
            "request.conflict",
            f"--torch asks for +{label} and --cuda for {asked}: they exclude each other.",
            next_step="Leave one of them out.",
        )
    return label or asked, None


def _cuda_tag(text: str, index: MatrixIndex) -> str:
    word = text.strip().lower().removeprefix("cuda").strip()
    if word in {"cpu", "none"}:
        return "cpu"
    if re.fullmatch(r"cu[0-9]{2,4}", word):
        return word
    match = _SERIES.fullmatch(word)
    if match:
        return "cu" + match.group(1).replace(".", "")
    if any(word.startswith(p) for u in index.matrix.unsupported for p in u.matches):
        return word
    raise _usage("cuda", text, "a series (11.8), a variant (cu118) or `cpu`")


def _python(text: str | None) -> str | None:
    if text is None:
        return None
    word = text.strip().lower().removeprefix("python")
    short = re.fullmatch(r"(?:py|cp)3([0-9]{1,2})", word)
    if short:
        return f"3.{short.group(1)}"
    match = re.fullmatch(r"(3\.[0-9]{1,2})(\.[0-9]+)?", word)
    if match is None:
        raise _usage("python", text, "a series such as 3.10")
    return match.group(1)


def _os(index: MatrixIndex, text: str | None) -> str | None:
    if text is None:
        return None
    word = re.sub(r"[\s:_]+", "", text.strip().lower()).replace("-", "")
    word = re.sub(r"^(rhel|rockylinux|rocky|almalinux|alma|centos|redhat)", "el", word)
    if word in index.systems:
        return word
    for system in index.systems.values():
        if word in {system.codename, f"{system.family}{system.codename}"}:
            return system.id
        if system.family == "el" and word.split(".")[0] == system.id:
            return system.id
    import difflib

    close = difflib.get_close_matches(word, list(index.systems), n=3)
    known = ", ".join(index.systems)
    hint = f"Did you mean {' or '.join(close)}?" if close else None
    raise _usage("os", text, f"one of {known}", hint)


def _arch(text: str | None, default: str) -> str:
    if text is None:
        return default
    found = _ARCHES.get(text.strip().lower())
    if found is None:
        raise _usage("arch", text, "x86_64 or aarch64")
    return found


def _unsupported_gpu(index: MatrixIndex, request: Request) -> tuple[str, str] | None:
    words = [w for w in (*request.gpu, request.os or "") if w]
    for word in words:
        low = word.lower()
        for platform in index.matrix.unsupported:
            if any(low.startswith(prefix) for prefix in platform.matches):
                return word, platform.reason
    return None


def _gpus(index: MatrixIndex, words: tuple[str, ...]) -> tuple[GpuFact, ...]:
    """The GPUs without repetition; in which order they were named does not matter."""
    facts = {fact.label: fact for fact in (_gpu(index, word) for word in words)}
    ordered = sorted(facts.values(), key=lambda g: (versions.key(g.capability.capability), g.label))
    return tuple(ordered)


def _gpu(index: MatrixIndex, text: str) -> GpuFact:
    fact = index.gpu(text)
    if fact is not None:
        return fact
    import difflib

    close = difflib.get_close_matches(
        text.lower(), {g.name.lower(): g.name for g in index.matrix.gpus}, n=3, cutoff=0.5
    )
    names = {g.name.lower(): g.name for g in index.matrix.gpus}
    hint = "Give its compute capability instead (nvidia-smi --query-gpu=compute_cap --format=csv)."
    if close:
        hint = f"Did you mean {' or '.join(names[c] for c in close)}? {hint}"
    raise _usage("gpu", text, "a GPU name of the matrix or a compute capability such as 8.6", hint)


def _driver(index: MatrixIndex, text: str | None) -> str | None:
    """The driver version; a bare branch stands for the newest driver of that branch."""
    if text is None:
        return None
    word = text.strip()
    if not _DRIVER.fullmatch(word):
        raise _usage("driver", text, "a driver version such as 535.104.05 or a branch such as 535")
    if "." not in word:
        branch = index.branch_of(word)
        if branch.branch == int(word) and branch.latest:
            return branch.latest
    return word


def _choice(axis: str, text: str | None, allowed: tuple[str, ...], default: str) -> str:
    if text is None:
        return default
    if text not in allowed:
        raise _usage(axis, text, " or ".join(allowed))
    return text
