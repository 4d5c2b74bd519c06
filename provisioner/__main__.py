"""The command `provision`. `--version` is answered before anything is imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from provisioner import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return 0
    from provisioner.cli.main import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
