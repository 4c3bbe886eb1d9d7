"""The redo log has what the tables do not have yet: nothing is lost, nothing is there twice, and damage is found."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.tiers.commands import DeleteFragment
from stepwell.errors import StoreDamaged, StoreFailed
from stepwell.manager.check.doctor import examine
from stepwell.storage import redo_log, rows
from stepwell.storage.backup import back_up
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.sql import Database
from stepwell.storage.store import SessionRow
from stepwell.storage.table import Values
from tests.support.storage.state import (
    DurableState,
    durable_state,
    files,
    fill,
    kept,
    latest_store_row,
    write_checksums,
)

SESSION = SessionRow("session", None, 1, "")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[DurableState]:
    with durable_state(tmp_path / "data") as found:
        yield found


def count(made: DurableState, table: str) -> int:
    (number,) = made.store._db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
    assert isinstance(number, int)
    return number


def shown(directory: Path) -> tuple[object, ...]:
    """All that a reader finds, in a form that can be compared."""
    found = kept(directory)
    fragments = [(entry.row, rows.use_values(entry)) for entry in found.fragments]
    return found.revision, found.rows, fragments, found.bodies, found.sessions, found.replies, found.reply_parts


def store(made: DurableState, *names: str) -> None:
    """One commit for each fragment."""
    for name in names:
        made.store_one(name, name.encode())
        made.commit()


def changed(directory: Path, *statements: str) -> None:
    """Change the log itself, with right checksums."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        write_checksums(db)


def refused(directory: Path, message: str) -> None:
    """The manager and the backup say it, the doctor as well, and nothing is changed."""
    before = files(directory)
    with pytest.raises(StoreDamaged, match=message), durable_state(directory):
        pass
    with pytest.raises(StoreDamaged, match=message):
        back_up(directory, directory.parent / "copy")
    problems = examine(directory, lambda _: None).problems
    assert any(message in problem for problem in problems), problems
    assert files(directory) == before


def test_commit_is_one_row(made: DurableState) -> None:
    """And the bytes of new bodies, which are there at once because clients read them; no other table changes."""
    store(made, "a", "b", "c")
    assert (count(made, "redo_log"), count(made, "fragments"), count(made, "events")) == (3, 0, 0)
    assert count(made, "bodies") == 3


