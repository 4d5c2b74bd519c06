"""What became worse between two reports: a gate for upgrades. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provisioner.verify.report import Report

VERDICTS: Final = (
    "failed",
    "unjudged",
    "eager-as-declared",
    "cpu-verified-cuda-deferred",
    "verified",
)
"""From the weakest to the strongest."""

_CUT_SHORT: Final = ("failed", "unjudged")
"""After these the rest was not looked at: that it is missing tells nothing more."""

_STATUSES: Final = {"fail": 0, "warn": 1, "skip": 2, "pass": 3}
SLOWER: Final = 1.25
"""A time of the new report above this share of the old one's is a regression ..."""
SLOWER_S: Final = 2.0
"""... where it is also this many seconds longer: two runs of one machine differ that much."""
LESS_SPEED: Final = 0.9
"""A speed-up below this share of the old one is a regression."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs. `kind`: worse, better, or other (neither, such as a version)."""

    what: str
    kind: Literal["worse", "better", "other"]
    old: str
    new: str


def compare(old: Report, new: Report) -> list[Difference]:
    """Returns what differs between two reports, what became worse first."""
    found = [*_verdict(old, new), *_checks(old, new), *_subject(old, new)]
    whole = not {old.verdict, new.verdict} & set(_CUT_SHORT)
    if whole and old.device == new.device:
        found += [*_artefacts(old, new), *_times(old, new), *_speed(old, new)]
    order = {"worse": 0, "better": 1, "other": 2}
    return sorted(found, key=lambda item: order[item.kind])


def _ranked(what: str, old: str, new: str, worse: bool) -> Difference:
    return Difference(what=what, kind="worse" if worse else "better", old=old, new=new)


def _verdict(old: Report, new: Report) -> Iterator[Difference]:
    if old.verdict != new.verdict:
        worse = VERDICTS.index(new.verdict) < VERDICTS.index(old.verdict)
        yield _ranked("verdict", old.verdict, new.verdict, worse)


def _checks(old: Report, new: Report) -> Iterator[Difference]:
    before = {check.id: check for check in old.checks}
    after = {check.id: check for check in new.checks}
    for name, check in after.items():
        if name not in before:
            if check.status in ("fail", "warn"):
                yield _ranked(f"check {name}", "not made", _told(check), worse=True)
            continue
        was = before[name]
        if was.status == check.status:
            continue
        if check.status == "skip" and new.verdict in _CUT_SHORT:
            continue
        if "skip" in (was.status, check.status) and old.device != new.device:
            kind: Literal["worse", "other"] = "worse" if check.status == "fail" else "other"
            yield Difference(what=f"check {name}", kind=kind, old=was.status, new=_told(check))
            continue
        worse = _STATUSES[check.status] < _STATUSES[was.status]
        yield _ranked(f"check {name}", was.status, _told(check), worse)
    for name in before.keys() - after.keys():
        yield Difference(
            what=f"check {name}", kind="worse", old=before[name].status, new="not made"
        )


def _told(check: Any) -> str:
    return f"{check.status}: {check.detail}" if check.status in ("fail", "warn") else check.status


def _artefacts(old: Report, new: Report) -> Iterator[Difference]:
    for kind in sorted(old.artefacts.keys() | new.artefacts.keys()):
        was, now = old.artefacts.get(kind, 0), new.artefacts.get(kind, 0)
        # How many there are differs by release; that none is made any more tells something.
        if bool(was) != bool(now):
            # What kinds there are is up to the release: the checks say whether one is missing.
            yield Difference(what=f"artefacts {kind}", kind="other", old=str(was), new=str(now))


def _times(old: Report, new: Report) -> Iterator[Difference]:
    for phase in ("cold", "warm"):
        was, now = (_wall(report, phase) for report in (old, new))
        if was is None or now is None:
            continue
        if now > SLOWER * was and now - was > SLOWER_S:
            yield _ranked(f"{phase} compile", f"{was:.1f} s", f"{now:.1f} s", worse=True)
        elif was > SLOWER * now and was - now > SLOWER_S:
            yield _ranked(f"{phase} compile", f"{was:.1f} s", f"{now:.1f} s", worse=False)


def _wall(report: Report, phase: str) -> float | None:
    seconds = (report.details.timing.get(phase) or {}).get("wall_s")
    return float(seconds) if isinstance(seconds, (int, float)) else None


def _speed(old: Report, new: Report) -> Iterator[Difference]:
    for name in sorted(old.speed.keys() | new.speed.keys()):
        was, now = (_speedup(report.speed.get(name)) for report in (old, new))
        if was is not None and now is not None:
            if now < LESS_SPEED * was:
                yield _ranked(f"speed-up of {name}", f"{was:.2f}x", f"{now:.2f}x", worse=True)
            elif was < LESS_SPEED * now:
                yield _ranked(f"speed-up of {name}", f"{was:.2f}x", f"{now:.2f}x", worse=False)
        elif was is not None:
            yield _ranked(f"speed-up of {name}", f"{was:.2f}x", "not measured", worse=True)


def _speedup(measured: object) -> float | None:
    value = measured.get("speedup") if isinstance(measured, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _subject(old: Report, new: Report) -> Iterator[Difference]:
    pairs = (
        ("torch", old.torch, new.torch),
        ("cuda", old.cuda, new.cuda),
        ("device", old.device, new.device),
        ("python", old.details.python, new.details.python),
        ("gpu", old.details.gpu, new.details.gpu),
        ("driver", old.details.driver, new.details.driver),
    )
    for what, was, now in pairs:
        if was != now:
            yield Difference(what=what, kind="other", old=str(was), new=str(now))
