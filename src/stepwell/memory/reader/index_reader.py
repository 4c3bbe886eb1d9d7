"""Lookups in the fragment index, by a client and without a request (see `protocol.fragment_index`).

A lookup returns what was committed at some moment during the call, or None: then the client asks the manager. None says
nothing about the fragment. It may be in another tier, too long for the index, or not there, and the index may be out of
date, or not open.

A record that was read once is kept, decoded, with its stamp. As long as the stamp in the slot is the same, so is the
record. Then a lookup reads four words.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from stepwell import limits
from stepwell.errors import BodyGone
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.fragment_index import (
    ACCESS_COUNT,
    ACCESSED_MS,
    BUCKET,
    BUCKET_CELLS,
    CELLS,
    CHAIN_SLOTS_MAX,
    LENGTH,
    NEXT,
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
    """A record that was read: the fragment's row, the place of its body, and its slot.

    `access_count` and `last_accessed_ms` are the manager's, and what this client has added. Threads may lose some of
    these additions.
    """

    __slots__ = (
        "access_count",
        "at",
        "end",
        "handle",
        "key",
        "last_accessed_ms",
        "row",
        "segment",
        "stamp",
        "start",
        "words",
    )

    def __init__(self, key: Key, words: memoryview, at: int, stamp: int, record: IndexRecord) -> None:
        self.key = key
        self.words = words
        self.at = at  # the first word of the slot
        self.stamp = stamp
        self.row = record.row
        self.handle = handle = record.handle
        self.segment, self.start, self.end = handle.segment, handle.offset, handle.offset + handle.size
        self.last_accessed_ms = self.access_count = 0
        self.refresh()

    def refresh(self) -> None:
        """Adopt what the manager knows of the accesses of all clients."""
        words, at = self.words, self.at
        self.access_count = max(self.access_count, words[at + ACCESS_COUNT])
        self.last_accessed_ms = max(self.last_accessed_ms, words[at + ACCESSED_MS])


class _OpenIndex:
    """The two segments of an index, mapped read-only, and the records in them that are known.

    The records belong to the slots. A thread that is in the middle of a lookup while another manager's index is opened
    adds its record to the old ones, because the new index has the same slots and stamps for other fragments.
    """

    __slots__ = ("buckets", "cells", "cells_number", "key", "known", "slots", "slots_number", "words")

    def __init__(
        self, slots: tuple[int, memoryview], cells: tuple[int, memoryview], key: bytes, known: dict[Key, KnownRecord]
    ) -> None:
        self.slots_number, self.slots = slots
        self.cells_number, self.cells = cells
        self.words = self.slots.cast("Q")
        self.buckets = len(self.cells) // BUCKET.size
        self.key = key
        self.known = known

    def remember(self, found: KnownRecord) -> KnownRecord:
        """Keep a record for later lookups. When there are too many, all are dropped, which costs a lookup each."""
        if len(self.known) >= limits.INDEX_KNOWN_MAX:
            self.known.clear()
        self.known[found.key] = found
        return found


class IndexReader:
    """The index of one manager, as one client sees it. Any number of threads may use it, without a lock.

    A project outside of `projects` (None: any) is never looked up, because the manager refuses and logs it. `_index` is
    exchanged as a whole. A record that is known stays right as long as its index is the same, because a slot never
    moves and no stamp comes twice.
    """

    def __init__(self, mappings: Mappings, projects: Collection[str] | None = None) -> None:
        self._mappings = mappings
        self._projects = projects
        self._index: _OpenIndex | None = None

    def open(self, slots: int, cells: int, key: bytes) -> None:
        """Use the index in two segments. They were mapped before, unless that is impossible: then there is no index.

        A hash table that was replaced by the present one is not used again. Its message came late, on another
        connection.
        """
        if not is_supported():
            return
        index = self._index
        is_same = index is not None and index.slots_number == slots
        if index is not None and is_same and cells < index.cells_number:
            return
        known = index.known if index is not None and is_same else {}
        with suppress(BodyGone):
            segment = self._mappings.segment
            self._index = _OpenIndex((slots, segment(slots)), (cells, segment(cells)), key, known)

    def close_unmapped(self) -> None:
        """Close the index if one of its segments is not mapped any more, because the manager has retired it."""
        index = self._index
        if index is not None and not self._mappings.has_all((index.slots_number, index.cells_number)):
            self.close()

    def close(self) -> None:
        """Use no index, until another one is opened."""
        self._index = None

    def note_answer(self, key: Key, last_accessed_ms: int, access_count: int) -> None:
        """Note the accesses that the manager has counted, so that a later lookup does not return less."""
        index = self._index
        found = None if index is None else index.known.get(key)
        if found is not None:
            found.last_accessed_ms = max(found.last_accessed_ms, last_accessed_ms)
            found.access_count = max(found.access_count, access_count)

    def find(self, key: Key, until_ns: int) -> KnownRecord | None:
        """Return the record of a fragment, or None if the manager has to be asked, at the latest from `until_ns` on.

        A key that is none is for the manager, too: its refusal says what is wrong with it.
        """
        index = self._index
        if index is None:
            return None
        try:
            found = index.known.get(key)
        except TypeError:  # not hashable
            return None
        words = index.words
        sequence = words[SEQUENCE]
        if found is None or words[found.at] != found.stamp or sequence & 1 or words[SEQUENCE] != sequence:
            if self._projects is not None and key[0] not in self._projects:
                return None
            found = _look_up(index, key)
            if found is None:
                return None
        # The validity comes last: no other manager had acknowledged anything when the words above were read.
        now_ns = time.clock_gettime_ns(_BOOT)
        return found if now_ns < until_ns and now_ns < words[VALID_UNTIL] else None

    def body_of(self, found: KnownRecord) -> memoryview | None:
        """Return the bytes of a fragment's body, in place, or None if their segment is not mapped."""
        segment = self._mappings.mapped.get(found.segment)
        return None if segment is None else segment[found.start : found.end]


def _look_up(index: _OpenIndex, key: Key) -> KnownRecord | None:
    """Find a record by its name, between two publications. After some attempts, or if there is none, give up."""
    words = index.words
    try:
        hashed = hash_of(index.key, *key)
    except UnicodeEncodeError:
        return None
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
        return index.remember(KnownRecord(key, words, slot * SLOT_WORDS, stamp, record))
    return None


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
