"""What a manager finds when it opens a directory: what a kill left is opened, what is not sound or not ours is not."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.plans.model import PlanState
from stepwell.errors import StartFailed, StepwellError, StoreDamaged, StoreFailed
from stepwell.manager.process import Settings
from stepwell.manager.process import open_store as open_for
from stepwell.storage.backup import back_up
from stepwell.storage.body_reader import BodyFile
from stepwell.storage.database import translated_errors
from stepwell.storage.files import store_files
from stepwell.storage.files.directory import DATABASE, LOCK, DataDirectory
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability
from tests.support.manager.peers import Clock
from tests.support.memory.bodies import noise
from tests.support.storage.state import NOON_MS, copy_database, durable_state, fill, kept, open_store, staged_on

WAL = f"{DATABASE}-wal"
JOURNAL = f"{DATABASE}-journal"
PAGE_BYTES = 4_096
HEADER_OF_A_WAL = b"\2\2"
"""The versions to read and to write it with, at byte 18."""

Boot = Callable[[str], None]


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Starts the machine anew, as far as a store can tell."""

    def start(name: str) -> None:
        monkeypatch.setattr(store_files, "boot_id", lambda: name)

    return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def hot_journal(pages: int) -> bytes:
    """What SQLite writes before it touches a database of so many pages; of these nothing was changed yet."""
    magic, records, nonce, sector_bytes = bytes.fromhex("d9d505f920a163d7"), 0, 1, 512
    numbers = (records, nonce, pages, sector_bytes, PAGE_BYTES)
    return (magic + b"".join(number.to_bytes(4) for number in numbers)).ljust(sector_bytes, b"\0")


