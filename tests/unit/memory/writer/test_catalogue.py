"""Catalogues: whatever happens, and whenever somebody looks, the log says what the table holds."""

import errno
import os
from collections.abc import Callable
from random import Random

import pytest

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment, EvictLru, StoreFragment
from stepwell.domain.tiers.model import Tier
from stepwell.errors import Busy, ResourceExhausted, TierFull
from stepwell.limits import KIB
from stepwell.memory.reader.catalogue_reader import CatalogueState, replay
from stepwell.memory.writer.arena import Arena, OutOfRoom
from tests.support.memory.bodies import compressible, noise
from tests.support.memory.catalogue import ORIGIN, CatalogueHarness, assert_same, catalogue_harness
from tests.support.seeds import seeded


def out_of_space(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def change(held: CatalogueHarness, random: Random, project: str = "p") -> None:
    """Something happens to a project, or nothing does."""
    names = [*held.rows(project)]
    name = random.choice(names) if names else "a"
    match random.choice(["store", "store", "replace", "delete", "demote", "promote", "twice", "work", "evict"]):
        case "store":
            held.store(f"{project}{random.randrange(60)}", compressible(random.randrange(3_000), 1), project)
        case "replace":
            held.store(name, noise(random.randrange(500), random.randrange(20)), project, random.choice([*Tier]))
        case "delete" if names:
            held.delete(name, project)
        case "demote" if names:
            held.demote(name, project)
        case "promote" if names:
            held.promote(name, project)
        case "twice":
            held.do_together(
                StoreFragment(project, "twice", noise(100, random.randrange(5)), 1),
                StoreFragment(project, "once", noise(100, random.randrange(5)), 1),
                StoreFragment(project, "twice", b"the last one", 1),
                DeleteFragment(project, "once"),
            )
        case "evict" if names:
            held.do(EvictLru(random.choice([*Tier])))
        case _:
            held.owner.bodies.background.work(0)


class TestViews:
    def test_project_is_listed_when_somebody_asks(self) -> None:
        """Not before, so that projects that nobody looks at cost nothing; in slices, until the answer is there."""
        with catalogue_harness() as held:
            for number in range(2 * limits.CATALOGUE_ROWS_PER_SLICE):
                held.store(str(number))
            assert held.owner.catalogues == 0
            slices = 0
            while held.try_open() is None:
                slices += held.list_slice()
            assert slices == 3
            assert held.owner.catalogues == 1
            assert not held.list_slice()
            assert len(held.view().rows) == 2 * limits.CATALOGUE_ROWS_PER_SLICE

    @pytest.mark.parametrize("seed", range(6))
    def test_any_history(self, seed: int) -> None:
        """After each of many changes, of two projects with bodies in common, a view is the table."""
        random = seeded(seed)
        with catalogue_harness() as held:
            before: dict[str, CatalogueState | None] = {"p": None, "q": None}
            for _ in range(400):
                change(held, random, random.choice("pq"))
                if random.random() < 0.3:
                    project = random.choice("pq")
                    view = held.view(project, before[project] if random.random() < 0.7 else None)
                    before[project] = view
            held.work()
            for project in "pq":
                held.view(project, before[project])

    def test_project_without_fragments(self) -> None:
        """Is empty, takes no memory, and fills up."""
        with catalogue_harness() as held:
            assert held.view().rows == {}
            assert held.owner.bodies.arena.bytes == 0
            held.store("a")
            assert [*held.view().rows] == ["a"]

    def test_rows_that_never_were_are_not_told(self) -> None:
        """A transaction that stores twice, or stores and deletes, is told by what it came to."""
        with catalogue_harness() as held:
            held.view()
            held.do_together(
                StoreFragment("p", "a", b"first", 1),
                StoreFragment("p", "a", b"last", 1),
                StoreFragment("p", "b", b"never", 1),
                DeleteFragment("p", "b"),
            )
            assert [*held.view().rows] == ["a"]
            assert digest_of(b"never") not in held.view().handles

    def test_large_rows(self) -> None:
        """A block that is larger than a segment has one that is large enough."""
        metadata = {str(number): "x" * 1_000 for number in range(16)}
        with catalogue_harness() as held:
            for number in range(20):
                held.do(StoreFragment("p", str(number), b"", 1, metadata=metadata))
            view = held.view()
            assert view.rows["7"].metadata == metadata
            (number, used), *_ = view.end.segments
            assert held.owner.bodies.segment(number).size >= used > limits.CATALOGUE_SEGMENT_BYTES_MIN

    def test_many_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each is twice as large as the one before it, up to a bound."""
        monkeypatch.setattr(limits, "CATALOGUE_SEGMENT_BYTES_MIN", 4 * KIB)
        monkeypatch.setattr(limits, "CATALOGUE_SEGMENT_BYTES_MAX", 16 * KIB)
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 10)
        with catalogue_harness() as held:
            for number in range(600):
                held.store(str(number))
            sizes = [held.owner.bodies.segment(number).size for number, _ in held.view().end.segments]
            assert sizes[:3] == [4 * KIB, 8 * KIB, 16 * KIB]
            assert {*sizes[2:]} == {16 * KIB}


class TestListing:
    @pytest.mark.parametrize("seed", range(6))
    def test_changes_meanwhile(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """What changes between two slices, before or behind where the listing is, is told right in the end."""
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 3)
        random = seeded(seed)
        with catalogue_harness() as held:
            for number in range(60):
                held.store(f"p{number}")
            while held.try_open() is None:
                for _ in range(random.randrange(4)):
                    change(held, random)
                held.list_slice()
            held.view()
            change(held, random)
            held.view()

    @pytest.mark.parametrize("name", ["p1", "p50"])
    @pytest.mark.parametrize(
        "happen",
        [CatalogueHarness.delete, CatalogueHarness.demote, lambda held, name: held.store(name, b"another")],
        ids=["deleted", "moved", "replaced"],
    )
    def test_row_on_either_side(
        self, name: str, happen: Callable[[CatalogueHarness, str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that is listed already, and one that is not yet."""
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 10)
        with catalogue_harness() as held:
            for number in range(60):
                held.store(f"p{number}")
            assert held.try_open() is None
            held.list_slice()
            happen(held, name)
            held.owner.bodies.background.work(1)
            held.view()

    def test_listed_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once most of it is out of date, another one is made beside it, which takes its place when it is complete."""
        monkeypatch.setattr(limits, "CATALOGUE_RECORDS_MIN", 20)
        with catalogue_harness() as held:
            held.store("a")
            first = held.view().end
            for number in range(30):
                held.store("a", str(number).encode())
            held.view()
            held.owner.housekeep(0)
            assert held.view().end.generation == first.generation
            assert held.list_slice()
            assert held.view().end.generation > first.generation
            assert held.view().end.base_revision == held.owner.revision
            assert [number for number, _ in held.owner.bodies.close_retired()] == [
                number for number, _ in first.segments
            ]
            held.owner.housekeep(0)
            assert not held.list_slice()

    @pytest.mark.parametrize("seed", range(6))
    def test_listed_anew_while_it_changes(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Changes go to both, so that neither is ever wrong; whoever has replayed the old one begins anew."""
        monkeypatch.setattr(limits, "CATALOGUE_RECORDS_MIN", 10)
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 4)
        random = seeded(seed)
        with catalogue_harness() as held:
            before: CatalogueState | None = None
            generations = set()
            for _ in range(600):
                change(held, random)
                if random.random() < 0.5:
                    held.owner.housekeep(0)
                if random.random() < 0.5:
                    held.list_slice()
                if random.random() < 0.3:
                    before = held.view("p", before)
                    generations.add(before.end.generation)
            assert len(generations) > 3

    def test_nobody_looks_any_more(self) -> None:
        """After a while it is dropped, and made again for whoever asks."""
        with catalogue_harness() as held:
            held.store("a")
            first = held.view().end
            held.owner.housekeep(limits.CATALOGUE_IDLE_SECONDS)
            assert held.owner.catalogues == 1
            held.owner.housekeep(limits.CATALOGUE_IDLE_SECONDS + 1)
            assert held.owner.catalogues == 0
            assert len(held.owner.bodies.close_retired()) == 1
            held.store("b")
            held.now_s = limits.CATALOGUE_IDLE_SECONDS + 1
            assert held.view().end.generation > first.generation
            held.owner.housekeep(limits.CATALOGUE_IDLE_SECONDS + 2)
            assert held.owner.catalogues == 1


