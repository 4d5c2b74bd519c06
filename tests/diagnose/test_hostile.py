"""Logs made to hurt: endless, binary, without line ends, full of near misses or of secrets."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from provisioner.diagnose.secrets import MASK, mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.diagnose.model import Diagnosis

FATAL = b"AssertionError: libcuda.so cannot found!\n"

STREAM = r"""
import sys
from provisioner.diagnose.load import load_book
from provisioner.diagnose.scan import Scanner

class Stream:
    def __init__(self, kind, size):
        line = b"epoch 12 step 34567 loss 0.1234 lr 1e-4 throughput 1234.5 samples/s\n"
        if kind == "line":
            line = line.replace(b"\n", b" ")
        self.block, self.left = line * 15000, size
        self.tail = b"\nAssertionError: libcuda.so cannot found!\n"
    def read(self, size):
        if self.left <= 0:
            tail, self.tail = self.tail, b""
            return tail
        block = self.block[:size]
        self.left -= len(block)
        return block

scanned = Scanner(load_book()).scan(Stream(sys.argv[1], int(sys.argv[2])), "log")
# Not ru_maxrss: over exec it keeps what the process that started this one had.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024, len(scanned.hits), scanned.lines)
"""


def stream(kind: str, size: int) -> tuple[int, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", STREAM, kind, str(size)], capture_output=True, text=True, check=True
    )
    memory, hits, lines = map(int, done.stdout.split())
    return memory, hits, lines


def test_a_gigabyte_is_streamed_in_bounded_memory() -> None:
    memory, hits, lines = stream("lines", 1_000_000_000)
    assert memory < 200
    assert hits == 1
    assert lines > 10_000_000


def test_one_line_of_100_megabytes_is_streamed_too() -> None:
    memory, hits, _ = stream("line", 100_000_000)
    assert memory < 200
    assert hits == 1


def test_binary_junk_nul_and_invalid_utf8(examine: Callable[[bytes], Diagnosis]) -> None:
    junk = random.Random(1).randbytes(3_000_000)
    found = examine(junk + b"\n\x00\xff\xfe " + FATAL + junk)
    assert [cause.cls for cause in found.causes] == ["libcuda_not_found"]
    assert examine(b"\x00" * 1_000_000).unknown
    assert examine(b"").unknown


def test_a_cause_at_every_place_of_a_chunk_boundary(
    examine: Callable[[bytes], Diagnosis],
) -> None:
    chunk, around = 1 << 20, 32 << 10
    places = [end + shift for end in (chunk - around, chunk) for shift in range(-60, 20, 7)]
    for place in places:
        filler = b"x" * 79 + b"\n"
        head = (filler * (1 << 14))[:place]
        found = examine(head + b"\n" + FATAL + filler * 2000)
        assert found.causes[0].cls == "libcuda_not_found"
        assert found.causes[0].lines[0].number == head.count(b"\n") + 2


@pytest.mark.parametrize(
    "line",
    [
        b"aaaaaaaaaa" * 700,
        b"((((((((((" * 700,
        b"torch torch torch torch " * 250,
        b"undefined symbol: " * 300,
        b"%d: version GLIBC not found, error: failed to import, no such file or directory",
        b"\\n" * 3000 + b'{"msg": "' + b"\\\\" * 1000,
        b"\x1b[" * 3000,
        b"token=" * 1000,
    ],
)
def test_no_line_is_slow(line: bytes, examine: Callable[[bytes], Diagnosis]) -> None:
    log = b"".join(line.replace(b"%d", b"%d" % n) + b"\n" for n in range(2_000_000 // len(line)))
    begin = time.process_time()
    examine(log)
    assert time.process_time() - begin < 8  # a backtracking engine would need hours


def test_a_flood_of_one_message_hides_no_other(examine: Callable[[bytes], Diagnosis]) -> None:
    flood = b"".join(b"worker %d: CUDA out of memory\n" % n for n in range(20_000))
    found = examine(flood + FATAL + flood)
    assert {cause.cls for cause in found.causes} == {"libcuda_not_found", "cuda_out_of_memory"}


SECRETS = [
    ("https://user:s3cr3tpass@mirror.example/simple", "s3cr3tpass"),
    ("https://__token__:pypi-AgEIcHlwaS5vcmcCJDU3@mirror.example/", "AgEIcHlwaS5vcmcCJDU3"),
    ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("using key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "hf_abcdefghijkl"),
    ("login with hf_abcdefghijklmnopqrstuvwxyz now", "hf_abcdefghijkl"),
    ("token ghp_abcdefghijklmnopqrstuvwxyz012345", "ghp_abcdefghij"),
    ("pip --password hunter2secret install", "hunter2secret"),
    ('{"password": "hunter2secret"}', "hunter2secret"),
    ("PIP_INDEX_PASSWORD: hunter2secret", "hunter2secret"),
    ("GET /x?X-Amz-Signature=0123456789abcdef&b=1", "0123456789abcdef"),
    ("curl -u admin --user admin:hunter2secret", "hunter2secret"),
    ("NGC_API_KEY='nvapi-abcdefghijklmnopqrstuvwx'", "abcdefghijklmnopqrstuvwx"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.sflKxwRJ", "eyJzdWIiOiIxMjM0"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_no_secret_is_repeated(text: str, secret: str, examine: Callable[[str], Diagnosis]) -> None:
    assert secret not in mask(text)
    assert MASK in mask(text)
    import msgspec

    for line in (f"libcuda.so cannot found! {text}", f"{text} libcuda.so cannot found!"):
        found = examine(line)
        assert found.causes
        assert secret not in msgspec.json.encode(found).decode()


def test_what_is_no_secret_stays() -> None:
    for text in ("torch==2.0.1+cu118", "key error: 'x'", "https://download.pytorch.org/whl/cu118"):
        assert mask(text) == text


def test_a_stream_that_reads_in_small_pieces_gives_the_same(
    examine: Callable[[bytes], Diagnosis],
) -> None:
    from provisioner.diagnose.load import load_book
    from provisioner.diagnose.scan import Scanner

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 1, 4096))

    log = b"noise\n" * 50_000 + FATAL + b"noise\n" * 50_000
    hits = Scanner(load_book()).scan(Slow(log), "log").hits
    assert [hit.line.number for hit in hits] == [50_001]
    assert examine(log).causes[0].lines[0].number == 50_001
