"""The entry point of the command line.

It is small on purpose. Importing the commands takes some tenths of a second, so `main` imports them inside its own
`try`: a Ctrl-C in that time ends the program with one line, not with a traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from stepwell.cli.common.exit_codes import FAILED, INTERRUPTED
from stepwell.terminal import is_terminal, write


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names, or the arguments of the process, and return the exit code.

    Ctrl-C at any time is exit code 130. An `OSError` while the commands are imported, for instance because no temporary
    directory has room, is exit code 1.
    """
    # The shell may have closed a stream (`>&-`). Without one, the first result or message would be a traceback.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as long as the process
    if is_terminal(sys.stderr):
        sys.excepthook = _print_traceback
    try:
        from stepwell.cli.command_line import run  # noqa: PLC0415 - see the module

        return run(argv)
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted")
    except OSError as error:  # no directory for temporary files has room, say
        return _end(FAILED, f"it cannot be started: {error.strerror or error}")


def _end(code: int, text: str) -> int:
    """Print the reason to stderr, if it is still open, and return the exit code."""
    with suppress(OSError):
        write(sys.stderr, f"stepwell: {text}\n")
    return code


def _print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print the traceback of a defect. Its message may quote data, which a terminal must not interpret."""
    write(sys.stderr, "".join(traceback.format_exception(kind, error, where)))