class TestMoves:
    def test_body_that_changes_its_form(self) -> None:
        """Where it is now is told, without a change of any fragment or revision."""
        with catalogue_harness() as held:
            held.store("a", compressible(5_000))
            held.demote("a")
            first = held.view()
            revision = held.owner.revision
            held.work()
            second = held.view(before=first)
            assert second.handles != first.handles
            assert held.owner.revision == revision
            assert held.view().handles == second.handles

    def test_body_of_two_projects(self) -> None:
        """Both are told, and only those that are looked at."""
        with catalogue_harness() as held:
            body = compressible(5_000)
            for project in "pqr":
                held.store("a", body, project, Tier.COLD)
            views = [held.view(project) for project in "pq"]
            held.work()
            for view in views:
                project = view.end.project
                assert held.view(project).handles != view.handles
            assert held.owner.catalogues == 2

    def test_project_that_nobody_looks_at_any_more(self) -> None:
        """It is not told, and finds the body where it is when somebody looks again."""
        with catalogue_harness() as held:
            held.store("a", compressible(5_000))
            held.view()
            held.owner.housekeep(2 * limits.CATALOGUE_IDLE_SECONDS)
            held.demote("a")
            held.work()
            assert held.owner.catalogues == 0
            held.view()

    def test_body_that_nobody_names_any_more(self) -> None:
        """It is forgotten with the body; the same content again is told anew."""
        with catalogue_harness() as held:
            held.store("a", b"body")
            held.view()
            held.delete("a")
            assert not held.owner._catalogues._owners
            held.store("b", b"body")
            held.view()

    def test_body_that_was_replaced_moves(self) -> None:
        """A project that once named a body, and does not any more, may be told, and does not mind."""
        with catalogue_harness() as held:
            body = compressible(5_000)
            held.store("a", body)
            held.store("a", body, "q")
            first = held.view()
            held.store("a", b"another")
            held.demote("a", "q")
            held.work()
            held.view(before=first)
            held.view()


