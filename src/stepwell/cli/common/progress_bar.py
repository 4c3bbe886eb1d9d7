"""Progress bars on stderr. They appear only on a terminal, and disappear when the work is done. Elsewhere, rich is not
imported.

A bar takes the callback that the client's long calls accept (`on_progress`), so a command passes it on as it is. The
callbacks may be called from other threads: rich's display has a lock of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepwell.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

OnProgress = Callable[[int, int, str], None]
"""Called with the amount done, the total amount, and a short text about the present step."""

OnStrategyProgress = Callable[[str, int, int, str], None]
"""Called with a strategy's name, and then as `OnProgress`."""


@contextmanager
def count_bar(what: str = "reading") -> Generator[OnProgress]:
    """Yield a callback that moves one bar, which counts files, or what `what` says."""
    if not is_terminal(sys.stderr):
        yield _show_nothing
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn  # noqa: PLC0415 - see above

    with _progress(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total, _note: progress.update(bar, completed=done, total=total)


@contextmanager
def strategy_bars() -> Generator[OnStrategyProgress]:
    """Yield a callback that moves a bar for each strategy. A bar appears when its strategy reports for the
    first time.
    """
    if not is_terminal(sys.stderr):
        yield _show_nothing
        return
    from rich.progress import TaskID, TextColumn  # noqa: PLC0415 - see above

    with _progress(TextColumn("{task.completed:,} of {task.total:,.0f}")) as progress:
        bars: dict[str, TaskID] = {}

        def advance(strategy: str, done: int, total: int, note: str) -> None:
            if strategy not in bars:
                bars[strategy] = progress.add_task(strategy, total=total)
            description = f"{strategy}: {note}" if note else strategy
            progress.update(bars[strategy], completed=done, total=total, description=description)

        yield advance


def _progress(*numbers: ProgressColumn) -> Progress:
    """Return a display of bars with the given columns of numbers."""
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - see above

    from stepwell.cli.common.console import error_console  # noqa: PLC0415

    columns = TextColumn("{task.description}", markup=False), BarColumn(), *numbers
    return Progress(*columns, console=error_console(), transient=True)


def _show_nothing(*_progress: object) -> None:
    """Take a report of progress where there is no terminal."""
