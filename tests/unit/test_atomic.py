"""One file, whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.atomic import write_whole


def test_it_is_written_and_written_over(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    before = os.umask(0o077)
    try:
        for content in (b"one", b"two"):
            write_whole(target, content)
            assert target.read_bytes() == content
            assert target.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)
    write_whole(target, b"content")
    assert target.read_bytes() == b"content"


def test_on_a_full_disk_the_old_file_stands(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails half way."""
    target = tmp_path / "report.json"
    target.write_bytes(b"old")
    code = (
        "import resource, signal, sys, pathlib\n"
        "from provisioner.atomic import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_whole(pathlib.Path(sys.argv[1]), b'new' * 10000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stderr
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_whole(target, b"content")
    assert list(tmp_path.iterdir()) == [target]
