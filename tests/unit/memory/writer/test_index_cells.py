"""The hash table of the index: a cell in one of two buckets, found by whoever has the hash."""

import errno
import os
import random
from collections.abc import Callable, Iterator

import pytest

from stepwell import limits
from stepwell.limits import MIB
from stepwell.memory.writer.index_cells import IndexCells
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import BUCKET, BUCKET_CELLS, buckets_of

Make = Callable[[int], IndexCells]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes tables of a number of buckets, with all their memory."""
    made: list[IndexCells] = []

    def table(buckets: int) -> IndexCells:
        cells = IndexCells(MemorySegment(len(made) + 1, buckets * BUCKET.size))
        made.append(cells)
        while not cells.prepare():
            pass
        return cells

    yield table
    for cells in made:
        cells.close()


def entries(cells: IndexCells) -> list[tuple[int, int, int]]:
    """All cells in use: bucket, hash and slot."""
    found: list[tuple[int, int, int]] = []
    for bucket, words in enumerate(BUCKET.iter_unpack(cells.segment.view)):
        hashes, slots = words[:BUCKET_CELLS], words[BUCKET_CELLS:]
        found += [(bucket, hashed, slot) for hashed, slot in zip(hashes, slots, strict=True) if slot]
    return found


def test_cell_is_in_a_bucket_of_its_hash(make: Make) -> None:
    """Whatever was added and removed before: each slot is there once, with its hash, and the count is right."""
    cells, generator = make(8), random.Random(1)
    kept: dict[int, int] = {}
    for slot in range(1, 300):
        hashed = generator.getrandbits(64)
        if cells.add(hashed, slot):
            kept[slot] = hashed
        if generator.random() < 0.8 and kept:
            gone = generator.choice([*kept])
            cells.remove(kept.pop(gone), gone)
        found = entries(cells)
        assert {slot: hashed for _, hashed, slot in found} == kept
        assert all(bucket in buckets_of(hashed, 8) for bucket, hashed, _ in found)
        assert cells.count == len(found) == len(kept)


def test_full_buckets_refuse(make: Make) -> None:
    """Only when both are full, and nothing of what they have is lost; with room there is room again."""
    cells, hashed = make(4), 0x2_0000_0001
    assert cells.capacity == 4 * BUCKET_CELLS
    assert [cells.add(hashed, slot) for slot in range(1, 18)] == [True] * 16 + [False]
    assert cells.count == 16
    assert {bucket for bucket, _, _ in entries(cells)} == {1, 2}
    cells.remove(hashed, 5)
    assert cells.add(hashed, 17)
    assert {slot for _, _, slot in entries(cells)} == {*range(1, 18)} - {5}


def test_emptier_bucket_is_taken(make: Make) -> None:
    """So that both fill up evenly."""
    cells = make(4)
    for slot in range(1, 7):
        cells.add(0x2_0000_0001, slot)
    buckets = [bucket for bucket, _, _ in entries(cells)]
    assert (buckets.count(1), buckets.count(2)) == (3, 3)


def test_removing_what_is_not_there(make: Make) -> None:
    """A slot that found no room in this table changes nothing of it."""
    cells = make(2)
    cells.add(0, 1)
    cells.remove(1, 2)
    cells.remove(0, 2)
    assert (cells.count, entries(cells)) == (1, [(0, 0, 1)])


def test_memory_comes_in_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded one each time, and an error if there is none."""
    segment = MemorySegment(1, 3 * MIB)
    cells = IndexCells(segment)
    seen = []
    while not cells.prepare():
        seen.append(segment.allocated)
    assert seen == [limits.ALLOCATION_BYTES, 2 * limits.ALLOCATION_BYTES]
    assert cells.prepare()
    cells.close()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="space"):
        make(1)
