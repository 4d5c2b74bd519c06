#!/usr/bin/env python3
"""The heavy runs that CI leaves out; each keeps its reports in evidence/.

    tools/acceptance.py [STEP...]         (without a name: all of them, in this order)

images    Build the shipped cells that this machine can build. Needs the test engine with its base
          images (tools/test-engine start, bases, env). torch for the CPU is served from the
          loopback, as the tests do it.
hosts     Driver and toolkit of Debian 12 through the roles, really compiled (host_acceptance.py).
releases  Judge the probe on the other releases of torch, one after another: all its tests, and the
          report of a good environment. Needs Pythons 3.9 to 3.13 with their headers and 10 GB;
          each environment is removed before the next is made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "tests"), str(PROJECT / "tests" / "verify")]

from support.engine import base_image_name, find_engine  # noqa: E402
from support.wheelhouse import fetch_torch_cpu, serve_wheels  # noqa: E402
from torch_env import BUILDS, TorchEnv, make_environment  # noqa: E402

CELLS = (
    ("torch2.0.1-cu117-py39-debian11-basepy", "11"),
    ("torch2.13.0-cpu-py311-debian12-basepy", "12"),
)


RELEASES = ("1.13.1", "2.0.1", "2.1.2", "2.4.1", "2.6.0", "2.13.0", "2.15.0")


def images() -> int:
    """Build each cell of CELLS; 0 when every build was verified."""
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


def releases() -> int:
    """Judge the probe on each release of RELEASES; 0 when every test passed."""
    worst = 0
    for torch in RELEASES:
        print(f"== torch {torch}", flush=True)
        environ = {**os.environ, "PROVISION_TEST_TORCH": torch, "PROVISION_TEST_REQUIRE": "torch"}
        names = ("torch", "negatives") if BUILDS[torch].promise["compile"] else ("eager",)
        tests = [f"tests/verify/test_probe_{name}.py" for name in names]
        pytest = [sys.executable, "-m", "pytest", "-q", *tests]
        worst = subprocess.call(pytest, cwd=PROJECT, env=environ) or worst
        worst = _keep_report(torch) or worst
        if torch not in ("2.0.1", "2.13.0"):  # the everyday tests have these
            for made in (PROJECT / ".cache" / "venvs").glob(f"torch{torch}-*"):
                shutil.rmtree(made) if made.is_dir() else made.unlink()
    return worst


def _keep_report(torch: str) -> int:
    """Run the probe once in a good environment and keep what it says."""
    with tempfile.TemporaryDirectory() as folder:
        build = BUILDS[torch]
        env = TorchEnv(python=make_environment(torch), scratch=Path(folder), build=build)
        env.probe("--strict-cache", "--expect", json.dumps(build.promise))
        report = next(Path(folder).glob("report-*.json"))
        _move_away(report, env.python)
        keep = [sys.executable, "tools/keep_evidence.py", str(report), "probe-on-cpu", torch]
        return subprocess.call([*keep, "--about"], cwd=PROJECT)


def _move_away(report: Path, python: Path) -> None:
    """Let a report tell of the environment in /env and of its interpreter in /python."""
    text = report.read_text(encoding="utf-8")
    for place, name in ((python.parents[1], "/env"), (python.resolve().parents[1], "/python")):
        text = text.replace(f"{place}/", f"{name}/")
    report.write_text(text, encoding="utf-8")


def hosts() -> int:
    """Bring driver and toolkit to a machine; 0 when both compile, hold and go away again."""
    return subprocess.call([sys.executable, "tools/host_acceptance.py"], cwd=PROJECT)


STEPS = {"images": images, "hosts": hosts, "releases": releases}


def main() -> int:
    """Run the steps that are named; the status of the last that failed."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("step", nargs="*", metavar="STEP")
    steps = parser.parse_args().step or list(STEPS)
    for name in steps:
        if name not in STEPS:
            parser.error(f"there is no step {name}; there are {', '.join(STEPS)}")
    worst = 0
    for name in steps:
        worst = STEPS[name]() or worst
    return worst


if __name__ == "__main__":
    sys.exit(main())
