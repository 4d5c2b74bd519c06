"""The ledger: what was added is there after any crash, and one controller alone adds to it."""

import datetime as dt
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.errors import FindingError, OutsideError
from provisioner.fleet.ledger import (
    Begin,
    Gate,
    HostRecord,
    Record,
    Retry,
    opened,
    read_ledger,
    replay,
)

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
RECORDS: list[Record] = [
    Begin(at=AT, rollout="0123456789ab", cell="c", controller="x"),
    HostRecord(at=AT, host="a", state="started", wave=0, before={"cell": "old"}),
    HostRecord(at=AT, host="a", state="done", wave=0, seconds=3.5),
    HostRecord(at=AT, host="b", state="failed", wave=0, reason="no disk"),
    Gate(at=AT, wave=0, passed=False, reasons=("1 of 2",)),
]


def write(folder: Path) -> None:
    with opened(folder, "children", 0) as ledger:
        ledger.add(*RECORDS)


def test_a_record_is_read_back_as_it_was_added(tmp_path: Path) -> None:
    write(tmp_path / "r")
    assert read_ledger(tmp_path / "r") == RECORDS
    progress = replay(RECORDS)
    assert progress.hosts["a"].state == "done"
    assert progress.hosts["a"].before == {"cell": "old"}
    assert progress.hosts["b"].reason == "no disk"


def test_a_line_cut_off_anywhere_never_happened(tmp_path: Path) -> None:
    write(tmp_path / "r")
    path = tmp_path / "r" / "ledger.jsonl"
    data = path.read_bytes()
    ends = [n for n in range(len(data)) if data[n : n + 1] == b"\n"]
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        whole = sum(end < cut for end in ends)
        assert read_ledger(tmp_path / "r") == RECORDS[:whole]
        with opened(tmp_path / "r", "children", 0) as ledger:
            ledger.add(RECORDS[-1])
        assert read_ledger(tmp_path / "r") == [*RECORDS[:whole], RECORDS[-1]]


def test_a_line_damaged_inside_is_told_with_its_number(tmp_path: Path) -> None:
    write(tmp_path / "r")
    path = tmp_path / "r" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"done"', b'"dome"'))
    with pytest.raises(FindingError, match="Line 3"):
        read_ledger(tmp_path / "r")


def test_tried_again_a_host_is_pending_and_its_gate_open() -> None:
    progress = replay([*RECORDS, Retry(at=AT, hosts=("b",))])
    assert progress.hosts["b"].state == "pending"
    assert progress.gates == {}


HOLD = """
import sys
from pathlib import Path
from provisioner.fleet.ledger import opened
with opened(Path(sys.argv[1]), "children", 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_controller_of_the_fleet_is_refused_until_the_first_is_gone(
    tmp_path: Path,
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "one")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    # Another rollout of the same fleet is the same fleet.
    with pytest.raises(OutsideError) as caught, opened(tmp_path / "two", "children", 0):
        pass
    assert caught.value.code == "fleet.held"
    first.kill()
    first.communicate()
    with opened(tmp_path / "two", "children", 0):
        pass


def test_what_a_killed_controller_started_is_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "children").open("w") as child:
        fcntl.flock(child, fcntl.LOCK_SH)
        with pytest.raises(OutsideError) as caught, opened(tmp_path / "r", "children", 0.3):
            pass
        assert caught.value.code == "fleet.remnant"
    with opened(tmp_path / "r", "children", 0.3):
        pass
