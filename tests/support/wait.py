"""Waiting on a condition, never for a time."""

import threading
import time
from collections.abc import Callable

POLL_SECONDS = 0.005


def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds; fail, naming it, if it does not within the time."""
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {getattr(condition, '__doc__', None) or condition}")
        never.wait(POLL_SECONDS)
