"""Output: results to stdout, everything else to stderr. All commands write through this module.

Text that did not come from stepwell itself, such as a file name, a body, or the output of a validation, can contain
sequences that a terminal interprets. So everything is escaped here on its way to a terminal (`stepwell.terminal`), and
a command cannot forget it. Colours and the movements of bars are added behind that (`console`). Pipes and files get the
text as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Final

import msgspec

from stepwell.terminal import escape_json, escape_terminal, is_terminal, write

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def write_result(text: str) -> None:
    """Write a text of any length to stdout."""
    write(sys.stdout, text)


def print_result(text: str) -> None:
    """Print a line to stdout at once. If the reader is gone, go on without it: a server must not stop because
    of that.
    """
    try:
        write_result(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def print_error(text: str) -> None:
    """Print one line to stderr, with the program's name. Control characters and line breaks in the text are removed."""
    with contextlib.suppress(OSError):
        write(sys.stderr, f"stepwell: {_CONTROL.sub('?', ' '.join(text.split()))}\n")
        sys.stderr.flush()


def print_detail(text: str) -> None:
    """Print a text of several lines to stderr, such as a diff, below the line that `print_error` has printed."""
    with contextlib.suppress(OSError):
        write(sys.stderr, f"{text}\n")
        sys.stderr.flush()


def print_json(value: object) -> None:
    """Print the value as JSON on one line, in ASCII, so that no character of it can affect a terminal."""
    write_result(f"{json.dumps(value)}\n")


def print_struct(value: object) -> None:
    """Print a value that msgspec encodes as JSON on one line, at once. On a terminal it is valid JSON, too."""
    encoded = msgspec.json.encode(value).decode()
    write_result(f"{escape_json(encoded) if is_terminal(sys.stdout) else encoded}\n")
    sys.stdout.flush()


class StatusLine:
    """A line on stderr about a state: rewritten in place on a terminal, one line for each change elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = is_terminal(sys.stderr)
        self._shown = ""

    def show(self, text: str) -> None:
        """Print the text if it has changed."""
        if text == self._shown:
            return
        self._shown = text
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{escape_terminal(text)}")
        else:
            write(sys.stderr, f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """End the line, so that the shell's prompt starts on a new one."""
        if self._is_terminal and self._shown:
            write(sys.stderr, "\n")


def discard_stdout() -> None:
    """Redirect stdout to the null device. The interpreter flushes it at exit, and would print a traceback for a closed
    pipe.
    """
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
