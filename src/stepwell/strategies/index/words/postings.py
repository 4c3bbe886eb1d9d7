"""Postings: for each term, the slots of the fragments that have it, with counts and weights.

They are stored in runs, each sorted by term and slot, like the segments of a log-structured merge tree. New postings
are a run of their own, and small runs that follow each other are merged. So adding costs time in proportion to what is
added, and finding a term looks into few runs. A merge is bounded in size, because a request waits for it.

A term is stored as a hash of 64 bits, the same in every process. So a run is nothing but arrays, which can be written
to a file and mapped from it, and no index keeps the texts of its terms. Among a million terms, two have the same hash
with a probability of 1 in 30 million; then each would be found by the other, too.

Texts are processed in pieces (see `terms`). A piece is translated to the numbers of its terms once, and then looked up
in a dict; everything after that is numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell import limits
from stepwell.strategies.index.snapshot import is_within, require

Terms = NDArray[np.uint64]
Slots = NDArray[np.int32]
Counts = NDArray[np.integer]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

K = TypeVar("K", bytes, str)

_HASH_BYTES: Final = 8
COUNT_MAX: Final = 255  # occurrences of a term in a fragment: more of them do not raise a score noticeably
WEIGHT_MAX: Final = 65_535


class Occurrences(Struct, frozen=True):
    """The slots that have a term, ascending; how often its body has it; and the sum of its weights in all fields."""

    slots: Slots
    counts: Counts
    weights: Counts

    def among(self, mask: Mask) -> Occurrences:
        """Return the occurrences whose slots are in a mask."""
        is_among = mask[self.slots]
        return Occurrences(self.slots[is_among], self.counts[is_among], self.weights[is_among])


def term_hash(term: str) -> int:
    """Return the number by which a term is stored."""
    return int.from_bytes(_digest(term), "little")


def _digest(term: str) -> bytes:
    return blake2b(term.encode(errors="replace"), digest_size=_HASH_BYTES).digest()


class Run(Struct, frozen=True):
    """An immutable, sorted sequence of postings.

    `terms` has the hash of each term once, ascending. The postings of `terms[i]` are those from `borders[i]` to before
    `borders[i + 1]`, in order of slot.
    """

    terms: Terms
    borders: NDArray[np.int32]
    slots: Slots
    counts: Counts
    weights: Counts

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, place: int) -> Occurrences:
        """Return the postings of the term at a place."""
        part = slice(self.borders[place], self.borders[place + 1])
        return Occurrences(self.slots[part], self.counts[part], self.weights[part])

    def among(self, alive: Mask, numbers: Slots) -> Run:
        """Return the run of the live slots only, with new numbers for them."""
        stays = alive[self.slots]
        sizes = np.add.reduceat(stays, self.borders[:-1], dtype=np.int32) if len(self) else np.diff(self.borders)
        used = sizes > 0
        borders = np.append(0, np.cumsum(sizes[used])).astype(np.int32)
        slots = numbers[self.slots[stays]]
        return Run(self.terms[used], borders, slots, self.counts[stays], self.weights[stays])


def _merged(runs: Sequence[Run]) -> Run:
    """Return one run of several that follow each other: the slots of each are above those of the one before."""
    every, places = np.unique(np.concatenate([run.terms for run in runs]), return_inverse=True)
    numbers = np.split(places.astype(np.int32), np.cumsum([len(run.terms) for run in runs])[:-1])
    repeated = np.concatenate([np.repeat(each, np.diff(run.borders)) for each, run in zip(numbers, runs, strict=True)])
    order = _sort_order(repeated)
    slots = np.concatenate([run.slots for run in runs])[order]
    counts = np.concatenate([run.counts for run in runs])[order]
    weights = np.concatenate([run.weights for run in runs])[order]
    borders = np.append(0, np.cumsum(np.bincount(repeated, minlength=len(every)))).astype(np.int32)
    return Run(every, borders, slots, counts, weights)


def _sort_order(terms: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the stable sort order of numbers of terms, 16 bits at a time.

    numpy sorts 16-bit numbers by counting instead of comparing, so two passes are quicker than one sort of 32 bits.
    """
    order = np.argsort((terms & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((terms >> 16).astype(np.uint16)[order], kind="stable")]


class PieceNumbers(dict[K, int]):
    """A number for each piece, made on its first lookup, and the numbers of the piece's terms.

    The terms of piece `n` are those from `borders[n]` to before `borders[n + 1]`. The dict calls `__missing__` for a
    new piece, so the lookup of a known one does not run Python code.
    """

    def __init__(self, vocabulary: Vocabulary, terms_of: Callable[[K], tuple[str, ...]]) -> None:
        super().__init__()
        self._vocabulary: Final = vocabulary
        self._terms_of: Final[Callable[[K], tuple[str, ...]]] = terms_of

    def __missing__(self, piece: K) -> int:
        number = self[piece] = self._vocabulary.add_piece(self._terms_of(piece))
        return number

    def without_terms(self, pieces: Iterable[K]) -> dict[K, int]:
        """Return some pieces with the number of a piece that has no terms."""
        return dict.fromkeys(pieces, self._vocabulary.add_piece(()))


class Vocabulary:
    """The terms of the pieces that were read lately, with their hashes. It is emptied when an update is done."""

    def __init__(self) -> None:
        self._numbers: Final[dict[str, int]] = {}
        self._hashes: Final = bytearray()
        self.terms: Final[list[int]] = []
        """The numbers of the terms of all pieces, one piece after the other."""
        self.borders: Final = [0]
        """The end of each piece in `terms`, after a 0."""

    def add_piece(self, terms: Sequence[str]) -> int:
        """Add a piece, and return its number."""
        for term in terms:
            number = self._numbers.get(term)
            if number is None:
                number = self._numbers[term] = len(self._numbers)
                self._hashes.extend(_digest(term))
            self.terms.append(number)
        self.borders.append(len(self.terms))
        return len(self.borders) - 2

    def hashes(self) -> Terms:
        """Return the hashes of the terms, by number."""
        return np.frombuffer(bytes(self._hashes), dtype="<u8").astype(np.uint64)


class PostingsBatch:
    """Fragments that have been read and are not yet a run. Several small fragments become one run.

    A fragment is a sequence of fields: some pieces that have one weight. Only the pieces of its body are counted.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary: Final = vocabulary
        self._numbers: Final[list[int]] = []
        self._ends: Final = [0]
        """For each field the end of its pieces, after a 0."""
        self._weights: Final[list[int]] = []
        self._is_counted: Final[list[bool]] = []
        self._has_length: Final[list[bool]] = []
        self._field_ends: Final = [0]
        """For each fragment the end of its fields, after a 0."""

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._numbers)

    def add_field(self, numbers: Iterable[int], weight: int, *, is_counted: bool, has_length: bool) -> None:
        """Add a field of the fragment that is being read: the numbers of its pieces.

        Only fields with `has_length` make the fragment longer.
        """
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))
        self._weights.append(weight)
        self._is_counted.append(is_counted)
        self._has_length.append(has_length)

    def end_fragment(self) -> None:
        """End the fragment whose fields were added."""
        self._field_ends.append(len(self._weights))

    def run(self, first_slot: int) -> tuple[Run, Numbers, Numbers]:
        """Return the postings of the batch, in slots from `first_slot` on, and for each fragment the number of terms in
        its body and its weighted length.
        """
        numbers, begins = _array(self._numbers), _array(self._vocabulary.borders)
        widths = np.diff(begins)[numbers]  # how many terms each piece has
        ends = np.zeros(len(numbers) + 1, dtype=np.int32)
        np.cumsum(widths, out=ends[1:])
        field_sizes = np.diff(ends[_array(self._ends)]).astype(np.int64)
        fragment_fields = np.diff(_array(self._field_ends))
        field_slots = np.arange(len(fragment_fields), dtype=np.int32).repeat(fragment_fields)
        weights = np.array(self._weights, dtype=np.int64)
        is_counted = np.array(self._is_counted, dtype=np.int64)
        has_length = np.array(self._has_length, dtype=np.int64)
        raw_lengths = _sums(field_slots, field_sizes * is_counted, len(fragment_fields))
        lengths = _sums(field_slots, field_sizes * weights * has_length, len(fragment_fields))
        shifts = np.repeat(begins[numbers] - ends[:-1], widths)
        every = _array(self._vocabulary.terms)[np.arange(ends[-1], dtype=np.int32) + shifts]
        hashes, ranks = _ranked(self._vocabulary.hashes())
        terms = ranks[every]
        order = _sort_order(terms)
        fields = np.arange(len(weights), dtype=np.int32).repeat(field_sizes)[order]
        terms, slots = terms[order], field_slots[fields]
        starts = _changes(terms, slots)
        run = self._run(hashes, terms[starts], slots[starts] + np.int32(first_slot))
        if len(starts):
            counts = np.add.reduceat(is_counted[fields], starts)
            sums = np.add.reduceat(weights[fields], starts)
            run = Run(
                run.terms,
                run.borders,
                run.slots,
                np.minimum(counts, COUNT_MAX).astype(np.uint8),
                np.minimum(sums, WEIGHT_MAX).astype(np.uint16),
            )
        return run, raw_lengths, lengths

    @staticmethod
    def _run(hashes: Terms, terms: NDArray[np.int32], slots: Slots) -> Run:
        """Return a run without counts of postings that are in order."""
        starts = _changes(terms)
        borders = np.append(starts, len(terms)).astype(np.int32)
        none = np.zeros(0, dtype=np.uint8)
        return Run(hashes[terms[starts]], borders, slots, none, none.astype(np.uint16))


def _changes(*columns: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the first place, and those at which any of some columns of one length differs from the place before."""
    is_change = np.ones(len(columns[0]), dtype=np.bool_)
    if len(is_change):
        np.not_equal(columns[0][1:], columns[0][:-1], out=is_change[1:])
        for column in columns[1:]:
            is_change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_change)


