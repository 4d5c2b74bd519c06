"""Checks of releases, variants, companions, tritons, defaults and known-bad combinations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.matrix.validate import Findings, number

if TYPE_CHECKING:
    from provisioner.matrix import model
    from provisioner.matrix.problems import DocumentPath


def check(findings: Findings) -> None:
    """All checks of this module."""
    for index, release in enumerate(findings.matrix.releases):
        path = ("releases", index)
        _python(findings, release, path)
        _companions(findings, release, path)
        _triton(findings, release, path)
        _pypi(findings, release, path)
        if not release.variants:
            findings.say("inconsistent", (*path, "variants"), "expected at least one variant")
        for place, variant in enumerate(release.variants):
            _variant(findings, variant, (*path, "variants", place))
        for place, requirement in enumerate(release.requires):
            findings.requirement((*path, "requires", place), requirement)
    _tritons(findings)
    _defaults(findings)
    _known_bad(findings)


def _python(findings: Findings, release: model.Release, path: DocumentPath) -> None:
    python, compile_ = release.python, release.compile
    findings.ascending((*path, "python", "x86_64"), python.x86_64)
    findings.ascending((*path, "python", "aarch64"), python.aarch64)
    if not python.x86_64:
        findings.say("inconsistent", (*path, "python", "x86_64"), "expected at least one series")
    place = (*path, "compile", "python_max")
    if compile_.supported and compile_.python_max is None:
        findings.say("inconsistent", place, "expected a series because compile is supported")
    elif not compile_.supported and compile_.python_max is not None:
        message = f"expected null because compile is not supported, found {compile_.python_max}"
        findings.say("inconsistent", place, message)
    elif compile_.python_max is not None:
        findings.refer(place, "Python", compile_.python_max, python.x86_64)


def _companions(findings: Findings, release: model.Release, path: DocumentPath) -> None:
    for name in ("torchvision", "torchaudio"):
        companion: model.Companion = getattr(release, name)
        if companion.requires is not None:
            place = (*path, name, "requires")
            specifier = findings.specifier(place, companion.requires)
            if specifier is not None and release.torch not in specifier:
                message = f"{name} {companion.version} asks torch{companion.requires}, "
                findings.say("inconsistent", place, message + f"which {release.torch} is not")
        if companion.python != "any":
            place = (*path, name, "python")
            findings.ascending(place, companion.python)
            if release.python.x86_64 and not set(companion.python) & set(release.python.x86_64):
                findings.say("inconsistent", place, "no Python has both this and torch")


def _triton(findings: Findings, release: model.Release, path: DocumentPath) -> None:
    pin = release.triton
    if pin is None:
        if release.compile.supported and any(variant.toolkit for variant in release.variants):
            message = "expected a triton because compile is supported and there are CUDA variants"
            findings.say("inconsistent", (*path, "triton"), message)
        return
    known = [triton.version for triton in findings.matrix.tritons]
    findings.refer((*path, "triton", "version"), "triton", pin.version, known)
    specifier = findings.specifier((*path, "triton", "requires"), pin.requires)
    if specifier is not None and pin.version not in specifier:
        message = f"expected a version that satisfies {pin.requires}, found {pin.version}"
        findings.say("inconsistent", (*path, "triton", "version"), message)


def _pypi(findings: Findings, release: model.Release, path: DocumentPath) -> None:
    build = release.pypi
    tags = [variant.tag for variant in release.variants]
    here = (*path, "pypi")
    findings.refer((*here, "variant"), "the variant", build.variant, tags)
    findings.refer((*here, "aarch64_variant"), "the variant", build.aarch64_variant, tags)
    findings.known_capabilities((*here, "aarch64_arch_list"), build.aarch64_arch_list)
    if build.aarch64_variant == "cpu" and build.aarch64_arch_list:
        message = "expected none because aarch64_variant is cpu"
        findings.say("inconsistent", (*here, "aarch64_arch_list"), message)
    for index, requirement in enumerate(build.nvidia):
        findings.requirement((*here, "nvidia", index), requirement)


def _variant(findings: Findings, variant: model.Variant, path: DocumentPath) -> None:
    findings.known_capabilities((*path, "arch_list"), variant.arch_list)
    findings.known_capabilities((*path, "ptx"), variant.ptx)
    place = (*path, "toolkit")
    if variant.tag == "cpu":
        if variant.toolkit is not None:
            message = f"expected null for the cpu variant, found {variant.toolkit}"
            findings.say("inconsistent", place, message)
        if variant.arch_list or variant.ptx:
            name = "arch_list" if variant.arch_list else "ptx"
            findings.say("inconsistent", (*path, name), "expected none for the cpu variant")
        return
    if variant.toolkit is None:
        message = f"expected the CUDA series of {variant.tag}, found null"
        findings.say("inconsistent", place, message)
        return
    if variant.tag != "cu" + variant.toolkit.replace(".", ""):
        message = f"expected the series that {variant.tag} names, found {variant.toolkit}"
        findings.say("inconsistent", place, message)
    findings.refer(place, "the toolkit", variant.toolkit, findings.toolkits)
    if variant.published == "yes" and not variant.arch_list:
        message = (
            f"expected the compute capabilities with machine code in {variant.tag}, found none"
        )
        findings.say("inconsistent", (*path, "arch_list"), message)
    if variant.built_with and number(variant.built_with)[:2] != number(variant.toolkit):
        message = f"expected a release of {variant.toolkit}, found {variant.built_with}"
        findings.say("inconsistent", (*path, "built_with"), message)


def _tritons(findings: Findings) -> None:
    majors = [entry.major for entry in findings.matrix.cuda_majors]
    versions = [triton.version for triton in findings.matrix.tritons]
    for index, triton in enumerate(findings.matrix.tritons):
        for name in ("ptxas", "ptxas_blackwell"):
            ptxas = getattr(triton, name)
            if ptxas is not None:
                place = ("tritons", index, name)
                findings.refer(place, "the CUDA major", number(ptxas)[0], majors)
    for index, override in enumerate(findings.matrix.ptxas_overrides):
        path = ("ptxas_overrides", index)
        findings.refer((*path, "ptxas"), "the CUDA major", number(override.ptxas)[0], majors)
        findings.requirement((*path, "package"), override.package)
        specifier = findings.specifier((*path, "triton"), override.triton)
        if specifier is not None and not any(version in specifier for version in versions):
            message = f"expected a range with a known triton, found {override.triton}"
            findings.say("inconsistent", (*path, "triton"), message)
        lowest, highest = override.capability_min, override.capability_max
        for version, capabilities in override.assembled.items():
            entry = (*path, "assembled", version)
            findings.refer(entry, "triton", version, versions)
            findings.known_capabilities(entry, capabilities)
            if specifier is not None and version not in specifier:
                message = f"expected a triton {override.triton}, found {version}"
                findings.say("inconsistent", entry, message)
            for here, value in enumerate(capabilities):
                if not number(lowest) <= number(value) <= number(highest):
                    message = f"expected {lowest} to {highest}, found {value}"
                    findings.say("inconsistent", (*entry, here), message)
        for name in ("capability_min", "capability_max"):
            value = getattr(override, name)
            findings.refer((*path, name), "compute capability", value, findings.capabilities)
        if number(lowest) > number(highest):
            message = f"expected at least {lowest} (capability_min), found {highest}"
            findings.say("inconsistent", (*path, "capability_max"), message)
        if override.path.startswith("/") or ".." in override.path.split("/"):
            message = f"expected a path inside site-packages, found {override.path}"
            findings.say("value", (*path, "path"), message)


def _defaults(findings: Findings) -> None:
    matrix, defaults = findings.matrix, findings.matrix.defaults
    releases = {release.torch: release for release in matrix.releases}
    systems = [system.id for system in matrix.operating_systems]
    if findings.refer(("defaults", "torch"), "torch", defaults.torch, releases):
        series = [variant.toolkit for variant in releases[defaults.torch].variants]
        what = f"a variant of torch {defaults.torch} for CUDA"
        findings.refer(("defaults", "cuda"), what, defaults.cuda, series)
    fallback = defaults.fallback
    if findings.refer(("defaults", "fallback", "torch"), "torch", fallback.torch, releases):
        tags = [variant.tag for variant in releases[fallback.torch].variants]
        findings.refer(("defaults", "fallback", "variant"), "the variant", fallback.variant, tags)
    for index, system in enumerate(defaults.os):
        findings.refer(("defaults", "os", index), "the operating system", system, systems)
    for index, branch in enumerate(defaults.driver_branches):
        place = ("defaults", "driver_branches", index)
        findings.refer(place, "the driver branch", branch, findings.branches)
    for name in ("python", "os", "driver_branches"):
        if not getattr(defaults, name):
            findings.say("inconsistent", ("defaults", name), "expected at least one entry")


def _known_bad(findings: Findings) -> None:
    tags = {variant.tag for release in findings.matrix.releases for variant in release.variants}
    for index, entry in enumerate(findings.matrix.known_bad):
        path = ("known_bad", index)
        if entry.torch is not None:
            findings.specifier((*path, "torch"), entry.torch)
        for place, tag in enumerate(entry.variants):
            findings.refer((*path, "variants", place), "the variant", tag, tags)
        for place, requirement in enumerate(entry.requirements):
            findings.requirement((*path, "requirements", place), requirement)
        if entry.effect in {"constrain", "add"} and not entry.requirements:
            message = f"expected requirements because the effect is {entry.effect}"
            findings.say("inconsistent", (*path, "requirements"), message)
        if entry.effect == "refuse" and not (entry.torch or entry.variants or entry.python):
            message = "expected torch, variants or python: this refuses every cell"
            findings.say("inconsistent", (*path, "effect"), message)
