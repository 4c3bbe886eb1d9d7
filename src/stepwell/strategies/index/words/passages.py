"""The passages of conversations: how much of a query the turns around each turn have.

A question about a conversation is seldom answered by one turn: its words are spread over the turns of a passage. So the
passage around a turn is scored like a document, by BM25 with soft borders: an occurrence of a term counts less, the
further away it is, and nothing beyond `REACH_TOKENS`. A passage with several of the words is better than one that
repeats one of them, because further occurrences of a term add less and less.

Distances are in tokens, so that dozens of short turns are as far as a few long ones. Sums are of whole numbers, so the
score of a turn depends on the conversation alone, to the last bit, and not on the order in which the turns arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.words.fields import TURN_KIND
from stepwell.strategies.index.words.postings import Occurrences

REACH_TOKENS: Final = 1_200
"""The distance, from middle to middle of two turns, from which on an occurrence counts nothing; half of it, half."""
SATURATION: Final = 4.0
"""The occurrences, at no distance, at which a term has half of its weight: a passage has more of them than a turn."""
COUNTED_MAX: Final = 2  # occurrences of a term in one turn: a long turn is no passage of its own

_PLACE_DIGITS: Final = 10  # as many as a place has not
_UNDECLARED: Final = 1 << 40

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Passages(Struct, frozen=True):
    """The turns of an index in the order of their conversations, at one revision.

    `turns` are their slots, of `slot_count`. `middles` are the middles of the turns on one axis, in half tokens; two
    conversations are further apart than any reach. `first`, `after` and `last` are the borders of each turn's passage:
    its first turn, the turn after its middle, and the one after its last.
    """

    turns: NDArray[np.intp]
    slot_count: int
    middles: Integers
    first: NDArray[np.intp]
    after: NDArray[np.intp]
    last: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Sequence[FragmentRow], alive: Sequence[int]) -> Passages | None:
        """Return the passages of the live turns among rows by slot; None if no source has two turns."""
        spoken = [slot for slot, row in enumerate(rows) if row.kind == TURN_KIND and row.source and alive[slot]]
        turns = [rows[slot] for slot in spoken]
        numbers: dict[str, int] = {}
        sources = np.array([numbers.setdefault(row.source, len(numbers)) for row in turns], dtype=np.int64)
        if len(numbers) == len(turns):
            return None
        orders = np.array([_declared_place(row) for row in turns], dtype=np.int64)
        order = np.lexsort((np.array([row.serial for row in turns], dtype=np.int64), orders, sources))
        tokens = np.array([row.tokens for row in turns], dtype=np.int64)[order]
        is_new = np.diff(sources[order], prepend=0) > 0
        reach = 2 * REACH_TOKENS
        middles = 2 * np.cumsum(tokens) - tokens + reach * np.cumsum(is_new)
        return cls(
            turns=np.array(spoken, dtype=np.intp)[order],
            slot_count=len(rows),
            middles=middles,
            first=np.searchsorted(middles, middles - reach, side="right"),
            after=np.searchsorted(middles, middles, side="right"),
            last=np.searchsorted(middles, middles + reach, side="left"),
        )

    def share(self, occurrences: Occurrences) -> Floats:
        """Return, for each turn, how much of a term's weight its passage has: from 0 to less than 1."""
        near = self._near(occurrences) / (2 * REACH_TOKENS)
        return near / (near + SATURATION)

    def _near(self, occurrences: Occurrences) -> Integers:
        """Return the sum of what is left of the reach at each occurrence, in half tokens.

        With x for the middle of a turn, the occurrences at y before it count reach - x + y each, and those after it
        reach + x - y. So sums of the occurrences and of their middles up to each turn are all that is needed.
        """
        counts = np.zeros(self.slot_count, dtype=np.int64)
        counts[occurrences.slots] = np.minimum(occurrences.counts, COUNTED_MAX)
        ordered = counts[self.turns]
        number = np.concatenate(([0], np.cumsum(ordered)))
        moment = np.concatenate(([0], np.cumsum(ordered * self.middles)))
        x, reach = self.middles, 2 * REACH_TOKENS
        before = (reach - x) * (number[self.after] - number[self.first]) + moment[self.after] - moment[self.first]
        behind = (reach + x) * (number[self.last] - number[self.after]) - moment[self.last] + moment[self.after]
        near: Integers = before + behind
        return near


def _declared_place(row: FragmentRow) -> int:
    """Return the place of a turn in its conversation; if none is declared, one behind all others."""
    order = row.metadata.get("order", "")
    return int(order) if order.isascii() and order.isdigit() and len(order) < _PLACE_DIGITS else _UNDECLARED
