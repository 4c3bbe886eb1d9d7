"""Postings: for each term, the slots of the fragments that have it, with counts.

They are stored in runs, each sorted by term and slot, like the segments of a log-structured merge tree. New postings
are a run of their own, and small runs that follow each other are merged. So adding costs time in proportion to what is
added, and finding a term looks into few runs. A merge is bounded in size, because a request waits for it.

Texts are processed in pieces (see `terms`). A piece is translated to the numbers of its terms once, and then looked up
in a dict; everything after that is numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell import limits
from stepwell.strategies.index.terms import terms_of

Terms = NDArray[np.int32]
Slots = NDArray[np.int32]
Counts = NDArray[np.integer]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Occurrences = tuple[Slots, Counts]
"""The slots that have a term, ascending, and how often each has it."""


class Run(Struct, frozen=True):
    """An immutable, sorted sequence of postings.

    `terms` has each term once, ascending. The postings of `terms[i]` are those from `borders[i]` to before `borders[i +
    1]`, in order of slot. Counts have the smallest integer type that holds them.
    """

    terms: Terms
    borders: Numbers
    slots: Slots
    counts: Counts

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, place: int) -> Occurrences:
        """Return the postings of the term at a place."""
        part = slice(self.borders[place], self.borders[place + 1])
        return self.slots[part], self.counts[part]

    @property
    def repeated(self) -> Terms:
        """The term of each posting."""
        return np.repeat(self.terms, np.diff(self.borders))


def _run(terms: Terms, slots: Slots, counts: Counts) -> Run:
    """Return a run of postings that are already in order."""
    starts = np.flatnonzero(np.diff(terms, prepend=-1))
    most = int(counts.max(initial=0))
    return Run(terms[starts], np.append(starts, len(terms)), slots, counts.astype(np.min_scalar_type(most)))


def _merged(runs: Sequence[Run]) -> Run:
    """Return one run of several that follow each other: the slots of each are above those of the one before."""
    terms = np.concatenate([run.repeated for run in runs])
    order = _sort_order(terms)
    slots = np.concatenate([run.slots for run in runs])
    counts = np.concatenate([run.counts for run in runs])
    return _run(terms[order], slots[order], counts[order])


def _sort_order(terms: Terms) -> NDArray[np.intp]:
    """Return the stable sort order of terms, 16 bits at a time.

    numpy sorts 16-bit numbers by counting instead of comparing, so two passes are quicker than one sort of 32 bits.
    """
    order = np.argsort((terms & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((terms >> 16).astype(np.uint16)[order], kind="stable")]


class _PieceNumbers(dict[bytes, int]):
    """A number for each piece, made on its first lookup, and the numbers of the piece's terms.

    The terms of piece `n` are those from `borders[n]` to before `borders[n + 1]`. The dict calls `__missing__` for a
    new piece, so the lookup of a known one does not run Python code.
    """

    def __init__(self, vocabulary: dict[str, int]) -> None:
        super().__init__()
        self._vocabulary: Final = vocabulary
        self.terms: Final[list[int]] = []
        self.borders: Final = [0]

    def __missing__(self, piece: bytes) -> int:
        number = self[piece] = len(self.borders) - 1
        vocabulary = self._vocabulary
        self.terms.extend([vocabulary.setdefault(term, len(vocabulary)) for term in terms_of(piece)])
        self.borders.append(len(self.terms))
        return number


class PostingsBatch:
    """Fragments that have been read and are not yet a run. Several small fragments become one run."""

    def __init__(self, pieces: _PieceNumbers) -> None:
        self._pieces: Final = pieces
        self._numbers: Final[list[int]] = []
        self._borders: Final = [0]
        """For each fragment the end of its body, and then the end of its names, after a 0."""

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._numbers)

    def add(self, body: Iterable[bytes], names: Iterable[bytes]) -> None:
        """Add the pieces of one fragment: of its body, and of its names."""
        for pieces in (body, names):
            self._numbers.extend(map(self._pieces.__getitem__, pieces))
            self._borders.append(len(self._numbers))

    def run(self, first_slot: int) -> tuple[Run, Numbers]:
        """Return the postings of the batch, in slots from `first_slot` on, and the number of terms in each body.

        The length of a fragment is that of its body. The names count as occurrences only: see `bm25.Weights`.
        """
        numbers = _array(self._numbers)
        begins = _array(self._pieces.borders)
        widths = np.diff(begins)[numbers]  # how many terms each piece has
        ends = np.append(0, np.cumsum(widths))
        borders = ends[_array(self._borders)]
        slots = np.arange(first_slot, first_slot + len(borders) // 2, dtype=np.int32).repeat(np.diff(borders[::2]))
        terms = _array(self._pieces.terms)[np.arange(ends[-1]) + np.repeat(begins[numbers] - ends[:-1], widths)]
        order = _sort_order(terms)
        terms, slots = terms[order], slots[order]
        starts = np.flatnonzero(np.diff(terms, prepend=-1) | np.diff(slots, prepend=-1))
        run = _run(terms[starts], slots[starts], np.diff(starts, append=len(terms)))
        return run, np.diff(borders)[::2]


def _array(numbers: list[int]) -> Terms:
    """Return the numbers as 32-bit integers: there are fewer pieces and terms than that."""
    return np.fromiter(numbers, np.int32, len(numbers))


class Postings:
    """The postings of one project's fragments: a vocabulary, and runs in order of their slots.

    Its `Bm25Index` owns it. It does not know which slots are alive.
    """

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._runs: list[Run] = []
        self._pieces = _PieceNumbers(self._vocabulary)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def terms(self) -> Sequence[str]:
        """All terms that were ever added since the slots were last numbered anew."""
        return tuple(self._vocabulary)

    def batch(self) -> PostingsBatch:
        """Return a batch for the fragments that are read next. It knows the pieces of the batches before it."""
        if len(self._pieces) > limits.INDEX_PIECES_REMEMBERED_MAX:
            self.forget_pieces()
        return PostingsBatch(self._pieces)

    def forget_pieces(self) -> None:
        """Forget the numbers of all pieces, to free their memory until fragments are read again."""
        self._pieces = _PieceNumbers(self._vocabulary)

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
        wanted = np.array([self._vocabulary.get(term, -1) for term in terms], dtype=np.int32)
        found: list[list[Occurrences]] = [[] for _ in wanted]
        for run in self._runs:
            places = np.searchsorted(run.terms, wanted)
            for at in np.flatnonzero(run.terms.take(places, mode="clip") == wanted).tolist():
                found[at].append(run.at(places[at]))
        return list(map(_concatenated, found))

    def renumber(self, alive: Mask) -> None:
        """Keep the postings of live slots only, with slots and terms numbered anew in their order.

        Terms that no live slot has leave the vocabulary.
        """
        numbers = np.cumsum(alive, dtype=np.int32) - 1
        live_postings: list[tuple[Terms, Slots, Counts]] = []
        is_used = np.zeros(len(self._vocabulary), dtype=np.bool_)
        for run in self._runs:
            stays = alive[run.slots]
            terms = run.repeated[stays]
            is_used[terms] = True
            live_postings.append((terms, numbers[run.slots[stays]], run.counts[stays]))
        meanings = np.cumsum(is_used, dtype=np.int32) - 1
        used = compress(self._vocabulary, is_used.tolist())
        self._vocabulary = {term: number for number, term in enumerate(used)}
        self._runs = []
        self.forget_pieces()
        for terms, slots, counts in live_postings:
            self.add(_run(meanings[terms], slots, counts))


def _concatenated(found: list[Occurrences]) -> Occurrences:
    if len(found) == 1:
        return found[0]
    slots = np.concatenate([slots for slots, _ in found]) if found else np.array([], dtype=np.int32)
    counts = np.concatenate([counts for _, counts in found]) if found else np.array([], dtype=np.uint8)
    return slots, counts