def wal_page() -> bytes:
    """The one page of a database that has just become one with a log."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA application_id = 0")
        db.execute("VACUUM")
        page = bytearray(db.serialize())
    page[18:20] = HEADER_OF_A_WAL
    return bytes(page)


def interrupted(source: Path, target: Path) -> None:
    """A copy, as it is when its manager is killed while it writes the log back: the first page is, the last is not."""
    copy_database(source, target)
    with closing(sqlite3.connect(source / DATABASE, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(FULL)")
    whole = (source / DATABASE).read_bytes()
    with (target / DATABASE).open("r+b") as file:
        file.write(whole[:PAGE_BYTES])
        assert 0 < file.seek(0, os.SEEK_END) < len(whole)


class TestLength:
    def test_kill_while_the_log_is_written_back(self, tmp_path: Path) -> None:
        """The file is shorter than it says, and the log has the rest: nothing is missing."""
        with durable_state(tmp_path / "data") as made:
            made.commit()
            made.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            fill(made)
            made.store_one("large", noise(50_000))
            made.commit()
            expected = kept(tmp_path / "data")
            interrupted(tmp_path / "data", tmp_path / "copy")
        with durable_state(tmp_path / "copy") as found:
            assert found.owner.stored is not None
            assert found.owner.stored.revision == expected.revision
            assert found.owner.stored.bodies == expected.bodies

    @pytest.mark.parametrize("log", [None, b""], ids=["no log", "an empty log"])
    def test_without_a_log_it_is_damage(self, tmp_path: Path, log: bytes | None) -> None:
        """Then nobody has what is missing."""
        with durable_state(tmp_path) as made:
            fill(made)
        with (tmp_path / DATABASE).open("r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) - PAGE_BYTES)
        if log is not None:
            (tmp_path / WAL).write_bytes(log)
        with pytest.raises(StoreDamaged, match="lost its end"), durable_state(tmp_path):
            pass


class TestHalfMade:
    @pytest.mark.parametrize("share", [0, 1_000, PAGE_BYTES])
    def test_kill_in_the_moment_of_creation(self, tmp_path: Path, share: int) -> None:
        """The journal of the first page is there, and of the page none, some, or all: it is a new database."""
        (tmp_path / DATABASE).write_bytes(wal_page()[:share])
        (tmp_path / JOURNAL).write_bytes(hot_journal(pages=0))
        with durable_state(tmp_path) as made:
            assert made.owner.stored is None
            fill(made)
        with durable_state(tmp_path) as made:
            assert made.owner.stored is not None

    @pytest.mark.parametrize("statement", ["CREATE TABLE mine (a)", "PRAGMA application_id = 7"])
    def test_file_of_somebody_else_that_has_a_journal(self, tmp_path: Path, statement: str) -> None:
        """It is not opened, and it is left as it is."""
        with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
            db.execute(statement)
        page_count = (tmp_path / DATABASE).stat().st_size // PAGE_BYTES
        (tmp_path / JOURNAL).write_bytes(hot_journal(page_count))
        before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
        with pytest.raises(StepwellError), durable_state(tmp_path):
            pass
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.name != LOCK} == before

    def test_backup_has_its_log_from_the_start(self, tmp_path: Path) -> None:
        """So that no manager has to make it one that has, and can be killed in that moment."""
        with durable_state(tmp_path / "data") as made:
            fill(made)
            back_up(tmp_path / "data", tmp_path / "copy")
        assert (tmp_path / "copy" / DATABASE).read_bytes()[18:20] == HEADER_OF_A_WAL


class TestAnotherBoot:
    """At `process`, a loss of power may have taken what was acknowledged: it is not the same history."""

    def test_history_begins_anew(self, tmp_path: Path, boot: Boot) -> None:
        """Nobody can take up a session or a reply of before, and leases are over."""
        boot("one")
        with durable_state(tmp_path) as made:
            fill(made)
            epoch, before = made.store.epoch, kept(tmp_path)
            assert (len(before.sessions), len(before.replies)) == (1, 1)
        boot("two")
        with durable_state(tmp_path) as made:
            assert made.store.epoch != epoch
            assert made.owner.stored is not None
            assert (made.owner.stored.sessions, made.owner.stored.replies) == ([], [])
            assert made.owner.stored.revision == before.revision
            plan = made.owner._state.plans.get("plan")
            assert plan is not None
            assert plan.lease is not None
            assert plan.lease.expires_at_ms <= NOON_MS
            epoch = made.store.epoch
        with durable_state(tmp_path) as made:
            assert made.store.epoch == epoch

    @pytest.mark.parametrize("name, state", [("one", PlanState.PROCESSING), ("two", PlanState.QUEUED)])
    def test_plan_is_given_back(self, tmp_path: Path, boot: Boot, name: str, state: PlanState) -> None:
        """The lease of a history that is over is nobody's; one of this history still has its grace."""
        boot("one")
        with durable_state(tmp_path) as made:
            fill(made)
        boot(name)
        with staged_on(tmp_path) as stage:
            stage.turn(3)
            plan = stage.owner._state.plans.get("plan")
            assert plan is not None
            assert plan.state is state

    @pytest.mark.parametrize("later", [Durability.DISK, Durability.PROCESS])
    @pytest.mark.parametrize("earlier", [Durability.DISK, Durability.PROCESS])
    def test_how_the_last_run_kept_it_decides(
        self, tmp_path: Path, boot: Boot, earlier: Durability, later: Durability
    ) -> None:
        """What was on the disk is there, whatever became of the machine; how this run keeps it says nothing."""
        boot("one")
        epoch = epoch_of(tmp_path, earlier)
        assert epoch_of(tmp_path, earlier) == epoch
        boot("two")
        assert (epoch_of(tmp_path, later) == epoch) is (earlier is Durability.DISK)


def epoch_of(directory: Path, durability: Durability) -> str:
    """That of a run which begins and ends there."""
    with closing(SqliteStore(StoreFiles(DataDirectory(directory, "test")), durability, "estimate")) as store:
        store.load()
        store.start_writing()
        return store.epoch


