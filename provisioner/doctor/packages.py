"""The packages of the environment: one torch, one owner, one variant, neighbours that fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.matrix import versions

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen
    from provisioner.matrix.model import KnownBad

_TWO_OWNERS = ("https://github.com/conda/conda-lock/issues/85",)
_FAMILY = ("torchvision", "torchaudio")


def importable(seen: Seen) -> Outcome:
    """Can torch be imported?"""
    env = seen.env
    if env is None:
        return unknown("no interpreter was asked")
    if env.torch is None:
        return skip("no torch is installed for this interpreter")
    if env.imported is None:
        return unknown("torch was not imported")
    if env.imported.value is not None:
        return good(f"torch {env.imported.value.version} from {env.torch.file}")
    return bad(
        "error",
        f"import torch: {env.imported.died}",
        "A library that torch needs is missing, of another version, or the machine lacks an "
        "instruction that it uses.",
        "Read the whole message; `provision diagnose` names its cause.",
        f"{seen.executable} -c 'import torch' 2>&1 | provision diagnose -",
        source=("the import itself",),
    )


def torch_twice(seen: Seen) -> Outcome:
    """Is exactly one torch on sys.path, and not that of the user site?"""
    env = seen.env
    if env is None:
        return unknown("no interpreter was asked")
    if env.torch is None:
        return skip("no torch is installed for this interpreter")
    places = env.torch.places
    if len(places) > 1:
        return bad(
            "error",
            "; ".join(f"{p.version or 'no metadata'} in {p.path}" for p in places),
            "The first on sys.path wins without a word. Nothing in torch looks for a second one.",
            "Uninstall all but one.",
            seen.pip("uninstall", "-y", "torch"),
            "unset PYTHONPATH",
            source=("compile_verification: two installs on sys.path",),
            claim="two-torch-versions",
        )
    site = env.python.user_site
    venv = env.python.prefix != env.python.base_prefix or env.conda is not None
    if venv and site and env.python.user_site_enabled and env.torch.file.startswith(site + "/"):
        return bad(
            "warn",
            f"torch comes from the user site, {site}",
            "It is shared by every environment of this user, and stands before their own packages.",
            "Keep the user site out, or uninstall it there.",
            "export PYTHONNOUSERSITE=1",
            seen.pip("uninstall", "-y", "torch"),
            source=("https://docs.python.org/3/library/site.html",),
        )
    return good(f"one torch, {env.torch.file}")


def two_owners(seen: Seen) -> Outcome:
    """Do conda and pip both own torch or numpy?"""
    env = seen.env
    if env is None:
        return unknown("no interpreter was asked")
    if env.conda is None:
        return skip("no conda environment")
    names = {"torch": ("pytorch", "libtorch"), "numpy": ("numpy",)}
    both = []
    for dist, packages in names.items():
        owned = [c for c in env.conda if c.name in packages]
        placed = [d for d in env.distributions if d.name == dist and d.installer != "conda"]
        if owned and placed:
            both.append((dist, owned[0].version, placed[0].version))
    if not both:
        return good("no package has two owners")
    name = both[0][0]
    return bad(
        "error",
        "; ".join(f"{n}: conda {c}, pip {p}" for n, c, p in both),
        "Each installed over the other's files: the next update of either leaves a mixture.",
        "Let one of them own it, in an environment made anew.",
        seen.pip("uninstall", "-y", name),
        "provision env create CELL --prefix DIR",
        source=_TWO_OWNERS,
    )


def family(seen: Seen) -> Outcome:
    """Are torchvision and torchaudio of torch's release and variant?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None:
        return skip("no torch is installed for this interpreter")
    have = {name: seen.version_of(name) for name in _FAMILY}
    there = {name: version for name, version in have.items() if version}
    if not there:
        return skip("neither torchvision nor torchaudio is installed")
    label = seen.torch_label.partition("+")[2]
    wrong, fix = [], []
    for name, version in there.items():
        plain, _, own = version.partition("+")
        pin = getattr(seen.release, name).version if seen.release else None
        if pin is not None and plain != pin:
            wrong.append(f"{name} {version} (torch {seen.torch} goes with {pin})")
        elif own and label and own != label:
            wrong.append(f"{name} {version} (torch is {seen.torch_label})")
        else:
            continue
        fix.append(f"{name}=={pin or plain}")
    if not wrong:
        if seen.release is None:
            return unknown(f"the matrix does not know {seen.build}")
        return good(", ".join(f"{n} {v}" for n, v in there.items()))
    index = f"https://download.pytorch.org/whl/{label}" if label else None
    return bad(
        "error",
        "; ".join(wrong),
        "Their compiled half is linked against one torch: another one ends in undefined symbols or "
        "`operator torchvision::nms does not exist`.",
        "Install those of this torch, from the same index.",
        seen.pip("install", *fix, *(["--index-url", index] if index else [])),
        source=seen.release.source if seen.release else (),
        claim="torchvision-needed",
    )


