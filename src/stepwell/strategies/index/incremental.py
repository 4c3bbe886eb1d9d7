"""Indexes that follow a project from view to view.

A row tells everything that an index keeps of a fragment (the digest stands for the body). So an index can compare its
own rows with those of any view, and bring itself to that view: a newer one, an older one, or any one after an update
that failed in the middle. The result is the same as that of an index built for the view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies import progress
from stepwell.strategies.index.snapshot import NO_PLACE, IndexSnapshot, RowPlaces, require
from stepwell.strategies.protocol import Changes, SeenFragment, StrategyView

_PROGRESS_FRAGMENTS: Final = 250  # between two progress reports: some milliseconds


class IncrementalIndex(ABC):
    """An index of one project's fragments, at one revision.

    The cache of a worker owns it, and one thread uses it. Subclasses implement `_update`, which has to leave an index
    that can be compared with any view, also if it raises.
    """

    def __init__(self, project: str) -> None:
        self.project: Final = project
        self._at: tuple[str, int] | None = None
        """The epoch and revision of the index; None during an update, and after one that failed."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of fragments."""

    @cached_property
    def _slots(self) -> dict[str, int]:
        """The slot of each fragment, by id: its place in the arrays of the index.

        It is made of the rows when it is needed first: most questions to a restored index look up few ids, or none.
        """
        return self._used_slots()

    @abstractmethod
    def _used_slots(self) -> dict[str, int]:
        """Return the slot of each fragment, by id, as the rows have it."""

    @property
    def followed(self) -> tuple[str, int] | None:
        """The epoch and revision of the view that the index has followed; None if an update has failed."""
        return self._at

    @abstractmethod
    def row(self, fragment_id: str) -> FragmentRow | None:
        """Return the row that the index has of a fragment, or None."""

    def catch_up(self, view: StrategyView) -> None:
        """Bring the index to a view: by the changes, if the view can tell them, or by comparing all rows.

        Raise the error of reading a body (`BodyGone`); the next call then compares all rows.
        """
        if self._at == (view.epoch, view.revision):
            return
        changes = self._changes(view)
        self._at = None
        if changes is None:
            self._update_by_comparing(view)
        else:
            self._update(changes.stored, changes.removed, len(changes.stored))
        self._at = (view.epoch, view.revision)

    def _changes(self, view: StrategyView) -> Changes | None:
        """Return the changes from the index's revision to the view's; None if the view does not know them."""
        if self._at is None:
            return None
        epoch, revision = self._at
        is_earlier = epoch == view.epoch and revision < view.revision
        return view.changes(self.project, revision) if is_earlier else None

    def _update_by_comparing(self, view: StrategyView) -> None:
        """Update all fragments whose rows differ from those of the view."""
        rows = view.rows(self.project)
        gone = self._slots.keys() - {row.fragment_id for row in rows}
        different = (row.fragment_id for row in rows if self.row(row.fragment_id) != row)
        found = (view.get(fragment_id, project=self.project) for fragment_id in different)
        self._update((fragment for fragment in found if fragment is not None), gone, len(rows))

    def _with_progress(self, stored: Iterable[SeenFragment], expected: int) -> Iterator[SeenFragment]:
        """Yield the same fragments, and report the progress of reading them."""
        for done, fragment in enumerate(stored):
            if done % _PROGRESS_FRAGMENTS == 0:
                progress.report(done, expected, f"reading {self.project}")
            yield fragment

    @abstractmethod
    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        """Remove fragments, and add or replace others, of which there are at most `expected`."""

    @abstractmethod
    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        """Return all that the index keeps. `places` has the place of each fragment among the rows of its view."""

    def restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        """Take over a snapshot that was made at the revision of these places. The index must be empty."""
        self._restore(snapshot, places)
        vars(self).pop("_slots", None)
        self._at = places.at

    @abstractmethod
    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        """Take over the rows and the data of a snapshot."""


class SlotIndex(IncrementalIndex):
    """An index in which each fragment has one slot, which a later fragment uses again.

    Subclasses keep their data of a fragment by its slot: `_fill_slot` writes it and `_clear_slot` removes it.
    """

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._rows: list[FragmentRow | None] = []
        self._free_slots: list[int] = []

    def __len__(self) -> int:
        return len(self._rows) - len(self._free_slots)

    def _used_slots(self) -> dict[str, int]:
        return {row.fragment_id: slot for slot, row in enumerate(self._rows) if row is not None}

    def row(self, fragment_id: str) -> FragmentRow | None:
        """Return the row that the index has of a fragment, or None."""
        slot = self._slots.get(fragment_id)
        return None if slot is None else self._rows[slot]

    def at(self, slot: int) -> FragmentRow:
        """Return the row of a slot in use."""
        row = self._rows[slot]
        assert row is not None
        return row

    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        for fragment_id in removed:
            self._remove(fragment_id)
        for fragment in self._with_progress(stored, expected):
            self._store(fragment)

    def _store(self, fragment: SeenFragment) -> None:
        """Add a fragment, or replace it; do nothing but keep the new row if the data of its slot stay the same."""
        row = fragment.row
        slot = self._slots.get(row.fragment_id)
        if slot is not None and self._is_unaffected_by(slot, row):
            self._rows[slot] = row
            return
        self._remove(row.fragment_id)
        slot = self._free_slots[-1] if self._free_slots else len(self._rows)
        self._fill_slot(slot, fragment)  # may raise `BodyGone`: no fragment refers to the slot yet
        if self._free_slots:
            self._rows[self._free_slots.pop()] = row
        else:
            self._rows.append(row)
        self._slots[row.fragment_id] = slot

    def _remove(self, fragment_id: str) -> None:
        slot = self._slots.pop(fragment_id, None)
        if slot is not None:
            self._clear_slot(slot)
            self._rows[slot] = None
            self._free_slots.append(slot)

    def _is_unaffected_by(self, slot: int, row: FragmentRow) -> bool:
        """Return True if the data in a slot are the same for a newer row of the same fragment."""
        return self._rows[slot] == row

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        """Return the places of the slots; subclasses add their data."""
        slots = [NO_PLACE if row is None else places[row.fragment_id] for row in self._rows]
        return IndexSnapshot({"places": np.array(slots, dtype=np.int32)}, b"")

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        self._rows = places.rows_of(snapshot.arrays["places"])
        self._free_slots = [slot for slot, row in enumerate(self._rows) if row is None]
        require(len(self) == len(places.rows), "each row has a slot")

    @abstractmethod
    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        """Write the data of a fragment. Reading the body comes first, so that a failure leaves the slot as it was."""

    @abstractmethod
    def _clear_slot(self, slot: int) -> None:
        """Remove the data of a slot. Its row is still there."""