class TestPlace:
    def test_directory_that_is_gone_is_not_made_again(self, tmp_path: Path) -> None:
        """An empty one in its place would pass for all that there ever was."""
        data = tmp_path / "above" / "data"
        settings = Settings(address="test", budget=None, data_dir=str(data), must_exist=True)
        with pytest.raises(StartFailed, match="is gone"):
            open_for(settings)
        assert not data.parent.exists()
        data.mkdir(parents=True)
        with pytest.raises(StartFailed, match="is gone"):
            DataDirectory(data, "test", must_exist=True)
        assert not [*data.iterdir()]

    def test_directory_that_is_there(self, tmp_path: Path) -> None:
        """It is opened as ever."""
        with durable_state(tmp_path):
            pass
        open_for(Settings(address="test", budget=None, data_dir=str(tmp_path), must_exist=True)).close()

    @pytest.mark.parametrize("how", ["removed", "replaced", "its directory is renamed"])
    def test_database_that_is_not_where_it_was(self, tmp_path: Path, clock: Clock, how: str) -> None:
        """What is acknowledged from then on would be found by nobody: the manager ends."""
        data = tmp_path / "data"
        with staged_on(data) as stage:
            clock.forward(limits.TIDY_SECONDS)
            stage.turn(3)
            if how == "its directory is renamed":
                data.rename(tmp_path / "elsewhere")
            elif how == "replaced":
                shutil.copyfile(data / DATABASE, data / "copy")
                (data / "copy").rename(data / DATABASE)
            else:
                (data / DATABASE).unlink()
            clock.forward(limits.TIDY_SECONDS)
            with pytest.raises(StoreFailed, match="removed, or another one put in its place"):
                stage.turn(3)

    def test_every_directory_that_was_made_is_flushed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name is on the disk when the directory that has it is."""
        flushed: list[Path] = []

        def note(descriptor: int) -> None:
            flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())

        monkeypatch.setattr(os, "fsync", note)
        path = tmp_path / "a" / "b" / "data"
        with durable_state(path):
            assert {*flushed} == {path, path.parent, path.parent.parent, tmp_path}
        flushed.clear()
        with durable_state(path):
            assert flushed == [path]

    def test_directory_that_cannot_be_flushed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The disk failed: that is said as such."""

        def fail(_descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with closing(open_store(tmp_path)) as store:
            store.load()
            monkeypatch.setattr(os, "fsync", fail)
            with pytest.raises(StoreFailed, match="Input/output error"):
                store.start_writing()


def test_log_that_grew_under_a_reader_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody reads, it cannot be written back; when they have gone, it does not stay as long as it was."""
    monkeypatch.setattr(limits, "WAL_PAGES", 25)
    monkeypatch.setattr(limits, "WAL_BYTES_KEPT", 200_000)
    with durable_state(tmp_path) as made:

        def write(times: int) -> int:
            for number in range(times):
                made.store_one("a", noise(50_000, number))
                made.commit()
            return (tmp_path / WAL).stat().st_size

        with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM store").fetchone()
            assert write(40) > 5 * limits.WAL_BYTES_KEPT
        assert write(10) <= limits.WAL_BYTES_KEPT


KEPT_FROM_READING = [
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_IOERR_READ,
    sqlite3.SQLITE_NOMEM,
]


def failure(code: int, message: str = "as it is") -> sqlite3.OperationalError:
    """What SQLite says."""
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


class TestDamage:
    @pytest.mark.parametrize("code", KEPT_FROM_READING)
    def test_who_was_kept_from_reading_has_found_no_damage(self, code: int) -> None:
        """It may be well the next time: nobody should restore a backup for it."""
        with pytest.raises(StoreFailed, match="cannot be read now: as it is"), translated_errors("it"):
            raise failure(code)

    @pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CORRUPT_INDEX, sqlite3.SQLITE_NOTADB])
    def test_what_was_read_and_is_wrong_is_damage(self, code: int) -> None:
        """Trying again would not help."""
        with pytest.raises(StoreDamaged, match="restore a backup"), translated_errors("it"):
            raise failure(code)

    def test_database_that_cannot_be_opened(self, tmp_path: Path) -> None:
        """SQLite's own error, with its own number: whoever has no descriptor left meets the same."""
        with closing(BodyFile(str(tmp_path / "none"))) as file, pytest.raises(StoreFailed, match="unable to open"):
            file.read(bytes(32), 1)

    def test_first_error_is_the_one_that_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After some errors there is no transaction left to end, which is another one."""
        with durable_state(tmp_path) as made:
            made.commit()

            def find(db: sqlite3.Connection, _digest: bytes, _number: int) -> None:
                db.execute("ROLLBACK")
                raise failure(sqlite3.SQLITE_IOERR, "disk I/O error")

            monkeypatch.setattr(BodyFile, "_find", staticmethod(find))
            with closing(BodyFile(made.store.database)) as file, pytest.raises(StoreFailed, match="disk I/O error"):
                file.read(bytes(32), 1)
