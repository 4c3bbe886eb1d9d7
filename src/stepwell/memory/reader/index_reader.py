"""Lookups in the fragment index, by a client and without a request (see `protocol.fragment_index`).

A lookup returns what was committed at some moment during the call, or None: then the client asks the manager. None says
nothing about the fragment. It may be in another tier, too long for the index, or not there, and the index may be out of
date, or not open.

A record that was read once is kept, decoded, with its stamp. As long as the stamp in the slot is the same, so is the
record. Then a lookup reads two words. If only the stamp differs, the new record is mostly in the same slot.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.errors import BodyGone
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.fragment_index import (
    ACCESS_COUNT,
    ACCESSED_MS,
    CELL_BYTES,
    CELL_WORDS,
    CELLS,
    CHAIN_SLOTS_MAX,
    HASH,
    LENGTH,
    NEXT,
    NOW_MS,
    PAYLOAD,
    PAYLOAD_BYTES,
    SEQUENCE,
    SLOT,
    SLOT_BYTES,
    SLOT_WORDS,
    STAMP,
    VALID_UNTIL,
    IndexRecord,
    decode_record,
    hash_of,
    is_supported,
    place_of,
)

_BOOT: Final = time.CLOCK_BOOTTIME

_NEVER: Final = -1
"""A stamp that no slot has."""

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

    def __init__(self, key: Key, words: memoryview, at: int, read: tuple[int, int, int], record: IndexRecord) -> None:
        """Keep what was read at a slot: its stamp, access count and time of the latest access, and its record."""
        self.key = key
        self.words = words
        self.at = at  # the first word of the slot
        self.stamp, self.access_count, self.last_accessed_ms = read
        self.row = record.row
        self.handle = handle = record.handle
        self.segment, self.start, self.end = handle.segment, handle.offset, handle.offset + handle.size

    def looked_up_each_time(self, before: KnownRecord | None) -> KnownRecord:
        """Return the record as one that is not right for as long as its slot stays as it is, because it expires.

        It goes on with the accesses that this client has counted.
        """
        self.stamp = _NEVER
        if before is not None and before.row.created_at_ms == self.row.created_at_ms:
            self.access_count = max(self.access_count, before.access_count)
            self.last_accessed_ms = max(self.last_accessed_ms, before.last_accessed_ms)
        return self

    def count(self) -> None:
        """Add an access of this client, at the manager's time of its latest turn."""
        words, count = self.words, self.access_count + 1
        others = words[self.at + ACCESS_COUNT]
        self.access_count = others if others > count else count  # noqa: FURB136 - `max` takes longer than the rest
        self.last_accessed_ms = words[NOW_MS]

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

    __slots__ = ("cells", "cells_mask", "cells_number", "key", "known", "slots", "slots_number", "words")

    def __init__(
        self, slots: tuple[int, memoryview], cells: tuple[int, memoryview], key: bytes, known: dict[Key, KnownRecord]
    ) -> None:
        self.slots_number, self.slots = slots
        self.words = self.slots.cast("Q")
        self.cells_number = cells[0]
        self.cells = cells[1].cast("Q")
        self.cells_mask = (len(cells[1]) // CELL_BYTES - 1) * CELL_WORDS
        self.key = key
        self.known = known

    def remember(self, found: KnownRecord) -> KnownRecord:
        """Keep a record for later lookups. When there are too many, those that were found first are dropped."""
        known = self.known
        if len(known) >= limits.INDEX_KNOWN_MAX:
            dropped = limits.INDEX_KNOWN_MAX // limits.INDEX_KNOWN_PARTS
            for key in [*islice(known, dropped)]:  # one step of the interpreter, so that no other thread comes between
                known.pop(key, None)
        known[found.key] = found
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
        # A known record needs no sequence number. While a turn is being published, no lookup returns a part of it. So
        # a record that still has its stamp is of the time before, and so is all that was returned until now.
        if found is None or words[found.at] != found.stamp:
            if self._projects is not None and key[0] not in self._projects:
                return None
            found = (found and _look_up(index, key, found.at // SLOT_WORDS)) or _look_up(index, key)
            if found is None:
                return None
        # The validity comes last: no other manager had acknowledged anything when the words above were read.
        now_ns = time.clock_gettime_ns(_BOOT)
        return found if now_ns < until_ns and now_ns < words[VALID_UNTIL] else None

    def body_of(self, found: KnownRecord) -> memoryview | None:
        """Return the bytes of a fragment's body, in place, or None if their segment is not mapped."""
        segment = self._mappings.mapped.get(found.segment)
        return None if segment is None else segment[found.start : found.end]


def _look_up(index: _OpenIndex, key: Key, known_slot: int = 0) -> KnownRecord | None:
    """Find a record by its name, between two publications. After some attempts, or if there is none, give up.

    With `known_slot` it is looked for in this slot only.
    """
    words = index.words
    try:
        hashed = 0 if known_slot else hash_of(index.key, *key)
    except UnicodeEncodeError:
        return None
    for _ in range(limits.INDEX_ATTEMPTS_MAX):
        sequence = words[SEQUENCE]
        if sequence & 1:
            continue
        slot = known_slot or _slot_of(index, hashed)
        at = slot * SLOT_WORDS
        stamp = words[at + STAMP] if slot else 0
        read = stamp, words[at + ACCESS_COUNT], words[at + ACCESSED_MS]
        encoded = _record_at(index, slot) if stamp else b""
        if words[SEQUENCE] != sequence:
            continue
        if not stamp:
            return None
        record = decode_record(encoded)
        if record.row.key != key:  # another name with the same hash, or that has the slot now
            return None
        found = KnownRecord(key, words, at, read, record)
        if (expires_at_ms := record.row.expires_at_ms) is None:
            return index.remember(found)
        # The manager's time never goes back; that of this process may be behind it, and the word in the index may be
        # old.
        is_there = max(words[NOW_MS], time.time_ns() // 1_000_000) < expires_at_ms
        return index.remember(found.looked_up_each_time(index.known.get(key))) if is_there else None
    return None


def _slot_of(index: _OpenIndex, hashed: int) -> int:
    """Return the slot that the hash table has for a hash, or 0. What it has may be changing."""
    if index.words[CELLS] != index.cells_number:  # a larger table is in use
        return 0
    cells, mask = index.cells, index.cells_mask
    at = place_of(hashed, mask)
    for _ in range(limits.INDEX_CELLS_LOOKED_AT_MAX):
        slot = cells[at + SLOT]
        if not slot or cells[at + HASH] == hashed:
            return slot
        at = at + CELL_WORDS & mask
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
