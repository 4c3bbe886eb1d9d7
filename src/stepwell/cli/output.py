"""Where words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import os
import sys

from rich.console import Console


class _Results(Console):
    def on_broken_pipe(self) -> None:
        """Left to `main`, which does the same whoever was writing."""
        raise BrokenPipeError


def results() -> Console:
    """For a result: coloured on a terminal, plain in a file or pipe, where a path is never broken into lines."""
    return _Results(soft_wrap=not sys.stdout.isatty(), highlight=False)


def say(text: str) -> None:
    """Tell whoever started the command, if anybody listens: that nobody does is no reason to stop."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()


def complain(text: str) -> None:
    """One line that says what to do."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"stepwell: {' '.join(text.split())}\n")
        sys.stderr.flush()


def give_up_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not stumble over it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
