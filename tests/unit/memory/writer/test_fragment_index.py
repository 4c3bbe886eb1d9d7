"""The index of reads, as the manager writes it: what is in it, when it changes, and what it does without memory."""

import errno
import itertools
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    PeekFragment,
    PromoteFragment,
    StoreFragment,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.limits import KIB, MIB
from stepwell.memory.reader import index_reader
from stepwell.memory.writer import fragment_index
from stepwell.memory.writer.index_cells import IndexCells
from stepwell.memory.writer.index_slots import IndexSlots
from stepwell.protocol.fragment_index import CELL_BYTES, SLOT_BYTES, VALID_UNTIL
from tests.support.memory.bodies import noise
from tests.support.memory.fragment_index import ORIGIN, IndexHarness, index_harness

CELLS = 16
"""The size of a small hash table, in which a larger one is begun with the ninth fragment and 14 find room."""


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    with index_harness() as made:
        yield made


def open_growing(harness: IndexHarness, names: list[str]) -> list[str]:
    """Store fragments, and open the index so that it has twelve of them and begins to grow. Return their names."""
    for name in names[:8]:
        harness.store(name)
    harness.open(*names[:8])
    for name in names[8:]:
        harness.store(name)
    harness.do(*(GetFragment("p", name) for name in names[8:12]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "INDEX_ROWS_PER_TURN_MAX", 0)
        harness.publish()
    harness.share()
    return names


def refuse(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestOpening:
    def test_no_memory_before_the_first_read(self, harness: IndexHarness) -> None:
        """A runtime whose clients only store has no index."""
        harness.store("a")
        harness.publish()
        assert not harness.index
        assert (harness.index.segments, harness.index.bytes_taken, len(harness.index)) == ((), 0, 0)
        assert not harness.index.work()
        harness.index.invalidate()

    def test_read_fragment_is_entered_in_the_same_turn(self, harness: IndexHarness) -> None:
        """With its row, the place of its body and its accesses; an absent or a cold one is not."""
        harness.store("a", b"body")
        harness.store("warm", tier=Tier.WARM)
        harness.open("a")
        assert harness.index
        assert harness.read("a") == (harness.row("a"), b"body")
        found = harness.find("a")
        assert found is not None
        assert (found.access_count, found.last_accessed_ms) == (1, 1_000)
        harness.do(PeekFragment("p", "warm"))
        harness.publish()
        assert harness.find("warm") is None
        assert harness.find("b") is None
        assert len(harness.index) == 1
        assert harness.index.bytes_taken == sum(each.allocated for each in harness.index.segments) > 0

    def test_disabled(self, harness: IndexHarness) -> None:
        """Reads are noted for nothing."""
        harness.index.is_disabled = True
        harness.store("a")
        harness.do(GetFragment("p", "a"))
        harness.publish()
        assert not harness.index
        assert harness.index._changed == {}

    @pytest.mark.parametrize("failures", [1, 2])
    def test_no_memory(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        """For the one segment or the other: then there is no index for a while, and no descriptor stays."""
        made = harness.index._make_segment
        calls = itertools.count(1)
        monkeypatch.setattr(
            harness.index, "_make_segment", lambda *args: refuse() if next(calls) == failures else made(*args)
        )
        harness.store("a")
        harness.do(GetFragment("p", "a"))
        harness.publish()
        harness.do(GetFragment("p", "a"))
        harness.publish()
        assert not harness.index
        assert next(calls) == failures + 1
        harness.clock.now_ns += int(limits.BLOCKED_RETRY_SECONDS * 1e9)
        harness.open("a")
        assert harness.read("a") == (harness.row("a"), b"a")

    def test_no_pages(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A segment without memory is none."""
        harness.store("a")
        harness.do(GetFragment("p", "a"))
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        harness.publish()
        assert not harness.index


class TestChanges:
    def test_what_is_not_hot_leaves(self, harness: IndexHarness) -> None:
        """By a demotion, a deletion or an eviction, in the turn in which it happens."""
        for name in "abc":
            harness.store(name)
        harness.open(*"abc")
        assert len(harness.index) == 3
        harness.do(DemoteFragment("p", "a"), DeleteFragment("p", "b"))
        harness.publish()
        assert [harness.find(name) is None for name in "abc"] == [True, True, False]
        harness.do(EvictLru(Tier.HOT, 1))
        harness.publish()
        assert harness.find("c") is None
        assert (len(harness.index), harness.index._places) == (0, {})
        assert harness.index._cells is not None
        assert harness.index._cells.count == 0

    def test_replaced_body_and_metadata(self, harness: IndexHarness) -> None:
        """The record has the new row, by the fast path and by the general one."""
        harness.store("a", b"one")
        harness.open("a")
        harness.owner.execute_simple([StoreFragment("p", "a", b"two", 1)], ORIGIN)
        harness.publish()
        assert harness.read("a") == (harness.row("a"), b"two")
        harness.do(StoreFragment("p", "a", b"two", 1, metadata={"k": "v"}))
        harness.publish()
        found = harness.find("a")
        assert found is not None
        assert found.row.metadata == {"k": "v"}
        assert len(harness.index) == 1

    def test_comes_back(self, harness: IndexHarness) -> None:
        """A fragment that was demoted and promoted is entered when it is read again."""
        harness.store("a", b"x" * 5_000)
        harness.open("a")
        harness.do(DemoteFragment("p", "a"))
        harness.publish()
        harness.do(PromoteFragment("p", "a"))
        harness.publish()
        assert harness.find("a") is None
        while harness.owner.bodies.background.work(1.0):
            pass
        harness.do(GetFragment("p", "a"))
        harness.publish()
        harness.share()
        assert harness.read("a") == (harness.row("a"), b"x" * 5_000)

    def test_promoted_body_that_is_still_packed(self, harness: IndexHarness) -> None:
        """Is not in the index until it is raw: the reader would have to expand it at each read."""
        harness.store("a", b"x" * 50_000, tier=Tier.WARM)
        while harness.owner.bodies.background.work(1.0):
            pass
        harness.do(PromoteFragment("p", "a"), PeekFragment("p", "a"))
        harness.publish()
        assert len(harness.index) == 0

    def test_read_of_what_is_there_changes_nothing(self, harness: IndexHarness) -> None:
        """A reader that asks all the same, as it does now and then, costs no publication."""
        harness.store("a")
        harness.open("a")
        before = harness.sequence
        harness.do(GetFragment("p", "a"))
        harness.publish()
        assert harness.sequence == before
        harness.do(DeleteFragment("p", "a"))
        harness.publish()
        assert harness.sequence == before + 2

    def test_nothing_is_seen_before_it_is_published(self, harness: IndexHarness) -> None:
        """Also if it was replaced and deleted again in the same turn."""
        harness.store("a", b"one")
        harness.open("a")
        before = harness.read("a")
        harness.store("a", b"two")
        assert harness.read("a") == before
        harness.do(DeleteFragment("p", "a"))
        assert harness.read("a") == before
        harness.publish()
        assert harness.read("a") is None

    def test_turn_is_between_two_even_numbers(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """All records of a turn are written while the sequence is odd, and a reader gives up meanwhile."""
        for name in "ab":
            harness.store(name)
        harness.open(*"ab")
        assert harness.sequence % 2 == 0
        write, seen = IndexSlots.write, []

        def watched(self: IndexSlots, slot: int, record: bytes) -> bool:
            written = write(self, slot, record)
            seen.append((harness.sequence % 2, harness.find("a"), harness.find("b")))
            return written

        monkeypatch.setattr(IndexSlots, "write", watched)
        harness.do_together(StoreFragment("p", "a", b"1", 1), StoreFragment("p", "b", b"2", 1))
        harness.publish()
        assert seen == [(1, None, None)] * 2
        assert [harness.read(name) for name in "ab"] == [(harness.row("a"), b"1"), (harness.row("b"), b"2")]

    def test_failed_publication_is_never_read(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sequence stays odd when an exception ends it, as when the process dies there."""
        for name in "ab":
            harness.store(name)
        harness.open(*"ab")
        monkeypatch.setattr(IndexSlots, "write", refuse)
        harness.store("a", b"new")
        with pytest.raises(OSError, match="space"):
            harness.publish()
        assert [harness.find(name) for name in "ab"] == [None, None]

    def test_moved_body(self) -> None:
        """The record names the old place until a client asks, and then the new one; both are right."""
        with index_harness(TierBudget(arena_bytes=MIB)) as harness:
            names = [str(number) for number in range(60)]
            for number, name in enumerate(names):
                harness.store(name, noise(9 * KIB, number))
            harness.open("3")
            harness.work()
            before = harness.find("3")
            assert before is not None
            harness.do(*(DeleteFragment("p", name) for name in names if name not in {"3", "4"}))
            while harness.owner.bodies.background.work(1.0):
                pass
            harness.store("last", noise(60 * KIB))
            while harness.owner.bodies.background.work(1.0):
                pass
            harness.publish()
            digest = harness.row("3").digest
            assert harness.owner.bodies.handles[digest] != before.handle, "the body was not moved"
            assert harness.read("3") == (harness.row("3"), noise(9 * KIB, 3))
            assert before.handle.segment in harness.retire()
            assert harness.find("3") == before
            harness.open("3")
            after = harness.find("3")
            assert after is not None
            assert after.handle == harness.owner.bodies.handles[digest]
            assert harness.read("3") == (harness.row("3"), noise(9 * KIB, 3))
            harness.work()
            assert harness.read("4") == (harness.row("4"), noise(9 * KIB, 4)), "it was moved, and not looked at again"


class TestLongRows:
    def test_long_row_takes_several_slots(self, harness: IndexHarness) -> None:
        """A row that grows and shrinks, and one that is too long for the index."""
        for length in (0, 1_000, 10, 1_500, 300):
            harness.do(StoreFragment("p", "a", b"a", 1, metadata={"k": "v" * length}))
            harness.open("a")
            found = harness.find("a")
            assert found is not None
            assert found.row == harness.row("a")
        harness.do(StoreFragment("p", "a", b"a", 1, metadata={"k": "v" * 3_000}))
        harness.publish()
        assert (harness.find("a"), len(harness.index)) == (None, 0)
        assert harness.index._slots is not None
        assert len(harness.index._slots._free) == harness.index._slots.end - 1

    def test_no_slot_is_left(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """What finds none is read by requests; what leaves makes room for another."""
        monkeypatch.setattr(limits, "INDEX_SLOTS_MAX", 3)
        for name in "abcd":
            harness.store(name)
        harness.open(*"abcd")
        assert [harness.find(name) is None for name in "abcd"] == [False, False, False, True]
        harness.do(DeleteFragment("p", "b"))
        harness.publish()
        harness.open("d")
        assert [harness.find(name) is None for name in "abcd"] == [False, True, False, False]

    def test_no_slot_for_the_rest_of_a_record(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fragment leaves the index, with all its slots."""
        monkeypatch.setattr(limits, "INDEX_SLOTS_MAX", 2)
        for name in "ab":
            harness.store(name)
        harness.open(*"ab")
        harness.do(StoreFragment("p", "a", b"a", 1, metadata={"k": "v" * 500}))
        harness.publish()
        assert harness.find("a") is None
        assert harness.read("b") == (harness.row("b"), b"b")
        harness.do(StoreFragment("p", "a", b"a", 1))
        harness.open("a")
        assert harness.read("a") == (harness.row("a"), b"a")

    def test_no_memory_for_a_slot(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same, if it is the system that has none."""
        monkeypatch.setattr(limits, "ALLOCATION_BYTES", 4 * SLOT_BYTES)
        for name in "abcd":
            harness.store(name)
        harness.open("a")
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        harness.open(*"bcd")
        assert [name for name in "abcd" if harness.find(name)] == ["a", "b", "c"]


class TestGrowth:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A few cells at first, which are doubled, and slices of a few."""
        small = {"CELLS_MIN": CELLS, "CELLS_PER_SLICE": 3, "ROWS_PER_SLICE": 4, "GROWTH": 2}
        for name, value in small.items():
            monkeypatch.setattr(limits, f"INDEX_{name}", value)

    def test_readers_go_on(self, harness: IndexHarness) -> None:
        """While a larger table is filled and takes over, with changes in between, a reader finds what is there."""
        names = [f"f{number}" for number in range(100)]
        retired: list[int] = []
        harness.store("first")
        harness.open("first")
        for number, name in enumerate(names):
            harness.store(name)
            harness.do(GetFragment("p", name))
            if number % 3 == 2:
                harness.do(DeleteFragment("p", names[number - 1]))
            harness.publish()
            harness.index.work()
            harness.publish()
            assert harness.find("first") is not None  # known: the old table is not needed for it
            retired += harness.retire()
            harness.share()
            assert harness.read("first") == (harness.row("first"), b"first")
        harness.work()
        harness.share()
        kept = {row.fragment_id for row in map(harness.row, [*_present(harness)])}
        assert {name for name in ["first", *names] if harness.find(name)} == kept
        assert len(retired) >= 2
        assert harness.index._cells is not None
        assert harness.index._cells.count == len(harness.index) == len(kept)
        assert harness.index._cells.capacity > 100

    def test_reader_with_the_old_table(self, harness: IndexHarness) -> None:
        """Finds no new name, until it is given the new table; the old one is retired once."""
        open_growing(harness, [f"f{number}" for number in range(14)])
        old = harness.index.segments[1].number
        assert harness.find("f0") is not None
        harness.work()
        assert harness.index.segments[1].number != old
        assert harness.find("f0") is not None
        assert harness.find("f1") is None
        assert harness.index.bytes_taken > sum(each.allocated for each in harness.index.segments)
        assert harness.retire() == [old]
        assert harness.index.close_retired() == []
        assert harness.find("f0") is None
        harness.share()
        assert harness.find("f1") is not None

    def test_table_is_full(self, harness: IndexHarness) -> None:
        """The fragment is read by requests until the table has grown."""
        names = [f"f{number}" for number in range(17)]
        for name in names:
            harness.store(name)
        harness.open(*names)
        missed = [name for name in names if not harness.find(name)]
        assert len(missed) == 3
        assert len(harness.index) == 14
        harness.work()
        harness.open(*names)
        assert all(harness.read(name) == (harness.row(name), name.encode()) for name in names)

    @pytest.mark.parametrize("function", ["memfd_create", "posix_fallocate"])
    def test_no_memory_for_a_larger_table(self, harness: IndexHarness, function: str) -> None:
        """The old one stays in use, and the growth is tried again with a later fragment."""
        names = [f"f{number}" for number in range(12)]
        for name in names[:8]:
            harness.store(name)
        harness.open(*names[:8])
        for name in names[8:]:
            harness.store(name)
        old = harness.index.segments[1].number
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, function, refuse)
            harness.open(*names[8:])
            harness.work()
        assert harness.index.segments[1].number == old
        assert all(harness.find(name) for name in names)
        harness.store("later")
        harness.open("later")
        harness.work()
        assert harness.index.segments[1].number != old

    def test_grows_to_the_size_that_is_needed(self, harness: IndexHarness) -> None:
        """The first larger table has room for all fragments, and replaces the empty one in the same turn."""
        names = [f"f{number}" for number in range(100)]
        for name in names:
            harness.store(name)
        harness.open("f0")
        assert [harness.index.segments[1].size // CELL_BYTES] == [256]
        assert len(harness.retire()) == 1
        harness.work()
        assert harness.retire() == []
        harness.share()
        assert all(harness.find(name) for name in names)

    def test_grows_while_no_moment_is_idle(self, harness: IndexHarness) -> None:
        """Turns that answer reads copy the cells and enter the fragments, so that the reads end."""
        names = [f"f{number}" for number in range(100)]
        for name in names:
            harness.store(name)
        for name in names:
            harness.do(GetFragment("p", name))
            harness.publish()
        harness.share()
        assert all(harness.find(name) for name in names)

    def test_takes_over_while_clients_ask(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A turn that copies the last cells may enter a fragment, and so a slot. The larger table has it, too."""
        monkeypatch.setattr(limits, "INDEX_CELLS_PER_SLICE", 100)
        names = open_growing(harness, [f"f{number}" for number in range(14)])
        old = harness.index.segments[1].number
        harness.open(names[12])
        assert harness.index.segments[1].number != old
        assert harness.find(names[12]) is not None

    def test_largest_table(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not replaced by a larger one."""
        monkeypatch.setattr(limits, "INDEX_CELLS_MAX", CELLS)
        names = [f"f{number}" for number in range(40)]
        for name in names:
            harness.store(name)
        harness.open(*names)
        harness.work()
        found = [name for name in names if harness.find(name)]
        assert len(found) == len(harness.index) == 14
        assert harness.index.segments[1].size == CELLS * CELL_BYTES
        assert harness.retire() == []

    def test_larger_table_is_touched_where_it_has_memory(
        self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A fragment that leaves before it was copied is not looked for there: the page may be none."""
        open_growing(harness, [f"f{number}" for number in range(12)])
        successor = harness.index._successor
        assert successor is not None
        looked: list[IndexCells] = []
        remove = IndexCells.remove

        def watched(self: IndexCells, hashed: int, slot: int) -> None:
            looked.append(self)
            remove(self, hashed, slot)

        monkeypatch.setattr(IndexCells, "remove", watched)
        harness.do(DeleteFragment("p", "f0"))
        harness.publish()
        assert looked == [harness.index._cells]

    def test_hashes_that_meet(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """All names have one hash: a larger table does not help, and nothing is wrong."""
        for module in (fragment_index, index_reader):
            monkeypatch.setattr(module, "hash_of", lambda *_: 7)
        names = [f"f{number}" for number in range(2 * CELLS)]
        for name in names:
            harness.store(name)
        harness.open(*names)
        harness.work()
        harness.open(*names)
        assert len(harness.index) == len(names)
        assert sum(harness.find(name) is not None for name in names) == 1
        harness.do(*(DeleteFragment("p", name) for name in names))
        harness.publish()
        assert (len(harness.index), harness.index._cells and harness.index._cells.count) == (0, 0)

    def test_changes_while_it_is_copied(self, harness: IndexHarness) -> None:
        """Fragments that come and go in copied and in other slots are in the larger table, or are not."""
        names = [f"f{number}" for number in range(12)]
        open_growing(harness, [*names, "x", "y"])
        while harness.index._copied < 4:
            assert harness.index.work()
        harness.do(*(DeleteFragment("p", name) for name in ("f0", "f1", "f9")))
        harness.publish()
        harness.open("x", "y")
        harness.work()
        harness.share()
        expected = {*names, "x", "y"} - {"f0", "f1", "f9"}
        assert {name for name in [*names, "x", "y"] if harness.find(name)} == expected
        assert harness.index._cells is not None
        assert harness.index._cells.count == len(harness.index) == len(expected)

    def test_closed_while_it_grows(self, harness: IndexHarness) -> None:
        """No segment stays, which the leak check of every test sees to."""
        open_growing(harness, [f"f{number}" for number in range(12)])
        assert harness.index._successor is not None


def _present(harness: IndexHarness) -> Iterator[str]:
    for _, fragment_id in harness.owner._state.fragments.entries:
        yield fragment_id


class TestFilling:
    def test_idle_moments_enter_the_rest(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was stored before and after the index was opened, hot ones only, a slice at a time."""
        monkeypatch.setattr(limits, "INDEX_ROWS_PER_SLICE", 3)
        hot = [f"h{number}" for number in range(7)]
        for name in hot[:5]:
            harness.store(name)
        harness.store("warm", tier=Tier.WARM)
        harness.store("other", project="q")
        harness.open("h0")
        for name in hot[5:]:
            harness.store(name)
        harness.do(DeleteFragment("p", "h1"))
        while len(harness.index) == 1:  # the projects are listed first
            assert harness.index.work()
            harness.publish()
        assert len(harness.index) <= 4
        harness.work()
        found = {name for name in [*hot, "warm"] if harness.find(name)}
        assert found == {*hot} - {"h1"}
        assert harness.read("other", "q") == (harness.row("other", "q"), b"other")
        assert not harness.index.work()
        harness.store("late")
        harness.work()
        assert harness.find("late") is not None

    def test_deleted_before_it_is_published(self, harness: IndexHarness) -> None:
        """A slice decides which fragments to enter, and the publication what they are."""
        for name in "ab":
            harness.store(name)
        harness.open("a")
        assert harness.index.work()
        harness.do(DeleteFragment("p", "b"))
        harness.publish()
        assert harness.find("b") is None

    def test_full(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The work ends when no slot is left."""
        monkeypatch.setattr(limits, "INDEX_SLOTS_MAX", 2)
        for name in "abc":
            harness.store(name)
        harness.open("a")
        harness.work()
        assert len(harness.index) == 2
        assert not harness.index.work()


class TestValidity:
    def test_next_manager_knows_first(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time is written down before readers may rely on it, and again when a tenth of it has passed."""
        told: list[tuple[int, int]] = []
        monkeypatch.setattr(
            harness.index, "_on_valid", lambda until_ns: told.append((until_ns, harness.valid_until_ns))
        )
        harness.store("a")
        began_ns, period_ns = harness.clock.now_ns, limits.INDEX_VALID_MS * 1_000_000
        harness.open("a")
        assert told == [(began_ns + period_ns, 0)]
        assert harness.valid_until_ns == began_ns + period_ns
        harness.clock.forward(limits.INDEX_VALID_MS // 10 - 1)
        harness.publish()
        assert len(told) == 1
        harness.clock.forward(1)
        harness.publish()
        assert told[1:] == [(harness.clock.now_ns + period_ns, began_ns + period_ns)]
        assert harness.valid_until_ns == harness.clock.now_ns + period_ns

    def test_not_written_down(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then no reader may read, until it can be."""
        harness.store("a")
        harness.open("a")
        works = harness.index._on_valid
        monkeypatch.setattr(harness.index, "_on_valid", refuse)
        harness.clock.forward(limits.INDEX_VALID_MS // 2)
        harness.publish()
        assert (harness.valid_until_ns, harness.find("a")) == (0, None)
        monkeypatch.setattr(harness.index, "_on_valid", works)
        harness.publish()
        assert harness.find("a") is not None

    def test_end(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """No reader reads any more, and the next manager need not wait; if that cannot be written, it does."""
        harness.store("a")
        harness.open("a")
        told: list[int] = []
        monkeypatch.setattr(harness.index, "_on_valid", told.append)
        harness.index.invalidate()
        assert (told, harness.words[VALID_UNTIL], harness.find("a")) == ([0], 0, None)
        monkeypatch.setattr(harness.index, "_on_valid", refuse)
        harness.index.invalidate()
