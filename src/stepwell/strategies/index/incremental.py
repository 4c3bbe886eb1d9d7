"""What a strategy keeps of a project between questions, brought to any view by what changed.

What is kept of a fragment is told by its row. So it can be brought to any view, also to an older one, and after an
update that failed in the middle; in each case it says the same as what was made for that view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies import progress
from stepwell.strategies.protocol import Changes, SeenFragment, StrategyView

_PROGRESS_FRAGMENTS: Final = 250  # fragments


class IncrementalIndex(ABC):
    """Something about the fragments of one project, at one revision."""

    def __init__(self, project: str) -> None:
        self.project: Final = project
        self._at: tuple[str, int] | None = None
        """The epoch and revision that it has; None while it is being changed, and if that failed."""
        self._slots: dict[str, int] = {}
        """Where it keeps what it has of each fragment."""

    def __len__(self) -> int:
        return len(self._slots)

    @abstractmethod
    def row(self, fragment_id: str) -> FragmentRow | None:
        """What is known of a fragment."""

    def catch_up(self, view: StrategyView) -> None:
        """Follow to a view: by what changed, if it can be told, or by comparing all rows."""
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
        if self._at is None:
            return None
        epoch, revision = self._at
        is_earlier = epoch == view.epoch and revision < view.revision
        return view.changes(self.project, revision) if is_earlier else None

    def _update_by_comparing(self, view: StrategyView) -> None:
        rows = view.rows(self.project)
        gone = self._slots.keys() - {row.fragment_id for row in rows}
        different = (row.fragment_id for row in rows if self.row(row.fragment_id) != row)
        found = (view.get(fragment_id, project=self.project) for fragment_id in different)
        self._update((fragment for fragment in found if fragment is not None), gone, len(rows))

    def _with_progress(self, stored: Iterable[SeenFragment], expected: int) -> Iterator[SeenFragment]:
        """The same, for whoever watches them being read."""
        for done, fragment in enumerate(stored):
            if done % _PROGRESS_FRAGMENTS == 0:
                progress.report(done, expected, f"reading {self.project}")
            yield fragment

    @abstractmethod
    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        """Take what is new or different, of which there are at most so many, and forget what is gone."""


class SlotIndex(IncrementalIndex):
    """Each fragment has a slot, to keep there whatever one likes; that of one that is gone is used again."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._rows: list[FragmentRow | None] = []
        self._free_slots: list[int] = []

    def row(self, fragment_id: str) -> FragmentRow | None:
        """What is known of a fragment."""
        slot = self._slots.get(fragment_id)
        return None if slot is None else self._rows[slot]

    def at(self, slot: int) -> FragmentRow:
        """The row of a slot that is in use."""
        row = self._rows[slot]
        assert row is not None
        return row

    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        for fragment_id in removed:
            self._remove(fragment_id)
        for fragment in self._with_progress(stored, expected):
            self._store(fragment)

    def _store(self, fragment: SeenFragment) -> None:
        row = fragment.row
        slot = self._slots.get(row.fragment_id)
        if slot is not None and self._is_unaffected_by(slot, row):
            self._rows[slot] = row
            return
        self._remove(row.fragment_id)
        slot = self._free_slots[-1] if self._free_slots else len(self._rows)
        self._fill_slot(slot, fragment)  # may fail to read the body: nothing refers to the slot yet
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
        """Whether all that is kept in a slot is the same for a newer row of the same fragment."""
        return self._rows[slot] == row

    @abstractmethod
    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        """Keep what is needed of a fragment. What can fail comes first."""

    @abstractmethod
    def _clear_slot(self, slot: int) -> None:
        """Forget it. Its row is still there."""
