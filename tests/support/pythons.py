"""Other Pythons of this machine, for tests that judge what runs under them."""

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def interpreter(name: str) -> str | None:
    """A Python of this name (`python3.9`) that starts, on PATH or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for candidate in [name, *sorted(map(str, pyenv.glob(f"versions/*/bin/{name}")))]:
        try:
            subprocess.run([candidate, "-c", ""], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return None


def has_headers(python: str) -> bool:
    """Tell whether Python.h of this interpreter is there."""
    script = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip(), "Python.h").is_file()
