"""The word index of one project: which fragments have a term, how often, and their BM25 scores.

Each fragment has a slot, and each term has postings: the slots that have it, each with a count. A changed fragment gets
a new slot, and the old slot is only marked dead. That takes no time, because document frequencies are counted at query
time, among the slots that are alive. When most slots are dead, all are numbered anew.

A row's digest and names tell what is indexed of a fragment. So an index can be brought to any view, also to an older
one, and after an update that failed in the middle. It then scores as an index that was built for that view, to the last
bit.
"""

from __future__ import annotations

import codecs
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline, is_content, part_prefix
from stepwell.strategies.index.incremental import IncrementalIndex
from stepwell.strategies.index.postings import Mask, Occurrences, Postings, PostingsBatch, Slots
from stepwell.strategies.index.terms import pieces, query_weight
from stepwell.strategies.partition import Portion
from stepwell.strategies.protocol import SeenFragment

# The two usual parameters of BM25, at their usual values.
K1: Final = 1.5  # how much further occurrences of a term count: with 0, not at all
B: Final = 0.75  # how much the length of a fragment counts: with 0, not at all


class Weights(Struct, frozen=True):
    """The weight of a term in each field, as if the field were repeated so many times; 0 leaves a field out.

    The name of a file or of a fragment says what it is about, while a word may just occur in a body. But the length of
    a fragment is that of its body alone: all parts of a file have its name, so that name tells nothing about one of
    them. `fragment_id` counts nothing for a part of a file, because its id repeats its source and name.
    """

    source: int = 3
    fragment_id: int = 3
    name: int = 3
    speaker: int = 2
    body: int = 1


ScoreQuery = tuple[tuple[str, ...], tuple[str, ...], tuple[Portion, ...]]
"""The terms, kinds and portions of a query."""
ScoreArrays = tuple[NDArray[np.float64], dict[str, Slots]]
"""The score of each slot, and for each term the slots that have it."""


class Bm25Match(Struct, frozen=True):
    """A fragment that has some of the terms, its score, and the terms that it has."""

    row: FragmentRow
    score: float
    terms: tuple[str, ...]


