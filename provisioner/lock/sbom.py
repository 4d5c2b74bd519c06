"""The software bill of materials of a cell from its locks: CycloneDX 1.6, without a scanner.

Pure, and the same bytes for the same locks: the serial number comes from the content, the time is
the day of the lock's packages (left out for a lock of any day).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from provisioner import __version__
from provisioner.conda.explicit import pypi_name
from provisioner.lock import purl
from provisioner.lock.licenses import entries
from provisioner.lock.writer import FROM_TORCH_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from provisioner.conda.explicit import LockedPackage as CondaPackage
    from provisioner.lock.halves import LockedCell
    from provisioner.lock.licenses import Licenses
    from provisioner.lock.model import LockedPackage

SPEC_VERSION = "1.6"
_NAMESPACE = uuid.UUID("f2a7f3f6-0d6b-5f0e-9f0a-6d2f6a5b8a11")
"""Only has to be the same for ever: serial numbers are UUIDs of version 5 in it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEPARATORS = re.compile(r"[-_.]+")


def sbom_bytes(locked: LockedCell) -> bytes:
    """Returns the document as JSON text."""
    return (json.dumps(sbom(locked), indent=2, ensure_ascii=False) + "\n").encode()


def sbom(locked: LockedCell) -> dict[str, Any]:
    """Returns the CycloneDX document of a locked cell as plain values.

    A component for each package of both halves, with its hashes, where its files come from, and
    the license that its metadata declares.
    """
    lock, conda = locked.halves.lock, locked.halves.conda
    index = locked.cell["index_url"]
    known = locked.licenses
    pip = {p.name: _pip_component(p, index) | _licenses("pip", p, known) for p in lock.packages}
    owned = {
        package.name: _conda_component(package) | _licenses("conda", package, known)
        for package in (conda.packages if conda else ())
    }
    components = sorted([*pip.values(), *owned.values()], key=lambda part: str(part["bom-ref"]))
    document: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": _metadata(locked),
        "components": components,
        "dependencies": _dependencies(locked, pip, owned),
    }
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    serial = {"serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}"}
    head = ("$schema", "bomFormat", "specVersion")
    return {key: document[key] for key in head} | serial | document


def _metadata(locked: LockedCell) -> dict[str, Any]:
    cell, lock = locked.cell, locked.halves.lock
    known = {
        "provision:arch": cell["arch"],
        "provision:base-image": cell["base_image"],
        "provision:lock-inputs": lock.inputs,
        "provision:os": cell["os"],
        "provision:python": cell["python"],
        "provision:python-from": cell["python_from"],
        "provision:variant": cell["variant"],
    }
    when = {} if lock.as_of is None else {"timestamp": f"{lock.as_of}T00:00:00Z"}
    return {
        **when,
        "lifecycles": [{"phase": "pre-build"}],
        "tools": {
            "components": [{"type": "application", "name": "provision", "version": __version__}]
        },
        "component": {
            "type": "platform",
            "bom-ref": locked.name,
            "name": locked.name,
            "version": cell["local_version"],
            "properties": _properties(known),
        },
    }


def _pip_component(package: LockedPackage, index: str | None) -> dict[str, Any]:
    repository = index if package.origin in FROM_TORCH_INDEX else None
    address = purl.of_pip(package, repository)
    files = sorted(package.files, key=lambda file: file.filename)
    known = {
        "provision:hashes-confirmed-by": str(min(file.confirmed_by for file in files)),
        "provision:hashes-from": "; ".join(sorted({w for file in files for w in file.where})),
        "provision:origin": package.origin,
    }
    # The lock allows each of several files; the component has a hash only where it is that one.
    only = {"hashes": [_sha256(files[0].sha256)]} if len(files) == 1 else {}
    return {
        "type": "library",
        "bom-ref": address,
        "name": package.name,
        "version": package.version,
        **only,
        "purl": address,
        "externalReferences": [
            _distribution(_address(repository, file.filename), [_sha256(file.sha256)])
            for file in files
        ],
        "properties": _properties(known),
    }


def _conda_component(package: CondaPackage) -> dict[str, Any]:
    address = purl.of_conda(package)
    hashes = [_sha256(package.sha256)]
    if package.md5:
        hashes.insert(0, {"alg": "MD5", "content": package.md5})
    return {
        "type": "library",
        "bom-ref": address,
        "name": package.name,
        "version": package.version,
        "hashes": hashes,
        "purl": address,
        "externalReferences": [_distribution(package.url, hashes)],
        "properties": _properties({"provision:origin": "conda"}),
    }


def _licenses(
    half: Literal["conda", "pip"], package: LockedPackage | CondaPackage, known: Licenses
) -> dict[str, Any]:
    found = entries(known.of(half, package.name, package.version))
    return {"licenses": found} if found else {}


def _address(repository: str | None, filename: str) -> str:
    """Where a wheel is: its full address on an index of its own, else its name on any index.

    Which package index a machine reads is no matter of the lock.
    """
    name = quote(filename, safe="")
    return name if repository is None else f"{repository.rstrip('/')}/{name}"


def _distribution(url: str, hashes: list[dict[str, str]]) -> dict[str, Any]:
    return {"type": "distribution", "url": url, "hashes": hashes}


def _sha256(value: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": value}


def _properties(known: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in sorted(known.items())]


def _dependencies(
    locked: LockedCell,
    pip: Mapping[str, Mapping[str, Any]],
    owned: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The graph over both halves; the cell itself leads to what was asked for.

    What nothing leads to (asked for by an extra, say) hangs from the cell too.
    """
    conda = locked.halves.conda
    by_distribution = {name: str(part["bom-ref"]) for name, part in pip.items()}
    for package in conda.packages if conda else ():
        known = pypi_name(package.name)
        if known is not None and "python" in package.depends:
            by_distribution.setdefault(known, str(owned[package.name]["bom-ref"]))
    edges: dict[str, set[str]] = {}
    for wheel in locked.halves.lock.packages:
        found = {by_distribution[name] for name in wheel.requires if name in by_distribution}
        edges[str(pip[wheel.name]["bom-ref"])] = found
    for package in conda.packages if conda else ():
        # Names with __ are the machine's: glibc, kernel.
        found = {str(owned[name]["bom-ref"]) for name in package.depends if name in owned}
        edges[str(owned[package.name]["bom-ref"])] = found
    asked = {by_distribution[n] for n in _asked(locked.cell) if n in by_distribution}
    led_to = set().union(*(found - {ref} for ref, found in edges.items()))
    edges[locked.name] = asked | (edges.keys() - led_to)
    return [
        {"ref": ref, "dependsOn": sorted(found - {ref})} for ref, found in sorted(edges.items())
    ]


def _asked(cell: Mapping[str, Any]) -> Iterable[str]:
    """The distributions that a cell names."""
    for text in (*cell["requirements"], *cell["companions"], *cell["packages"]["pip"]):
        match = _NAME.match(text)
        if match is not None:
            yield _SEPARATORS.sub("-", match[0]).lower()
