"""What packages declare as their license, kept beside the locks for the bill of materials.

An SPDX expression where the metadata has one, else the names that it gives. Nothing is guessed:
`BSD License` may be any of several. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from provisioner.errors import FindingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA: Final = "provision.licenses/1"
FILE: Final = "licenses.json"
_LONGEST = 80
"""Of a name; what is longer is the text of a license, which some packages put there."""

_NOT_SAID = frozenset({"", "none", "unknown", "n/a"})
_CLASSIFIED = {
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Zero-Clause BSD (0BSD)": "0BSD",
}
"""Classifiers that mean exactly one license, as PEP 639 has it (appendix, mapping of classifiers
to SPDX). `Apache Software License`, `BSD License` and the like name several."""

Source = Literal["License-Expression", "License", "Classifier", "repodata"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class License(_Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one version of a package declares; `said_in` is the field that says so."""

    expression: str | None = None
    names: tuple[str, ...] = ()
    said_in: Source


class Licensed(_Struct, frozen=True, kw_only=True):
    """A declaration counts for this version alone."""

    version: str
    license: License


class Licenses(_Struct, frozen=True, kw_only=True):
    """The content of licenses.json: name -> declaration, for each half of the lock."""

    schema: Literal["provision.licenses/1"] = SCHEMA
    cell: str
    conda: dict[str, Licensed] = {}
    pip: dict[str, Licensed] = {}

    def of(self, half: Literal["conda", "pip"], name: str, version: str) -> License | None:
        """Returns what this version of a package declares, or None."""
        found = (self.conda if half == "conda" else self.pip).get(name)
        return found.license if found is not None and found.version == version else None

    def beside(self, other: Licenses) -> Licenses:
        """Returns these, and those of `other` for packages of which nothing is known here."""
        return Licenses(
            cell=self.cell, conda={**other.conda, **self.conda}, pip={**other.pip, **self.pip}
        )


def of_metadata(
    expression: str | None, text: str | None, classifiers: Iterable[str]
) -> License | None:
    """Returns what core metadata declares (License-Expression, License, Classifier), or None."""
    if spdx := _spdx(expression):
        return License(expression=spdx, said_in="License-Expression")
    if spdx := _spdx(text):
        return License(expression=spdx, said_in="License")
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    named = sorted({name for name in named if name != "OSI Approved"})
    if len(named) == 1 and named[0] in _CLASSIFIED:
        return License(expression=_CLASSIFIED[named[0]], said_in="Classifier")
    if named:
        return License(names=tuple(named), said_in="Classifier")
    name = _name(text)
    return License(names=(name,), said_in="License") if name else None


def of_repodata(text: str | None) -> License | None:
    """Returns what a conda channel declares, or None."""
    if spdx := _spdx(text):
        return License(expression=spdx, said_in="repodata")
    name = _name(text)
    return License(names=(name,), said_in="repodata") if name else None


def _spdx(text: str | None) -> str | None:
    if text is None or len(text) > 4 * _LONGEST:
        return None
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return None


def _name(text: str | None) -> str | None:
    name = " ".join((text or "").split())
    return name if len(name) <= _LONGEST and name.lower() not in _NOT_SAID else None


def licenses_bytes(licenses: Licenses) -> bytes:
    """Returns licenses.json: sorted, the same bytes for the same content."""
    ordered = msgspec.json.encode(licenses, order="sorted")
    return msgspec.json.format(ordered, indent=2) + b"\n"


def read_licenses(raw: bytes | None, cell: str) -> Licenses:
    """Returns the licenses in a licenses.json, none for None; raises FindingError."""
    if raw is None:
        return Licenses(cell=cell)
    try:
        return msgspec.json.decode(raw, type=Licenses)
    except msgspec.MsgspecError as error:
        raise FindingError(
            "lock.damaged",
            f"{FILE} of {cell} cannot be read: {error}.",
            next_step="Restore it from version control, or lock again (`provision lock CELL`).",
        ) from None


def entries(declared: License | None) -> list[dict[str, Any]]:
    """Returns a declaration in the form of CycloneDX's `licenses`; empty for None."""
    if declared is None:
        return []
    if declared.expression is not None:
        return [{"expression": declared.expression, "acknowledgement": "declared"}]
    return [{"license": {"name": name, "acknowledgement": "declared"}} for name in declared.names]


def of_packages(found: Mapping[str, tuple[str, License | None]]) -> dict[str, Licensed]:
    """Returns name -> declaration of the packages (name -> version, license) that have one."""
    return {
        name: Licensed(version=version, license=declared)
        for name, (version, declared) in sorted(found.items())
        if declared is not None
    }
