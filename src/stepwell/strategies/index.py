"""Which fragments of a project have a term, how often, and what that is worth (BM25).

Every fragment has a slot, and every term its postings: the slots that have it, each with a count. A changed fragment
gets another slot. The old one is only marked dead: that takes no time, and how many have a term is counted when it is
asked. When most slots are dead, all are numbered anew.

What is indexed is told by the digests of the rows. So an index can be brought to any view, also to an older one, and
after an update that failed in the middle; in each case it scores as one that was made for that view, to the last bit.
"""

from __future__ import annotations

import codecs
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell.domain.fragment import FragmentRow
from stepwell.limits import MIB
from stepwell.strategies import progress
from stepwell.strategies.base import Changes, SeenFragment, StrategyView
from stepwell.strategies.shares import Portion
from stepwell.strategies.terms import counted

K1: Final = 1.5  # how much the second occurrence of a term counts
B: Final = 0.75  # how much a long fragment has to have more of them
BODY_BYTES_INDEXED_MAX: Final = MIB  # of a longer body, its beginning: what follows seldom has other terms
DEAD_SLOTS_MAX: Final = 1_000  # besides as many as there are fragments
_REPORTED_EVERY: Final = 250  # fragments that are read

_COUNT_BITS: Final = (
    32  # the rest of a posting is the slot: one number, because half a posting would be worse than none
)
_COUNT_MASK: Final = np.uint64((1 << _COUNT_BITS) - 1)

Slots = NDArray[np.intp]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.uint64]


class Weights(Struct, frozen=True):
    """How much a term counts in each field: as if the field had been written as many times.

    Whoever names a file or a fragment says what it is about; in a body a word may just occur.
    """

    source: int = 3
    fragment_id: int = 3
    body: int = 1


class Match(Struct, frozen=True):
    """A fragment that has some of the terms."""

    row: FragmentRow
    score: float
    terms: tuple[str, ...]


