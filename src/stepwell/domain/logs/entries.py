"""The entries of one log in memory, in order of position.

Entries are appended, and removed at both ends only: dead ones at the front, popped ones at the end. So an entry is
found by bisection, and no operation takes longer for a longer log. Positions may have gaps, which pops leave.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, cast

from stepwell.domain.logs.model import LogEntryRow

_GAP: Final = 1_024
"""Free places in front of the rows that are made at once, or left when rows have gone."""

_position = attrgetter("position")
_at_ms = attrgetter("at_ms")


class EntryRun:
    """The rows of one log, and the running sum of the bytes of their bodies. Indexes count from the oldest row.

    Places in front of the first row are free: removing a row at the front leaves one, and they are given up together.
    """

    __slots__ = ("_ends", "_rows", "_start")

    def __init__(self) -> None:
        self._rows: list[LogEntryRow | None] = []
        self._ends: list[int] = []  # of each row: the bytes up to and including its body, from an arbitrary zero
        self._start = 0  # the place of the oldest row

    def __len__(self) -> int:
        return len(self._rows) - self._start

    def __iter__(self) -> Iterator[LogEntryRow]:
        return iter(self.between(0, len(self)))

    def __getitem__(self, index: int) -> LogEntryRow:
        """Return the row at an index; negative ones count from the end, as in a list."""
        row = self._rows[index if index < 0 else self._start + index]
        assert row is not None
        return row

    def between(self, start: int, end: int) -> list[LogEntryRow]:
        """Return the rows from one index up to, and without, another one."""
        return cast("list[LogEntryRow]", self._rows[self._start + start : self._start + end])

    def index_of(self, position: int) -> int:
        """Return the index of the first row at a position or behind it."""
        return bisect_left(self._rows, position, lo=self._start, key=_position) - self._start

    def index_newer(self, at_ms: int) -> int:
        """Return the index of the first row that was appended later than at a time."""
        return bisect_right(self._rows, at_ms, lo=self._start, key=_at_ms) - self._start

    def bytes_from(self, index: int) -> int:
        """Return the bytes of the bodies from an index on."""
        if index >= len(self):
            return 0
        return self._ends[-1] - self._ends[self._start + index] + self[index].size

    def insert(self, row: LogEntryRow) -> None:
        """Insert a row behind the last one or, where a removal is undone, before the first one."""
        if not len(self):
            self._rows.clear()
            self._ends.clear()
            self._start = 0
            self._rows.append(row)
            self._ends.append(row.size)
        elif row.position > self[-1].position:
            self._rows.append(row)
            self._ends.append(self._ends[-1] + row.size)
        else:
            first = self[0]
            assert row.position < first.position, "entries are inserted at the ends"
            if not self._start:
                self._rows[:0] = [None] * _GAP
                self._ends[:0] = [0] * _GAP
                self._start = _GAP
            end = self._ends[self._start] - first.size
            self._start -= 1
            self._rows[self._start], self._ends[self._start] = row, end

    def remove(self, row: LogEntryRow) -> None:
        """Remove the last row or the first one."""
        if self[-1].position == row.position:
            self._rows.pop()
            self._ends.pop()
            return
        assert self[0].position == row.position, "entries are removed at the ends"
        self._rows[self._start] = None
        self._start += 1
        if self._start > _GAP and 2 * self._start > len(self._rows):
            del self._rows[: self._start - _GAP], self._ends[: self._start - _GAP]
            self._start = _GAP
