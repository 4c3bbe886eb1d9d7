"""The hash table of the fragment index, as the manager writes it (see `protocol.fragment_index`)."""

from __future__ import annotations

from stepwell import limits
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import CELL_BYTES, CELL_WORDS, HASH, SLOT, place_of


class IndexCells:
    """A table from hashes to slots, in a segment of its own. It has a fixed size, and remembers how full it is.

    Readers may look at a table that is in use at any time. The caller announces its changes by the sequence number.
    """

    __slots__ = ("_mask", "_uncrowded_max", "_used_max", "_words", "capacity", "count", "segment")

    def __init__(self, segment: MemorySegment) -> None:
        self.segment = segment
        self._words = segment.view.cast("Q")
        self.capacity = segment.size // CELL_BYTES  # a power of two
        self._mask = (self.capacity - 1) * CELL_WORDS
        self.count = 0
        self._used_max = -(-limits.INDEX_CELLS_PERCENT_MAX * self.capacity // 100)
        self._uncrowded_max = limits.INDEX_CELLS_PERCENT_GROWTH * self.capacity // 100

    def prepare(self) -> bool:
        """Allocate a bounded part of the memory. Return True if all is there; raise `OSError` if there is none."""
        return self.segment.allocate(self.segment.size, limits.ALLOCATION_BYTES)

    @property
    def is_crowded(self) -> bool:
        """True if a larger table would make searches shorter."""
        return self.count > self._uncrowded_max

    def add(self, hashed: int, slot: int) -> bool:
        """Enter a slot under a hash. Return False if the table is full."""
        if self.count >= self._used_max:
            return False
        words, mask = self._words, self._mask
        at = place_of(hashed, mask)
        while words[at + SLOT]:
            at = at + CELL_WORDS & mask
        words[at + HASH] = hashed
        words[at + SLOT] = slot
        self.count += 1
        return True

    def remove(self, hashed: int, slot: int) -> None:
        """Remove the cell of a slot, if there is one.

        Later cells that were entered behind it move up, so that a search which ends at an empty cell misses none.
        """
        words, mask = self._words, self._mask
        hole = place_of(hashed, mask)
        while (found := words[hole + SLOT]) != slot:
            if not found:
                return
            hole = hole + CELL_WORDS & mask
        self.count -= 1
        at = hole + CELL_WORDS & mask
        while words[at + SLOT]:
            distance = at - place_of(words[at + HASH], mask) & mask
            if distance >= at - hole & mask:  # the search for it passes the hole
                words[hole + HASH], words[hole + SLOT] = words[at + HASH], words[at + SLOT]
                hole = at
            at = at + CELL_WORDS & mask
        words[hole + SLOT] = 0

    def release(self) -> None:
        """Give up the words, so that the segment can be closed later."""
        self._words.release()

    def close(self) -> None:
        """Close the segment."""
        self.release()
        self.segment.close()