class TestDifferences:
    @pytest.mark.parametrize("seed", range(6))
    def test_difference_leads_from_one_state_to_the_other(self, seed: int) -> None:
        """What was there at any earlier revision, with what changed and without what went, is what is there now."""
        random = seeded(seed)
        with catalogue_harness() as held:
            for number in range(20):
                held.store(f"p{number}")
            base = held.open().base_revision
            states = {held.owner.revision: held.rows()}
            for _ in range(80):
                change(held, random)
                states[held.owner.revision] = held.rows()
                if random.random() < 0.2:
                    held.view()
            for revision, rows in states.items():
                difference = held.since(revision)
                assert difference is not None, (revision, base)
                assert difference.removed.isdisjoint(difference.rows)
                after = {name: row for name, row in rows.items() if name not in difference.removed}
                after.update(difference.rows)
                assert after == held.rows()
                handles = held.handles()
                for row in difference.rows.values():
                    assert difference.handles[row.digest] == handles[row.digest]

    def test_only_what_changed(self) -> None:
        """A difference has nothing else, and none has nothing at all."""
        with catalogue_harness() as held:
            held.store("a")
            held.store("b")
            held.store("c")
            held.view()
            revision = held.owner.revision
            nothing = held.since(revision)
            assert nothing is not None
            assert ([*nothing.rows], nothing.removed) == ([], frozenset())
            held.demote("a")
            held.delete("b")
            difference = held.since(revision)
            assert difference is not None
            assert ([*difference.rows], difference.removed) == (["a"], frozenset({"b"}))

    def test_deleted_and_there_again(self) -> None:
        """Is not removed."""
        with catalogue_harness() as held:
            held.store("a")
            held.view()
            revision = held.owner.revision
            held.delete("a")
            held.store("a", b"again")
            difference = held.since(revision)
            assert difference is not None
            assert ([*difference.rows], difference.removed) == (["a"], frozenset())

    def test_older_than_the_catalogue(self) -> None:
        """It cannot be told, and that is said."""
        with catalogue_harness() as held:
            held.store("a")
            held.store("b")
            assert held.since(1) is None
            assert held.since(2) is not None

    def test_blocks_of_earlier_times_are_not_decoded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A difference costs what changed, and not what there is."""
        with catalogue_harness() as held:
            for number in range(1_000):
                held.store(str(number))
            held.view()
            revision = held.owner.revision
            held.store("new")
            held.open()
            decoded: list[int] = []

            class TokenCounters:
                def decode(self, data: memoryview) -> list[object]:
                    decoded.append(len(data))
                    return []

            monkeypatch.setattr("stepwell.memory.reader.catalogue_reader._decoder", TokenCounters())
            held.since(revision)
            assert len(decoded) == 1


class TestReplaying:
    def test_what_was_replayed_is_not_replayed_again(self) -> None:
        """With an earlier state, only the segments that grew are looked at."""
        with catalogue_harness() as held:
            for number in range(600):
                held.store(str(number), b"x" * 100)
            first = held.view()
            held.found.clear()
            assert held.view(before=first) == first
            assert held.found == []
            held.store("new")
            held.view(before=first)
            assert len(held.found) == 1

    def test_state_that_is_ahead_is_no_earlier_state(self) -> None:
        """Two threads that open a view may replay in either order: the older one does not see the future."""
        with catalogue_harness() as held:
            held.store("a")
            older = held.open()
            rows, handles = held.rows(), held.handles()
            for number in range(1_000):
                held.store(str(number), b"x" * 100)
            newer = held.view()
            assert len(newer.end.segments) > len(older.segments)
            assert_same(replay(older, held.find, newer), rows, handles)

    def test_earlier_state_is_not_changed(self) -> None:
        """A view that somebody holds stays as it is."""
        with catalogue_harness() as held:
            held.store("a")
            first = held.view()
            rows = dict(first.rows)
            held.delete("a")
            held.store("b")
            held.view(before=first)
            assert first.rows == rows

    def test_handles_that_nobody_needs_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A state that is replayed on and on does not grow with what was deleted."""
        monkeypatch.setattr("stepwell.memory.reader.catalogue_reader._STALE_HANDLES_MAX", 10)
        with catalogue_harness() as held:
            before: CatalogueState | None = None
            for number in range(100):
                held.store("a", str(number).encode())
                before = held.view(before=before)
                assert len(before.handles) <= 12


