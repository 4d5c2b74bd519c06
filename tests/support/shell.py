"""`provision render` in an output root, as tests type it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.main import run


def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PROVISION_* variable of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("PROVISION_")]:
        monkeypatch.delenv(name)


class Shell:
    """The command line in an output root, and what it said."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self.capsys.readouterr()
        status = run(["render", f"--out={self.root}", *words])
        self.out, self.err = self.capsys.readouterr()
        return status

    def json(self, *words: str) -> dict[str, Any]:
        self(*words, "--json")
        told: dict[str, Any] = json.loads(self.out)
        return told

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.startswith(".provision-")
        }
