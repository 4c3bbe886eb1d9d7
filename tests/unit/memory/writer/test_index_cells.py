"""The hash table of the index: a cell is found from the place of its hash on, whatever was added and removed before."""

import errno
import os
import random
from collections.abc import Callable, Iterator

import pytest

from stepwell import limits
from stepwell.limits import MIB
from stepwell.memory.writer.index_cells import IndexCells
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import CELL_BYTES, CELL_WORDS, HASH, SLOT, place_of
from tests.support.measurement import untraced

Make = Callable[[int], IndexCells]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes tables of a number of cells, with all their memory."""
    made: list[IndexCells] = []

    def table(capacity: int) -> IndexCells:
        cells = IndexCells(MemorySegment(len(made) + 1, capacity * CELL_BYTES))
        made.append(cells)
        while not cells.prepare():
            pass
        return cells

    yield table
    for cells in made:
        cells.close()


def entries(cells: IndexCells) -> list[tuple[int, int, int]]:
    """All cells in use: number, hash and slot."""
    words = cells.segment.view.cast("Q")
    every = [words[at : at + CELL_WORDS].tolist() for at in range(0, len(words), CELL_WORDS)]
    return [(number, cell[HASH], cell[SLOT]) for number, cell in enumerate(every) if cell[SLOT]]


def reached(cells: IndexCells, hashed: int) -> list[int]:
    """All slots that a search from the place of a hash passes before it comes to an empty cell."""
    found = {number: slot for number, _, slot in entries(cells)}
    at = place_of(hashed, (cells.capacity - 1) * CELL_WORDS) // CELL_WORDS
    slots: list[int] = []
    while at in found:
        slots.append(found[at])
        at = (at + 1) % cells.capacity
    return slots


@pytest.mark.parametrize("bits", [64, 3])
def test_each_cell_is_found_from_its_hash(make: Make, bits: int) -> None:
    """Whatever was added and removed before, also among hashes that meet: each slot is there once."""
    cells, generator = make(64), random.Random(1)
    kept: dict[int, int] = {}
    for slot in range(1, 600):
        hashed = generator.getrandbits(bits)
        if cells.add(hashed, slot):
            kept[slot] = hashed
        while kept and generator.random() < (0.4 if len(kept) < 50 else 0.7):
            gone = generator.choice([*kept])
            cells.remove(kept.pop(gone), gone)
        with untraced():  # which looks at all cells each time
            found = entries(cells)
            assert {slot: hashed for _, hashed, slot in found} == kept
            assert cells.count == len(found) == len(kept)
            assert all(slot in reached(cells, hashed) for slot, hashed in kept.items())


def test_full_table_refuses(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its last cell is in use, so that a search always ends; with room there is room again."""
    monkeypatch.setattr(limits, "INDEX_CELLS_PERCENT_MAX", 75)
    cells = make(8)
    assert [cells.add(7, slot) for slot in range(1, 9)] == [True] * 6 + [False] * 2
    assert [slot for _, _, slot in entries(cells)] == [2, 3, 4, 5, 6, 1]  # the search goes on at the beginning
    cells.remove(7, 2)
    assert reached(cells, 7) == [1, 3, 4, 5, 6]
    assert cells.add(7, 9)
    assert reached(cells, 7) == [1, 3, 4, 5, 6, 9]


def test_crowded(make: Make) -> None:
    """A table that is more than half full should be replaced by a larger one."""
    cells = make(8)
    crowded: list[bool] = []
    for slot in range(1, 7):
        cells.add(slot, slot)
        crowded.append(cells.is_crowded)
    assert crowded == [False] * 4 + [True] * 2


def test_removing_what_is_not_there(make: Make) -> None:
    """A slot that found no room in this table changes nothing of it."""
    cells = make(16)
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
