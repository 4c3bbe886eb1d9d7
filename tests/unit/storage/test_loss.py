"""The table of `storage.loss`: which database is accepted with which mark, and what is done with the others."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.errors import StartFailed, StoreDamaged, StoreFailed
from stepwell.manager.check import doctor
from stepwell.manager.check.doctor import Check, examine
from stepwell.storage.backup import back_up
from stepwell.storage.database import open_to_read
from stepwell.storage.files import store_files
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.files.mark import MARK, Mark, MarkFile, read_mark
from stepwell.storage.loss import accept_loss
from stepwell.storage.store import Durability
from tests.support.measurement import untraced
from tests.support.storage.damage import flip_bit
from tests.support.storage.kept_database import SUFFIX, VERSIONS
from tests.support.storage.state import apply_log, durable_state, files, fill, latest_store_row, staged_on, tamper


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that a manager has left in good order."""
    with durable_state(tmp_path / "data", durability=Durability.DISK) as made:
        fill(made)
    return tmp_path / "data"


def mark_of(directory: Path) -> Mark:
    found = read_mark(directory)
    assert found is not None
    return found


def commits_of(directory: Path) -> tuple[str, int, int]:
    with closing(open_to_read(directory / DATABASE)) as db:
        row = latest_store_row(db)
    return row.epoch, row.commits, row.revision


def write(directory: Path, mark: Mark) -> None:
    MarkFile(directory, mark).close()


def start(directory: Path) -> str:
    """The epoch of a manager that starts there and ends."""
    with durable_state(directory, durability=Durability.DISK) as made:
        made.store_one("another", b"one")
        made.commit()
        return made.store.epoch


def refused(directory: Path, why: str) -> None:
    """No manager starts and the doctor is not content; nothing changes by either. Accepting it is a new epoch."""
    before, epoch = files(directory), commits_of(directory)[0]
    with pytest.raises(StoreDamaged, match=why) as caught:
        start(directory)
    assert f"stepwell doctor --data-dir {directory} --accept-loss" in caught.value.message
    report = examine(directory, lambda _encoding: None)
    assert [each for each in report.problems if each.startswith("commits: ")]
    assert files(directory) == before
    accepted = accept_loss(directory)
    assert accepted not in {None, epoch}
    assert start(directory) == accepted


def test_mark_is_at_the_last_commit(data: Path) -> None:
    """Also when a commit changed no revision, and after the end and the next start of a manager."""
    for _ in range(2):
        mark = mark_of(data)
        assert (mark.epoch, mark.commits, mark.revision) == commits_of(data)
        with durable_state(data, durability=Durability.DISK) as made:
            earlier = mark_of(data)
            made.journal.record_reply("session", 9, b"frame")
            made.commit()
            assert mark_of(data) == Mark(earlier.epoch, earlier.commits + 1, earlier.revision)


def test_behind_the_mark(data: Path) -> None:
    mark = mark_of(data)
    write(data, Mark(mark.epoch, mark.commits + 1, mark.revision))
    refused(data, f"acknowledged writes are lost.* at revision {mark.revision} ")


def test_ahead_of_the_mark(data: Path) -> None:
    """A kill between the two leaves it so, and a loss of power leaves it a second behind."""
    mark = mark_of(data)
    write(data, Mark(mark.epoch, 1, 0))
    assert start(data) == mark.epoch
    assert examine(data, lambda _encoding: None).checks[Check.COMMITS].count == 0


def test_mark_that_is_missing(data: Path) -> None:
    (data / MARK).unlink()
    refused(data, "is missing")


@pytest.mark.parametrize("what", [b"", b"stepwell", b"x" * 300, b"\0" * 100])
def test_mark_that_is_something_else(data: Path, what: bytes) -> None:
    (data / MARK).write_bytes(what)
    refused(data, "the mark .* is damaged")


@untraced()
def test_every_flipped_bit_of_a_mark(data: Path) -> None:
    """None of them gives another mark."""
    whole = (data / MARK).read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            flip_bit(data / MARK, at, bit)
            with pytest.raises(StoreDamaged, match="is damaged"):
                read_mark(data)
            (data / MARK).write_bytes(whole)
    assert start(data)