def test_tables_are_always_the_state_of_a_commit(made: DurableState, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice has whole turns. Whatever has moved, a reader finds the same."""
    monkeypatch.setattr(limits, "REDO_SLICE_RECORDS", 2)
    store(made, "a", "b", "c", "d", "e")
    expected = shown(made.path)
    made.store.follow()
    in_tables = [0]
    while made.store.work():
        in_tables.append(count(made, "fragments"))
        assert shown(made.path) == expected
        assert count(made, "redo_log") == 5 - in_tables[-1]
    assert in_tables == [0, 2, 4]
    assert (count(made, "redo_log"), count(made, "fragments")) == (0, 5)
    assert shown(made.path) == expected


def test_slice_is_bounded_by_bytes(made: DurableState, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one record moves, and no second one that is too much."""
    monkeypatch.setattr(limits, "REDO_SLICE_BYTES", 1)
    store(made, "a", "b", "c")
    made.store.follow()
    assert made.store.work()
    assert count(made, "redo_log") == 2


def test_tables_follow_what_was_committed_when_they_were_told(made: DurableState) -> None:
    """Later commits wait for the next time."""
    store(made, "a")
    assert not made.store.work()
    made.store.follow()
    made.store_one("b", b"b")
    made.commit()  # with a slice of its own
    assert not made.store.work()
    assert made.store.load() is None
    assert {entry.row.fragment_id for entry in kept(made.path).fragments} == {"a", "b"}


def test_log_does_not_grow_beyond_its_bound(made: DurableState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit moves more than it adds."""
    monkeypatch.setattr(limits, "REDO_BYTES_MAX", 2_000)
    monkeypatch.setattr(limits, "REDO_SLICE_BYTES", 1)
    for number in range(100):
        store(made, f"f{number}")
        (size,) = made.store._db.execute("SELECT ifnull(sum(length(record)), 0) FROM redo_log").fetchone()
        assert size == made.store._log_bytes <= 2_000
    assert count(made, "fragments") > 80


@pytest.mark.parametrize("follows_first", [False, True])
def test_deletion_of_what_was_not_moved_yet(made: DurableState, follows_first: bool) -> None:  # noqa: FBT001
    """In the order of the commits, whether they move together or one after the other."""
    store(made, "a", "b")
    if follows_first:
        made.follow()
    made.do(DeleteFragment("p", "a"))
    made.commit()
    store(made, "a")
    made.do(DeleteFragment("p", "b"))
    made.commit()
    assert [entry.row.fragment_id for entry in kept(made.path).fragments] == ["a"]
    made.follow()
    assert [entry.row.fragment_id for entry in kept(made.path).fragments] == ["a"]
    assert count(made, "fragments") == 1


def test_reply_that_has_arrived_never_gets_into_the_tables(made: DurableState, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later record says so; the one that has not arrived gets there."""
    executed: list[tuple[str, Sequence[Values]]] = []
    execute = redo_log._execute

    def note(db: Database, name: str, values: Sequence[Values]) -> None:
        executed.append((name, values))
        execute(db, name, values)

    monkeypatch.setattr(redo_log, "_execute", note)
    made.journal.record_session(SESSION)
    for number in (1, 2):
        made.journal.record_reply("session", number, b"frame")
        made.commit()
    made.journal.tidy({"session": 2}, 0.0)
    made.commit()
    made.follow()
    assert [values for name, values in executed if name == "replies.put"] == [[("session", 2, b"frame")]]
    assert kept(made.path).replies == [("session", 2, b"frame")]


def test_every_flipped_bit_of_a_record_is_found(tmp_path: Path) -> None:
    """With the table and the record."""
    data = tmp_path / "data"
    with durable_state(data) as made:
        fill(made)
        store(made, "a", "b", "c")
        (number,) = made.store._db.execute("SELECT min(number) + 1 FROM redo_log").fetchone()
    chance = random.Random(7)
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as db:
        (record,) = db.execute("SELECT record FROM redo_log WHERE number = ?", (number,)).fetchone()
    for _ in range(5):
        flipped = bytearray(record)
        flipped[chance.randrange(len(record))] ^= 1 << chance.randrange(8)
        with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as db:
            db.execute("UPDATE redo_log SET record = ? WHERE number = ?", (bytes(flipped), number))
        refused(data, f"table redo_log, number {number}: its checksum is wrong")


@pytest.mark.parametrize(
    "statement, message",
    [
        ("DELETE FROM redo_log WHERE number = (SELECT min(number) FROM redo_log)", "is missing before it"),
        ("DELETE FROM redo_log WHERE number = (SELECT min(number) + 1 FROM redo_log)", "is missing before it"),
        ("UPDATE redo_log SET record = x'00' WHERE number = (SELECT min(number) FROM redo_log)", "table redo_log"),
        ("UPDATE redo_log SET record = 'text' WHERE number = (SELECT max(number) FROM redo_log)", "table redo_log"),
        ("UPDATE redo_log SET record = x'9290C0' WHERE number = (SELECT max(number) FROM redo_log)", "table redo_log"),
        ("UPDATE redo_log SET record = x'929090' WHERE number = (SELECT max(number) FROM redo_log)", "table redo_log"),
        ("DELETE FROM store", "table store"),
    ],
)
def test_log_that_is_not_what_was_written(tmp_path: Path, statement: str, message: str) -> None:
    """Also where every checksum is right."""
    with durable_state(tmp_path / "data") as made:
        store(made, "a", "b", "c", "d")
    changed(tmp_path / "data", statement)
    refused(tmp_path / "data", message)


def test_statement_of_a_later_version(tmp_path: Path) -> None:
    """It is not guessed."""
    with durable_state(tmp_path / "data") as made:
        store(made, "a")
        db = made.store._db
        db.execute("BEGIN")
        row = made.store._row
        redo_log.append(db, replace(row, commits=row.commits + 1), [("fragments.polish", [(1,)])])
        db.execute("COMMIT")
    refused(tmp_path / "data", "there is no statement 'fragments.polish'")


def test_record_of_an_earlier_version(made: DurableState) -> None:
    """It may have fewer columns: they are the first ones, and the tables have defaults for the others."""
    db, row = made.store._db, made.store._row
    db.execute("BEGIN")
    earlier = ("plan", "changeset", 1, "create", "a.py", None, *[None] * 6, "tool", 7)
    redo_log.append(db, replace(row, commits=row.commits + 1), [("entries.put", [earlier])])
    redo_log.apply_all(db)
    assert db.execute("SELECT path, before_mode, ordinal FROM entries").fetchall() == [("a.py", None, 0)]
    assert latest_store_row(db).commits == row.commits + 1
    db.execute("ROLLBACK")


@pytest.mark.parametrize("how", ["idle", "commit"])
def test_slice_that_cannot_be_written_stops_the_manager(made: DurableState, how: str) -> None:
    """As a commit that fails does, and nothing is lost."""
    store(made, "a", "b")
    made.store.follow()
    made.store._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreFailed, match="cannot be written"):
        made.store.work() if how == "idle" else store(made, "c")
    assert {entry.row.fragment_id for entry in kept(made.path).fragments} == {"a", "b"}


def test_record_that_is_damaged_while_the_manager_runs(made: DurableState) -> None:
    """The manager stops, with the record; the tables stay as they are."""
    store(made, "a", "b")
    made.store._db.execute("UPDATE redo_log SET record = x'00'")
    made.store.follow()
    with pytest.raises(StoreFailed, match="table redo_log, number 2: its checksum is wrong"):
        made.store.work()
    assert count(made, "fragments") == 0


def test_backup_has_applied_the_log(tmp_path: Path) -> None:
    """The copy of a running manager's directory is complete, and has tables that any tool can read."""
    with durable_state(tmp_path / "data") as made:
        fill(made)
        store(made, "a", "b")
        copied = back_up(tmp_path / "data", tmp_path / "copy")
        revision, _, fragments, bodies, *_ = shown(tmp_path / "data")
    assert copied.revision == revision
    assert shown(tmp_path / "copy")[0] == revision
    assert shown(tmp_path / "copy")[2:4] == (fragments, bodies)
    with closing(sqlite3.connect(tmp_path / "copy" / DATABASE)) as db:
        assert db.execute("SELECT count(*) FROM redo_log").fetchone() == (0,)


def test_doctor_counts_what_the_log_has(tmp_path: Path) -> None:
    """It finds the same before and after the tables have followed, beside a manager and without one."""
    with durable_state(tmp_path / "data") as made:
        fill(made)
        made.journal.record_session_end("session")
        store(made, "a", "b")
        during = examine(tmp_path / "data", lambda _: None)
        made.follow()
        after = examine(tmp_path / "data", lambda _: None)
        store(made, "c")
    alone = examine(tmp_path / "data", lambda _: None)
    assert during.problems == after.problems == alone.problems == []
    assert (during.counts, during.revision, during.notes) == (after.counts, after.revision, after.notes)
    assert alone.counts["fragments"] == after.counts["fragments"] + 1
