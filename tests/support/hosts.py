"""Recorded hosts: tests/data/hosts/*.yaml become a tree of files and the answers of programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from provisioner.host import facts as module

HOSTS = Path(__file__).resolve().parents[1] / "data" / "hosts"
READER = Path(module.__file__)


def lay_out(name: str, folder: Path) -> list[str]:
    """Write the host below `folder`; returns the options that make the reader read it."""
    host = yaml.safe_load((HOSTS / f"{name}.yaml").read_text(encoding="utf-8"))
    root = folder / "root"
    root.mkdir()
    for path, text in host["files"].items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    answers = folder / "answers.json"
    answers.write_text(json.dumps(host["programs"]), encoding="utf-8")
    return ["--root", str(root), "--answers", str(answers)]


def facts_of(name: str, folder: Path) -> dict[str, Any]:
    """What the reader, run as the single file that it is, prints of a recorded host."""
    command = [sys.executable, "-I", str(READER), *lay_out(name, folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
