"""Looking again for a moment before going to sleep, as long as that helps.

Waking a process that sleeps costs about as much as serving a request. But where what we wait for does not come within
the moment, looking again only keeps a core from whoever we wait for: after a miss it is left out for twice as many
waits as after the miss before, and after a hit it is back.

Of many who wait for one, each that looks keeps it from working: they look only while a core is free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
Crowded = Callable[[], bool]
"""Whether more want to run than there are cores."""

_LEFT_OUT_MAX: Final = 64
_ASK_SECONDS: Final = 0.005  # between two questions whether it is crowded: one takes as long as a request
_CROWD_LEFT_OUT: Final = 64  # waits, at first; then twice as many each time
_CROWD_LEFT_OUT_MAX: Final = 4096


class Spin:
    """Looks before the next sleep, or does not."""

    __slots__ = ("_ask_at_s", "_crowd_left_out", "_crowded", "_left_out", "_next_left_out", "_seconds")

    def __init__(self, seconds: float, crowded: Crowded | None = None) -> None:
        self._seconds = seconds
        self._crowded = crowded
        self._left_out = 0
        self._next_left_out = 1
        self._crowd_left_out = _CROWD_LEFT_OUT
        self._ask_at_s = 0.0

    def look(self, poll: Callable[[int], list[T]]) -> list[T]:
        """What `poll(0)` finds within the moment, if anything."""
        if self._left_out:
            self._left_out -= 1
            return []
        begun_s = time.monotonic()
        if self._crowded is not None and begun_s >= self._ask_at_s and self._is_in_the_way(self._crowded, begun_s):
            return []
        until_s = begun_s + self._seconds
        while time.monotonic() < until_s:
            if found := poll(0):
                self._next_left_out = 1
                return found
            os.sched_yield()  # whoever we wait for may be waiting for this core
        self._left_out = self._next_left_out
        self._next_left_out = min(2 * self._next_left_out, _LEFT_OUT_MAX)
        return []

    def _is_in_the_way(self, crowded: Crowded, now_s: float) -> bool:
        self._ask_at_s = now_s + _ASK_SECONDS
        if not crowded():
            self._crowd_left_out = _CROWD_LEFT_OUT
            return False
        self._left_out = self._crowd_left_out
        self._crowd_left_out = min(2 * self._crowd_left_out, _CROWD_LEFT_OUT_MAX)
        return True


_cores: Final = os.cpu_count() or 1
_loadavg: Final = Path("/proc/loadavg")


def is_crowded() -> bool:
    """Whether more processes want to run, in this moment, than there are cores for them."""
    try:
        running = _loadavg.read_bytes().split()[3].partition(b"/")[0]
    except OSError:  # where there is no such file, nobody knows
        return False
    return int(running) > _cores
