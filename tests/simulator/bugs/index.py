"""Bugs of the index of reads: clients see what is not committed, what is old, or what is not hot any more."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.manager import process
from stepwell.manager.loop import Loop
from stepwell.memory.reader import index_reader
from stepwell.memory.reader.index_reader import IndexReader, Key, KnownRecord
from stepwell.memory.writer.fragment_index import FragmentIndex
from stepwell.memory.writer.index_slots import IndexSlots
from stepwell.protocol.fragment_index import SEQUENCE
from stepwell.protocol.handles import Handle
from tests.simulator.bugs.registry import bug, do_nothing, patched

Prepared = tuple[FragmentEntry, Handle, bytes] | None


@bug("The index is published before the commit of the turn.")
def index_published_before_commit() -> AbstractContextManager[None]:
    def turn(self: Loop) -> None:
        ready = self._poll()
        self._now_s = self._requests.now_s()
        busy = self._apply(ready)
        self._index.publish(self._requests.clock.latest_ms)
        self._journal.commit()
        self._reply(busy)
        self._sharing.close_retired()

    return patched((Loop, "turn", turn))


@bug("The index is published after the replies of the turn, when clients have them already.")
def index_published_after_replies() -> AbstractContextManager[None]:
    def turn(self: Loop) -> None:
        self._index.publish(self._requests.clock.latest_ms)  # what the turn before has replied to
        ready = self._poll()
        self._now_s = self._requests.now_s()
        busy = self._apply(ready)
        self._journal.commit()
        self._reply(busy)
        self._sharing.close_retired()

    return patched((Loop, "turn", turn))


@bug("A client reads the index for as long as it has it, whether it is valid or not.")
def index_validity_not_checked() -> AbstractContextManager[None]:
    def find(self: IndexReader, key: Key, _until_ns: int) -> KnownRecord | None:
        index = self._index
        return None if index is None or index.words[SEQUENCE] & 1 else index_reader._look_up(index, key)

    return patched((IndexReader, "find", find))


@bug("A manager serves although clients may still read what the manager before it has published.")
def index_readers_not_waited_for() -> AbstractContextManager[None]:
    return patched((process, "_wait_for_readers", do_nothing))


@bug("A fragment that is demoted or deleted stays in the index.")
def index_record_not_removed() -> AbstractContextManager[None]:
    enter = FragmentIndex._enter

    def enter_only(self: FragmentIndex, slots: IndexSlots, key: Key, prepared: Prepared) -> None:
        if prepared is not None:
            enter(self, slots, key, prepared)

    return patched((FragmentIndex, "_enter", enter_only))


@bug("A fragment that is replaced keeps its record in the index.")
def index_record_not_replaced() -> AbstractContextManager[None]:
    return patched((FragmentIndex, "_note_changed", do_nothing), (FragmentIndex, "note_stores", do_nothing))


@bug("A client takes a record that it has read once for the present one.")
def index_stamp_not_compared() -> AbstractContextManager[None]:
    find = IndexReader.find

    def find_known(self: IndexReader, key: Key, until_ns: int) -> KnownRecord | None:
        known = None if self._index is None else self._index.known.get(key)
        if known is None:
            return find(self, key, until_ns)
        return known if time.clock_gettime_ns(time.CLOCK_BOOTTIME) < until_ns else None

    return patched((IndexReader, "find", find_known))


@bug("A client that knows the record of a fragment does not compare its time of expiry any more.")
def index_expiry_compared_once() -> AbstractContextManager[None]:
    def as_others(self: KnownRecord, _before: KnownRecord | None) -> KnownRecord:
        return self

    return patched((KnownRecord, "looked_up_each_time", as_others))
