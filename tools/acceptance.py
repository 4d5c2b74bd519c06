#!/usr/bin/env python3
"""Build the shipped cells that this machine can build, and keep their reports in evidence/.

Needs the test engine with its base images (tools/test-engine start, bases, env). torch for the CPU
is served from the loopback, as the tests do it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests"))

from support.engine import base_image_name, find_engine  # noqa: E402
from support.wheelhouse import fetch_torch_cpu, serve_wheels  # noqa: E402

CELLS = (
    ("torch2.0.1-cu117-py39-debian11-basepy", "11"),
    ("torch2.13.0-cpu-py311-debian12-basepy", "12"),
)


def main() -> int:
    engine = find_engine()
    wheel = fetch_torch_cpu(PROJECT / ".cache" / "wheelhouse")
    bundle = next(
        (os.environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE") if os.environ.get(name)), None
    )
    worst = 0
    with serve_wheels(wheel.parent) as index, tempfile.TemporaryDirectory() as folder:
        for cell, debian in CELLS:
            command = [sys.executable, "-m", "provisioner", "build", cell, "--network=host"]
            command += [f"--base-image={base_image_name(engine, debian)}", "--locked"]
            command += [
                f"--mirror=torch_index={index}",
                f"--tag=localhost/acceptance:{folder[-6:]}",
            ]
            command += [f"--secret=ca={bundle}"] if bundle else []
            environ = {**engine.environ, "PROVISION_DOCKER": str(engine.client)}
            done = subprocess.run(command, cwd=PROJECT, env=environ, check=False)
            worst = worst or done.returncode
            if done.returncode == 0:
                report = PROJECT / "build" / cell / "report.json"
                lock = PROJECT / "lockfiles" / cell / "lock.json"
                keep = [sys.executable, "tools/keep_evidence.py", str(report), cell, "docker-build"]
                worst = subprocess.call([*keep, f"--lock={lock}"], cwd=PROJECT)
            engine.remove_image(f"localhost/acceptance:{folder[-6:]}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