class TestMany:
    def test_project_without_fragments_costs_nothing(self) -> None:
        """Its view is empty, and nothing is kept for it."""
        with catalogue_harness() as held:
            assert held.view("nobody").rows == {}
            assert (held.owner.catalogues, held.owner.bodies.arena.live) == (0, 0)

    def test_number_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one that was asked for the longest ago goes, and is made again when it is asked for."""
        monkeypatch.setattr(limits, "CATALOGUES_MAX", 2)
        with catalogue_harness() as held:
            for project in ("a", "b", "c"):
                held.store("x", project=project)
            for project in ("a", "b", "a", "c"):
                held.view(project)
            assert [*held.owner._catalogues._by_project] == ["a", "c"]
            assert len(held.view("b").rows) == 1

    def test_stores_go_before_views(self) -> None:
        """A catalogue is dropped before a body is refused."""
        with catalogue_harness() as held:
            held.store("x")
            held.view()

            def full(_needed: int) -> None:
                raise OutOfRoom("full")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(held.owner.bodies.arena, "ensure_room", full)
                patch.setattr(Arena, "room", 0)
                with pytest.raises((TierFull, Busy)):
                    held.store("y")
            assert held.owner.catalogues == 0


class TestWithoutMemory:
    def test_listing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks is told why there is no view, once; whoever asks again may have more luck."""
        with catalogue_harness() as held:
            held.store("a")
            held.owner.bodies.background.work(1)
            with monkeypatch.context() as patch:
                patch.setattr(held.owner.bodies.arena, "_make", out_of_space)
                assert held.try_open() is None
                assert held.list_slice()
                assert held.owner.catalogues == 0
                with pytest.raises(ResourceExhausted, match="No space left on device"):
                    held.try_open()
            held.view()

    @pytest.mark.parametrize("lacking", ["os.memfd_create", "os.posix_fallocate"])
    def test_opening(self, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was added since cannot be written: a refusal, and it is listed anew later."""
        monkeypatch.setattr(limits, "ALLOCATION_BYTES", 4 * KIB)
        monkeypatch.setattr(limits, "CATALOGUE_SEGMENT_BYTES_MIN", 4 * KIB)
        with catalogue_harness() as held:
            held.store("first")
            held.view()
            for number in range(450):
                held.store(str(number))
            while held.owner.bodies.background.work(1):
                pass
            with monkeypatch.context() as patch:
                patch.setattr(lacking, out_of_space)
                with pytest.raises(ResourceExhausted, match="No space left on device"):
                    for _ in range(100):  # while something can still go down, it is worth asking again
                        held.try_open()
                        held.work()
            assert held.owner.catalogues == 0
            live = held.owner.bodies.arena.live
            held.view()
            held.owner.housekeep(2 * limits.CATALOGUE_IDLE_SECONDS)
            assert held.owner.bodies.arena.live == live

    def test_listing_that_finds_no_memory_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither the listing nor a change ends the manager: the catalogue is forgotten, and the reader is told."""

        def no_memory(*_: object) -> None:
            raise MemoryError

        with catalogue_harness() as held:
            held.store("a")
            with monkeypatch.context() as patch:
                patch.setattr(held.owner._catalogues, "_list", no_memory)
                assert held.try_open() is None
                assert held.list_slice()
                assert held.owner.catalogues == 0
                with pytest.raises(ResourceExhausted, match="memory"):
                    held.try_open()
            held.view()
            with monkeypatch.context() as patch:
                for log in held.owner._catalogues._by_project["p"].logs:
                    patch.setattr(log, "add", no_memory)
                held.store("b")
            assert held.owner.catalogues == 0
            assert len(held.view().rows) == 2

    def test_a_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store is not refused because a catalogue has no room: that is forgotten, and made again."""
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 10)
        with catalogue_harness() as held:
            held.store("first")
            held.view()
            for log in held.owner._catalogues._by_project["p"].logs:
                monkeypatch.setattr(log, "flush", _no_room)
            for number in range(20):
                held.store(str(number))
            assert held.owner.catalogues == 0
            assert len(held.view().rows) == 21

    def test_a_move(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor does a body stay where it is for it."""
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 1)
        with catalogue_harness() as held:
            held.store("a", compressible(5_000))
            held.demote("a")
            held.view()
            for log in held.owner._catalogues._by_project["p"].logs:
                monkeypatch.setattr(log, "flush", _no_room)
            held.owner.bodies.background.work(1)
            assert held.owner.catalogues == 0
            held.view()

    def test_both_logs_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one that is being made as well."""
        monkeypatch.setattr(limits, "CATALOGUE_RECORDS_MIN", 5)
        monkeypatch.setattr(limits, "CATALOGUE_ROWS_PER_SLICE", 2)
        with catalogue_harness() as held:
            for number in range(10):
                held.store(str(number))
            held.view()
            for number in range(30):
                held.store("0", str(number).encode())
            held.owner.housekeep(0)
            held.list_slice()
            assert len([*held.owner._catalogues._by_project["p"].logs]) == 2
            monkeypatch.setattr(held.owner._catalogues._by_project["p"].successor, "flush", _no_room)
            held.list_slice()
            assert held.owner.catalogues == 0
            assert all(segment.pins == 0 for segment in held.owner.bodies.arena.segments.values())
            with pytest.raises(TierFull, match="nothing left"):
                held.try_open()
            held.view()


def _no_room(_revision: int) -> None:
    raise OutOfRoom("nothing left")


def test_other_changes_are_not_told() -> None:
    """Rows that are no fragments, and projects that nobody looks at."""
    with catalogue_harness() as held:
        held.view("q")
        end = held.open("q")
        held.store("a")
        held.owner.execute(EvictLru(Tier.HOT), ORIGIN)
        assert held.open("q").segments == end.segments
