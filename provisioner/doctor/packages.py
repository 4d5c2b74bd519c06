"""The packages of the environment: one torch, one owner, one variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown

if TYPE_CHECKING:
    from provisioner.doctor.seen import Seen

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


CHECKS = (
    Check("packages.import", "torch can be imported", importable),
    Check("packages.cell", "the environment is the cell's", cell),
    Check("packages.one-torch", "one torch is on sys.path", torch_twice),
    Check("packages.two-owners", "no package has two owners", two_owners),
    Check("packages.family", "torchvision and torchaudio fit", family),
    Check("packages.cpu-build", "no CPU build on a GPU machine", cpu_build),
)
