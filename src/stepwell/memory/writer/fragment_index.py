"""The fragment index, as the manager writes it: hot fragments in a table that clients read without a request.

`protocol.fragment_index` describes the table. Here is what the manager decides:

- *What is in it.* A hot fragment whose body is raw in shared memory. A fragment that a client has asked for is entered
  in the same turn, and several others with it; the rest follows in idle moments. So a store of a new fragment costs
  nothing here, and clients that begin to read ask for a small share of the fragments.
- *When it changes.* What changes in a turn is noted, and `publish` writes it after the commit of the turn and before
  its replies, all between one odd and the next even sequence number. A fragment that is no longer hot leaves the index
  in the same way.
- *Bodies that are moved.* A record may name the old place of a body. That is right as long as a client has the old
  segment mapped, because bytes never change. Otherwise the client asks, and the record is written anew.

Want of memory never fails a command: the fragment is then not in the index.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import chain, islice
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import HOT, FragmentRow
from stepwell.domain.tiers.table import FragmentTable, Key
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import AnyChange
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.index_cells import IndexCells
from stepwell.memory.writer.index_slots import IndexSlots
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import (
    CELL_BYTES,
    CELLS,
    CHAIN_SLOTS_MAX,
    KEY_BYTES,
    NOW_MS,
    PAYLOAD_BYTES,
    SEQUENCE,
    SLOT_BYTES,
    VALID_UNTIL,
    IndexRecord,
    encode_record,
    hash_of,
)
from stepwell.protocol.handles import Handle

_VALID_NS: Final = limits.INDEX_VALID_MS * 1_000_000
_RENEWAL_NS: Final = _VALID_NS // 10  # a turn within this time of the last renewal renews nothing
_RETRY_NS: Final = int(limits.BLOCKED_RETRY_SECONDS * 1e9)
_NO_SLOTS: Final[dict[str, int]] = {}


class FragmentIndex:
    """The index of one manager. The state owner creates it; only the manager's thread uses it.

    It has no memory until the first fragment is asked for. `on_valid` is told up to when the index may be read, before
    readers are, and 0 when they may not read it any more: the next manager waits for that time.

    A fragment that has changed is in `_changed` until the next `publish`. `_places` has the slot of each fragment in
    the index, by project and id; `_handles` and `_hashes` have the place of the body and the hash, by slot. While a
    larger hash table is being filled, `_successor` has it, and all slots before `_copied` are in it. None is, not even
    the unused slot 0, before the table has its memory.
    """

    def __init__(
        self,
        fragments: FragmentTable,
        bodies: BodyStore,
        *,
        on_valid: Callable[[int], None],
        make_segment: Callable[[int, int], MemorySegment] = MemorySegment,
    ) -> None:
        self._fragments = fragments
        self._bodies = bodies
        self._on_valid = on_valid
        self._make_segment = make_segment
        self.key = secrets.token_bytes(KEY_BYTES)  # of the hash
        self._slots: IndexSlots | None = None
        self._cells: IndexCells | None = None
        self._successor: IndexCells | None = None
        self._copied = 0
        self._places: dict[str, dict[str, int]] = {}
        self._handles: dict[int, Handle] = {}
        self._hashes = array("Q", [0])
        self._changed: dict[Key, None] = {}
        # Projects with fragments that idle moments have not come to, each with the serial before the first of them; and
        # projects with bodies that were moved, whose fragments are looked at again.
        self._unfilled: dict[str, int] = {}
        self._moved: dict[str, int] = {}
        self._listed_to: str | None = None  # the last project that was put there after the opening; None: all were
        self.retired: list[MemorySegment] = []  # were replaced, and are open until `close_retired`
        self._renew_at_ns = 0
        self._asked = 0  # reads of this turn that found nothing in the index
        self._open_at_ns = 0  # after there was no memory for it
        self.is_disabled = False  # by the settings

    def __bool__(self) -> bool:
        """True if the index is open, so that changes have to be noted."""
        return self._slots is not None

    def __len__(self) -> int:
        """The number of fragments in the index."""
        return len(self._handles)

    @property
    def segments(self) -> tuple[MemorySegment, ...]:
        """The segments that clients map: that of the slots and that of the hash table, or none if it is not open."""
        if self._slots is None or self._cells is None:
            return ()
        return self._slots.segment, self._cells.segment

    @property
    def bytes_taken(self) -> int:
        """The bytes of memory that the index takes."""
        return sum(segment.allocated for segment in (*self.segments, *self.retired))

    # What happened in the turn.

    def note_changes(self, changes: Iterable[AnyChange]) -> None:
        """Note changes of rows. Those of fragments matter: of a new one, and of one that is in the index."""
        for change in changes:
            row = change.before or change.after
            if isinstance(row, FragmentRow):
                if change.before is None:
                    self._note_created(row)
                self._note_changed(row)

    def note_stores(self, run: StoreRun) -> None:
        """Note the changes of a run of stores. This is the fast path of `note_changes`."""
        rows, replaced = run.rows, run.replaced
        places = self._places.get(rows[0].project, _NO_SLOTS)
        if len(replaced) < len(rows):
            self._note_created(next(row for row in rows if row.revision not in replaced))
        for row in rows:
            if row.fragment_id in places:
                self._changed[row.project, row.fragment_id] = None
        if run.demotions:
            for before, _ in chain.from_iterable(run.demotions.values()):
                self._note_changed(before)

    def _note_changed(self, row: FragmentRow) -> None:
        if row.fragment_id in self._places.get(row.project, _NO_SLOTS):
            self._changed[row.project, row.fragment_id] = None

    def _note_created(self, row: FragmentRow) -> None:
        """Note that this fragment is new, and perhaps later ones of its project. They are entered in idle moments."""
        if self._slots is not None and not self._slots.is_full:
            self._unfilled.setdefault(row.project, row.serial - 1)

    def note_read(self, row: FragmentRow, handle: Handle, together: int = 1) -> None:
        """Note that a client has asked for a hot fragment, so that the next reader need not.

        One that is in the index with the same place is left as it is. If its body was moved, so were others, and all
        records of the project are looked at again. With it, the client has asked for others: there are `together`.
        These are not entered for being asked for, because those of a batch are asked for in any case.
        """
        if self.is_disabled:
            return
        self._asked += together
        key = row.project, row.fragment_id
        slot = self._places.get(row.project, _NO_SLOTS).get(row.fragment_id)
        if slot is None:
            self._changed[key] = None
        elif self._handles[slot] is not handle and key not in self._changed:
            self._changed[key] = None
            self._moved.setdefault(row.project, 0)

    def note_accesses(self, entries: Iterable[FragmentEntry]) -> None:
        """Let readers see that clients have accessed fragments, as they have reported it. No record changes."""
        slots = self._slots
        if slots is None:
            return
        project, places = "", _NO_SLOTS
        for entry in entries:
            row = entry.row
            if row.project is not project:  # all rows of a project have the same object
                project, places = row.project, self._places.get(row.project, _NO_SLOTS)
            slot = places.get(row.fragment_id)
            if slot is not None:
                slots.write_accesses(slot, entry.access_count, entry.last_accessed_ms)

    def publish(self, now_ms: int, *, is_active: bool = True) -> None:
        """Show readers the state after the commit of a turn. If clients are active, let them read it for a while.

        A client that reads sends a request now and then, so that no turn without one has to move the validity.
        """
        slots = self._slots
        if slots is None:
            if not self._changed or time.clock_gettime_ns(time.CLOCK_BOOTTIME) < self._open_at_ns or not self._open():
                return
            slots = self._slots
            assert slots is not None
        if self._asked:
            self._advance(min(self._asked * limits.INDEX_ROWS_PER_READ, limits.INDEX_ROWS_PER_TURN_MAX))
            self._asked = 0
        words = slots.words
        if self._changed or (self._successor is not None and self._is_copied):
            prepared = [(key, self._prepared(key)) for key in self._changed]
            self._changed.clear()
            sequence = words[SEQUENCE]
            words[SEQUENCE] = sequence + 1  # an exception below leaves it odd: no client reads what is half written
            for key, record in prepared:
                self._enter(slots, key, record)
            if self._successor is not None and self._is_copied:
                self._exchange_cells(words)
            words[SEQUENCE] = sequence + 2
        words[NOW_MS] = now_ms
        if not is_active:
            return
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if now_ns >= self._renew_at_ns or not words[VALID_UNTIL]:
            self._renew(words, now_ns)

    def _renew(self, words: memoryview, now_ns: int) -> None:
        """Let clients read for another period. The next manager has to know of it first, or they may not."""
        self._renew_at_ns = now_ns + _RENEWAL_NS
        try:
            self._on_valid(now_ns + _VALID_NS)
        except OSError:
            words[VALID_UNTIL] = 0
        else:
            words[VALID_UNTIL] = now_ns + _VALID_NS

    def invalidate(self) -> None:
        """Let no reader use the index any more, because the manager ends."""
        if self._slots is not None:
            self._slots.words[VALID_UNTIL] = 0
            with suppress(OSError):
                self._on_valid(0)

    def work(self) -> bool:
        """Do a slice of work for an idle moment: enter some fragments, or copy some cells. Return True if any was done.

        The fragments are in the index after the next `publish`.
        """
        return self._slots is not None and self._advance(limits.INDEX_ROWS_PER_SLICE)

    def close_retired(self) -> list[tuple[int, int]]:
        """Close the segments that were replaced, and return their numbers and sizes."""
        gone = [(segment.number, segment.size) for segment in self.retired]
        for segment in self.retired:
            segment.close()
        self.retired.clear()
        return gone

    def close(self) -> None:
        """Release all memory. Readers keep what they have mapped, up to the end of its validity."""
        self.close_retired()
        for cells in (self._cells, self._successor):
            if cells is not None:
                cells.close()
        if self._slots is not None:
            self._slots.close()
        self._slots = self._cells = self._successor = None

    def _open(self) -> bool:
        """Create the segments. Without memory for them there is no index for a while, and every read is a request."""
        with ExitStack() as undo:
            try:
                slots = IndexSlots(self._new_segment((limits.INDEX_SLOTS_MAX + 1) * SLOT_BYTES))
                undo.callback(slots.close)
                cells = IndexCells(self._new_segment(limits.INDEX_CELLS_MIN * CELL_BYTES))
                undo.callback(cells.close)
                slots.prepare()
                cells.prepare()
            except (OSError, MemoryError):
                self._changed.clear()
                self._open_at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + _RETRY_NS
                return False
            undo.pop_all()
        self._slots, self._cells = slots, cells
        slots.words[CELLS] = cells.segment.number
        self._listed_to = ""
        if self._is_short(cells.capacity):
            self._grow()
        return True

    def _new_segment(self, size: int) -> MemorySegment:
        return self._make_segment(next(self._bodies.numbers), size)

    def _prepared(self, key: Key) -> tuple[FragmentEntry, Handle, bytes] | None:
        """Return a fragment, the place of its body and its record, or None if it cannot be in the index."""
        project, fragment_id = key
        entry = self._fragments.find(project, fragment_id)
        # A read that moves the time of expiry has to be a request.
        if entry is None or (row := entry.row).tier is not HOT or row.expires_after_ms is not None:
            return None
        handle = self._bodies.handles[row.digest]
        if handle.packed_bytes or handle.segment not in self._bodies.arena.segments:
            return None  # it has just been promoted, and is raw and in memory in a moment
        record = encode_record(IndexRecord(row, handle))
        return (entry, handle, record) if len(record) <= CHAIN_SLOTS_MAX * PAYLOAD_BYTES else None

    def _enter(self, slots: IndexSlots, key: Key, prepared: tuple[FragmentEntry, Handle, bytes] | None) -> None:
        """Write the record of a fragment, or remove the fragment from the index."""
        slot = self._places.get(key[0], _NO_SLOTS).get(key[1])
        if prepared is None:
            if slot is not None:
                self._remove(slots, key, slot)
            return
        entry, handle, record = prepared
        if slot is None:
            slot = self._add(slots, key)
        if slot is not None:
            self._handles[slot] = handle
            if slots.write(slot, record):
                slots.write_accesses(slot, entry.access_count, entry.last_accessed_ms)
            else:
                self._remove(slots, key, slot)
        elif self._successor is not None:  # the larger table has a cell for it: an idle moment tries again
            before = entry.row.serial - 1
            self._unfilled[key[0]] = min(before, self._unfilled.get(key[0], before))

    def _add(self, slots: IndexSlots, key: Key) -> int | None:
        """Give a fragment a slot and a cell, and return the slot, or None if there is no room."""
        assert self._cells is not None
        slot = slots.allocate()
        if slot is None:
            return None
        project, fragment_id = key
        hashed = hash_of(self.key, project, fragment_id)
        if not self._cells.add(hashed, slot):
            slots.free(slot)
            self._grow()
            return None
        if self._cells.is_crowded:
            self._grow()
        successor, is_copied = self._successor, self._successor is not None and self._is_copied
        hashes = self._hashes
        while len(hashes) <= slot:
            hashes.append(0)
        hashes[slot] = hashed
        if is_copied:  # the larger table has all other slots: it keeps up, or it would never be used while clients ask
            self._copied = len(hashes)
        if successor is not None and slot < self._copied:
            successor.add(hashed, slot)
        self._places.setdefault(project, {})[fragment_id] = slot
        return slot

    def _remove(self, slots: IndexSlots, key: Key, slot: int) -> None:
        """Remove a fragment from the index."""
        assert self._cells is not None
        hashed = self._hashes[slot]
        self._cells.remove(hashed, slot)
        if self._successor is not None and slot < self._copied:
            self._successor.remove(hashed, slot)
        self._hashes[slot] = 0
        self._handles.pop(slot, None)
        slots.free(slot)
        places = self._places[key[0]]
        del places[key[1]]
        if not places:
            del self._places[key[0]]

    def _advance(self, rows: int) -> bool:
        """Enter up to so many fragments that no client has asked for. While the hash table grows, copy cells instead.

        Return True if there was anything to do.
        """
        if self._successor is not None and not self._is_copied:
            self._copy_cells(self._successor)
            return True
        return self._fill(rows)

    def _fill(self, rows: int) -> bool:
        """Enter up to so many fragments that no client has asked for. Return True if there were any to look at.

        Those whose record names the old place of their body count as not entered.
        """
        assert self._slots is not None
        if self._slots.is_full:
            self._unfilled.clear()
        elif self._listed_to is not None:
            return self._list_projects(self._listed_to)
        waiting = self._unfilled or self._moved
        if not waiting:
            return False
        project, serial = next(iter(waiting.items()))
        entries = [*islice(self._fragments.created_after(project, serial), rows)]
        if not entries:
            del waiting[project]
            return True
        waiting[project] = entries[-1].row.serial
        places, handles = self._places.get(project, _NO_SLOTS), self._bodies.handles
        for entry in entries:
            row = entry.row
            if row.tier is HOT:
                slot = places.get(row.fragment_id)
                if slot is None or self._handles[slot] is not handles[row.digest]:
                    self._changed[project, row.fragment_id] = None
        return True

    def _list_projects(self, after: str) -> bool:
        """Note some of the projects that had fragments when the index was opened."""
        found = [*islice(self._fragments.projects_after(after), limits.INDEX_PROJECTS_PER_SLICE)]
        self._unfilled.update(dict.fromkeys(found, 0))
        self._listed_to = found[-1] if found else None
        return True

    # Growth.

    def _grow(self) -> None:
        """Begin to fill a larger hash table, with room for all hot fragments. It is used once all slots are in it."""
        assert self._cells is not None
        capacity = self._cells.capacity * limits.INDEX_GROWTH
        if self._successor is not None or capacity > limits.INDEX_CELLS_MAX:
            return
        while self._is_short(capacity) and capacity * limits.INDEX_GROWTH <= limits.INDEX_CELLS_MAX:
            capacity *= limits.INDEX_GROWTH
        with suppress(OSError, MemoryError):
            self._successor = IndexCells(self._new_segment(capacity * CELL_BYTES))
            self._copied = 0

    def _is_short(self, capacity: int) -> bool:
        """Return True if a hash table of this size would be crowded with all hot fragments in it."""
        return self._fragments.usage(HOT).entries * 100 > limits.INDEX_CELLS_PERCENT_GROWTH * capacity

    @property
    def _is_copied(self) -> bool:
        """True if the larger hash table has all slots."""
        return self._successor is not None and self._copied >= len(self._hashes)

    def _copy_cells(self, successor: IndexCells) -> None:
        """Enter some slots into the larger hash table, once its memory is there. Without memory it is given up."""
        try:
            if not successor.prepare():
                return
        except OSError:
            successor.close()
            self._successor = None
            return
        end = min(len(self._hashes), self._copied + limits.INDEX_CELLS_PER_SLICE)
        for slot in range(self._copied, end):  # no fragment has the hash of slot 0
            if hashed := self._hashes[slot]:
                successor.add(hashed, slot)
        self._copied = end

    def _exchange_cells(self, words: memoryview) -> None:
        """Use the larger hash table from now on."""
        assert self._cells is not None
        assert self._successor is not None
        self._cells.release()
        self.retired.append(self._cells.segment)
        self._cells, self._successor = self._successor, None
        words[CELLS] = self._cells.segment.number