def cpu_build(seen: Seen) -> Outcome:
    """Is a build for the CPU on a machine with a GPU?"""
    if seen.torch_label is None:
        return skip("no torch is here")
    promised = seen.cell.cuda if seen.cell is not None else None
    if seen.cuda is not None:
        return good(f"{seen.build} was built with CUDA {seen.cuda}")
    if promised is None and seen.cell is not None:
        return skip("the cell asks for a build for the CPU")
    if promised is None and seen.has_gpu is None:
        return unknown("whether a GPU is here")
    if promised is None and not seen.has_gpu:
        return skip("no GPU is here")
    what = f"the cell asks for CUDA {promised}" if promised else "a GPU is here"
    return bad(
        "error",
        f"{seen.build} is a build for the CPU, and {what}",
        "A resolver took it without a word: torch.cuda.is_available() is False, whatever the "
        "driver.",
        "Find the build for this machine, then install it anew; an installed torch counts as "
        "satisfied.",
        f"provision resolve --torch {seen.torch}"
        + "".join(f" --gpu {g.capability}" for g in seen.gpus[:1] if g.capability),
        seen.pip("uninstall", "-y", "torch"),
        source=(
            "https://github.com/conda/conda/issues/14761",
            "https://github.com/pytorch/pytorch/issues/168065",
        ),
        claim="label-dropped",
    )


def cell(seen: Seen) -> Outcome:
    """Is the environment that of the cell?"""
    if seen.cell is None:
        return skip("no cell was named (--cell)")
    if seen.env is None:
        return unknown("no interpreter was asked")
    wanted = {"torch": seen.cell.local_version, "python": seen.cell.python}
    have = {
        "torch": seen.torch_label if seen.env.torch is not None else None,
        "python": seen.python,
    }
    wrong = [f"{k} {have[k] or 'missing'}, not {wanted[k]}" for k in wanted if have[k] != wanted[k]]
    if not wrong:
        return good(f"{seen.cell.name}")
    return bad(
        "error",
        "; ".join(wrong),
        f"This is not the environment of {seen.cell.name}.",
        "Make it from the cell's lock, beside this one.",
        f"provision env create {seen.cell.name} --prefix DIR",
        source=(f"docker/{seen.cell.name}/spec.json",),
    )


def numpy(seen: Seen) -> Outcome:
    """Do torch and numpy exchange arrays?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    have = seen.version_of("numpy")
    if seen.torch_label is None or have is None:
        return skip("torch or numpy is not installed")
    error = seen.imported.numpy_error if seen.imported else None
    fact = _known(seen, "numpy2-abi")
    breaks = fact is not None and versions.major(have) >= 2
    if error is None and not breaks:
        return good(f"numpy {have}, {seen.build}")
    return bad(
        "error",
        f"numpy {have} beside {seen.build}" + (f": {error}" if error else ""),
        "This torch was built against NumPy 1; its arrays do not cross over. Compiling goes on as "
        "if nothing were wrong."
        if breaks
        else "A tensor cannot be turned into an array here.",
        "Install a numpy that fits.",
        seen.pip("install", "numpy<2" if breaks else "numpy"),
        source=fact.source if fact is not None else ("torch.zeros(1).numpy()",),
    )


def setuptools(seen: Seen) -> Outcome:
    """Is the setuptools that this torch and triton import there, and not too new?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None:
        return skip("no torch is installed for this interpreter")
    have = seen.version_of("setuptools")
    needs, cap = _known(seen, "triton-needs-setuptools"), _known(seen, "pkg-resources-packaging")
    if have is None:
        if needs is None or seen.cuda is None:
            return skip("setuptools is not installed, and nothing here imports it")
        return bad(
            "error",
            f"no setuptools beside {seen.build}",
            "Its triton imports it without asking for it: the first GPU kernel fails.",
            "Install it.",
            seen.pip("install", *(cap.requirements if cap else needs.requirements)),
            source=needs.source,
        )
    if cap is not None and not all(_fits(seen, text) for text in cap.requirements):
        return bad(
            "warn",
            f"setuptools {have} beside {seen.build}",
            f"Known to break: {cap.combination}. Then {cap.symptom}.",
            "Install one that is known to work.",
            seen.pip("install", *cap.requirements),
            source=cap.source,
        )
    return good(f"setuptools {have}")


