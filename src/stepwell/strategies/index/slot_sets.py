"""Sets of slots by name: those that were added here, over those of a snapshot.

A snapshot has them as arrays: the hashes of the names in ascending order, and behind each other the slots of each name.
So a snapshot is not read to be used: a name is found by bisection, and only sets that are looked up or changed become
Python objects. Names are stored as the hashes of `postings.term_hash`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepwell.strategies.index.snapshot import is_within, require
from stepwell.strategies.index.words.postings import term_hash

_NONE: Final[frozenset[int]] = frozenset()


class SlotSets:
    """The slots of each name. An index owns it, and one thread uses it."""

    def __init__(self) -> None:
        self._sets: Final[dict[str, set[int]]] = {}
        """The sets that were looked up or changed; an empty one hides that of the snapshot."""
        self._hashes: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._borders: NDArray[np.int32] = np.zeros(1, dtype=np.int32)
        self._slots: NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def get(self, name: str) -> AbstractSet[int]:
        """Return the slots of a name, which the caller does not change."""
        found = self._sets.get(name)
        if found is not None:
            return found
        return self._stored(name) if len(self._hashes) else _NONE

    def add(self, name: str, slot: int) -> None:
        """Add a slot to a name."""
        found = self._sets.get(name)
        if found is None:
            found = self._sets[name] = self._stored(name) if len(self._hashes) else set()
        found.add(slot)

    def discard(self, name: str, slot: int) -> None:
        """Remove a slot from a name, if it has it."""
        found = self._sets.get(name)
        if found is None and len(self._hashes):
            found = self._sets[name] = self._stored(name)
        if found is not None:
            found.discard(slot)
            if not found and not len(self._hashes):
                del self._sets[name]

    def _stored(self, name: str) -> set[int]:
        """Return the slots that a name has in the snapshot, and remember them."""
        wanted = term_hash(name)
        place = bisect_left(self._hashes.data, wanted)
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return set()
        found = self._sets[name] = set(self._slots[self._borders[place] : self._borders[place + 1]].tolist())
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all sets as arrays."""
        own = {term_hash(name): slots for name, slots in self._sets.items()}
        stored = np.repeat(self._hashes, np.diff(self._borders))
        stays = ~np.isin(stored, np.fromiter(own, np.uint64, len(own)))
        numbers = np.fromiter((number for number, slots in own.items() for _ in slots), np.uint64)
        members = np.fromiter((slot for slots in own.values() for slot in slots), np.int32)
        names = np.concatenate((stored[stays], numbers))
        slots = np.concatenate((self._slots[stays], members))
        order = np.lexsort((slots, names))
        hashes, sizes = np.unique(names, return_counts=True)
        borders = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        return {"hashes": hashes, "borders": borders, "slots": slots[order]}

    def restore(self, arrays: Mapping[str, NDArray[Any]], slots: int) -> None:
        """Take over the arrays of a snapshot of an index with so many slots. There must be no sets yet."""
        hashes, borders, members = arrays["hashes"], arrays["borders"], arrays["slots"]
        require(len(borders) == len(hashes) + 1 and borders[0] == 0 and borders[-1] == len(members), "sets are whole")
        require(bool(np.all(np.diff(borders) > 0)), "no set is empty")
        require(bool(np.all(hashes[1:] > hashes[:-1])), "names are in order")
        require(is_within(members, 0, slots), "each set is of slots")
        self._hashes, self._borders, self._slots = hashes, borders, members