def _ranked(hashes: Terms) -> tuple[Terms, NDArray[np.int32]]:
    """Return some hashes in ascending order, and the place of each there."""
    order = np.argsort(hashes, kind="stable")
    ranks = np.empty(len(hashes), dtype=np.int32)
    ranks[order] = np.arange(len(hashes), dtype=np.int32)
    return hashes[order], ranks


def _sums(places: Slots, numbers: Numbers, count: int) -> Numbers:
    """Return the sum of the numbers at each place."""
    return np.bincount(places, numbers, count).astype(np.int64)


def _array(numbers: list[int]) -> NDArray[np.int32]:
    """Return the numbers as 32-bit integers: there are fewer pieces and terms than that."""
    return np.fromiter(numbers, np.int32, len(numbers))


class Postings:
    """The postings of one project's fragments: runs in order of their slots.

    The index that uses it owns it. It does not know which slots are alive.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        return sum(
            array.nbytes for run in self._runs for array in (run.terms, run.borders, run.slots, run.counts, run.weights)
        )

    def add(self, run: Run) -> None:
        """Add a run whose slots are above all others, and merge the last runs while the last but one is not much
        larger.
        """
        if len(run):
            self._runs.append(run)
        while len(self._runs) > 1 and self._should_merge(*self._runs[-2:]):
            self._runs[-2:] = [_merged(self._runs[-2:])]

    def _should_merge(self, before: Run, last: Run) -> bool:
        """Return True if a run is at most twice as long as the one behind it, and both together are not too long."""
        return len(before) <= 2 * len(last) and len(before) + len(last) <= limits.INDEX_RUN_POSTINGS_MAX

    def find(self, terms: Iterable[str]) -> list[Occurrences]:
        """Return the occurrences of each of the terms; empty arrays for a term that does not occur."""
        wanted = np.array(list(map(term_hash, terms)), dtype=np.uint64)
        found: list[list[Occurrences]] = [[] for _ in wanted]
        for run in self._runs:
            places = np.searchsorted(run.terms, wanted)
            for at in np.flatnonzero(run.terms.take(places, mode="clip") == wanted).tolist():
                found[at].append(run.at(places[at]))
        return list(map(_concatenated, found))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of all runs, by the number of the run and the name of the array."""
        return {
            f"{number}.{name}": getattr(run, name)
            for number, run in enumerate(self._runs)
            for name in Run.__struct_fields__
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], slots: int) -> None:
        """Take over the runs that `arrays` returned, of so many slots; other names are ignored.

        There must be no runs yet. Raise `ValueError` if the arrays of a run do not fit together.
        """
        while f"{len(self._runs)}.terms" in arrays:
            number = len(self._runs)
            run = Run(*(arrays[f"{number}.{name}"] for name in Run.__struct_fields__))
            require(len(run) == len(run.counts) == len(run.weights), "each posting has a count and a weight")
            require(len(run.borders) == len(run.terms) + 1, "each term has a border")
            require(run.borders[0] == 0 and run.borders[-1] == len(run), "the borders are those of all postings")
            require(bool(np.all(np.diff(run.borders) > 0)), "each term has a posting")
            require(is_within(run.slots, 0, slots), "each posting is of a slot")
            self._runs.append(run)

    def renumber(self, alive: Mask) -> None:
        """Keep the postings of live slots only, with slots numbered anew in their order."""
        numbers = np.cumsum(alive, dtype=np.int32) - np.int32(1)
        runs, self._runs = self._runs, []
        for run in runs:
            self.add(run.among(alive, numbers))


def _concatenated(found: list[Occurrences]) -> Occurrences:
    if len(found) == 1:
        return found[0]
    if not found:
        return Occurrences(np.array([], dtype=np.int32), np.array([], dtype=np.uint8), np.array([], dtype=np.uint16))
    return Occurrences(
        np.concatenate([each.slots for each in found]),
        np.concatenate([each.counts for each in found]),
        np.concatenate([each.weights for each in found]),
    )
