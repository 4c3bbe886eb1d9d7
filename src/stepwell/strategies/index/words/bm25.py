"""The word index of one project: which fragments have a term, in which fields, and their BM25F scores.

Each fragment has a slot, and each term has postings: the slots that have it, each with a count and the sum of the
weights of its fields. A changed fragment gets a new slot, and the old slot is only marked dead. That takes no time,
because frequencies are counted at query time, among the slots that are alive. When most slots are dead, all are
numbered anew.

A row's digest and names tell what is indexed of a fragment. So an index can be brought to any view, also to an older
one, and after an update that failed in the middle. It then scores as an index that was built for that view, to the last
bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from numpy.typing import NDArray

from stepwell import limits
from stepwell.domain.tiers.commit_history import HISTORY_ID, decode_history
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content
from stepwell.strategies.index.incremental import IncrementalIndex
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, is_within, require
from stepwell.strategies.index.words.commits import CommitIndex
from stepwell.strategies.index.words.fields import CODE_KIND, TURN_KIND, Weights, fields_of, has_same_fields
from stepwell.strategies.index.words.file_ranking import FileColumns, RankedSlots, rank, rarity
from stepwell.strategies.index.words.files import FileTable, class_of, place_keys, place_term
from stepwell.strategies.index.words.passages import Passages
from stepwell.strategies.index.words.postings import (
    Mask,
    Occurrences,
    PieceNumbers,
    Postings,
    PostingsBatch,
    Slots,
    Vocabulary,
)
from stepwell.strategies.index.words.query import ParsedQuery
from stepwell.strategies.index.words.terms import KEYWORDS, pieces, query_weight, terms_of
from stepwell.strategies.partition import Portion
from stepwell.strategies.protocol import SeenFragment, StrategyView

Floats = NDArray[np.float64]


class Bm25Match(Struct, frozen=True):
    """A fragment that has some of the terms, its score, and the terms that it has."""

    row: FragmentRow
    score: float
    terms: tuple[str, ...]


class _Values(Struct, frozen=True, array_like=True):
    """The part of a snapshot beside its arrays: codes of kinds, sources of files, and the commits with their digest."""

    kinds: dict[str, int]
    sources: list[str]
    history: tuple[bytes, CommitIndex] | None


_COLUMNS: Final = ("kind_codes", "classes", "serials", "file_numbers", "raw_lengths", "lengths")
"""The columns of slots that a snapshot has, each an attribute with an underscore before it."""
_encoder: Final = Encoder()
_decoder: Final = Decoder(_Values)


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
        self._kinds: dict[str, int] = {}
        """A code for each kind, for the array of kinds."""
        self._postings: Final = Postings()
        self._files: Final = FileTable()
        self._columns: FileColumns | None = None
        """The columns of the live slots, made by the first query after an update."""
        self._history: tuple[bytes, CommitIndex] | None = None
        """The digest of the row with the commits, and their index."""
        self._last_ranked: tuple[ParsedQuery, RankedSlots] | None = None
        """The last query and its scores: several strategies ask the same of one view."""
        # For each slot:
        self._rows: list[FragmentRow] = []
        self._kind_codes = array("I")
        self._classes = array("B")
        self._serials = array("Q")
        self._file_numbers = array("I")
        self._raw_lengths = array("I")
        self._lengths = array("I")
        self._alive = bytearray()

    def __len__(self) -> int:
        return self._alive.count(1)

    def _used_slots(self) -> dict[str, int]:
        return {row.fragment_id: slot for slot, row in enumerate(self._rows) if self._alive[slot]}

    def row(self, fragment_id: str) -> FragmentRow | None:
        """Return the indexed row of a fragment, or None."""
        slot = self._slots.get(fragment_id)
        return None if slot is None else self._rows[slot]

    @property
    def array_bytes(self) -> int:
        """The size of all arrays, without the rows, which the view has, too."""
        columns = (self._kind_codes, self._classes, self._serials, self._file_numbers, self._raw_lengths, self._lengths)
        return self._postings.bytes + len(self._alive) + sum(len(each) * each.itemsize for each in columns)

    def _update(self, stored: Iterable[SeenFragment], removed: Iterable[str], expected: int) -> None:
        """Remove some fragments, and index others, in batches that bound the memory for their pieces.

        A fragment with the same fields as before, which only moved to another tier, say, keeps its slot.
        """
        self._last_ranked = self._columns = None
        for fragment_id in removed:
            self._remove(fragment_id)
            if fragment_id == HISTORY_ID:
                self._history = None
        batch, rows = _FragmentBatch(self._weights), list[FragmentRow]()
        for fragment in self._with_progress(stored, expected):
            row = fragment.row
            slot = self._slots.get(row.fragment_id)
            if row.fragment_id == HISTORY_ID:
                self._set_history(fragment)
            elif not self._is_indexed(row):
                self._remove(row.fragment_id)
            elif slot is not None and has_same_fields(self._rows[slot], row):
                self._set_row(slot, row)
            else:
                batch.add(fragment)
                rows.append(row)
            if len(batch) >= limits.INDEX_BATCH_PIECES:
                self._add_batch(batch, rows)
                batch, rows = batch.next(), []
        self._add_batch(batch, rows)
        if len(self._rows) > 2 * len(self) + limits.INDEX_DEAD_SLOTS_MAX:
            self._compact()

    def _update_by_comparing(self, view: StrategyView) -> None:
        super()._update_by_comparing(view)
        if view.get(HISTORY_ID, project=self.project) is None:
            self._history = None

    def _set_history(self, fragment: SeenFragment) -> None:
        """Keep the commits that the row of the history has, unless they are known."""
        self._remove(HISTORY_ID)
        digest = fragment.row.digest
        if self._history is None or self._history[0] != digest:
            self._history = digest, CommitIndex.of(decode_history(fragment.body))

    @property
    def commits(self) -> CommitIndex | None:
        """The commits of the project's repository, if it has one."""
        return None if self._history is None else self._history[1]

    def _add_batch(self, batch: _FragmentBatch, rows: Sequence[FragmentRow]) -> None:
        """Give the fragments of a batch new slots, and add their postings.

        A slot comes to life only when its postings are there. An error in the middle leaves dead slots, which the next
        compaction removes, and no fragment with half of its terms.
        """
        first = len(self._rows)
        for row in rows:
            self._append_slot(row)
        run, raw_lengths, lengths = batch.postings.run(first)
        self._postings.add(run)
        for slot, (row, raw_length, length) in enumerate(
            zip(rows, raw_lengths.tolist(), lengths.tolist(), strict=True), first
        ):
            self._remove(row.fragment_id)
            self._raw_lengths[slot], self._lengths[slot] = raw_length, length
            self._slots[row.fragment_id] = slot
            self._alive[slot] = True

    def _append_slot(self, row: FragmentRow) -> None:
        """Append a dead slot for a row."""
        self._rows.append(row)
        for column in (self._kind_codes, self._classes, self._serials, self._raw_lengths, self._lengths):
            column.append(0)
        self._file_numbers.append(self._files.number(row))
        self._alive.append(False)
        self._set_row(len(self._rows) - 1, row)

    def _set_row(self, slot: int, row: FragmentRow) -> None:
        self._rows[slot] = row
        self._kind_codes[slot] = self._kinds.setdefault(row.kind, len(self._kinds))
        self._classes[slot] = class_of(row)
        self._serials[slot] = row.serial

    def _remove(self, fragment_id: str) -> None:
        """Mark the slot of a fragment as dead. Its postings stay until the next compaction."""
        slot = self._slots.pop(fragment_id, None)
        if slot is not None:
            self._alive[slot] = False

    def _compact(self) -> None:
        """Drop all dead slots, and number the others anew, in their order."""
        alive = np.array(self._alive, dtype=np.bool_)
        self._postings.renumber(alive)
        live_slots = np.flatnonzero(alive).tolist()
        self._rows = [self._rows[slot] for slot in live_slots]
        self._kinds = {}
        self._files.clear()
        self._kind_codes = array("I", [self._kinds.setdefault(row.kind, len(self._kinds)) for row in self._rows])
        self._file_numbers = array("I", map(self._files.number, self._rows))
        self._classes = array("B", map(class_of, self._rows))
        self._serials = array("Q", [row.serial for row in self._rows])
        self._raw_lengths = array("I", [self._raw_lengths[slot] for slot in live_slots])
        self._lengths = array("I", [self._lengths[slot] for slot in live_slots])
        self._slots = {row.fragment_id: slot for slot, row in enumerate(self._rows)}
        self._alive = bytearray(b"\1" * len(self._rows))

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        """Return all that the index keeps; it drops its dead slots first."""
        if len(self) < len(self._rows):
            self._columns = self._last_ranked = None
            self._compact()
        columns: dict[str, array[int]] = {name: getattr(self, f"_{name}") for name in _COLUMNS}
        arrays = {
            "places": np.array([places[row.fragment_id] for row in self._rows], dtype=np.int32),
            **{name: np.array(column) for name, column in columns.items()},
            **self._postings.arrays(),
        }
        return IndexSnapshot(arrays, _encoder.encode(_Values(self._kinds, self._files.sources, self._history)))

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        values = _decoder.decode(snapshot.values)
        self._kinds, self._history = values.kinds, values.history
        self._files.restore(values.sources)
        for name in _COLUMNS:
            column: array[int] = getattr(self, f"_{name}")
            column.frombytes(snapshot.arrays[name].tobytes())
        self._rows = [row for row in places.rows_of(snapshot.arrays["places"]) if row is not None]
        count = len(self._rows)
        require(all(len(getattr(self, f"_{name}")) == count for name in _COLUMNS), "each slot has all columns")
        require(count == sum(map(self._is_indexed, places.rows)), "each row to be indexed has a slot")
        require(is_within(snapshot.arrays["file_numbers"], 0, len(self._files)), "each file has a source")
        self._postings.restore(snapshot.arrays, count)
        self._alive = bytearray(b"\1" * count)

    def find(self, terms: Iterable[str]) -> list[Occurrences]:
        """Return the postings of each term among the live slots."""
        found = self._postings.find(terms)
        if len(self) == len(self._rows):
            return found
        alive = np.array(self._alive, dtype=np.bool_)
        return [occurrences.among(alive) for occurrences in found]

    def frequencies(self, terms: Iterable[str]) -> list[int]:
        """Return how many fragments have each of the terms."""
        return [len(each.slots) for each in self.find(terms)]

    def coverage(self, terms: Sequence[str]) -> float:
        """Return the share of the terms that occur, each weighted by its rarity; 0 for no terms."""
        weighted = [
            (query_weight(term) * rarity(frequency, len(self)), frequency)
            for term, frequency in zip(terms, self.frequencies(terms), strict=True)
        ]
        everything = sum(weight for weight, _ in weighted)
        return sum(weight for weight, frequency in weighted if frequency) / everything if weighted else 0.0

    def best(
        self, query: ParsedQuery, limit: int, *, kinds: Sequence[str] = (), portions: Sequence[Portion] = ()
    ) -> Iterator[Bm25Match]:
        """Return the fragments with the highest scores, of some kinds or of a share; ties by id.

        Kinds and portions only choose among the fragments; the scores are those of the whole project. The matches are
        made lazily, so the caller has to take them before the index changes.
        """
        if self._last_ranked is None or self._last_ranked[0] is not query:
            self._last_ranked = query, rank(self, query)
        ranked = self._last_ranked[1]
        wanted = self._wanted(kinds, portions)
        scores = ranked.scores if wanted is None else np.where(wanted, ranked.scores, 0.0)
        highest = _highest(scores, limit)
        negated: list[float] = (-scores[highest]).tolist()
        slots: list[int] = highest.tolist()
        ids = [self._rows[slot].fragment_id for slot in slots]
        return self._matches(sorted(zip(negated, ids, slots, strict=True))[:limit], ranked)

    def rows_of(self, slots: Iterable[int]) -> list[FragmentRow]:
        """Return the rows of some slots."""
        return [self._rows[slot] for slot in slots]

    @property
    def files(self) -> FileTable:
        """The files of all slots, dead ones included."""
        return self._files

    def columns(self) -> FileColumns:
        """Return the columns of all slots as numpy arrays. They are made once after each update."""
        if self._columns is None:
            code = self._kinds.get(CODE_KIND, -1)
            self._columns = FileColumns.of(
                files=np.array(self._file_numbers, dtype=np.int32),
                classes=np.array(self._classes, dtype=np.uint8),
                file_count=len(self._files),
                lengths=np.array(self._lengths, dtype=np.float64),
                raw_lengths=np.array(self._raw_lengths, dtype=np.float64),
                is_code=np.array(self._kind_codes, dtype=np.int64) == code,
                alive=np.array(self._alive, dtype=np.bool_),
                passages=Passages.of(self._rows, self._alive) if TURN_KIND in self._kinds else None,
            )
        return self._columns

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

    def _matches(self, top: list[tuple[float, str, int]], ranked: RankedSlots) -> Iterator[Bm25Match]:
        """Yield the matches of the top slots, each with the terms that it has."""
        slots = np.array([slot for _, _, slot in top], dtype=np.int32)
        has = {term: _contains(slots, where) for term, where in ranked.found.items()}
        for place, (score, _, slot) in enumerate(top):
            yield Bm25Match(self._rows[slot], -score, tuple(term for term in ranked.found if has[term][place]))


