"""The times of the fragments of a project, and their tiers, in columns.

The recency and tiered strategies share it. It finds the newest fragments of a project of 100,000 by a few operations on
whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.strategies.index.columns import SLOTS_MIN, UNUSED, ColumnIndex, Ints, with_room_for
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, require
from stepwell.strategies.protocol import SeenFragment

TIER_RANKS: Final = {Tier.HOT: 0, Tier.WARM: 1, Tier.COLD: 2}
"""The order of tiers, as numbers."""


class _Column(IntEnum):
    """The columns of the array, in the order of `_row_columns`."""

    TIER = 0
    PLACED_MS = 1
    CREATED_MS = 2
    REVISION = 3
    SERIAL = 4


class TimelineIndex(ColumnIndex):
    """The tier, times, revision and serial of each of a project's fragments.

    The cache of a worker owns it, and one thread uses it.
    """

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._columns: Ints = np.zeros((SLOTS_MIN, len(_Column)), dtype=np.int64)
        self._written: Ints | None = None
        """The time of the last write by slot; None if it has to be computed again."""

    @property
    def tiers(self) -> Ints:
        """0 for hot, 1 for warm, 2 for cold, by slot."""
        return self._column(_Column.TIER)

    @property
    def placed_ms(self) -> Ints:
        """The time of arrival in the tier, by slot."""
        return self._column(_Column.PLACED_MS)

    @property
    def revisions(self) -> Ints:
        """The revisions of the bodies, by slot."""
        return self._column(_Column.REVISION)

    @property
    def serials(self) -> Ints:
        """The serial numbers, by slot."""
        return self._column(_Column.SERIAL)

    @property
    def written_ms(self) -> Ints:
        """The time of the last write by slot, as exactly as a row can tell.

        A row has no such time, so it is derived. A hot fragment was written or used when it arrived in its tier. Any
        other arrival may be a demotion, which is no write. But revisions are in order of time, so a body is not older
        than any fragment whose body has an earlier revision.
        """
        if self._written is None:
            order = np.lexsort((self.serials, self.revisions))
            latest: Ints = np.empty(len(order), dtype=np.int64)
            latest[order] = np.maximum.accumulate(self._column(_Column.CREATED_MS)[order])
            self._written = np.where(self.tiers == TIER_RANKS[Tier.HOT], self.placed_ms, latest)
        return self._written

    @property
    def last_written_ms(self) -> int:
        """The time of the latest write of any fragment; 0 if there is none."""
        return int(self.written_ms.max(initial=0))

    def _column(self, column: _Column) -> Ints:
        return self._columns[: len(self._rows), column]

    def _is_unaffected_by(self, slot: int, row: FragmentRow) -> bool:
        before = self.at(slot)
        return before.kind == row.kind and _row_columns(before) == _row_columns(row)

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        super()._fill_slot(slot, fragment)
        self._columns = with_room_for(self._columns, slot)
        self._columns[slot] = _row_columns(fragment.row)
        self._written = None

    def _clear_slot(self, slot: int) -> None:
        """Clear all columns, so that a free slot has no part in `written_ms`."""
        super()._clear_slot(slot)
        self._columns[slot] = UNUSED
        self._written = None

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        kinds = super().snapshot(places)
        return IndexSnapshot({**kinds.arrays, "columns": self._columns}, kinds.values)

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        super()._restore(snapshot, places)
        self._columns = snapshot.arrays["columns"]
        rows, columns = self._columns.shape
        require(rows >= len(self._rows) and columns == len(_Column), "each slot has all columns")


def _row_columns(row: FragmentRow) -> tuple[int, int, int, int, int]:
    """Return the numbers of a row, in the order of `_Column`."""
    return TIER_RANKS[row.tier], row.placed_at_ms, row.created_at_ms, row.revision, row.serial
