"""Looking again for a moment before going to sleep, as long as that helps.

Waking a process that sleeps costs about as much as serving a request. But where what we wait for does not come within
the moment, looking again only keeps a core from whoever we wait for: after a miss it is left out for twice as many
waits as after the miss before, and after a hit it is back.

While it looks, it offers its core to others: where no core is free, whoever waits for it runs at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_LEFT_OUT_MAX: Final = 64


class Spin:
    """Looks before the next sleep, or does not."""

    __slots__ = ("_left_out", "_next_left_out", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left_out = 0
        self._next_left_out = 1

    def look(self, poll: Callable[[int], list[T]]) -> list[T]:
        """What `poll(0)` finds within the moment, if anything."""
        if self._left_out:
            self._left_out -= 1
            return []
        until_s = time.monotonic() + self._seconds
        while time.monotonic() < until_s:
            if found := poll(0):
                self._next_left_out = 1
                return found
            os.sched_yield()  # whoever we wait for may be waiting for this core
        self._left_out = self._next_left_out
        self._next_left_out = min(2 * self._next_left_out, _LEFT_OUT_MAX)
        return []
