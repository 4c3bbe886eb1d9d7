"""How far a strategy is, for whoever waits for it: `report(done, total)`, from anywhere inside `assemble`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

Listener = Callable[[int, int, str], None]

_listeners: list[Listener] = []


def report(done: int, total: int, note: str = "") -> None:
    """Say how much is done. Outside a worker nobody hears it."""
    if _listeners:
        _listeners[-1](done, total, note)


@contextmanager
def reporting_to(listener: Listener) -> Generator[None]:
    """Within it, somebody does."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
