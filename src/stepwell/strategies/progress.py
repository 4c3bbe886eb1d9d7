"""Progress reports of a strategy to the client that waits for it.

A strategy calls `report(done, total)` from anywhere inside `assemble`, for instance while it builds an index. It does
not need to know about tasks or connections: the worker installs a listener around the call. The listeners are a global
of the process, because a worker runs one strategy at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

Listener = Callable[[int, int, str], None]

_listeners: list[Listener] = []


def report(done: int, total: int, note: str = "") -> None:
    """Report how much is done, if a listener is installed. Outside a worker the call does nothing."""
    if _listeners:
        _listeners[-1](done, total, note)


@contextmanager
def reporting_to(listener: Listener) -> Generator[None]:
    """Send all reports that are made inside the block to a listener. Blocks nest; the innermost listener hears."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