def _known(seen: Seen, name: str) -> KnownBad | None:
    """A known-bad combination of the matrix that concerns this torch, whatever its effect."""
    for entry in seen.index.matrix.known_bad:
        if entry.id == name and seen.torch is not None:
            applies = entry.torch is None or versions.satisfies(seen.torch, entry.torch)
            return entry if applies else None
    return None


def triton(seen: Seen) -> Outcome:
    """Is the triton there that this torch asks for?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None or seen.cuda is None:
        return skip("no CUDA build of torch is installed")
    release = seen.release
    if release is None:
        return unknown(f"the matrix does not know {seen.build}")
    if release.triton is None or not release.compile.supported:
        return skip(f"{seen.build} uses no triton")
    have = seen.version_of("triton") or seen.version_of("pytorch-triton")
    if have is not None and versions.satisfies(have.partition("+")[0], release.triton.requires):
        return good(f"triton {have}")
    return bad(
        "error",
        f"triton {have or 'is missing'}; {seen.build} asks for {release.triton.requires}",
        "torch.compile on the GPU goes through triton, and the two share private interfaces.",
        "Install the one that belongs to this torch.",
        seen.pip("install", f"triton=={release.triton.version}"),
        source=release.source,
    )


def python(seen: Seen) -> Outcome:
    """Does torch.compile accept this Python?"""
    if seen.env is None or seen.python is None:
        return unknown("no interpreter was asked")
    if seen.torch_label is None:
        return skip("no torch is installed for this interpreter")
    if seen.release is None:
        return unknown(f"the matrix does not know {seen.build}")
    support = seen.release.compile
    if not support.supported:
        return skip(f"{seen.build} has no torch.compile")
    if support.python_max is None or versions.at_least(support.python_max, seen.python):
        return good(f"Python {seen.python}, {seen.build} compiles up to {support.python_max}")
    return bad(
        "error",
        f"Python {seen.python}; {seen.build} compiles up to {support.python_max}",
        "It has wheels for this Python and refuses torch.compile on it, at the first call.",
        "Take an older Python, or a newer torch.",
        f"provision resolve --torch {seen.torch} --python {support.python_max}",
        source=seen.release.source,
        claim="compile-any-python",
    )


def known_bad(seen: Seen) -> Outcome:
    """Is this one of the combinations that the matrix knows as broken?"""
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.torch is None or seen.variant is None:
        return skip("no torch that the matrix knows is installed")
    found = []
    for entry in seen.index.bad_for(seen.torch, seen.variant.tag):
        python = not entry.python or seen.python in entry.python
        if python and (entry.effect in ("refuse", "warn") or _breaks(seen, entry)):
            found.append(entry)
    if not found:
        return good(f"none of {len(seen.index.matrix.known_bad)} known combinations")
    first = found[0]
    return bad(
        "error" if first.effect != "warn" else "warn",
        "; ".join(f"{entry.id}: {entry.combination}" for entry in found),
        first.symptom[0].upper() + first.symptom[1:] + ".",
        first.fix[0].upper() + first.fix[1:] + ".",
        seen.pip("install", *first.requirements)
        if first.requirements
        else f"provision matrix show {seen.torch}",
        source=first.source,
    )


def _breaks(seen: Seen, entry: KnownBad) -> bool:
    """Whether an installed package is outside the bounds that the matrix puts on it."""
    if entry.effect != "constrain" or entry.id in ("numpy2-abi", "pkg-resources-packaging"):
        return False  # those two have checks of their own
    return not all(_fits(seen, text) for text in entry.requirements)


def _fits(seen: Seen, requirement: str) -> bool:
    """Whether what is installed is within a requirement's bounds; what is not installed is."""
    named = re.match(r"([A-Za-z0-9._-]+)(.*)$", requirement.partition(";")[0].strip())
    have = seen.version_of(named[1].lower()) if named else None
    bounds = named[2].strip() if named else ""
    return not have or not bounds or versions.satisfies(have.partition("+")[0], bounds)


CHECKS = (
    Check("packages.import", "torch can be imported", importable),
    Check("packages.cell", "the environment is the cell's", cell),
    Check("packages.one-torch", "one torch is on sys.path", torch_twice),
    Check("packages.two-owners", "no package has two owners", two_owners),
    Check("packages.family", "torchvision and torchaudio fit", family),
    Check("packages.cpu-build", "no CPU build on a GPU machine", cpu_build),
    Check("packages.numpy", "numpy fits", numpy),
    Check("packages.setuptools", "setuptools fits", setuptools),
    Check("packages.triton", "triton fits", triton),
    Check("packages.python", "torch.compile accepts this Python", python),
    Check("packages.known-bad", "no known-bad combination", known_bad),
)
