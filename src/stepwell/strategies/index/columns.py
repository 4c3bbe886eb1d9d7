"""Fragments in slots with numpy columns beside them, so that a query computes with all fragments at once.

A column is an array with one number for each slot. It grows by doubling. A free slot has `UNUSED` in the column of
kinds, so that no query selects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.strategies.index.incremental import SlotIndex
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, require
from stepwell.strategies.protocol import ContextRequest, SeenFragment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
S = TypeVar("S", bound=np.generic)

SLOTS_MIN: Final = 1_024
UNUSED: Final = -1

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(tuple[dict[str, int], int, dict[str, int]])
"""Of the kinds with their codes, the next code, and the number of fragments of each kind."""


class ColumnIndex(SlotIndex):
    """An index with one column: the kind of each fragment. Subclasses add further columns.

    Kinds have numeric codes. A code is never reused, so that a stale code in a free slot cannot match a new kind.
    """

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._kinds: dict[str, int] = {}
        """The codes of the kinds that occur."""
        self._next_code = 0
        self._counts: Counter[str] = Counter()
        self._codes: Ints = np.full(SLOTS_MIN, UNUSED, dtype=np.int64)

    def has_requested(self, request: ContextRequest) -> bool:
        """Return True if a fragment is of one of the requested kinds."""
        return bool(self._requested_kinds(request))

    def share_of(self, kind: str) -> float:
        """Return the share of the fragments with content that are of a kind."""
        total = sum(count for each, count in self._counts.items() if each != FILE_KIND)
        return self._counts[kind] / total if total else 0.0

    def _requested_kinds(self, request: ContextRequest) -> list[str]:
        """Return the requested kinds that occur.

        Listings of files are included only if the request names their kind.
        """
        return [kind for kind in self._kinds if (kind in request.kinds if request.kinds else kind != FILE_KIND)]

    def requested_slots(self, request: ContextRequest) -> Mask:
        """Return a mask of the slots whose fragments are of the requested kinds."""
        codes = [self._kinds[kind] for kind in self._requested_kinds(request)]
        return np.isin(self._codes[: len(self._rows)], codes)

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        kind = fragment.row.kind
        self._codes = with_room_for(self._codes, slot)
        if kind not in self._kinds:
            self._kinds[kind] = self._next_code
            self._next_code += 1
        self._counts[kind] += 1
        self._codes[slot] = self._kinds[kind]

    def _clear_slot(self, slot: int) -> None:
        kind = self.at(slot).kind
        self._counts[kind] -= 1
        if not self._counts[kind]:
            del self._counts[kind], self._kinds[kind]
        self._codes[slot] = UNUSED

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        arrays = {**super().snapshot(places).arrays, "codes": self._codes}
        return IndexSnapshot(arrays, _encoder.encode((self._kinds, self._next_code, self._counts)))

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        super()._restore(snapshot, places)
        self._codes = snapshot.arrays["codes"]
        self._kinds, self._next_code, counts = _decoder.decode(snapshot.values)
        self._counts = Counter(counts)
        require(len(self._codes) >= len(self._rows), "each slot has a code")
        require(self._kinds.keys() == self._counts.keys(), "each kind has a code and a number of fragments")


def with_room_for(column: NDArray[S], slot: int) -> NDArray[S]:
    """Return a column that has a slot: the same one, or a copy of twice the length."""
    return column if slot < len(column) else np.concatenate((column, np.zeros_like(column)))


def smallest(keys: Sequence[Ints | Floats], limit: int) -> Ints:
    """Return the places of the `limit` smallest elements, by the first key and then by the others, in order.

    More than `limit` places are returned if the last of them are equal in all keys: the caller breaks the tie by id. A
    partition by the first key comes first, because sorting all of a large project would take most of the time.
    """
    first = keys[0]
    near: Ints = np.arange(len(first))
    if len(first) > limit:
        near = np.flatnonzero(first <= np.partition(first, limit - 1)[limit - 1])
    order = near[np.lexsort([key[near] for key in reversed(keys)])]
    if len(order) > limit:
        last, beyond = order[limit - 1], order[limit:]
        equal = np.logical_and.reduce([key[beyond] == key[last] for key in keys])
        order = order[: limit + int(equal.sum())]
    return order
