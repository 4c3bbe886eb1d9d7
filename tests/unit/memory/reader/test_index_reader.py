"""Lookups in the index: a committed record, or None; never what is torn, out of date, or another fragment's."""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import DeleteFragment, DemoteFragment, GetFragment, StoreFragment, StoreOptions
from stepwell.domain.verdict import Origin
from stepwell.memory.reader import index_reader
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.memory.reader.mappings import Mappings
from stepwell.memory.writer import fragment_index
from stepwell.protocol.fragment_index import CELLS, LENGTH, NEXT, SEQUENCE, SLOT_WORDS, STAMP, VALID_UNTIL
from tests.support.memory.fragment_index import FOR_EVER_NS, IndexHarness, index_harness


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    with index_harness() as made:
        yield made


def stored(harness: IndexHarness, *names: str) -> None:
    for name in names:
        harness.store(name)
    harness.open(*names)


class TestNothing:
    def test_no_index(self) -> None:
        """Before it was opened and after it was closed, counting and noting do nothing."""
        reader = IndexReader(Mappings())
        assert reader.find(("p", "a"), FOR_EVER_NS) is None
        reader.close_unmapped()
        reader.note_answer(("p", "a"), 1, 1)
        reader.close()

    def test_absent(self, harness: IndexHarness) -> None:
        """Another id, another project, and what was deleted."""
        stored(harness, "a")
        assert [harness.find("b"), harness.find("a", "q")] == [None, None]
        harness.do(DeleteFragment("p", "a"))
        harness.publish()
        assert harness.find("a") is None

    def test_machine_without_the_order(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """There the index is never opened."""
        monkeypatch.setattr(index_reader, "is_supported", lambda: False)
        stored(harness, "a")
        assert harness.find("a") is None

    def test_not_mapped(self, harness: IndexHarness) -> None:
        """A process that could map only a part of it reads without it."""
        stored(harness, "a")
        slots, cells = harness.index.segments
        reader = IndexReader(Mappings())
        reader.open(slots.number, cells.number, harness.index.key)
        assert reader.find(("p", "a"), FOR_EVER_NS) is None

    def test_other_name_with_the_same_hash(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hashes may meet; the name in the record decides."""
        for module in (fragment_index, index_reader):
            monkeypatch.setattr(module, "hash_of", lambda *_: 7)
        stored(harness, "a", "b")
        found = [harness.find(name) for name in "abc"]
        assert [each is None for each in found].count(False) == 1
        assert all(each is None or each.row.fragment_id == name for name, each in zip("abc", found, strict=True))


class TestSequence:
    def test_odd_for_too_long(self, harness: IndexHarness) -> None:
        """A manager that died or was stopped while it published is not read. What it has not changed yet is known."""
        stored(harness, "a", "b", "c")
        known = harness.find("a")
        assert known is not None
        assert harness.find("c") is not None
        harness.words[SEQUENCE] += 1
        changed = harness.find("c")
        assert changed is not None
        harness.words[changed.at + STAMP] += 1_000
        assert [harness.find(name) for name in "abc"] == [known, None, None]
        harness.words[SEQUENCE] += 1
        assert harness.find("a") is known
        assert None not in [harness.find(name) for name in "bc"]

    def test_changes_during_a_lookup(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was read in between is dropped, and the lookup done again, a bounded number of times."""
        stored(harness, "a")
        record_at = index_reader._record_at
        calls = itertools.count(1)

        def interrupted(index: index_reader._OpenIndex, slot: int) -> bytes:
            encoded = record_at(index, slot)
            if next(calls) <= changes:
                harness.do(StoreFragment("p", "a", f"body {next(bodies)}".encode(), 1))
                harness.publish()
            return encoded

        bodies = itertools.count()
        monkeypatch.setattr(index_reader, "_record_at", interrupted)
        for changes, expected in ((0, 1), (3, 4), (limits.INDEX_ATTEMPTS_MAX, limits.INDEX_ATTEMPTS_MAX + 1)):
            calls = itertools.count(1)
            harness.reader.close()
            harness.share()
            found = harness.find("a")
            if changes < limits.INDEX_ATTEMPTS_MAX:
                assert found is not None
                assert found.row == harness.row("a")
            else:
                assert found is None
            assert next(calls) == min(expected, limits.INDEX_ATTEMPTS_MAX) + 1

    def test_changes_while_a_known_record_is_compared(
        self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record is looked up anew, and is the new one."""
        stored(harness, "a")
        assert harness.find("a") is not None
        index = harness.reader._index
        assert index is not None

        def replace() -> None:
            harness.store("a", b"new")
            harness.publish()

        monkeypatch.setattr(index, "words", _InterruptedWords(index.words, replace))
        found = harness.find("a")
        assert found is not None
        assert found.row == harness.row("a")

    def test_bytes_that_are_no_record(self, harness: IndexHarness) -> None:
        """Lengths and chains that are being changed end within the bounds: nothing follows them for ever."""
        stored(harness, "a")
        slot = harness.index._places["p"]["a"]
        words = harness.words
        index = harness.reader._index
        assert index is not None
        words[slot * SLOT_WORDS + NEXT] = slot
        words[slot * SLOT_WORDS + LENGTH] = 2**40
        assert len(index_reader._record_at(index, slot)) <= 8 * 256
        words[slot * SLOT_WORDS + NEXT] = 0
        assert len(index_reader._record_at(index, slot)) <= 256


class TestValidity:
    def test_expired(self, harness: IndexHarness) -> None:
        """At its end, and not a moment later, whether the record is known or not; the next turn renews it."""
        stored(harness, "a", "b")
        assert harness.find("a") is not None
        harness.clock.now_ns = harness.valid_until_ns - 1
        assert harness.find("a") is not None
        harness.clock.now_ns += 1
        assert [harness.find(name) for name in "ab"] == [None, None]
        harness.publish()
        assert None not in [harness.find(name) for name in "ab"]

    def test_ended_while_it_looks(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The validity is the last thing that a reader looks at."""
        stored(harness, "a")
        record_at = index_reader._record_at

        def ended(index: index_reader._OpenIndex, slot: int) -> bytes:
            harness.words[VALID_UNTIL] = 0
            return record_at(index, slot)

        monkeypatch.setattr(index_reader, "_record_at", ended)
        assert harness.find("a") is None

    def test_time_to_report(self, harness: IndexHarness) -> None:
        """From then on the manager is asked."""
        stored(harness, "a")
        now_ns = harness.clock.now_ns
        assert harness.reader.find(("p", "a"), now_ns) is None
        assert harness.reader.find(("p", "a"), now_ns + 1) is not None


class TestOpening:
    def test_other_table(self, harness: IndexHarness) -> None:
        """A reader whose hash table is not the one in use knows only what it knew."""
        stored(harness, "a", "b")
        assert harness.find("a") is not None
        harness.words[CELLS] += 1
        assert harness.find("a") is not None
        assert harness.find("b") is None

    def test_late_announcement(self, harness: IndexHarness) -> None:
        """An older table that is announced on a slower connection does not replace the newer one."""
        stored(harness, "a")
        slots, cells = harness.index.segments
        harness.reader.open(slots.number, cells.number - 1, harness.index.key)
        assert harness.find("a") is not None
        harness.mappings.map_segment(cells.number - 1, slots.size, _dup(harness))
        harness.reader.open(slots.number, cells.number - 1, harness.index.key)
        assert harness.find("a") is not None

    def test_retired_segment(self, harness: IndexHarness) -> None:
        """The reader lets go of all of it, so that the memory can be freed."""
        stored(harness, "a")
        number = harness.index.segments[1].number
        harness.reader.close_unmapped()
        assert harness.find("a") is not None
        harness.mappings.retire([number])
        harness.reader.close_unmapped()
        assert harness.find("a") is None
        assert harness.mappings.pop_released() == (number,)

    def test_next_manager_has_the_same_stamps(self) -> None:
        """What a thread has read in the old index, and keeps when the new one is open already, is not found in it."""
        with index_harness() as old, index_harness() as new:
            stored(old, "a")
            stored(new, "a")
            index = new.reader._index
            assert index is not None
            assert old.reader._index is not None
            new.reader._index = old.reader._index
            known = new.find("a")
            new.reader._index = index
            assert known is not None
            found = new.find("a")
            assert found is not known

    def test_known_records_survive_growth(self, harness: IndexHarness) -> None:
        """They are in slots, which stay where they are."""
        stored(harness, "a")
        known = harness.find("a")
        harness.share()
        assert harness.find("a") is known


class TestKnown:
    def test_found_once(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A record is decoded once, and again when it has changed."""
        stored(harness, "a", "b")
        first = harness.find("a")
        monkeypatch.setattr(index_reader, "decode_record", _never)
        assert harness.find("a") is first
        monkeypatch.undo()
        harness.store("b", b"new")
        harness.publish()
        assert harness.find("a") is first
        harness.store("a", b"new")
        harness.publish()
        found = harness.find("a")
        assert found is not None
        assert found.row == harness.row("a")

    def test_bounded(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """When there are too many, the oldest are dropped, and each is found again."""
        monkeypatch.setattr(limits, "INDEX_KNOWN_MAX", 4)
        monkeypatch.setattr(limits, "INDEX_KNOWN_PARTS", 2)
        names = [*"abcdefg"]
        stored(harness, *names)
        index = harness.reader._index
        assert index is not None
        for name in names * 2:
            assert harness.read(name) == (harness.row(name), name.encode())
            assert 0 < len(index.known) <= 4
            assert name in {known for _, known in index.known}

    def test_accesses(self, harness: IndexHarness) -> None:
        """This client's count at once; the manager's answer raises them, and never lowers them."""
        stored(harness, "a")
        found = harness.find("a")
        assert found is not None
        harness.now_ms = 5_000
        harness.publish()
        for _ in range(3):
            found.count()
        assert (found.access_count, found.last_accessed_ms) == (4, 5_000)
        harness.reader.note_answer(("p", "a"), 4_000, 2)
        assert (found.access_count, found.last_accessed_ms) == (4, 5_000)
        harness.reader.note_answer(("p", "a"), 6_000, 9)
        assert (found.access_count, found.last_accessed_ms) == (9, 6_000)
        harness.reader.close()
        found.count()
        assert (found.access_count, found.last_accessed_ms) == (10, 5_000)


def _never(_: object) -> object:
    raise AssertionError("it was decoded again")


def _dup(harness: IndexHarness) -> int:
    return os.dup(harness.index.segments[0].descriptor)


class _InterruptedWords:
    """Words that change before the second look at the sequence."""

    def __init__(self, words: memoryview, deed: Callable[[], None]) -> None:
        self._words = words
        self._deed = deed
        self._looks = 0

    def __getitem__(self, at: int) -> int:
        if at == SEQUENCE:
            self._looks += 1
            if self._looks == 2:
                self._deed()
        return int(self._words[at])


class TestExpiry:
    """A fragment is absent from the moment it expires, whether or not the manager has deleted it already."""

    @staticmethod
    def stored(harness: IndexHarness, options: StoreOptions) -> None:
        harness.store("a", options=options)
        harness.open("a")

    def test_from_that_moment_on(self, harness: IndexHarness) -> None:
        """By the clock of the reader, which the manager need not have told anything."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        harness.clock.wall_ms = 1_999
        assert harness.find("a") is not None
        harness.clock.wall_ms = 2_000
        assert harness.find("a") is None

    def test_clock_of_the_reader_is_behind(self, harness: IndexHarness) -> None:
        """The manager's time decides as well: its latest turn is in the index."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        harness.clock.wall_ms = 0
        assert harness.find("a") is not None
        harness.now_ms = 2_000
        harness.publish()
        assert harness.find("a") is None

    def test_clock_goes_back(self, harness: IndexHarness) -> None:
        """What the manager has called absent does not come back."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        harness.now_ms = harness.clock.wall_ms = 2_000
        harness.publish()
        harness.clock.wall_ms = 1_000
        assert harness.find("a") is None

    def test_moving_expiry_is_never_in_the_index(self, harness: IndexHarness) -> None:
        """A read of it moves something, so that it is a request. The same after it has replaced one that was there."""
        harness.store("b")
        self.stored(harness, StoreOptions(expires_after_ms=10**6))
        harness.open("b")
        harness.work()
        assert harness.find("a") is None
        assert harness.find("b") is not None
        harness.store("b", b"B", options=StoreOptions(keep=True, expires_after_ms=10**6))
        harness.publish()
        harness.do(GetFragment("p", "b"))
        harness.work()
        assert harness.find("b") is None

    def test_known_record_of_a_fragment_that_expires_now(self, harness: IndexHarness) -> None:
        """A record that is known from before does not hide that its fragment expires."""
        stored(harness, "a")
        assert harness.find("a") is not None
        harness.store("a", b"A", options=StoreOptions(expires_at_ms=2_000))
        harness.publish()
        assert harness.find("a") is not None
        harness.clock.wall_ms = 2_000
        assert harness.find("a") is None
        harness.store("a", b"again")
        harness.publish()
        assert harness.find("a") is not None

    def test_accesses_grow(self, harness: IndexHarness) -> None:
        """Each lookup decodes the record anew, and goes on with the accesses that were counted before."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        counts: list[int] = []
        for _ in range(3):
            found = harness.find("a")
            assert found is not None
            found.count()
            counts.append(found.access_count)
        assert counts == [2, 3, 4]

    def test_accesses_begin_anew(self, harness: IndexHarness) -> None:
        """A fragment that comes after one that has expired is another one."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        found = harness.find("a")
        assert found is not None
        found.count()
        harness.clock.wall_ms = 2_000
        store = StoreFragment("p", "a", b"A", 1, options=StoreOptions(expires_at_ms=3_000))
        harness.owner.execute(store, Origin("session", 2_000))
        harness.publish()
        found = harness.find("a")
        assert found is not None
        assert found.access_count == 0

    def test_deleted_slot_is_not_known(self, harness: IndexHarness) -> None:
        """The stamp of an empty slot is none that a record has, known or not."""
        self.stored(harness, StoreOptions(expires_at_ms=2_000))
        assert harness.find("a") is not None
        harness.do(DeleteFragment("p", "a"))
        harness.publish()
        assert harness.find("a") is None

    def test_kept_fragment_is_read(self, harness: IndexHarness) -> None:
        """It is hot, and takes no tokens there; on disk it is for the manager."""
        self.stored(harness, StoreOptions(keep=True))
        assert harness.read("a") == (harness.row("a"), b"a")
        harness.do(DemoteFragment("p", "a"))
        harness.publish()
        assert harness.find("a") is None
