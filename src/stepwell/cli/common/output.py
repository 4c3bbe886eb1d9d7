"""Output: results to stdout, everything else to stderr. All commands write through this module.

Text that did not come from stepwell itself, such as a file name, a body, or the output of a validation, can contain
sequences that a terminal interprets. So everything is escaped here on its way to a terminal (`stepwell.terminal`), and
a command cannot forget it. Colours and the movements of bars are added behind that. Pipes and files get the text as it
is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from stepwell import limits
from stepwell.terminal import escape_json, escape_terminal, is_terminal, write

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class SafeConsole(Console):
    """A rich console whose output is escaped on a terminal, except for the sequences that rich itself makes.

    Texts are never read as markup, because markup can contain the address of a link, which rich does not escape.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable. All output of a console passes here."""
        for segment in super().render(renderable, options):
            is_data = not segment.control and self.is_terminal
            yield Segment(escape_terminal(segment.text), segment.style) if is_data else segment

    def on_broken_pipe(self) -> None:
        """Raise, because `command_line` handles a closed pipe; rich would end the process with exit code 1 here."""
        raise BrokenPipeError


def result_console() -> Console:
    """Return a console for results: coloured on a terminal, plain and unfolded in a file or a pipe.

    In a pipe no line is folded, because a script that searches for a path has to find it on one line.
    """
    if is_terminal(sys.stdout):
        return SafeConsole(highlight=False, markup=False, emoji=False)
    return SafeConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, width=limits.PIPE_COLUMNS)


def error_console() -> Console:
    """Return a console for tables and bars on stderr, which are for a person who watches."""
    return SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)


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
