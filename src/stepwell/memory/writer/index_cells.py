"""The hash table of the fragment index, as the manager writes it (see `protocol.fragment_index`)."""

from __future__ import annotations

from stepwell import limits
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import BUCKET, BUCKET_CELLS, BUCKET_WORDS, WORD_BYTES, buckets_of


class IndexCells:
    """A table from hashes to slots, in a segment of its own. It has a fixed size, and remembers how full it is.

    Readers may look at a table that is in use at any time. The caller announces its changes by the sequence number.
    """

    __slots__ = ("_buckets", "_words", "count", "segment")

    def __init__(self, segment: MemorySegment) -> None:
        self.segment = segment
        self._words = segment.view.cast("Q")
        self._buckets = segment.size // BUCKET.size
        self.count = 0

    def prepare(self) -> bool:
        """Allocate a bounded part of the memory. Return True if all is there; raise `OSError` if there is none."""
        return self.segment.allocate(self.segment.size, limits.ALLOCATION_BYTES)

    @property
    def capacity(self) -> int:
        """The number of cells."""
        return self._buckets * BUCKET_CELLS

    def add(self, hashed: int, slot: int) -> bool:
        """Enter a slot under a hash, in the emptier one of its two buckets. Return False if both are full."""
        places = [self._slots_at(bucket) for bucket in buckets_of(hashed, self._buckets)]
        first, slots = max(places, key=lambda place: place[1].count(0))
        if 0 not in slots:
            return False
        at = first + slots.index(0)
        self._words[at] = hashed
        self._words[at + BUCKET_CELLS] = slot
        self.count += 1
        return True

    def remove(self, hashed: int, slot: int) -> None:
        """Remove the cell of a slot, which is in one of the buckets of its hash."""
        for bucket in buckets_of(hashed, self._buckets):
            first, slots = self._slots_at(bucket)
            if slot in slots:
                self._words[first + BUCKET_CELLS + slots.index(slot)] = 0
                self.count -= 1
                return

    def _slots_at(self, bucket: int) -> tuple[int, tuple[int, ...]]:
        """Return the first word of a bucket, and the slots of its cells."""
        first = bucket * BUCKET_WORDS
        return first, BUCKET.unpack_from(self.segment.view, first * WORD_BYTES)[BUCKET_CELLS:]

    def release(self) -> None:
        """Give up the words, so that the segment can be closed later."""
        self._words.release()

    def close(self) -> None:
        """Close the segment."""
        self.release()
        self.segment.close()
