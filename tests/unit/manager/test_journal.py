"""What a turn writes, and when: reads cost nothing, and bodies come and go with what refers to them."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment, DemoteFragment, GetFragment, StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.memory.compression import unpack
from stepwell.protocol.handles import IN_STORE
from stepwell.storage.body_reader import BodyFile
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.files.mark import MARK
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import CommitBatch
from tests.support.domain.world import image
from tests.support.manager.peers import ORIGIN, Clock
from tests.support.managers import Stage
from tests.support.memory.bodies import compressible, noise
from tests.support.peers import store
from tests.support.storage.peers import ask, greeted
from tests.support.storage.state import NOON_MS, DurableState, durable_state, kept, mixed, served_on, staged_on
from tests.support.wait import eventually

PART = 1_000
TRIMMED = 3
BODY = noise(10 * PART + 1)
"""In eleven parts."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[CommitBatch]:
    """All that is committed from here on."""
    written: list[CommitBatch] = []
    commit = SqliteStore.commit

    def noted(self: SqliteStore, turn: CommitBatch) -> None:
        written.append(turn)
        commit(self, turn)

    monkeypatch.setattr(SqliteStore, "commit", noted)
    return written


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DurableState]:
    """Bodies have small parts, of which few are thrown away at a time."""
    monkeypatch.setattr(limits, "BODY_PART_BYTES", PART)
    monkeypatch.setattr(limits, "PARTS_TRIMMED_PER_TURN", TRIMMED)
    with durable_state(tmp_path) as found:
        found.commit()
        yield found


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged_on(tmp_path) as found:
        yield found


def count(directory: Path, table: str) -> int:
    with closing(sqlite3.connect(directory / DATABASE)) as db:
        number = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - ours
        assert isinstance(number, int)
        return number


def tidied(made: DurableState) -> list[int]:
    """Turn by turn, until there is nothing to throw away: how many parts there are after each."""
    left = []
    while made.store.has_garbage:
        made.journal.tidy({}, 0.0)
        made.commit()
        left.append(count(made.path, "body_parts"))
    return left


def form(directory: Path, body: bytes) -> str:
    """How a body is written."""
    query = "SELECT packed, upload IS NOT NULL FROM bodies WHERE digest = ?"
    with closing(sqlite3.connect(directory / DATABASE)) as db:
        packed, in_parts = db.execute(query, (digest_of(body),)).fetchone()
    return f"{'packed' if packed else 'raw'}{' in parts' if in_parts else ''}"


