"""The entry point of the command line.

It imports the commands only when it runs, because that takes a moment, in which a Ctrl-C must end without a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from stepwell.cli.common.exit_codes import FAILED, INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say; without any, what the process was given."""
    if sys.stdout is None:  # it was closed before we began
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as long as the process
    try:
        from stepwell.cli.command_line import run  # noqa: PLC0415 - see the module

        return run(argv)
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted")
    except OSError as error:  # no directory for temporary files has room, say
        return _end(FAILED, f"it cannot be started: {error.strerror or error}")


def _end(code: int, text: str) -> int:
    with suppress(OSError):
        sys.stderr.write(f"stepwell: {text}\n")
    return code
