"""Consoles for tables, colours and bars. Their text is escaped on a terminal, as that of `output` is.

They are apart from `output` because rich takes as long to import as a question takes to answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from stepwell import limits
from stepwell.terminal import escape_terminal, is_terminal


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
