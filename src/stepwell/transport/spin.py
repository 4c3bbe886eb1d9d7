"""Looking again for a moment before going to sleep, as long as that helps.

Waking a process that sleeps costs about as much as serving a request. But where what we wait for does not come within
the moment, looking again only keeps a core from whoever we wait for: after a miss it is left out for twice as many
waits as after the miss before, and after a hit it is back.
"""

from __future__ import annotations

from typing import Final

_LEFT_OUT_MAX: Final = 64


class Spin:
    """How long to look before the next sleep."""

    __slots__ = ("_left_out", "_next_left_out", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left_out = 0
        self._next_left_out = 1

    def seconds(self) -> float:
        """How long to look this time; 0 is not at all."""
        if self._left_out:
            self._left_out -= 1
            return 0.0
        return self._seconds

    def hit(self) -> None:
        """It came while we looked."""
        self._next_left_out = 1

    def missed(self) -> None:
        """It did not."""
        self._left_out = self._next_left_out
        self._next_left_out = min(2 * self._next_left_out, _LEFT_OUT_MAX)
