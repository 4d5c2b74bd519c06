"""Reading the builder's plain progress, and what a failed build is told as."""

import pytest

from provisioner.build.image import failure
from provisioner.build.progress import Progress
from provisioner.errors import FindingError, OutsideError

OLD = """\
#1 [internal] load build definition from Dockerfile
#1 sha256:0a1b
#1 DONE 0.1s

#5 [lock 1/3] FROM example/debian:11
#5 sha256:2c3d
#5 CACHED

#9 [base 3/4] RUN --mount=type=secret,id=ca,mode=0444     set -eu; apt-get update
#9 sha256:4e5f
#9 0.412 Get:1 http://mirror.example/debian bullseye InRelease
#9 DONE 43.9s

#18 [verify 1/1] RUN provision-verify --device cpu --strict-cache
#18 sha256:6a7b
#18 2.100 FAILED cxx: no C++ compiler: g++ is not on PATH
#18 2.100   remedy: install g++
#18 2.101 verdict: compile-failed (exit code 10)
#18 ERROR: executor failed running [/bin/sh -c provision-verify]: exit code: 10
------
 > [verify 1/1] RUN provision-verify --device cpu --strict-cache:
------
executor failed running [/bin/sh -c provision-verify]: exit code: 10
"""
NEW = """\
#8 [lock 3/3] RUN set -eu; if [ ! -s /lock/requirements.txt ]
#8 0.231 lockfiles/x/requirements.txt is missing: run 'provision lock x', then build again.
#8 ERROR: process "/bin/sh -c set -eu" did not complete successfully: exit code: 1
------
ERROR: failed to solve: process "/bin/sh -c set -eu" did not complete successfully: exit code: 1
"""
FULL = """\
#13 [environment 3/7] RUN python -m pip install
#13 90.12 Installing collected packages: torch
#13 99.70 ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device
#13 ERROR: executor failed running [/bin/sh -c python -m pip install]: exit code: 1
"""
UNREACHED = "error during connect: the docker daemon went away\n"


def fed(text: str) -> tuple[Progress, list[str]]:
    progress = Progress()
    return progress, [short for line in text.split("\n") if (short := progress.feed(line))]


def test_steps_are_told_shortly_and_the_builders_own_ones_not_at_all() -> None:
    _, told = fed(OLD)
    assert told == [
        "lock 1/3 FROM example/debian:11",
        "lock 1/3 cached",
        "base 3/4 RUN set -eu; apt-get update",
        "base 3/4 done in 43.9s",
        "verify 1/1 RUN provision-verify --device cpu --strict-cache",
        "verify 1/1 failed",
    ]


def test_a_failed_verification_is_a_finding_in_the_probes_own_words() -> None:
    progress, _ = fed(OLD)
    error = failure(progress, "cell", 1)
    assert isinstance(error, FindingError)
    assert error.code == "build.verify-failed"
    assert error.message.split("\n")[1] == "FAILED cxx: no C++ compiler: g++ is not on PATH"
    assert error.facts == {"verdict": "compile-failed (exit code 10)"}


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (NEW, "build.failed", "in stage lock, step 3/3:\nlockfiles/x/requirements.txt is missing"),
        (FULL, "build.no-space", "disk of the Docker engine ran full"),
        (UNREACHED, "build.failed", "before a step:\nerror during connect"),
    ],
)
def test_other_failures_are_something_outside(text: str, code: str, part: str) -> None:
    progress, _ = fed(text)
    error = failure(progress, "cell", 1)
    assert isinstance(error, OutsideError)
    assert error.code == code
    assert part in error.message


def test_only_the_last_lines_of_a_long_step_are_kept() -> None:
    lines = "".join(f"#3 {number}.0 line {number}\n" for number in range(2000))
    progress, _ = fed(f"#3 [environment 3/7] RUN x\n{lines}#3 ERROR: exit code: 1\n")
    error = failure(progress, "cell", 1)
    assert error.message.count("\n") == 12
    assert error.message.endswith("line 1999")
    assert len(progress.steps["3"].said) < 1000
