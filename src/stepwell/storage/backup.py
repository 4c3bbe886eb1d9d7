"""A copy of a data directory, made while its manager continues to write.

The copy is one revision, read in one transaction. It is written to a staging directory beside the target and renamed
when it is complete and synced, so that the target exists entirely or not at all.

The copy starts a history of its own, with an epoch of its own, so that no client of the original mistakes it for that.
It has no sessions and no remembered replies, and its leases are expired: the first manager that serves it queues their
plans. It has no mark (see `mark`), and its database says so. If it is restored to a directory with a mark, that mark
belongs to another history and does not count.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import InvalidArgument, StartFailed, StoreDamaged, StoreFailed
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.readonly import find_database, inspect, number_of, schema_of
from stepwell.storage.redo_log import apply_all
from stepwell.storage.rows import verify
from stepwell.storage.schema import VERSION, start_new_epoch
from stepwell.storage.table import add_checksum_function

_PARTIAL: Final = "copy.partial"
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class BackupResult(Struct, frozen=True):
    """The revision, the epoch and the size of a finished backup."""

    revision: int
    epoch: str
    bytes: int


def back_up(source: Path, target: Path) -> BackupResult:
    """Copy a data directory to a new one, and return the result.

    Raise `InvalidArgument` for an unusable source or target, `StartFailed` for another version of the tables,
    `StoreDamaged` if the source cannot be read, and `StoreFailed` if the copy cannot be written. A failed backup leaves
    nothing behind.
    """
    database = find_database(source)
    target = _new_directory(source, target)
    with _staging_directory(target) as staging:
        partial = staging / _PARTIAL
        with _backup_errors(target):
            inspect(database, lambda db: _copy(db, partial))
            copied = _start_new_epoch(partial)
            _sync(partial)
            partial.rename(staging / DATABASE)
            _sync(staging)
            try:
                staging.rename(target)  # replaces an empty directory, and nothing else
            except OSError as error:
                raise InvalidArgument(f"{str(target)!r} cannot be made ({error.strerror}): give another one") from error
            _sync(target.parent)
    return copied


def _new_directory(source: Path, target: Path) -> Path:
    """Return the resolved target. Raise `InvalidArgument` if it is not a free place outside of the source."""
    target, source = target.resolve(), source.resolve()
    if target == source or source in target.parents:
        raise InvalidArgument(f"{str(target)!r} is in the data directory itself: give a place outside of it")
    if not target.parent.is_dir():
        raise InvalidArgument(f"there is no directory {str(target.parent)!r}: make it first")
    try:
        is_free = not target.exists() or not any(target.iterdir())
    except OSError:  # no directory, or not readable
        is_free = False
    if not is_free:
        raise InvalidArgument(f"{str(target)!r} is there already, and not empty: give a new directory")
    return target


@contextlib.contextmanager
def _staging_directory(target: Path) -> Generator[Path]:
    """Yield a private directory beside the target. It is removed with everything that is left in it.

    It is on the same file system as the target, so that the final rename is atomic.
    """
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise InvalidArgument(
            f"nothing can be written in {str(target.parent)!r} ({error.strerror}): give another place"
        ) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _backup_errors(target: Path) -> Generator[None]:
    """Translate errors of SQLite and of the file system to those of `back_up`.

    An interrupted statement was interrupted by a Ctrl-C (see `_continue`), and is raised as one.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if code in _DAMAGED:
            raise StoreDamaged(f"the data directory cannot be copied: {error}; see `stepwell doctor`") from error
        raise _unwritable(target, error) from error
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: Exception) -> StoreFailed:
    return StoreFailed(
        f"the backup {str(target)!r} cannot be written ({error}): make room; nothing of it was left there"
    )


def _copy(db: sqlite3.Connection, partial: Path) -> None:
    """Copy the database in one read, so that it is one revision.

    `VACUUM INTO` writes live rows only, without the space of deleted ones. The file is created beforehand with access
    for its user only, because SQLite would use the process's umask. `inspect` may call this again, hence the unlink.
    """
    schema = schema_of(db)
    if schema is None:
        raise InvalidArgument("there is nothing in the data directory yet: start a manager on it first")
    if schema != VERSION:
        raise StartFailed(
            f"the data directory has schema {schema}, and this stepwell {VERSION}: use the one that serves it"
        )
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db.set_progress_handler(_continue, limits.BACKUP_STEPS_PER_CHECK)
    db.execute("VACUUM INTO ?", (str(partial),))


def _continue() -> int:
    """Let SQLite continue. While it copies, Python handles a Ctrl-C only inside this callback."""
    return 0


def _start_new_epoch(partial: Path) -> BackupResult:
    """Apply the redo log of the copy, give it its own epoch, check it, and return its description.

    `quick_check` reads every page of the copy, and `verify` compares the checksum of every row, so that a backup that
    cannot be restored is noticed now and not when it is needed.
    """
    with closing(sqlite3.connect(partial, isolation_level=None)) as db:
        add_checksum_function(db)
        db.execute("PRAGMA journal_mode = WAL")  # as a manager opens it, so that the first one changes nothing
        db.execute("BEGIN IMMEDIATE")
        apply_all(db)
        verify(db)
        epoch = start_new_epoch(db)
        db.execute("COMMIT")
        found = [str(line) for (line,) in db.execute("PRAGMA quick_check")]
        if found != ["ok"]:
            raise StoreDamaged(f"the copy is not whole ({found[0]}): see `stepwell doctor`")
        revision = number_of(db, "SELECT revision FROM store")
    return BackupResult(revision, epoch, partial.stat().st_size)


def _sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
