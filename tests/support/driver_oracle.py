"""The driver's side of a cell, judged without a line of the resolver.

Reads matrix.yaml as PyYAML gives it and follows the published decision procedure step by step: the
driver knows the chip; it runs the CUDA series natively, by minor-version compatibility or through
forward compatibility; the build holds code for the chip or PTX that this driver can compile;
triton's assembler knows the chip and makes what the driver loads.
"""

from __future__ import annotations

from typing import Any

import yaml
from packaging.version import Version

from support.engine import PROJECT

RAW: dict[str, Any] = yaml.safe_load((PROJECT / "matrix.yaml").read_text(encoding="utf-8"))
RELEASES = {str(r["torch"]): r for r in RAW["releases"]}
TRITONS = {str(t["version"]): t for t in RAW["tritons"]}
TOOLKITS = {str(t["series"]): t for t in RAW["toolkits"]}
CAPABILITIES = {str(c["capability"]): c for c in RAW["capabilities"]}
GPUS = {str(g["name"]): g for g in RAW["gpus"]}
BRANCHES = {int(b["branch"]): b for b in RAW["driver_branches"]}
FLOORS = {int(m["major"]): Version(str(m["run_floor"])) for m in RAW["cuda_majors"]}
COMPILE = RAW["compile_rules"]


def capability(gpu: str) -> str:
    """The compute capability of a GPU name, or of itself."""
    return str(GPUS[gpu]["capability"]) if gpu in GPUS else gpu


def variant(torch: str, tag: str) -> dict[str, Any]:
    """The build of a release."""
    return next(v for v in RELEASES[torch]["variants"] if v["tag"] == tag)


def run_floor(toolkit: str) -> Version:
    """The oldest driver that runs machine code of a CUDA series."""
    return FLOORS[Version(toolkit).major]


def level(toolkit: str, driver: str, gpus: tuple[str, ...]) -> str:
    """Step 3: native, limited, compat or none."""
    have = Version(driver)
    speaks = BRANCHES[max(b for b in BRANCHES if b <= have.major or b == min(BRANCHES))]["cuda"]
    if have >= run_floor(toolkit):
        return "native" if Version(str(speaks)) >= Version(toolkit) else "limited"
    data_center = [g in GPUS and GPUS[g]["kind"] == "data-center" for g in gpus]
    carried = have.major in TOOLKITS[toolkit].get("forward_compat_from", [])
    return "compat" if carried and data_center and all(data_center) else "none"


def ptxas(torch: str, gpu: str | None) -> str | None:
    """The assembler that triton uses for a GPU (None: one before Blackwell)."""
    pin = RELEASES[torch].get("triton")
    if pin is None:
        return None
    triton = TRITONS[str(pin["version"])]
    second = triton.get("ptxas_blackwell")
    new = gpu is not None and Version(capability(gpu)) >= Version(str(COMPILE["blackwell_from"]))
    return str(second if second and new else triton["ptxas"])


def compile_floor(torch: str, toolkit: str, gpus: tuple[str, ...]) -> Version | None:
    """The oldest driver that also loads what triton makes; None where there is no triton."""
    made = [ptxas(torch, gpu) for gpu in gpus or (None,)]
    if None in made:
        return None
    return max(run_floor(toolkit), *(FLOORS[Version(str(version)).major] for version in made))


def knows(gpu: str, driver: str) -> bool:
    """Step 2: whether a driver knows a chip."""
    fact = CAPABILITIES[capability(gpu)]
    first = GPUS.get(gpu, {}).get("driver_from") or fact.get("driver_from")
    last = fact.get("driver_branch_last")
    have = Version(driver)
    return (first is None or have >= Version(str(first))) and (last is None or have.major <= last)


def has_code(torch: str, tag: str, gpu: str, driver: str | None, gpus: tuple[str, ...]) -> bool:
    """Steps 4 and 5: machine code of the same major, or PTX that the driver compiles."""
    build, chip = variant(torch, tag), Version(capability(gpu))
    code = [Version(str(a)) for a in build.get("arch_list", [])]
    if any(a.major == chip.major and a.minor <= chip.minor for a in code):
        return True
    if not any(Version(str(p)) <= chip for p in build.get("ptx", [])):
        return False
    toolkit = str(build["toolkit"])
    if driver is None:
        return True
    branch = max(b for b in BRANCHES if b <= Version(driver).major)
    speaks = toolkit if level(toolkit, driver, gpus) == "compat" else str(BRANCHES[branch]["cuda"])
    if speaks not in TOOLKITS:
        return False
    isa = Version(str(TOOLKITS[speaks]["ptx_isa"]))
    return isa >= Version(str(TOOLKITS[toolkit]["ptx_isa"]))


def against(
    torch: str, tag: str, gpus: tuple[str, ...], driver: str | None, *, compiles: bool
) -> list[str]:
    """Every step of the procedure that speaks against a build on such a host; [] where it runs."""
    toolkit = variant(torch, tag)["toolkit"]
    if toolkit is None:
        return []
    toolkit = str(toolkit)
    compiles = compiles and bool(RELEASES[torch]["compile"]["supported"])
    wrong = [f"{g} unknown to the driver" for g in gpus if driver and not knows(g, driver)]
    wrong += [f"no code for {g}" for g in gpus if not has_code(torch, tag, g, driver, gpus)]
    state = level(toolkit, driver, gpus) if driver else "native"
    if state == "none":
        wrong.append("below the run floor")
    if not compiles:
        return wrong
    for gpu in gpus:
        fact = CAPABILITIES[capability(gpu)]
        if Version(capability(gpu)) < Version(str(COMPILE["capability_min"])):
            wrong.append(f"triton does not compile for {gpu}")
        made, first = ptxas(torch, gpu), fact.get("toolkit_first")
        if made and first and Version(made) < Version(str(first)):
            wrong.append(f"triton's ptxas does not know {gpu}")
    floor = compile_floor(torch, toolkit, gpus)
    if driver and floor and state != "none":
        # Through forward compatibility the driver counts as one of the series' own branch.
        native = TOOLKITS[toolkit]["native_branch"]
        if (Version(f"{native}.999") if state == "compat" else Version(driver)) < floor:
            wrong.append("below the compile floor")
    return wrong
