"""Fragments in slots, with numbers in columns beside them, so that a question looks at all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.strategies.index.incremental import SlotIndex
from stepwell.strategies.protocol import ContextRequest, SeenFragment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
S = TypeVar("S", bound=np.generic)

SLOTS_MIN: Final = 1_024
UNUSED: Final = -1


class ColumnIndex(SlotIndex):
    """What kind each fragment is of. Others have more columns."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._kinds: dict[str, int] = {}
        """The codes of those that there are. None is given twice."""
        self._next_code = 0
        self._counts: Counter[str] = Counter()
        self._codes: Ints = np.full(SLOTS_MIN, UNUSED, dtype=np.int64)

    def has_requested(self, request: ContextRequest) -> bool:
        """Whether there is anything of the kinds that are asked for."""
        return bool(self._requested_kinds(request))

    def _requested_kinds(self, request: ContextRequest) -> list[str]:
        """What stands for a whole file is shown only to who names its kind."""
        return [kind for kind in self._kinds if (kind in request.kinds if request.kinds else kind != FILE_KIND)]

    def requested_slots(self, request: ContextRequest) -> Mask:
        """Which slots are of the kinds that are asked for."""
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


def with_room_for(column: NDArray[S], slot: int) -> NDArray[S]:
    """A column that has room for a slot: twice as long if it had none."""
    return column if slot < len(column) else np.concatenate((column, np.zeros_like(column)))


def smallest(keys: Sequence[Ints | Floats], limit: int) -> Ints:
    """Where the smallest are, by the first key and then by the others; more than `limit` if the last are equal."""
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
