"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.manager import state_owner

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """The time of any number of `LocalRuntime`s. Safe from any number of threads.

    Whatever a manager measures goes by it: leases, the TTLs of tiers, how long plans and cold fragments are kept, the
    deadlines of tasks, the grace of a session that has lost its connection. How long a client waits does not.
    """

    def __init__(self, start: datetime = _START) -> None:
        if start.tzinfo is None:
            raise InvalidArgument(f"start={start!r} has no time zone: give for instance tzinfo=datetime.UTC")
        self._start_ms = int(start.timestamp() * 1000)
        self._start_s = time.monotonic()
        self._passed_ms = 0
        self._followers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Milliseconds since 1970, as in `created_at_ms` and its like."""
        return self._start_ms + self._passed_ms

    def now_s(self) -> float:
        """Seconds since some moment, for how long something takes."""
        return self._start_s + self._passed_ms / 1000

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass. When this returns, whatever is due by then has happened.

        It passes in steps of a minute, as a manager sweeps its tiers, or in a thousand steps if those are longer: what
        goes to warm in the first hour of three months is gone at their end, and has not just arrived in cold.
        """
        passed = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        if passed < timedelta(0):
            raise InvalidArgument(f"a clock does not go back: {passed.total_seconds():g} s is less than nothing")
        end_ms = self._passed_ms + round(passed.total_seconds() * 1000)
        step_ms = max(int(limits.SWEEP_SECONDS * 1000), (end_ms - self._passed_ms) // limits.CLOCK_STEPS_MAX)
        self._catch_up()  # what has arrived before has happened before
        while True:
            self._passed_ms = min(self._passed_ms + step_ms, end_ms)
            self._catch_up()
            if self._passed_ms >= end_ms:
                return

    def _catch_up(self) -> None:
        for catch_up in [*self._followers]:
            catch_up()

    def follow(self, catch_up: Callable[[], None]) -> None:
        """Have something called whenever time has passed."""
        self._followers.append(catch_up)

    def unfollow(self, catch_up: Callable[[], None]) -> None:
        """It is not to be called any more."""
        self._followers.remove(catch_up)


class ManagerClock(state_owner.StateClock):
    """A manager's view of it: not behind what was kept by an earlier manager, whose clock may have been another."""

    def __init__(self, clock: Clock, latest_ms: int) -> None:
        super().__init__(latest_ms)
        self._clock = clock

    def now_ms(self) -> int:
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        return self._latest_ms

    def now_s(self) -> float:
        return self._clock.now_s()
