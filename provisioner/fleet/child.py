"""Starts one of Ansible's programs so that it cannot outlive its controller unseen.

    python child.py LOCK PARENT PROGRAM [ARGUMENT ...]

Holds a shared lock on the file LOCK as long as the program or one of its workers lives, and asks
the kernel to end the program when the process PARENT ends. Standard library alone.
"""

import ctypes
import fcntl
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Replace this process with the program."""
    lock, parent, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before it could be watched
    os.execv(program, sys.argv[3:])  # noqa: S606 - the point of it


if __name__ == "__main__":
    main()
