"""The slots of the fragment index, as the manager writes them (see `protocol.fragment_index`)."""

from __future__ import annotations

from stepwell import limits
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import (
    ACCESS_COUNT,
    ACCESSED_MS,
    LENGTH,
    NEXT,
    PAYLOAD,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOT_WORDS,
    STAMP,
    WORD_BYTES,
)


class IndexSlots:
    """The segment of slots: numbers that are free, and the words and bytes of those that are in use.

    Its memory is allocated as it is needed; the segment is as large as the index can become.
    """

    def __init__(self, segment: MemorySegment) -> None:
        self.segment = segment
        self.words = segment.view.cast("Q")
        self._view = segment.view
        self._free: list[int] = []
        self.end = 1  # the first slot that was never used
        self._usable_bytes = 0  # of the memory that is allocated
        self._stamp = 0

    def prepare(self) -> None:
        """Allocate memory for the header. Raise `OSError` if there is none."""
        self.segment.allocate(SLOT_BYTES)

    def allocate(self) -> int | None:
        """Return the number of a free slot, or None if there is no memory for one."""
        if self._free:
            return self._free.pop()
        slot = self.end
        if (slot + 1) * SLOT_BYTES > self._usable_bytes and not self._extend():
            return None
        self.end = slot + 1
        return slot

    def _extend(self) -> bool:
        """Allocate memory for one more slot at least. Return False if there is none."""
        if self.is_full:
            return False
        try:
            self.segment.allocate((self.end + 1) * SLOT_BYTES)
        except OSError:
            return False
        self._usable_bytes = min(self.segment.allocated, (limits.INDEX_SLOTS_MAX + 1) * SLOT_BYTES)
        return True

    def free(self, slot: int) -> None:
        """Free a slot and those in which its record goes on."""
        words = self.words
        words[slot * SLOT_WORDS + STAMP] = 0
        while slot:
            self._free.append(slot)
            at = slot * SLOT_WORDS + NEXT
            slot, words[at] = words[at], 0

    def write(self, slot: int, record: bytes) -> bool:
        """Write a record into a slot, whose former record is gone, and into further ones if it is long.

        Return False if there is no memory for these.
        """
        words, at = self.words, slot * SLOT_WORDS
        if further := words[at + NEXT]:
            words[at + NEXT] = 0
            self.free(further)
        self._stamp += 1
        words[at + STAMP] = self._stamp
        length = words[at + LENGTH] = len(record)
        if length <= PAYLOAD_BYTES:  # nearly always
            offset = at * WORD_BYTES + PAYLOAD
            self._view[offset : offset + length] = record
            return True
        for start in range(0, length, PAYLOAD_BYTES):
            if start:
                following = self.allocate()
                if following is None:
                    return False
                words[at + NEXT] = following
                at = following * SLOT_WORDS
            part = record[start : start + PAYLOAD_BYTES]
            offset = at * WORD_BYTES + PAYLOAD
            self._view[offset : offset + len(part)] = part
        return True

    def write_accesses(self, slot: int, count: int, accessed_ms: int) -> None:
        """Write what is known of the accesses to a fragment. Readers see the two numbers at any time."""
        at = slot * SLOT_WORDS
        self.words[at + ACCESS_COUNT] = count
        self.words[at + ACCESSED_MS] = accessed_ms

    @property
    def is_full(self) -> bool:
        """True if no slot is free, as far as the size of the segment says."""
        return not self._free and self.end > limits.INDEX_SLOTS_MAX

    def close(self) -> None:
        """Close the segment. Readers keep what they have mapped."""
        self.words.release()
        self.segment.close()
