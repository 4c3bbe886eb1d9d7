"""When the fragments of a project were written and where they lie: what is newest is found at a glance."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.tier import Tier
from stepwell.strategies.index.columns import SLOTS_MIN, UNUSED, ColumnIndex, Ints, with_room_for
from stepwell.strategies.protocol import SeenFragment

TIER_RANKS: Final = {Tier.HOT: 0, Tier.WARM: 1, Tier.COLD: 2}


class _Column(IntEnum):
    TIER = 0
    PLACED_MS = 1
    CREATED_MS = 2
    REVISION = 3
    SERIAL = 4


class TimelineIndex(ColumnIndex):
    """The moments of a project's fragments."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._columns: Ints = np.zeros((SLOTS_MIN, len(_Column)), dtype=np.int64)
        self._written: Ints | None = None
        """When each slot was written; None if that has to be found out."""

    @property
    def tiers(self) -> Ints:
        """0 for hot, 1 for warm, 2 for cold, by slot."""
        return self._column(_Column.TIER)

    @property
    def placed_ms(self) -> Ints:
        """When each came into its tier, by slot."""
        return self._column(_Column.PLACED_MS)

    @property
    def revisions(self) -> Ints:
        """Of the bodies, by slot."""
        return self._column(_Column.REVISION)

    @property
    def serials(self) -> Ints:
        """By slot."""
        return self._column(_Column.SERIAL)

    @property
    def written_ms(self) -> Ints:
        """When each was last written, by slot, as well as a row can tell.

        What is hot is as new as its arrival there: it was written then, or is in use. Any other arrival may be a
        demotion, which is no news. But revisions are in order of time, so that a body is not older than any fragment
        whose body has an earlier revision.
        """
        if self._written is None:
            order = np.lexsort((self.serials, self.revisions))
            latest: Ints = np.empty(len(order), dtype=np.int64)
            latest[order] = np.maximum.accumulate(self._column(_Column.CREATED_MS)[order])
            self._written = np.where(self.tiers == TIER_RANKS[Tier.HOT], self.placed_ms, latest)
        return self._written

    @property
    def last_written_ms(self) -> int:
        """When the newest of all was, whatever its kind; 0 if there is none."""
        return int(self.written_ms.max(initial=0))

    def _column(self, column: _Column) -> Ints:
        return self._columns[: len(self._rows), column]

    def _is_unaffected_by(self, slot: int, row: FragmentRow) -> bool:
        before = self.at(slot)
        return before.kind == row.kind and _columns(before) == _columns(row)

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        super()._fill_slot(slot, fragment)
        self._columns = with_room_for(self._columns, slot)
        self._columns[slot] = _columns(fragment.row)
        self._written = None

    def _clear_slot(self, slot: int) -> None:
        """As if it had never been written."""
        super()._clear_slot(slot)
        self._columns[slot] = UNUSED
        self._written = None


def _columns(row: FragmentRow) -> tuple[int, int, int, int, int]:
    """In the order of the columns."""
    return TIER_RANKS[row.tier], row.placed_at_ms, row.created_at_ms, row.revision, row.serial
