"""The order in which fragments expire: one time for each fragment that has one, and the fragments by that time.

The table of fragments owns the one instance and tells it each change. Reading the earliest takes no search, so that the
manager can look in every turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedSet

Key = tuple[str, str]


class ExpiryOrder:
    """The times of expiry by fragment, and the fragments in the order of these times."""

    __slots__ = ("_order", "_times")

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._order: SortedSet[tuple[int, str, str]] = SortedSet()

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Key, at_ms: int | None) -> None:
        """Note when a fragment expires; None for never, or for one that is gone."""
        before = self._times.pop(key, None)
        if before is not None:
            self._order.remove((before, *key))
        if at_ms is not None:
            self._times[key] = at_ms
            self._order.add((at_ms, *key))

    @property
    def next_ms(self) -> int | None:
        """The time at which the first fragment expires, or None."""
        return self._order[0][0] if self._order else None

    def due(self, now_ms: int) -> Iterator[Key]:
        """Iterate over the fragments that have expired, the earliest first."""
        for at_ms, project, fragment_id in self._order:
            if at_ms > now_ms:
                return
            yield project, fragment_id

    def times(self) -> dict[Key, int]:
        """Return a copy of the times, for a check."""
        return self._times.copy()
