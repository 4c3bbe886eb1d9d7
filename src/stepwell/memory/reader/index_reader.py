"""Lookups in the fragment index, by a client and without a request (see `protocol.fragment_index`).

A lookup returns what was committed at some moment during the call, or None: then the client asks the manager. None says
nothing about the fragment. It may be in another tier, too long for the index, or not there, and the index may be out of
date, or not open.

A record that was read once is kept, decoded, with its stamp. As long as the stamp in the slot is the same, so is the
record. Then a lookup reads four words.
"""

from __future__ import annotations

import time
from typing import Final

from stepwell import limits
from stepwell.errors import BodyGone
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.fragment_index import (
    BUCKET,
    BUCKET_CELLS,
    CELLS,
    CHAIN_SLOTS_MAX,
    LENGTH,
    NEXT,
    NOW_MS,
    PAYLOAD,
    PAYLOAD_BYTES,
    SEQUENCE,
    SLOT_BYTES,
    SLOT_WORDS,
    STAMP,
    VALID_UNTIL,
    IndexRecord,
    buckets_of,
    decode_record,
    hash_of,
    is_supported,
)

_BOOT: Final = time.CLOCK_BOOTTIME

Key = tuple[str, str]
"""A project and the id of a fragment."""


class KnownRecord:
    """A record that was read: the fragment's row, the place of its body, and where its stamp is.

    The accesses of this client since then are added to it. Threads may lose some of these additions.
    """

    __slots__ = ("access_count", "at", "handle", "key", "last_accessed_ms", "row", "stamp")

    def __init__(self, key: Key, at: int, stamp: int, record: IndexRecord) -> None:
        self.key = key
        self.at = at  # the word of the stamp
        self.stamp = stamp
        self.row = record.row
        self.handle = record.handle
        self.last_accessed_ms = record.last_accessed_ms
        self.access_count = record.access_count


class _OpenIndex:
    """The two segments of an index, mapped read-only, and the records that were read in its slots.

    `known` belongs to the slots: a slot never moves, and no stamp comes twice, but the next manager has the same ones.
    """

    __slots__ = ("buckets", "cells", "cells_number", "key", "known", "slots", "slots_number", "words")

    def __init__(self, slots: tuple[int, memoryview], cells: tuple[int, memoryview], key: bytes) -> None:
        self.slots_number, self.slots = slots
        self.cells_number, self.cells = cells
        self.known: dict[Key, KnownRecord] = {}
        self.words = self.slots.cast("Q")
        self.buckets = len(self.cells) // BUCKET.size
        self.key = key


class IndexReader:
    """The index of one manager, as one client sees it. Any number of threads may use it, without a lock.

    `_index` is exchanged as a whole.
    """

    def __init__(self, mappings: Mappings) -> None:
        self._mappings = mappings
        self._index: _OpenIndex | None = None

    def open(self, slots: int, cells: int, key: bytes) -> None:
        """Use the index in two segments. They were mapped before, unless that is impossible: then there is no index.

        An older index, which was announced on another connection and is read late, does not replace a newer one.
        """
        index = self._index
        if not is_supported() or (index is not None and (slots, cells) < (index.slots_number, index.cells_number)):
            return
        try:
            found = _OpenIndex((slots, self._mappings.segment(slots)), (cells, self._mappings.segment(cells)), key)
        except BodyGone:
            return
        if index is not None and index.slots_number == slots:
            found.known = index.known
        self._index = found

    def close_unmapped(self) -> None:
        """Close the index if one of its segments is not mapped any more, because the manager has retired it."""
        index = self._index
        if index is not None and not self._mappings.has_all((index.slots_number, index.cells_number)):
            self.close()

    def count(self, found: KnownRecord) -> None:
        """Add an access to a record that was found, at the manager's time of its latest turn."""
        found.access_count += 1
        if (index := self._index) is not None:
            found.last_accessed_ms = index.words[NOW_MS]

    def note_answer(self, key: Key, last_accessed_ms: int, access_count: int) -> None:
        """Note the accesses that the manager has counted, so that a later lookup does not return less."""
        found = None if (index := self._index) is None else index.known.get(key)
        if found is not None:
            found.last_accessed_ms = max(found.last_accessed_ms, last_accessed_ms)
            found.access_count = max(found.access_count, access_count)

    def close(self) -> None:
        """Use no index, until another one is opened."""
        self._index = None

    def find(self, key: Key, until_ns: int) -> KnownRecord | None:
        """Return the record of a fragment, or None if the manager has to be asked, at the latest from `until_ns` on."""
        index = self._index
        if index is None:
            return None
        words = index.words
        sequence = words[SEQUENCE]
        found = index.known.get(key)
        if found is None or words[found.at] != found.stamp or sequence & 1 or words[SEQUENCE] != sequence:
            found = _look_up(index, key)
            if found is None:
                return None
        # The validity comes last: no other manager had acknowledged anything when the words above were read.
        now_ns = time.clock_gettime_ns(_BOOT)
        return found if now_ns < until_ns and now_ns < words[VALID_UNTIL] else None


def _look_up(index: _OpenIndex, key: Key) -> KnownRecord | None:
    """Find a record by its name, between two publications. After some attempts, or if there is none, give up."""
    words = index.words
    hashed = hash_of(index.key, *key)
    for _ in range(limits.INDEX_ATTEMPTS_MAX):
        sequence = words[SEQUENCE]
        if sequence & 1:
            continue
        if words[CELLS] != index.cells_number:
            return None
        slot = _slot_of(index, hashed)
        stamp = words[slot * SLOT_WORDS + STAMP]
        encoded = _record_at(index, slot) if slot else b""
        if words[SEQUENCE] != sequence:
            continue
        if not slot:
            return None
        record = decode_record(encoded)
        if record.row.key != key:  # another name with the same hash
            return None
        return _remember(index, KnownRecord(key, slot * SLOT_WORDS + STAMP, stamp, record))
    return None


def _remember(index: _OpenIndex, found: KnownRecord) -> KnownRecord:
    """Keep a record for later lookups. When there are too many, all are dropped, which costs a lookup each."""
    if len(index.known) >= limits.INDEX_KNOWN_MAX:
        index.known.clear()
    index.known[found.key] = found
    return found


def _slot_of(index: _OpenIndex, hashed: int) -> int:
    """Return the slot that the hash table has for a hash, or 0. What it has may be changing."""
    for bucket in buckets_of(hashed, index.buckets):
        cells: tuple[int, ...] = BUCKET.unpack_from(index.cells, bucket * BUCKET.size)
        for cell in range(BUCKET_CELLS):
            if cells[cell] == hashed and cells[cell + BUCKET_CELLS]:
                return cells[cell + BUCKET_CELLS]
    return 0


def _record_at(index: _OpenIndex, slot: int) -> bytes:
    """Return the bytes of the record that begins in a slot. They may be changing, so nothing in them is relied on."""
    words, slots = index.words, index.slots
    length = words[slot * SLOT_WORDS + LENGTH]
    start = slot * SLOT_BYTES + PAYLOAD
    if length <= PAYLOAD_BYTES:
        return bytes(slots[start : start + length])
    parts: list[bytes] = []
    for _ in range(CHAIN_SLOTS_MAX):
        start = slot * SLOT_BYTES + PAYLOAD
        parts.append(bytes(slots[start : start + min(length, PAYLOAD_BYTES)]))
        length -= PAYLOAD_BYTES
        slot = words[slot * SLOT_WORDS + NEXT]
        if length <= 0 or not slot:
            break
    return b"".join(parts)