class _FragmentBatch:
    """Fragments that are read and not yet postings, with the numbers of the pieces that were met. It lives for one
    update.
    """

    def __init__(self, weights: Weights, vocabulary: Vocabulary | None = None) -> None:
        self._weights: Final = weights
        self._vocabulary: Final = Vocabulary() if vocabulary is None else vocabulary
        self.postings: Final = PostingsBatch(self._vocabulary)
        self._text: PieceNumbers[bytes] = PieceNumbers(self._vocabulary, terms_of)
        self._code: dict[bytes, int] = _CodeNumbers(self._text)
        self._places: PieceNumbers[str] = PieceNumbers(self._vocabulary, place_term)

    def __len__(self) -> int:
        return len(self.postings)

    def next(self) -> _FragmentBatch:
        """Return an empty batch. It knows the pieces of this one, unless these are too many."""
        if len(self._text) + len(self._code) + len(self._places) > limits.INDEX_PIECES_REMEMBERED_MAX:
            return _FragmentBatch(self._weights)
        batch = _FragmentBatch(self._weights, self._vocabulary)
        batch._text, batch._code, batch._places = self._text, self._code, self._places
        return batch

    def add(self, fragment: SeenFragment) -> None:
        """Read a fragment, and add its fields."""
        row = fragment.row
        for field in fields_of(row, fragment.body, self._weights):
            if field.text and field.weight:
                numbers = self._code if field.is_code else self._text
                self.postings.add_field(
                    map(numbers.__getitem__, pieces(field.text)),
                    field.weight,
                    is_counted=field.is_body,
                    has_length=field.is_body or row.kind == CODE_KIND,
                )
        self.postings.add_field(map(self._places.__getitem__, place_keys(row)), 0, is_counted=False, has_length=False)
        self.postings.end_fragment()


class _CodeNumbers(dict[bytes, int]):
    """The numbers of pieces of code: those of the same text, but for keywords, which have no terms."""

    def __init__(self, numbers: PieceNumbers[bytes]) -> None:
        super().__init__(numbers.without_terms(KEYWORDS))
        self._numbers: Final = numbers

    def __missing__(self, piece: bytes) -> int:
        number = self[piece] = self._numbers[piece]
        return number


def _highest(scores: Floats, limit: int) -> NDArray[np.intp]:
    """Return the slots of the highest scores above 0; more than `limit` if the last of them are equal."""
    slots: NDArray[np.intp] = np.flatnonzero(scores)
    if len(slots) > limit:
        found = scores[slots]  # most scores are 0, which a partition of all of them would have to move
        slots = slots[found >= np.partition(found, -limit)[-limit]]
    return slots


def _contains(slots: Slots, ascending: Slots) -> list[bool]:
    """Return, for each of some slots, whether it is among the ascending slots of a term."""
    places = np.searchsorted(ascending, slots)
    return (ascending.take(places, mode="clip") == slots).tolist() if len(ascending) else [False] * len(slots)
