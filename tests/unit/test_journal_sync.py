"""Many files synced at once: all of them, and no error lost."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from output_tools import child, files_of, finish
from support.needs import needs

from provisioner.render.journal import write
from provisioner.render.plan import check
from provisioner.render.sync import batch_size, sync_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=[3, 100])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[int]]:
    """Few open files (one thread) and many (several)."""
    fds = [os.open(tmp_path / str(n), os.O_WRONLY | os.O_CREAT) for n in range(request.param)]
    yield fds
    for fd in fds:
        os.close(fd)


def test_files_are_left_open_and_named(files: list[int]) -> None:
    before = list(files)
    sync_all(files)
    assert files == before
    assert [os.fstat(fd).st_nlink for fd in files] == [1] * len(files)


@pytest.mark.parametrize("where", [0, -1])
def test_one_failure_among_many_is_raised(files: list[int], where: int) -> None:
    ends = os.pipe()  # a pipe can't be synced
    fds = [*files]
    fds.insert(where if where == 0 else len(fds), ends[0])
    try:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            sync_all(fds)
        assert caught.value.errno == errno.EINVAL
        sync_all(fds, folders=True)
    finally:
        for end in ends:
            os.close(end)


def test_a_closed_file_is_an_error_for_folders_too(files: list[int]) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_all([*files, 9999], folders=True)


@needs("system", missing=os.geteuid() != 0, reason="only root can become a user without processes")
def test_no_thread_allowed_is_no_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    content = {f"f{number}": "x" for number in range(100)}

    def work() -> None:
        os.chdir(tmp_path)  # the folders above are closed to that user
        os.setuid(54321)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        with pytest.raises(BlockingIOError):
            os.fork()
        write(Path(), files_of(content), {"g"})
        fds = [os.open("f0", os.O_RDONLY)] * 40
        for place in range(40):  # the parts of the missing threads are done as well
            with pytest.raises(OSError, match="Invalid argument"):
                sync_all([*fds[:place], os.pipe()[0], *fds[place + 1 :]])

    assert finish(child(work)) == 0
    assert check(tmp_path, files_of(content), {"g"}) == []


@pytest.mark.parametrize(("limit", "expected"), [(1024, 256), (256, 64), (40, 16)])
def test_batches_stay_within_the_descriptor_limit(limit: int, expected: int) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        assert batch_size() == expected

    assert finish(child(work)) == 0
