"""The gate's questions about the driver branch that is to be installed. Pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.host.model import Finding
from provisioner.matrix import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.host.model import Wish
    from provisioner.matrix.index import MatrixIndex
    from provisioner.matrix.model import Capability, DriverBranch


def refuse_branch(
    code: str, have: str, need: str, reason: str, remedy: str, source: tuple[str, ...]
) -> Finding:
    """A refusal of a branch."""
    return Finding(
        id=code, severity="refuse", have=have, need=need, reason=reason, remedy=remedy,
        source=source,
    )  # fmt: skip


def no_branch(index: MatrixIndex, branch: int | None) -> Finding:
    """The refusal of a branch that the matrix does not know."""
    return refuse_branch(
        "driver.branch-unknown",
        f"branch {branch}",
        "one of " + ", ".join(str(b.branch) for b in index.branches),
        "The matrix knows nothing of this driver branch.",
        "Name a branch that it knows (--branch).",
        (),
    )


def fitting_branch(
    capabilities: dict[str, Capability], branch: DriverBranch, index: MatrixIndex
) -> Iterator[Finding]:
    """Whether the branch to be installed knows the GPUs and has the modules that they need."""
    for name, fact in capabilities.items():
        have, label = f"branch {branch.branch}", f"{name} ({fact.capability}, {fact.family})"
        last, first = fact.driver_branch_last, fact.driver_from
        if last is not None and branch.branch > last:
            yield refuse_branch(
                "driver.branch-too-new",
                have,
                f"{last} or older for {label}",
                f"Branch {last} is the last that knows {fact.family}: with a newer one the GPU "
                "is gone.",
                f"--branch {last}, nvidia_driver_branch: {last}",
                fact.source,
            )
        if first is not None and branch.latest and not versions.at_least(branch.latest, first):
            yield refuse_branch(
                "driver.branch-too-old",
                have,
                f"{first} or newer for {label}",
                f"The newest driver of the branch, {branch.latest}, does not know this GPU.",
                f"--branch {index.branch_of(first).branch} or a newer one",
                fact.source,
            )
        wrong = (fact.modules == "open" and branch.open_modules == "none") or (
            fact.modules == "proprietary" and branch.open_modules == "only"
        )
        if wrong:
            yield refuse_branch(
                "driver.modules",
                f"{have}: open modules {branch.open_modules}",
                f"{fact.modules} modules for {label}",
                "The open modules are for Turing and newer, and the only ones from Blackwell on.",
                "Take a branch that has the modules of this GPU (--branch).",
                fact.source,
            )
    kinds = {c.modules for c in capabilities.values()}
    if {"open", "proprietary"} <= kinds:
        yield refuse_branch(
            "driver.mixed",
            ", ".join(capabilities),
            "GPUs that one kind of modules serves",
            "One GPU needs the open modules, another the proprietary ones.",
            "Move one of the GPUs to another host.",
            (),
        )


def ended_branch(branch: DriverBranch, index: MatrixIndex, wish: Wish) -> Iterator[Finding]:
    """A branch without security updates is installed by explicit choice alone."""
    today = index.matrix.meta.as_of[:7]
    if branch.end_of_life is None or branch.end_of_life >= today:
        return
    yield Finding(
        id="driver.branch-ended",
        severity="warn" if wish.ended_branch else "refuse",
        have=f"branch {branch.branch}, until {branch.end_of_life}",
        need=f"a branch that lives on in {today}",
        reason="It gets no more security updates.",
        remedy="Take a living branch, or say that this one is meant (--ended-branch, "
        "gpu_preflight_ended_branch: true).",
        source=branch.source,
    )