class Bm25Index(IncrementalIndex):
    """The terms of one project's fragments, at one revision; of those fragments that `is_indexed` accepts.

    The cache of a worker owns it, and one thread uses it.

    `_slots` maps the ids of live fragments to slots. The parallel arrays have one element for each slot, dead ones
    included; `_alive` says which are live. A query computes with whole arrays, never with one fragment at a time.
    """

    def __init__(self, project: str, weights: Weights, is_indexed: Callable[[FragmentRow], bool] = is_content) -> None:
        super().__init__(project)
        self._weights: Final = weights
        self._is_indexed: Final = is_indexed
        self._total_length = 0
        """The number of terms in the bodies of all live slots, for the mean length."""
        self._kinds: dict[str, int] = {}
        """A code for each kind, for the array of kinds."""
        self._postings: Final = Postings()
        self._last_scores: tuple[ScoreQuery, ScoreArrays] | None = None
        """The last query and its scores: several strategies ask the same of one view."""
        # For each slot:
        self._rows: list[FragmentRow] = []
        self._kind_codes = array("I")
        self._serials = array("Q")
        self._lengths = array("Q")
        self._alive = bytearray()

    def row(self, fragment_id: str) -> FragmentRow | None:
        """Return the indexed row of a fragment, or None."""
        slot = self._slots.get(fragment_id)
        return None if slot is None else self._rows[slot]

    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        """Remove some fragments, and index others, in batches that bound the memory for their pieces.

        A fragment with the same terms as before, which only moved to another tier, say, keeps its slot.
        """
        self._last_scores = None
        for fragment_id in removed:
            self._remove(fragment_id)
        batch, rows = self._postings.batch(), list[FragmentRow]()
        for fragment in self._with_progress(stored, expected):
            row = fragment.row
            slot = self._slots.get(row.fragment_id)
            if not self._is_indexed(row):
                self._remove(row.fragment_id)
            elif slot is not None and _have_same_terms(self._rows[slot], row):
                self._set_row(slot, row)
            else:
                batch.add(pieces(_indexed_text(fragment.body)) * self._weights.body, _name_pieces(row, self._weights))
                rows.append(row)
            if len(batch) >= limits.INDEX_BATCH_PIECES:
                self._add_batch(batch, rows)
                batch, rows = self._postings.batch(), []
        self._add_batch(batch, rows)
        self._postings.forget_pieces()
        if len(self._rows) > 2 * len(self._slots) + limits.INDEX_DEAD_SLOTS_MAX:
            self._compact()

    def _add_batch(self, batch: PostingsBatch, rows: Sequence[FragmentRow]) -> None:
        """Give the fragments of a batch new slots, and add their postings.

        A slot comes to life only when its postings are there. An error in the middle leaves dead slots, which the next
        compaction removes, and no fragment with half of its terms.
        """
        first = len(self._rows)
        for row in rows:
            self._append_slot(row)
        run, lengths = batch.run(first)
        self._postings.add(run)
        for slot, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True), first):
            self._remove(row.fragment_id)
            self._lengths[slot] = length
            self._total_length += length
            self._slots[row.fragment_id] = slot
            self._alive[slot] = True

    def _append_slot(self, row: FragmentRow) -> None:
        """Append a dead slot for a row."""
        self._rows.append(row)
        self._kind_codes.append(0)
        self._serials.append(0)
        self._lengths.append(0)
        self._alive.append(False)
        self._set_row(len(self._rows) - 1, row)

    def _set_row(self, slot: int, row: FragmentRow) -> None:
        self._rows[slot] = row
        self._kind_codes[slot] = self._kinds.setdefault(row.kind, len(self._kinds))
        self._serials[slot] = row.serial

    def _remove(self, fragment_id: str) -> None:
        """Mark the slot of a fragment as dead. Its postings stay until the next compaction."""
        slot = self._slots.pop(fragment_id, None)
        if slot is not None:
            self._alive[slot] = False
            self._total_length -= self._lengths[slot]

    def _compact(self) -> None:
        """Drop all dead slots, and number the others anew, in their order."""
        alive = np.array(self._alive, dtype=np.bool_)
        self._postings.renumber(alive)
        live_slots = np.flatnonzero(alive).tolist()
        self._rows = [self._rows[slot] for slot in live_slots]
        self._kinds = {}
        self._kind_codes = array("I", [self._kinds.setdefault(row.kind, len(self._kinds)) for row in self._rows])
        self._serials = array("Q", [row.serial for row in self._rows])
        self._lengths = array("Q", [self._lengths[slot] for slot in live_slots])
        self._slots = {row.fragment_id: slot for slot, row in enumerate(self._rows)}
        self._alive = bytearray(b"\1" * len(self._rows))

    def _find(self, terms: Iterable[str]) -> list[Occurrences]:
        """Return the postings of each term among the live slots."""
        found = self._postings.find(terms)
        if len(self._slots) == len(self._rows):
            return found
        alive = np.array(self._alive, dtype=np.bool_)
        return [_masked(occurrences, alive) for occurrences in found]

    def frequencies(self, terms: Iterable[str]) -> list[int]:
        """Return how many fragments have each of the terms."""
        return [len(slots) for slots, _ in self._find(terms)]

    def weight(self, frequency: int) -> float:
        """Return the inverse document frequency of a term that so many fragments have: rarer terms weigh more."""
        return math.log(1 + (len(self) - frequency + 0.5) / (frequency + 0.5))

    def coverage(self, terms: Sequence[str]) -> float:
        """Return the share of the terms that occur, each weighted by its rarity; 0 for no terms."""
        weighted = [
            (query_weight(term) * self.weight(frequency), frequency)
            for term, frequency in zip(terms, self.frequencies(terms), strict=True)
        ]
        everything = sum(weight for weight, _ in weighted)
        return sum(weight for weight, frequency in weighted if frequency) / everything if weighted else 0.0

    def best(
        self, terms: Sequence[str], limit: int, *, kinds: Sequence[str] = (), portions: Sequence[Portion] = ()
    ) -> Iterator[Bm25Match]:
        """Return the fragments with the highest scores, of some kinds or of a share; ties by id.

        The matches are made lazily, so the caller has to take them before the index changes.
        """
        query = tuple(terms), tuple(kinds), tuple(portions)
        if self._last_scores is None or self._last_scores[0] != query:
            self._last_scores = query, self._scored(*query)
        scores, found = self._last_scores[1]
        top = [(-float(scores[slot]), self._rows[slot].fragment_id, slot) for slot in _highest(scores, limit)]
        return self._matches(sorted(top)[:limit], found)

    def _scored(self, terms: Sequence[str], kinds: Sequence[str], portions: Sequence[Portion]) -> ScoreArrays:
        """Return the score of each slot, and the slots that have each of the terms.

        Document frequencies are those of all live slots. Kinds and portions only choose the slots that are scored.
        """
        wanted, norms = self._wanted(kinds, portions), self._norms()
        scores = np.zeros(len(self._rows))
        found: dict[str, Slots] = {}
        for term, occurrences in zip(terms, self._find(terms), strict=True):
            weight = self.weight(len(occurrences[0])) * query_weight(term)
            slots, counts = occurrences if wanted is None else _masked(occurrences, wanted)
            scores[slots] += weight * (counts / (counts + norms.take(slots)))
            found[term] = slots
        return scores, found

    def _wanted(self, kinds: Sequence[str], portions: Sequence[Portion]) -> Mask | None:
        """Return a mask of the slots of some kinds and portions; None stands for all slots."""
        if not kinds and not portions:
            return None
        wanted = np.ones(len(self._rows), dtype=np.bool_)
        if kinds:
            codes = [self._kinds[kind] for kind in kinds if kind in self._kinds]
            wanted &= np.isin(np.array(self._kind_codes, dtype=np.uint32), codes)
        for part, parts in portions:
            wanted &= np.array(self._serials, dtype=np.uint64) % parts == part
        return wanted

    def _norms(self) -> NDArray[np.float64]:
        """Return the BM25 length norm of each slot: the larger, the longer the fragment."""
        mean_length = self._total_length / len(self) if self._total_length else 1.0
        return K1 * (1 - B + B * (np.array(self._lengths, dtype=np.float64) / mean_length))

    def _matches(self, top: list[tuple[float, str, int]], found: dict[str, Slots]) -> Iterator[Bm25Match]:
        """Yield the matches of the top slots, each with the terms that it has."""
        slots = np.array([slot for _, _, slot in top], dtype=np.int32)
        has = {term: _contains(slots, where) for term, where in found.items()}
        for place, (score, _, slot) in enumerate(top):
            yield Bm25Match(self._rows[slot], -score, tuple(term for term in found if has[term][place]))


