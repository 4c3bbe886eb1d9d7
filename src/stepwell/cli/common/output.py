"""Output: results to stdout, everything else to stderr, and escaping of text that a terminal would interpret.

A file name, a diff or the output of a validation can contain control sequences that clear the screen, move the cursor
or hide text. Text that did not come from stepwell itself is escaped before it is printed to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Final

from rich.console import Console

from stepwell import limits

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except for tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the direction of a text
    r"\ud800-\udfff]"  # surrogates, which cannot be encoded
)


class _ResultConsole(Console):
    """A rich console for results that lets a closed pipe be handled like any other one."""

    def on_broken_pipe(self) -> None:
        """Raise, because `command_line` handles a closed pipe; rich would end the process with exit code 1 here."""
        raise BrokenPipeError


def result_console() -> Console:
    """Return a console for results: coloured on a terminal, plain and unfolded in a file or a pipe.

    In a pipe no line is folded, because a script that searches for a path has to find it on one line.
    """
    if sys.stdout.isatty():
        return _ResultConsole(highlight=False)
    return _ResultConsole(highlight=False, soft_wrap=True, width=limits.PIPE_COLUMNS)


def print_result(text: str) -> None:
    """Print a line to stdout at once. If the reader is gone, go on without it: a server must not stop because
    of that.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def print_error(text: str) -> None:
    """Print one line to stderr, with the program's name. Control characters and line breaks in the text are removed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"stepwell: {_CONTROL.sub('?', ' '.join(text.split()))}\n")
        sys.stderr.flush()


def escape_terminal(text: str) -> str:
    """Return a text of several lines with the characters that are unsafe on a terminal written as escapes, as Python
    does.
    """
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def escape_line(text: str) -> str:
    """Return a name in one line: like `escape_terminal`, and tabs and newlines are escaped too."""
    return escape_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    """Return the escape sequence of a character."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - as Python spells it


def print_json(value: object) -> None:
    """Print the value as JSON on one line, in ASCII, so that no character of it can affect a terminal."""
    sys.stdout.write(f"{json.dumps(value)}\n")


def discard_stdout() -> None:
    """Redirect stdout to the null device. The interpreter flushes it at exit, and would print a traceback for a closed
    pipe.
    """
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
