"""Where words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Final

from rich.console import Console

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # the name of a file may be meant to confuse a terminal
_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # what moves a cursor, or begins what does
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what shows a text in another order than it has
    r"\ud800-\udfff]"  # what cannot be sent
)
_UNBROKEN: Final = 10_000  # columns, more than a path and its heading: tables fold at the width whatever else is said


class _ResultConsole(Console):
    def on_broken_pipe(self) -> None:
        """Left to `main`, which does the same whoever was writing."""
        raise BrokenPipeError


def result_console() -> Console:
    """For a result: coloured on a terminal, plain in a file or pipe, where a path is never broken into lines."""
    if sys.stdout.isatty():
        return _ResultConsole(highlight=False)
    return _ResultConsole(highlight=False, soft_wrap=True, width=_UNBROKEN)


def print_result(text: str) -> None:
    """Tell whoever started the command, if anybody listens: that nobody does is no reason to stop."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def print_error(text: str) -> None:
    """One line that says what to do."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"stepwell: {_CONTROL.sub('?', ' '.join(text.split()))}\n")
        sys.stderr.flush()


def escape_terminal(text: str) -> str:
    """A text of several lines as a terminal may have it: what would change more than a place in it is spelled out."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def escape_line(text: str) -> str:
    """The same of a name, which has no lines."""
    return escape_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - as Python spells it


def print_json(value: object) -> None:
    """One object on a line, in ASCII: whatever is in it, a terminal is safe from it."""
    sys.stdout.write(f"{json.dumps(value)}\n")


def discard_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not stumble over it at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