class TestReads:
    def test_get_that_moves_nothing_is_no_commit(self, stage: Stage, turns: list[CommitBatch]) -> None:
        """Reading costs no write, however often."""
        with greeted(stage, "s") as peer:
            ask(stage, peer, store("a"))
            turns.clear()
            for _ in range(20):
                ask(stage, peer, GetFragment("p", "a"))
        assert turns == []

    def test_use_is_written_after_a_while(self, stage: Stage, tmp_path: Path, clock: Clock) -> None:
        """Not before, and within the time after which a crash may forget it."""
        with greeted(stage, "s") as peer:
            ask(stage, peer, store("a"))
            clock.forward(limits.RECENCY_SECONDS)
            stage.turn(2)
            ask(stage, peer, GetFragment("p", "a"))
            clock.forward(limits.RECENCY_SECONDS / 2)
            stage.turn(2)
            assert kept(tmp_path).fragments[0].access_count == 0
            clock.forward(limits.RECENCY_SECONDS / 2)
            stage.turn(2)
            assert kept(tmp_path).fragments[0].access_count == 1

    def test_many_uses_are_written_a_few_at_a_time(
        self, stage: Stage, turns: list[CommitBatch], clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No turn is long for their sake, and all of them are written."""
        monkeypatch.setattr(limits, "RECENCY_ROWS_PER_TURN", 4)
        with greeted(stage, "s") as peer:
            for number in range(10):
                ask(stage, peer, store(f"f{number}"))
                ask(stage, peer, GetFragment("p", f"f{number}"))
            turns.clear()
            for _ in range(8):
                clock.forward(limits.RECENCY_SECONDS)
                stage.turn(2)
        written = [len(turn.touched) for turn in turns if turn.touched]
        assert (max(written), sum(written)) == (4, 10)

    def test_use_is_written_when_the_manager_stops(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In good order nothing is forgotten, however much there is of it."""
        monkeypatch.setattr(limits, "RECENCY_ROWS_PER_TURN", 2)
        names = [f"f{number}" for number in range(7)]
        with staged_on(tmp_path) as stage, greeted(stage, "s") as peer:
            for name in names:
                ask(stage, peer, store(name))
            for name in reversed(names):
                ask(stage, peer, GetFragment("p", name))
            stage.loop.stop("test")
            stage.loop.run()
        assert [entry.row.fragment_id for entry in kept(tmp_path).fragments] == names[::-1]
        assert {entry.access_count for entry in kept(tmp_path).fragments} == {1}

    def test_crash_forgets_the_order_of_use_and_nothing_else(self, tmp_path: Path) -> None:
        with durable_state(tmp_path) as made:
            for name in "abc":
                made.store_one(name, name.encode())
            made.commit()
            before = kept(tmp_path)
            made.do(GetFragment("p", "a"), NOON_MS + 1)
            made.commit()
        after = kept(tmp_path)
        assert [entry.row for entry in after.fragments] == [entry.row for entry in before.fragments]
        assert (after.revision, after.rows, after.bodies) == (before.revision, before.rows, before.bodies)
        with durable_state(tmp_path) as made:
            assert [entry.row.fragment_id for entry in made.owner._state.fragments.oldest(Tier.HOT)] == [*"abc"]


class TestStores:
    def test_demotions_of_a_run_are_written(self, tmp_path: Path) -> None:
        """Stores of the fast path that make room in hot and warm come back with all that they moved, and its events."""
        budget = TierBudget(hot_tokens=2, warm_entries=2)
        with durable_state(tmp_path, budget) as made:
            for name in "abcd":
                made.store_one(name, name.encode())
            made.commit()
            run = made.owner.execute_simple([StoreFragment("p", each, each.encode(), 1) for each in "efg"], ORIGIN)
            assert len(run) == 2  # the third one would demote the first
            made.commit()
            before, events = image(made.owner._state), made.store.events_after(4, 100)
        assert [(type(each).__name__, each.revision) for each in events] == [
            *(("FragmentDemoted", 5), ("FragmentDemoted", 5), ("FragmentStored", 5)),
            *(("FragmentDemoted", 6), ("FragmentDemoted", 6), ("FragmentStored", 6)),
        ]
        with durable_state(tmp_path, budget) as made:
            after = image(made.owner._state)
        assert {key: after[key] for key in ("fragments", "orders", "usage")} == {
            key: before[key] for key in ("fragments", "orders", "usage")
        }


class TestBodies:
    def test_body_that_does_not_outlast_its_turn_is_not_written(self, made: DurableState, tmp_path: Path) -> None:
        made.store_one("a", b"body")
        made.do(DeleteFragment("p", "a"))
        made.commit()
        assert count(tmp_path, "bodies") == 0

    def test_upload_that_does_not_outlast_its_turn_leaves_no_part(self, made: DurableState, tmp_path: Path) -> None:
        made.upload("a", BODY)
        made.do(DeleteFragment("p", "a"))
        made.commit()
        tidied(made)
        assert (count(tmp_path, "bodies"), count(tmp_path, "body_parts")) == (0, 0)

    def test_upload_is_written_part_by_part(self, made: DurableState, tmp_path: Path) -> None:
        """While it comes; it is a body when it is complete, and not before."""
        upload = made.offer(BODY, 3 * PART + 5)
        made.commit()
        assert (count(tmp_path, "body_parts"), count(tmp_path, "bodies")) == (3, 0)
        made.owner.bodies.abandon(upload)
        made.upload("a", BODY)
        made.commit()
        assert form(tmp_path, BODY) == "raw in parts"
        with closing(BodyFile(made.store.database)) as file:
            assert file.read(digest_of(BODY), made.store.body_number(digest_of(BODY))) == (False, BODY)

    def test_abandoned_upload_is_thrown_away_a_little_at_a_time(self, made: DurableState) -> None:
        upload = made.offer(BODY, 10 * PART)
        made.commit()
        made.owner.bodies.abandon(upload)
        made.commit()
        assert tidied(made)[-1] == 0

    def test_upload_of_a_body_that_is_there_is_thrown_away(self, made: DurableState, tmp_path: Path) -> None:
        """The one that was there stays, and both names have it."""
        made.upload("a", BODY)
        made.commit()
        made.upload("b", BODY)
        made.commit()
        tidied(made)
        assert (count(tmp_path, "bodies"), count(tmp_path, "body_parts")) == (1, 11)
        with closing(BodyFile(made.store.database)) as file:
            assert file.read(digest_of(BODY), made.store.body_number(digest_of(BODY))) == (False, BODY)

    def test_parts_of_a_replaced_body_go_a_few_with_each_turn(self, made: DurableState, tmp_path: Path) -> None:
        """Freeing a large body at once would hold up everybody."""
        made.upload("a", BODY)
        made.commit()
        made.upload("a", noise(2 * PART, 1))
        made.commit()
        counts = [count(tmp_path, "body_parts"), *tidied(made)]
        assert counts[-1] == 2
        assert max(before - after for before, after in pairwise(counts)) == TRIMMED

    def test_body_that_goes_while_it_is_compressed_leaves_no_part(
        self, made: DurableState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some of its parts are written by then."""
        monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", PART)
        made.store_one("a", mixed(20 * PART), Tier.COLD)
        made.commit()
        while not count(tmp_path, "body_parts"):
            assert made.owner.bodies.background.work(0)
            made.commit()
        made.do(DeleteFragment("p", "a"))
        made.work()
        tidied(made)
        assert (count(tmp_path, "bodies"), count(tmp_path, "body_parts")) == (0, 0)

    def test_interrupted_upload_is_thrown_away_by_the_next_manager(self, tmp_path: Path, made: DurableState) -> None:
        upload = made.offer(BODY, 5 * PART)
        made.commit()
        copy = tmp_path / "copy"
        copy.mkdir(mode=0o700)
        (copy / DATABASE).write_bytes(checkpointed(made))
        shutil.copyfile(tmp_path / MARK, copy / MARK)
        made.owner.bodies.abandon(upload)
        with durable_state(copy) as found:
            assert count(copy, "body_parts") == 5
            tidied(found)
            assert count(copy, "body_parts") == 0

    def test_body_that_nothing_refers_to_is_dropped_by_the_next_manager(
        self, tmp_path: Path, made: DurableState
    ) -> None:
        """It was uploaded, and then its manager died before anybody had stored it."""
        digest, _ = made.owner.bodies.stage(made.offer(BODY))
        made.commit()
        copy = tmp_path / "copy"
        copy.mkdir(mode=0o700)
        (copy / DATABASE).write_bytes(checkpointed(made))
        shutil.copyfile(tmp_path / MARK, copy / MARK)
        made.owner.bodies.unstage(digest)
        with durable_state(copy) as found:
            assert count(copy, "bodies") == 1
            found.commit()
            tidied(found)
            assert (count(copy, "bodies"), count(copy, "body_parts")) == (0, 0)


def checkpointed(made: DurableState) -> bytes:
    """All that is committed, in one file."""
    made.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (made.path / DATABASE).read_bytes()


class TestForms:
    @pytest.mark.parametrize("size", [5_000, 700_000], ids=["small", "large"])
    def test_body_that_goes_cold_is_readable_throughout(self, tmp_path: Path, size: int) -> None:
        """Somebody reads it again and again while it is written anew, compressed: it is always the same."""
        body, stop, forms = compressible(size), threading.Event(), []
        with durable_state(tmp_path) as made:
            made.store_one("a", body)
            made.commit()

            def read() -> None:
                with closing(BodyFile(made.store.database)) as file:
                    while not stop.is_set():
                        packed, data = file.read(digest_of(body), made.store.body_number(digest_of(body)))
                        forms.append((packed, (unpack(data, size) if packed else data) == body))

            thread = threading.Thread(target=read)
            thread.start()
            try:
                eventually(lambda: forms)
                made.do(DemoteFragment("p", "a"))
                made.do(DemoteFragment("p", "a"))
                made.commit()
                made.work()
                eventually(lambda: forms[-1][0])
            finally:
                stop.set()
                thread.join()
        assert set(forms) == {(False, True), (True, True)}

    @pytest.mark.parametrize("size", [5_000, 700_000], ids=["small", "large"])
    def test_body_that_cannot_be_compressed_stays_as_it_is(
        self, tmp_path: Path, turns: list[CommitBatch], size: int
    ) -> None:
        """It is not even written again, now or by the next manager."""
        body = noise(size)
        with durable_state(tmp_path) as made:
            made.store_one("a", body, Tier.COLD)
            made.commit()
            before = len(turns)
            made.work()
            assert [turn.bodies for turn in turns[before:] if turn.bodies] == []
        with durable_state(tmp_path) as made:
            made.work()
            assert made.owner.bodies.background.waiting == 0
        assert form(tmp_path, body) == "raw"

    def test_cold_body_that_was_raw_when_its_manager_died_is_compressed_by_the_next(self, tmp_path: Path) -> None:
        body = compressible(5_000)
        with durable_state(tmp_path) as made:
            made.store_one("a", body, Tier.COLD)
            made.commit()
        assert form(tmp_path, body) == "raw"
        with durable_state(tmp_path) as made:
            made.work()
        assert form(tmp_path, body) == "packed"

    def test_hot_body_is_readable_at_once_and_comes_back_into_memory(self, tmp_path: Path) -> None:
        """A client of the next manager reads it from the database, and then, unasked, from shared memory."""
        body = compressible(50_000)
        with durable_state(tmp_path) as made:
            made.store_one("a", body, now_ms=ORIGIN.now_ms)
            made.commit()
        with staged_on(tmp_path) as stage:
            handle = stage.owner.bodies.find(digest_of(body))
            assert handle is not None
            assert handle.segment == IN_STORE
        with served_on(tmp_path) as address, sw.connect(address, projects=["p"]) as client:
            assert client.tiers.get("a").body == body
            eventually(lambda: client.status().memory.waiting == 0)
            assert client.status().memory.live_bytes >= len(body)
            assert client.tiers.get("a").body == body


class TestRedoLog:
    """The tables of the store follow its log: at once when nobody writes, at intervals under load."""

    def test_idle_moment(self, made: DurableState) -> None:
        """A second without a write, and the next slices move everything."""
        made.journal.tidy({}, 0.0)
        made.store_one("a", b"body")
        made.commit()
        made.journal.tidy({}, 1.0)
        assert not made.owner.work()
        made.journal.tidy({}, 1.9)
        while made.owner.work():
            pass
        assert logged(made) == 0

    def test_load(self, made: DurableState) -> None:
        """As long as each second has a write, the log is left alone for the interval, and moves with commits then."""
        found: list[int] = []
        for step in range(10):
            made.journal.tidy({}, step * limits.REDO_SECONDS / 4)
            made.store_one(f"f{step}", b"body")
            made.commit()
            found.append(logged(made))
        assert found == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]

    def test_end(self, made: DurableState) -> None:
        """Nothing is left in the log of a manager that ends in good order."""
        made.store_one("a", b"body")
        made.journal.finish()
        assert logged(made) == 0


def logged(made: DurableState) -> int:
    (count,) = made.store._db.execute("SELECT count(*) FROM redo_log").fetchone()
    assert isinstance(count, int)
    return count
