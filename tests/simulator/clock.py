"""The clock and the randomness of a simulated machine, in place of those of the real one.

They replace the functions of the standard modules for the time of a run. A clock that is passed around can be forgotten
by one caller, and the run could not be replayed; a replaced module function is met by every caller.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_TICK_S = 1e-6
_START_NS = 1_700_000_000_000_000_000


class SimulatedClock:
    """Time that only the simulator advances, and a little with each look at it, as work takes time.

    `jump` moves the wall clock alone, in either direction, as an administrator or a time server does.
    """

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._offset_ns = _START_NS

    def monotonic(self) -> float:
        self.now_s += _TICK_S
        return self.now_s

    def time_ns(self) -> int:
        return self._offset_ns + int(self.monotonic() * 1e9)

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime_ns(self, clock: int) -> int:
        """Return the time since the machine was started, which is all that is asked for."""
        assert clock == time.CLOCK_BOOTTIME
        return int(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        """Let time pass for a process that waits. The others do what they had to do in it afterwards."""
        self.now_s += seconds

    def jump(self, seconds: float) -> None:
        self._offset_ns += int(seconds * 1e9)


Replacement = tuple[object, str, object]
"""The owner of an attribute, its name and its value for a while."""


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace attributes for the length of the block, as `mock.patch.object` does at ten times the cost."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def simulated_time(clock: SimulatedClock, generator: random.Random) -> Iterator[None]:
    """Replace time and randomness of this process by simulated ones, for the length of the block."""
    state = random.getstate()
    random.seed(generator.getrandbits(64))
    functions: list[Replacement] = [
        (time, "monotonic", clock.monotonic),
        (time, "perf_counter", clock.monotonic),
        (time, "thread_time", clock.monotonic),
        (time, "clock_gettime_ns", clock.clock_gettime_ns),
        (time, "sleep", clock.sleep),
        (time, "time", clock.time),
        (time, "time_ns", clock.time_ns),
        (os, "urandom", generator.randbytes),
        (secrets, "randbits", generator.getrandbits),
        (secrets, "token_bytes", generator.randbytes),
    ]
    try:
        with replaced(functions):
            yield
    finally:
        random.setstate(state)
