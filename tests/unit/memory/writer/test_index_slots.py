"""The slots of the index: a record in one slot or a chain of them, and no slot in two records."""

import errno
import os
import random
from collections.abc import Iterator

import pytest

from stepwell import limits
from stepwell.memory.reader.index_reader import _OpenIndex, _record_at
from stepwell.memory.writer.index_slots import IndexSlots
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import (
    CHAIN_SLOTS_MAX,
    NEXT,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    SLOT_WORDS,
    STAMP,
)
from tests.support.memory.bodies import noise

LONGEST = CHAIN_SLOTS_MAX * PAYLOAD_BYTES
ROOM = 64


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexSlots]:
    """Slots for few records, which allocate memory for four at a time."""
    monkeypatch.setattr(limits, "INDEX_SLOTS_MAX", ROOM)
    monkeypatch.setattr(limits, "ALLOCATION_BYTES", 4 * SLOT_BYTES)
    made = IndexSlots(MemorySegment(1, (ROOM + 1) * SLOT_BYTES))
    made.prepare()
    yield made
    made.close()


def record_of(slots: IndexSlots, slot: int) -> bytes:
    """The record as a reader finds it."""
    view = slots.segment.view
    index = _OpenIndex((1, view[:]), (2, view[:0]), b"", {})
    try:
        return _record_at(index, slot)
    finally:
        index.words.release()


def chain_of(slots: IndexSlots, slot: int) -> list[int]:
    chain = [slot]
    while following := slots.words[chain[-1] * SLOT_WORDS + NEXT]:
        chain.append(following)
    return chain


def added(slots: IndexSlots, record: bytes) -> int:
    slot = slots.allocate()
    assert slot is not None
    assert slots.write(slot, record)
    return slot


def out_of_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "length", [0, 1, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES, LONGEST - 1, LONGEST]
)
def test_record_is_read_as_it_was_written(slots: IndexSlots, length: int) -> None:
    """In as many slots as it needs, behind the header."""
    slot = added(slots, noise(length))
    assert record_of(slots, slot) == noise(length)
    assert len(chain_of(slots, slot)) == max(1, -(-length // PAYLOAD_BYTES))
    assert slot == 1


def test_no_slot_is_in_two_records(slots: IndexSlots) -> None:
    """Whatever is written, written over and freed: each slot is free or in one record, and no stamp comes twice."""
    generator = random.Random(1)
    kept: dict[int, bytes] = {}
    stamps: list[int] = []
    for number in range(600):
        record = noise(generator.choice([10, PAYLOAD_BYTES, 700, LONGEST]), number)
        choice = generator.random()
        if choice < 0.4 and (slot := slots.allocate()) is not None:
            if slots.write(slot, record):
                kept[slot] = record
                stamps.append(slots.words[slot * SLOT_WORDS + STAMP])
            else:
                slots.free(slot)
        elif choice < 0.7 and kept:
            slot = generator.choice([*kept])
            if slots.write(slot, record):
                kept[slot] = record
                stamps.append(slots.words[slot * SLOT_WORDS + STAMP])
            else:
                slots.free(slot)
                del kept[slot]
        elif kept:
            slot = generator.choice([*kept])
            slots.free(slot)
            del kept[slot]
        used = [each for slot in kept for each in chain_of(slots, slot)]
        assert sorted(used + slots._free) == [*range(1, slots.end)]
        assert {slot: record_of(slots, slot) for slot in kept} == kept
    assert len({*stamps}) == len(stamps)
    assert slots.end == ROOM + 1


def test_freed_slot_has_no_stamp(slots: IndexSlots) -> None:
    """A reader that knows its former record sees that it is gone, also when the slot continues another record."""
    first = added(slots, noise(10))
    slots.free(first)
    assert slots.words[first * SLOT_WORDS + STAMP] == 0
    second = added(slots, noise(LONGEST))
    assert all(slots.words[slot * SLOT_WORDS + STAMP] == 0 for slot in chain_of(slots, second)[1:])


def test_all_slots_are_used_and_no_more(slots: IndexSlots) -> None:
    """The bound is that of the segment."""
    found = [slots.allocate() for _ in range(ROOM)]
    assert found == [*range(1, ROOM + 1)]
    assert (slots.is_full, slots.allocate()) == (True, None)
    slots.free(7)
    assert (slots.is_full, slots.allocate()) == (False, 7)


def test_no_memory(slots: IndexSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long record that finds no memory for its end leaves no slot behind; with memory it is written."""
    slot = added(slots, noise(10))
    monkeypatch.setattr(os, "posix_fallocate", out_of_space)
    assert not slots.write(slot, noise(LONGEST))
    slots.free(slot)
    assert sorted(slots._free) == [*range(1, slots.end)]
    while slots.allocate() is not None:
        pass
    assert slots.end * SLOT_BYTES <= slots.segment.allocated
    monkeypatch.undo()
    monkeypatch.setattr(limits, "INDEX_SLOTS_MAX", ROOM)
    assert record_of(slots, added(slots, noise(LONGEST))) == noise(LONGEST)
