"""What the packages of an environment on this machine declare as their license."""

from __future__ import annotations

import json
import os
from pathlib import Path

from provisioner.env.inventory import read_inventory
from provisioner.lock.licenses import Licensed, Licenses, of_packages, of_repodata
from provisioner.lock.metadata import parse_metadata


def installed_licenses(prefix: Path, cell: str) -> Licenses:
    """Returns name -> declaration, from conda-meta and METADATA; raises OutsideError.

    Only for the versions that lie there: whoever asks for another gets nothing.
    """
    prefix = Path(os.path.realpath(prefix))
    inventory = read_inventory(prefix)
    pip = {
        dist.name: (dist.version, parse_metadata(metadata.read_bytes()).license)
        for dist in inventory.distributions
        if dist.owner is None and (metadata := prefix / dist.folder / "METADATA").is_file()
    }
    return Licenses(cell=cell, conda=_conda(prefix), pip=of_packages(pip))


def _conda(prefix: Path) -> dict[str, Licensed]:
    records = [json.loads(path.read_bytes()) for path in sorted(prefix.glob("conda-meta/*.json"))]
    return of_packages(
        {each["name"]: (each["version"], of_repodata(each.get("license"))) for each in records}
    )