class Index:
    """The terms of one project's fragments, at one revision."""

    def __init__(self, project: str, weights: Weights) -> None:
        self._project: Final = project
        self._weights: Final = weights
        self._at: tuple[str, int] | None = None
        """The epoch and revision that it has; None while it is being changed, and if that failed."""
        self._slots: dict[str, int] = {}
        self._total_length = 0
        """Of those that are alive."""
        self._kinds: dict[str, int] = {}
        self._postings: dict[str, array[int]] = {}
        # For each slot:
        self._rows: list[FragmentRow] = []
        self._kind_codes = array("I")
        self._serials = array("Q")
        self._lengths = array("Q")
        self._alive = bytearray()

    def __len__(self) -> int:
        return len(self._slots)

    def catch_up(self, view: StrategyView) -> None:
        """Become the index of a view: by what changed, if it can be told, or by comparing all rows."""
        if self._at == (view.epoch, view.revision):
            return
        changes = self._changes(view)
        self._at = None
        if changes is None:
            self._compare(view)
        else:
            self._update(changes.stored, changes.removed, len(changes.stored))
        self._at = (view.epoch, view.revision)

    def _changes(self, view: StrategyView) -> Changes | None:
        if self._at is None:
            return None
        epoch, revision = self._at
        is_earlier = epoch == view.epoch and revision < view.revision
        return view.changes(self._project, revision) if is_earlier else None

    def _compare(self, view: StrategyView) -> None:
        rows = view.rows(self._project)
        gone = self._slots.keys() - {row.fragment_id for row in rows}
        different = (row.fragment_id for row in rows if self._row(row.fragment_id) != row)
        found = (view.get(fragment_id, project=self._project) for fragment_id in different)
        self._update((fragment for fragment in found if fragment is not None), gone, len(rows))

    def _row(self, fragment_id: str) -> FragmentRow | None:
        slot = self._slots.get(fragment_id)
        return None if slot is None else self._rows[slot]

    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        """`expected` is how many there are at the most, for whoever watches them being read."""
        for fragment_id in removed:
            self._remove(fragment_id)
        for done, fragment in enumerate(stored):
            if done % _REPORTED_EVERY == 0:
                progress.report(done, expected, f"reading {self._project}")
            slot = self._slots.get(fragment.row.fragment_id)
            if slot is not None and _have_same_terms(self._rows[slot], fragment.row):
                self._describe(slot, fragment.row)
            else:
                self._put(fragment)
        if len(self._rows) > 2 * len(self._slots) + DEAD_SLOTS_MAX:
            self._compact()

    def _put(self, fragment: SeenFragment) -> None:
        """Read it first, because that can fail; then the slot is alive only when all of it is there."""
        counts = self._counts(fragment)
        slot = self._make_slot(fragment.row)
        for term, count in counts.items():
            postings = self._postings.get(term)
            if postings is None:
                postings = self._postings[term] = array("Q")
            postings.append(slot << _COUNT_BITS | count)
        self._remove(fragment.row.fragment_id)
        self._lengths[slot] = sum(counts.values())
        self._total_length += self._lengths[slot]
        self._slots[fragment.row.fragment_id] = slot
        self._alive[slot] = True

    def _counts(self, fragment: SeenFragment) -> dict[str, int]:
        row, weights = fragment.row, self._weights
        counts = counted(_text(fragment.body))
        if weights.body != 1:
            counts = {term: weights.body * count for term, count in counts.items()}
        for name, weight in ((row.source, weights.source), (row.fragment_id, weights.fragment_id)):
            for term, count in counted(name).items():
                counts[term] = counts.get(term, 0) + weight * count
        return counts

    def _make_slot(self, row: FragmentRow) -> int:
        self._rows.append(row)
        self._kind_codes.append(0)
        self._serials.append(0)
        self._lengths.append(0)
        self._alive.append(False)
        self._describe(len(self._rows) - 1, row)
        return len(self._rows) - 1

    def _describe(self, slot: int, row: FragmentRow) -> None:
        self._rows[slot] = row
        self._kind_codes[slot] = self._kinds.setdefault(row.kind, len(self._kinds))
        self._serials[slot] = row.serial

    def _remove(self, fragment_id: str) -> None:
        slot = self._slots.pop(fragment_id, None)
        if slot is not None:
            self._alive[slot] = False
            self._total_length -= self._lengths[slot]

    def _compact(self) -> None:
        alive = self._alive_slots()
        numbers = np.cumsum(alive, dtype=np.uint64) - 1
        postings: dict[str, array[int]] = {}
        for term in self._postings:
            slots, counts = self._occurrences(term, alive)
            if len(slots):
                postings[term] = array("Q", (numbers[slots] << _COUNT_BITS | counts).tobytes())
        kept = np.flatnonzero(alive).tolist()
        rows = [self._rows[slot] for slot in kept]
        kinds: dict[str, int] = {}
        self._kind_codes = array("I", [kinds.setdefault(row.kind, len(kinds)) for row in rows])
        self._serials = array("Q", [row.serial for row in rows])
        self._lengths = array("Q", [self._lengths[slot] for slot in kept])
        self._slots = {row.fragment_id: slot for slot, row in enumerate(rows)}
        self._alive = bytearray(b"\1" * len(rows))
        self._postings, self._rows, self._kinds = postings, rows, kinds

    def _alive_slots(self) -> Mask:
        return np.array(self._alive, dtype=np.bool_)

    def _occurrences(self, term: str, among: Mask) -> tuple[Slots, Numbers]:
        """Where a term is, and how often it is there. Copied: an array cannot grow while somebody looks into it."""
        postings: Numbers = np.array(self._postings.get(term, ()), dtype=np.uint64)
        slots = (postings >> _COUNT_BITS).astype(np.intp)
        is_among = among[slots]
        return slots[is_among], postings[is_among] & _COUNT_MASK

    def frequencies(self, terms: Iterable[str]) -> list[int]:
        """How many fragments have each of the terms."""
        alive = self._alive_slots()
        return [len(self._occurrences(term, alive)[0]) for term in terms]

    def weight(self, frequency: int) -> float:
        """What a term is worth that so many fragments have: less, the more there are."""
        return math.log(1 + (len(self) - frequency + 0.5) / (frequency + 0.5))

    def best(
        self, terms: Sequence[str], limit: int, *, kinds: Sequence[str] = (), portions: Sequence[Portion] = ()
    ) -> Iterator[Match]:
        """The fragments of some kinds, or of a share, that have most of the terms; ties by id.

        More than one is made only for whoever takes it, before the index changes.
        """
        alive, wanted, norms = self._alive_slots(), self._wanted(kinds, portions), self._norms()
        scores = np.zeros(len(self._rows))
        found: dict[str, Slots] = {}
        for term in terms:
            slots, counts = self._occurrences(term, alive)
            weight = self.weight(len(slots))
            is_wanted = wanted[slots]
            slots, counts = slots[is_wanted], counts[is_wanted]
            scores[slots] += weight * (counts / (counts + norms[slots]))
            found[term] = slots
        top = [(-float(scores[slot]), self._rows[slot].fragment_id, slot) for slot in _highest(scores, limit)]
        return self._matches(nsmallest(limit, top), found)

    def _wanted(self, kinds: Sequence[str], portions: Sequence[Portion]) -> Mask:
        wanted = np.ones(len(self._rows), dtype=np.bool_)
        if kinds:
            codes = [self._kinds[kind] for kind in kinds if kind in self._kinds]
            wanted &= np.isin(np.array(self._kind_codes, dtype=np.uint32), codes)
        for part, parts in portions:
            wanted &= np.array(self._serials, dtype=np.uint64) % parts == part
        return wanted

    def _norms(self) -> NDArray[np.float64]:
        """What a count is set against: for a long fragment it is more."""
        mean_length = self._total_length / len(self) if self._total_length else 1.0
        return K1 * (1 - B + B * (np.array(self._lengths, dtype=np.float64) / mean_length))

    def _matches(self, top: list[tuple[float, str, int]], found: dict[str, Slots]) -> Iterator[Match]:
        slots = [slot for _, _, slot in top]
        has = {term: _members(slots, where, len(self._rows)) for term, where in found.items()}
        for place, (score, _, slot) in enumerate(top):
            yield Match(self._rows[slot], -score, tuple(term for term in found if has[term][place]))


def _have_same_terms(before: FragmentRow, after: FragmentRow) -> bool:
    """Whether only its tier, say, is another."""
    return before.digest == after.digest and before.source == after.source


def _text(body: memoryview) -> str:
    """The beginning of a body; nothing of one that is not UTF-8 there."""
    is_all = len(body) <= BODY_BYTES_INDEXED_MAX
    try:
        return codecs.utf_8_decode(body[:BODY_BYTES_INDEXED_MAX], "strict", is_all)[0]
    except UnicodeDecodeError:
        return ""


def _highest(scores: NDArray[np.float64], limit: int) -> list[int]:
    """The slots of the highest scores above 0; more than `limit` if the last of them are equal."""
    slots = np.flatnonzero(scores)
    if len(slots) > limit:
        least = np.partition(scores[slots], -limit)[-limit]
        slots = slots[scores[slots] >= least]
    return slots.tolist()


def _members(slots: Sequence[int], of: Slots, slots_max: int) -> list[bool]:
    marks = np.zeros(slots_max, dtype=np.bool_)
    marks[of] = True
    return marks[slots].tolist() if slots else []
