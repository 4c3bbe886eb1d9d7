"""Spinning: poll for a moment before going to sleep, as long as that helps.

Waking a sleeping process costs about as much as serving a request. A process that polls for a moment is still awake
when the answer comes. But if the answer takes longer, spinning only keeps a core from the process that prepares it.
Therefore each miss doubles the number of following waits that do not spin, up to a bound, and a hit ends the pause.

Each round yields the core. If no other core is free, the process that is waited for runs at once. With a busy process
beside it, a yield can cost a time slice. Never to poll, and to pause after a lost slice, were measured beside this
policy. None is better in all cases (`docs/measurements.md`), so this one stays, which is the simplest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from stepwell import limits

T = TypeVar("T")


class Spin:
    """Decides for each wait whether to poll first. It belongs to one thread."""

    __slots__ = ("_next_skips", "_seconds", "_skips_left")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._skips_left = 0
        self._next_skips = 1

    def poll_briefly(self, poll: Callable[[int], list[T]]) -> list[T]:
        """Return the first non-empty result of `poll(0)` within the spinning time, or an empty list."""
        if self._skips_left:
            self._skips_left -= 1
            return []
        until_s = time.monotonic() + self._seconds
        while time.monotonic() < until_s:
            if found := poll(0):
                self._next_skips = 1
                return found
            os.sched_yield()  # the awaited process may be waiting for this core
        self._skips_left = self._next_skips
        self._next_skips = min(2 * self._next_skips, limits.SPIN_SKIPS_MAX)
        return []
