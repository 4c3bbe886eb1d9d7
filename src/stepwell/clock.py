"""The clock of the state, which never goes back."""

from __future__ import annotations

import time


class StateClock:
    """Wall-clock milliseconds that never go back and never stand still, whatever happens to the machine's clock.

    When the machine's clock is set back, this one goes on at the pace of the monotonic clock until the other has caught
    up. If it stood still instead, no lease and no deadline would end for as long. A recovered manager continues from
    the latest stored time, so that timestamps stay ordered across restarts.
    """

    def __init__(self, latest_ms: int = 0) -> None:
        # The last time at which the machine's clock was not behind, and the monotonic time of that moment.
        self._anchor_ms, self._anchored_at_s = latest_ms, time.monotonic()
        self.latest_ms = latest_ms  # the latest answer

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970, never less than an earlier answer."""
        now_s, wall_ms = time.monotonic(), time.time_ns() // 1_000_000
        paced_ms = self._anchor_ms + int((now_s - self._anchored_at_s) * 1000)
        if wall_ms < paced_ms:
            self.latest_ms = paced_ms
            return paced_ms
        self.latest_ms = self._anchor_ms = wall_ms
        self._anchored_at_s = now_s
        return wall_ms

    def now_s(self) -> float:
        """Return monotonic seconds, for durations."""
        return time.monotonic()