def _have_same_terms(before: FragmentRow, after: FragmentRow) -> bool:
    """Return True if two rows of a fragment have the same indexed terms; the tier may differ."""
    return (
        before.digest == after.digest
        and before.source == after.source
        and (before.metadata == after.metadata or _labels(before) == _labels(after))
    )


def _labels(row: FragmentRow) -> tuple[str, str]:
    outline = Outline.of(row.metadata)
    return outline.name, outline.speaker


def _name_pieces(row: FragmentRow, weights: Weights) -> list[bytes]:
    """Return the weighted pieces of all fields but the body."""
    name, speaker = _labels(row) if row.metadata else ("", "")
    is_part = row.fragment_id.startswith(_prefix(row.source))
    weighted = (
        (row.source, weights.source),
        ("" if is_part else row.fragment_id, weights.fragment_id),
        (name, weights.name),
        (speaker, weights.speaker),
    )
    return list(chain.from_iterable(pieces(text.encode()) * weight for text, weight in weighted if text))


_prefix: Final = lru_cache(maxsize=1_000)(part_prefix)


def _indexed_text(body: memoryview) -> bytes:
    """Return the beginning of a body, up to a whole character; nothing if it is not UTF-8."""
    text = bytes(body[: limits.INDEXED_BODY_BYTES_MAX])
    if text.isascii():
        return text
    try:
        return text[: codecs.utf_8_decode(text, "strict", len(text) == len(body))[1]]
    except UnicodeDecodeError:
        return b""


def _masked(occurrences: Occurrences, mask: Mask) -> Occurrences:
    """Return the occurrences whose slots are in the mask."""
    slots, counts = occurrences
    is_among = mask[slots]
    return slots[is_among], counts[is_among]


def _highest(scores: NDArray[np.float64], limit: int) -> list[int]:
    """Return the slots of the highest scores above 0; more than `limit` if the last of them are equal."""
    if np.count_nonzero(scores) <= limit:
        return np.flatnonzero(scores).tolist()
    return np.flatnonzero(scores >= np.partition(scores, -limit)[-limit]).tolist()


def _contains(slots: Slots, ascending: Slots) -> list[bool]:
    """Return, for each of some slots, whether it is among the ascending slots of a term."""
    places = np.searchsorted(ascending, slots)
    return (ascending.take(places, mode="clip") == slots).tolist() if len(ascending) else [False] * len(slots)
