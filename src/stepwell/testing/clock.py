"""A clock that stands still until a test advances it, and the view that a manager has of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.errors import InvalidArgument

# A fixed date, so that a test gives the same times on every day.
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """The time of any number of `LocalRuntime`s.

    A manager measures with it: leases, the TTLs of tiers, the retention of plans and cold fragments, the deadlines of
    tasks, and the grace of a session that has lost its connection. A client's own timeouts are in real time.

    Any thread may read it. One thread at a time may advance it.
    """

    def __init__(self, start: datetime = _START) -> None:
        if start.tzinfo is None:
            raise InvalidArgument(f"start={start!r} has no time zone: give for instance tzinfo=datetime.UTC")
        self._start_ms = int(start.timestamp() * 1000)
        self._start_s = time.monotonic()
        self._passed_ms = 0
        self._followers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as in `created_at_ms` and other fields."""
        return self._start_ms + self._passed_ms

    def now_s(self) -> float:
        """Return seconds since an arbitrary moment, for durations."""
        return self._start_s + self._passed_ms / 1000

    def advance(self, seconds: float | timedelta) -> None:
        """Advance the time.

        When this returns, all that is due by then has happened in every runtime that follows the clock.

        The time passes in steps of a minute, as a manager sweeps its tiers, or in a thousand steps if those are longer.
        So a fragment that is demoted in the first hour of three months is deleted at their end, and has not just
        arrived in cold.
        """
        passed = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        if passed < timedelta(0):
            raise InvalidArgument(f"a clock does not go back: {passed.total_seconds():g} s is less than nothing")
        end_ms = self._passed_ms + round(passed.total_seconds() * 1000)
        step_ms = max(int(limits.SWEEP_SECONDS * 1000), (end_ms - self._passed_ms) // limits.CLOCK_STEPS_MAX)
        self._catch_up()  # requests that have arrived before belong to the time before
        while True:
            self._passed_ms = min(self._passed_ms + step_ms, end_ms)
            self._catch_up()
            if self._passed_ms >= end_ms:
                return

    def _catch_up(self) -> None:
        for catch_up in [*self._followers]:
            catch_up()

    def follow(self, catch_up: Callable[[], None]) -> None:
        """Call a function whenever the time has advanced, until `unfollow`."""
        self._followers.append(catch_up)

    def unfollow(self, catch_up: Callable[[], None]) -> None:
        """Do not call a function any more."""
        self._followers.remove(catch_up)


class ManagerClock(StateClock):
    """The clock as one manager sees it.

    It is never behind the times that an earlier manager of the same data directory has stored, because that one may
    have used another clock.
    """

    def __init__(self, clock: Clock, latest_ms: int) -> None:
        super().__init__(latest_ms)
        self._clock = clock

    def now_ms(self) -> int:
        self.latest_ms = max(self.latest_ms, self._clock.now_ms())
        return self.latest_ms

    def now_s(self) -> float:
        return self._clock.now_s()
