"""Progress bars on stderr. They appear only on a terminal, and disappear when the work is done.

A bar takes the callback that the client's long calls accept (`on_progress`), so a command passes it on as it is. The
callbacks may be called from other threads: rich's display has a lock of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from stepwell.cli.common.output import error_console
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.strategy_executor import OnStrategyProgress


@contextmanager
def count_bar(what: str = "reading") -> Generator[OnProgress]:
    """Yield a callback that moves one bar; it counts files, or whatever `what` says."""
    with _progress(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total, _note: progress.update(bar, completed=done, total=total)


@contextmanager
def strategy_bars() -> Generator[OnStrategyProgress]:
    """Yield a callback that moves a bar for each strategy. A bar appears when its strategy reports for the
    first time.
    """
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
    console = error_console()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), *numbers
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
