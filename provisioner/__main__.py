"""The command `provision`. What costs nothing to answer is answered before anything is imported."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from provisioner import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return 0
    if arguments[:1] == ["lock"]:
        from provisioner.lock.quick import answer

        status = answer(arguments[1:], os.environ)
        if status is not None:
            return status
    from provisioner.cli.main import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
