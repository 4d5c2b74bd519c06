"""`provision diagnose`: throughput on one core, a 2 MB log as a whole process, memory of 1 GB."""

from __future__ import annotations

import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Goal, spend

ORDINARY = Path(__file__).parent.parent / "tests" / "diagnose" / "ordinary.tar.xz"
SIZE = 100_000_000
CAUSE = b"AssertionError: libcuda.so cannot found!\n"
_BIG = """
import resource, sys
from provisioner.diagnose.load import load_book
from provisioner.diagnose.scan import Scanner
class Stream:
    left = 1_000_000_000
    block = b"epoch 12 step 34567 loss 0.1234 lr 1e-4 throughput 1234.5 samples/s\\n" * 15000
    def read(self, size):
        self.left -= size
        return self.block[:size] if self.left > 0 else b""
assert not Scanner(load_book()).scan(Stream(), "log").hits
"""


def goals(runs: int) -> list[Goal]:
    """All goals of this part."""
    runs = max(3, runs // 3)
    small = [_memory(), _process(runs)]  # first: a child's peak counts its parent's memory too
    return [
        *small,
        _throughput("a training log of 100 MB", _training(), runs),
        _throughput("ordinary logs of every kind, 100 MB", _ordinary(), runs),
    ]


def _training() -> bytes:
    """Lines that differ in their numbers."""
    line = "epoch %d step %d loss %.4f lr 1e-4 throughput %.1f samples/s\n"
    lines = [line % (n // 900, n, 7 / (n + 1), n % 977 / 3) for n in range(20_000)]
    block = "".join(lines).encode()
    return block * (SIZE // len(block)) + CAUSE


def _ordinary() -> bytes:
    """Real logs of builds, tests, installs and trainings, one after another."""
    with tarfile.open(ORDINARY) as archive:
        streams = [archive.extractfile(member) for member in archive]
        block = b"\n".join(stream.read() for stream in streams if stream is not None)
    return block * (SIZE // len(block)) + b"\n" + CAUSE


def _throughput(name: str, log: bytes, runs: int) -> Goal:
    """Bytes of a log for each second of CPU, start and compiling of the rules left out."""
    from provisioner.diagnose.load import load_book
    from provisioner.diagnose.scan import Scanner

    book = load_book()
    took = []
    for _ in range(runs):
        begin = time.process_time()
        hits = Scanner(book).scan(io.BytesIO(log), "log").hits
        took.append(time.process_time() - begin)
        assert any(hit.line.text == CAUSE.decode().strip() for hit in hits)
    rate = len(log) / statistics.median(took) / 1e6
    return Goal(
        name=f"diagnose, {name}",
        value=rate,
        unit="MB/s",
        goal=50,
        better="more",
        detail=f"{len(log) / 1e6:.0f} MB in {statistics.median(took):.2f} s of CPU",
    )


def _process(runs: int) -> Goal:
    """The whole command on 2 MB, rules and matrix cached."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        log = Path(folder) / "log"
        log.write_bytes(_training()[:2_000_000] + b"\n" + CAUSE)
        command = [sys.executable, "-m", "provisioner", "diagnose", str(log), "--json"]
        cold = spend(command).cpu
        warm = statistics.median(spend(command).cpu for _ in range(runs))
    return Goal(
        name="provision diagnose of 2 MB",
        value=warm,
        unit="s CPU",
        goal=0.4,
        better="less",
        detail=f"the first run, which reads rules and matrix from YAML: {cold:.2f} s",
    )


def _memory() -> Goal:
    cost = spend([sys.executable, "-c", _BIG])
    return Goal(
        name="peak memory of 1 GB",
        value=cost.peak / 1e6,
        unit="MB",
        goal=200,
        better="less",
        detail=f"streamed in {cost.cpu:.1f} s of CPU",
    )
