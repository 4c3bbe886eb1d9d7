"""Where each term is: for each, the slots that have it, with a count.

They are kept in runs, each sorted by term and slot. What is added is a run of its own, and small runs that follow each
other are merged: adding costs what is added, and finding a term looks into few runs.
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
    """Postings in order of term and slot."""

    terms: Terms  # each once
    borders: Numbers  # where the postings of each begin, and where the last end
    slots: Slots
    counts: Counts

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, place: int) -> Occurrences:
        """The postings of one of the terms."""
        part = slice(self.borders[place], self.borders[place + 1])
        return self.slots[part], self.counts[part]

    @property
    def repeated(self) -> Terms:
        """The term of each posting."""
        return np.repeat(self.terms, np.diff(self.borders))


def _run(terms: Terms, slots: Slots, counts: Counts) -> Run:
    """Of postings that are in order."""
    starts = np.flatnonzero(np.diff(terms, prepend=-1))
    most = int(counts.max(initial=0))
    return Run(terms[starts], np.append(starts, len(terms)), slots, counts.astype(np.min_scalar_type(most)))


def _merged(runs: Sequence[Run]) -> Run:
    """Of runs that follow each other: the slots of each are above those of the one before."""
    terms = np.concatenate([run.repeated for run in runs])
    order = _sort_order(terms)
    slots = np.concatenate([run.slots for run in runs])
    counts = np.concatenate([run.counts for run in runs])
    return _run(terms[order], slots[order], counts[order])


def _sort_order(terms: Terms) -> NDArray[np.intp]:
    """How to sort terms, the equal ones as they stand: 16 bits at a time, which numpy counts instead of comparing."""
    order = np.argsort((terms & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((terms >> 16).astype(np.uint16)[order], kind="stable")]


class _PieceNumbers(dict[bytes, int]):
    """Numbers of pieces, each with the numbers of its terms."""

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
    """Fragments that have been read, and are not among the postings yet."""

    def __init__(self, pieces: _PieceNumbers) -> None:
        self._pieces: Final = pieces
        self._numbers: Final[list[int]] = []
        self._borders: Final = [0]  # where each body ends, and then its names

    def __len__(self) -> int:
        """How many pieces they have."""
        return len(self._numbers)

    def add(self, body: Iterable[bytes], names: Iterable[bytes]) -> None:
        """The pieces of one more."""
        for pieces in (body, names):
            self._numbers.extend(map(self._pieces.__getitem__, pieces))
            self._borders.append(len(self._numbers))

    def run(self, first_slot: int) -> tuple[Run, Numbers]:
        """Their postings, in slots from this one on, and how many terms each body has."""
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
    """Of pieces and terms: there are not more of them than fit in memory."""
    return np.fromiter(numbers, np.int32, len(numbers))


class Postings:
    """Those of the fragments of a project."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._runs: list[Run] = []
        self._pieces = _PieceNumbers(self._vocabulary)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def terms(self) -> Sequence[str]:
        """All that there ever were, since the slots were numbered."""
        return tuple(self._vocabulary)

    def batch(self) -> PostingsBatch:
        """What is read next. Pieces that were in the last one are known."""
        if len(self._pieces) > limits.INDEX_PIECES_REMEMBERED_MAX:
            self.forget_pieces()
        return PostingsBatch(self._pieces)

    def forget_pieces(self) -> None:
        """There is nothing to be read for a while: pieces need not be known."""
        self._pieces = _PieceNumbers(self._vocabulary)

    def add(self, run: Run) -> None:
        """Its slots are above all others."""
        if len(run):
            self._runs.append(run)
        while len(self._runs) > 1 and self._should_merge(*self._runs[-2:]):
            self._runs[-2:] = [_merged(self._runs[-2:])]

    def _should_merge(self, before: Run, last: Run) -> bool:
        return len(before) <= 2 * len(last) and len(before) + len(last) <= limits.INDEX_RUN_POSTINGS_MAX

    def find(self, terms: Iterable[str]) -> list[Occurrences]:
        """Where each of the terms is."""
        wanted = np.array([self._vocabulary.get(term, -1) for term in terms], dtype=np.int32)
        found: list[list[Occurrences]] = [[] for _ in wanted]
        for run in self._runs:
            places = np.searchsorted(run.terms, wanted)
            for at in np.flatnonzero(run.terms.take(places, mode="clip") == wanted).tolist():
                found[at].append(run.at(places[at]))
        return list(map(_concatenated, found))

    def renumber(self, alive: Mask) -> None:
        """Only these slots stay, numbered anew in their order; a term that none of them has is forgotten."""
        numbers = np.cumsum(alive, dtype=np.int32) - 1
        kept: list[tuple[Terms, Slots, Counts]] = []
        is_used = np.zeros(len(self._vocabulary), dtype=np.bool_)
        for run in self._runs:
            stays = alive[run.slots]
            terms = run.repeated[stays]
            is_used[terms] = True
            kept.append((terms, numbers[run.slots[stays]], run.counts[stays]))
        meanings = np.cumsum(is_used, dtype=np.int32) - 1
        used = compress(self._vocabulary, is_used.tolist())
        self._vocabulary = {term: number for number, term in enumerate(used)}
        self._runs = []
        self.forget_pieces()
        for terms, slots, counts in kept:
            self.add(_run(meanings[terms], slots, counts))


def _concatenated(found: list[Occurrences]) -> Occurrences:
    if len(found) == 1:
        return found[0]
    slots = np.concatenate([slots for slots, _ in found]) if found else np.array([], dtype=np.int32)
    counts = np.concatenate([counts for _, counts in found]) if found else np.array([], dtype=np.uint8)
    return slots, counts
