"""The command `provision`. What costs nothing to answer is answered before anything is imported."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    _open_closed_streams()
    arguments = sys.argv[1:]
    try:
        if _answered_at_once(arguments):
            sys.stdout.flush()
            return 0
    except OSError as error:
        from provisioner.cli.main import output_failed

        return output_failed(error)
    from provisioner.cli.main import run

    return run(arguments)


def _answered_at_once(arguments: list[str]) -> bool:
    if arguments in (["--version"], ["-V"]):
        from provisioner import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return True
    if arguments[:1] == ["lock"]:
        from provisioner.lock.quick import answer

        return answer(arguments[1:], os.environ) is not None
    return False


def _open_closed_streams() -> None:
    """Streams that the caller closed (`>&-`) lead nowhere; no file may get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = os.O_RDONLY if number == 0 else os.O_WRONLY
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


if __name__ == "__main__":
    sys.exit(main())