def test_mark_of_another_history(data: Path) -> None:
    """The commit that began an epoch is lost, or the files are of different directories."""
    write(data, Mark("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1, 1))
    refused(data, "of another history")


def test_backup_that_is_restored(data: Path, tmp_path: Path) -> None:
    """Into a new directory, or over the database of a directory with its old mark: both start."""
    copied = back_up(data, tmp_path / "copy")
    assert read_mark(tmp_path / "copy") is None
    shutil.copyfile(tmp_path / "copy" / DATABASE, data / DATABASE)
    for directory in (tmp_path / "copy", data):
        assert start(directory) == copied.epoch
        assert mark_of(directory).epoch == copied.epoch
        refused_without_its_log(directory)


def refused_without_its_log(directory: Path) -> None:
    """From its first start on, a loss is noticed."""
    mark = mark_of(directory)
    write(directory, Mark(mark.epoch, mark.commits + 1, mark.revision + 1))
    refused(directory, "acknowledged writes are lost")


@pytest.mark.parametrize("file", sorted(VERSIONS.glob(f"*{SUFFIX}")), ids=lambda path: path.stem)
def test_older_directory(tmp_path: Path, file: Path) -> None:
    """It has no mark, and gets one. If its log with the migration is lost then, that is noticed."""
    shutil.copyfile(file, tmp_path / DATABASE)
    epoch = start(tmp_path)
    mark = mark_of(tmp_path)
    assert mark.epoch == epoch
    shutil.copyfile(file, tmp_path / DATABASE)
    with pytest.raises(StoreDamaged, match="acknowledged writes are lost"):
        start(tmp_path)
    accepted = accept_loss(tmp_path)
    assert accepted not in {None, epoch}
    assert start(tmp_path) == accepted


def test_database_that_is_empty(data: Path) -> None:
    """It is not taken for a new one, unless that is accepted."""
    (data / DATABASE).write_bytes(b"")
    with pytest.raises(StoreDamaged, match="is empty, and the mark"):
        start(data)
    assert accept_loss(data) is None
    assert read_mark(data) is None
    assert start(data) == mark_of(data).epoch


def test_kill_before_the_first_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is committed, and says that there is no mark yet."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(MarkFile, "write", fail)
        with pytest.raises(StoreFailed, match="No space left"):
            start(tmp_path)
    assert not (tmp_path / MARK).exists()
    assert start(tmp_path) == mark_of(tmp_path).epoch


def test_kill_before_the_mark_of_a_new_epoch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is accepted, and the mark is still the old one: the next manager starts all the same."""
    mark = mark_of(data)
    write(data, Mark(mark.epoch, mark.commits + 9, mark.revision))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(MarkFile, "write", fail)
        with pytest.raises(OSError, match="Input/output"):
            accept_loss(data)
    assert mark_of(data).epoch == mark.epoch
    assert start(data) != mark.epoch


@pytest.mark.parametrize("state", ["ahead", "damaged", "missing"])
def test_commits_that_were_never_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """After another boot at `process`, the mark says nothing: a new epoch begins, with a mark of its own."""
    with durable_state(tmp_path) as made:
        fill(made)
    mark = mark_of(tmp_path)
    if state == "ahead":
        write(tmp_path, Mark(mark.epoch, mark.commits + 9, mark.revision + 9))
    elif state == "damaged":
        (tmp_path / MARK).write_bytes(b"?")
    else:
        (tmp_path / MARK).unlink()
    with pytest.raises(StoreDamaged):
        start(tmp_path)
    for module in (doctor, store_files):
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    assert examine(tmp_path, lambda _encoding: None).problems == [
        each for each in examine(tmp_path, lambda _encoding: None).problems if not each.startswith("commits")
    ]
    epoch = start(tmp_path)
    assert epoch == mark_of(tmp_path).epoch != mark.epoch


def test_damaged_row_is_not_accepted_with_the_loss(data: Path) -> None:
    """A new checksum would cover it up."""
    mark = mark_of(data)
    write(data, Mark(mark.epoch, mark.commits + 1, mark.revision))
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as db:
        apply_log(db)
        db.execute("UPDATE leases SET expires_at_ms = expires_at_ms + 1")
    before = files(data)
    with pytest.raises(StoreDamaged, match="table leases, plan_id 'plan': its checksum is wrong"):
        accept_loss(data)
    assert files(data) == before


def test_mark_that_may_not_be_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no damage, and is said as what it is."""

    def fail(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("stepwell.storage.files.mark.open_private", fail)
    with pytest.raises(StartFailed, match="Permission denied"):
        start(data)


def test_flush_of_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping flushes it, once for any number of commits; and the end of a manager does."""
    flushed: list[str] = []
    flush = os.fdatasync

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        flush(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    with durable_state(tmp_path) as made:
        assert flushed == [f"{MARK}.new"]
        for number in range(3):
            made.store_one(f"f{number}", b"body")
            made.commit()
        assert len(flushed) == 1
        for _ in range(2):
            made.journal.tidy({}, 0.0)
        assert flushed[1:] == [MARK]
        made.store_one("last", b"body")
        made.commit()
    assert flushed[1:] == [MARK, MARK]


def test_flush_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager stops, as after any other failed flush."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with durable_state(tmp_path) as made:
        made.store_one("a", b"body")
        made.commit()
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreFailed, match="Input/output error"):
            made.journal.tidy({}, 0.0)


def test_mark_that_is_written_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may take some of the bytes: the commit has failed then."""
    with durable_state(tmp_path) as made:
        made.store_one("a", b"body")
        monkeypatch.setattr(os, "pwrite", lambda *_: 7)
        with pytest.raises(StoreFailed, match="in part only"):
            made.commit()


def test_mark_that_is_removed_under_a_manager(tmp_path: Path) -> None:
    """Its next commits would be noted nowhere."""
    with durable_state(tmp_path) as made:
        (tmp_path / MARK).unlink()
        with pytest.raises(StoreFailed, match="its mark was removed"):
            made.journal.tidy({}, 0.0)


def test_start_at_process_durability_is_flushed(tmp_path: Path) -> None:
    """Otherwise a loss of power would hide that later commits were not, and their loss would look like damage."""
    with durable_state(tmp_path) as made:
        assert made.store._db.execute("PRAGMA synchronous").fetchone() == (1,)
    with staged_on(tmp_path) as stage:
        assert stage.owner.journal.store.durability is Durability.PROCESS


def test_record_is_below_a_sector() -> None:
    """The longest one fits into what is read."""
    assert len(Mark("e" * 64, 10**20 - 1, 10**20 - 1).encode()) < limits.MARK_BYTES_MAX < 512


def test_loss_of_a_row(data: Path) -> None:
    """No checksum notices a row that is not there; the number of rows does."""
    tamper(data, "DELETE FROM receipts")
    why = "have 22 rows together, and the last commit left 23"
    with pytest.raises(StoreDamaged, match=why):
        start(data)
    assert [each for each in examine(data, lambda _encoding: None).problems if why in each]
