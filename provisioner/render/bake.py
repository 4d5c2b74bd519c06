"""docker-bake.json: all cells below one output root, for `docker buildx bake`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from provisioner.render.dockerfile import PLATFORMS
from provisioner.render.fileset import RenderedFile
from provisioner.render.quote import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

BAKE = "docker-bake.json"
GROUP = "bake"
MADE_BY = "provision render"


def image_tag(name: str) -> str:
    """Returns the name that the image of a cell gets when the user gives none."""
    return f"provision/{checked('name', name, 'the name of the cell').lower()}:latest"


def target_name(name: str) -> str:
    """Returns the cell's name as bake takes it: letters, digits, _ and - alone."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", checked("name", name, "the name of the cell"))


def render_bake(machines: Mapping[str, str]) -> RenderedFile:
    """Returns docker-bake.json with one target per cell, sorted, all of them in the default group.

    `machines` gives each cell's name and architecture. Contexts are relative to the file, so that
    it can be moved with its tree.
    """
    cells = sorted(machines.items())
    content: dict[str, Any] = {
        # The JSON syntax of bake takes a member of this name for a comment.
        "//": f"Made by: {MADE_BY}. Build with: docker buildx bake",
        "group": {"default": {"targets": [target_name(name) for name, _ in cells]}},
        "target": {
            target_name(name): {
                "context": ".",
                "dockerfile": f"docker/{name}/Dockerfile",
                "platforms": [PLATFORMS[machine]],
                "tags": [image_tag(name)],
            }
            for name, machine in cells
        },
    }
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    return RenderedFile(path=BAKE, content=text + b"\n", group=GROUP)
