"""Reading a database without leaving a trace, whether or not a manager is writing it.

SQLite's `mode=ro` is not enough: it creates the log and its index if they are missing, and rewrites the index if a
manager has died. So the files are examined first, and the database is read in the one way that changes nothing:

    log and index exist     a manager is running: read through them, with a read-only index
    no log, or an empty one everything is in the database: read it as immutable
    a log without an index  copied or left behind: read a temporary copy

A manager may start or stop in between. Then the files have changed, and the reading is repeated.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from stepwell import limits
from stepwell.errors import Busy, InvalidArgument, StepwellError, StoreDamaged
from stepwell.storage.files.directory import DATABASE, LOCK
from stepwell.storage.files.mark import MARK
from stepwell.storage.files.private_files import require_private_database, require_private_file
from stepwell.storage.schema import APPLICATION_ID

T = TypeVar("T")
ReadFunction = Callable[[sqlite3.Connection], T]

_PAGE_BYTES_MIN: Final = 512  # of SQLite: a shorter file is no database


def find_database(directory: Path) -> Path:
    """Return the path of the database in a data directory.

    Raise `InvalidArgument` if there is none or it is not this user's alone (see `private_files`), and `StoreDamaged`
    for a file that SQLite would take for an empty database.
    """
    database = directory / DATABASE
    if not directory.is_dir():
        raise InvalidArgument(f"there is no directory {str(directory)!r}: give that of `stepwell serve --data-dir`")
    if not database.is_file():
        raise InvalidArgument(f"there is no {DATABASE} in {str(directory)!r}: give a data directory")
    try:
        require_private_database(database)
        require_private_file(directory / LOCK)
        require_private_file(directory / MARK)
    except OSError as error:
        raise InvalidArgument(f"the data directory {str(directory)!r} is not read: {error.strerror}") from error
    if not os.access(database, os.R_OK):
        raise InvalidArgument(f"{str(database)!r} may not be read: ask its owner")
    if not _bytes(database) and _bytes(_log(database)):  # SQLite would throw the log away
        raise StoreDamaged(f"{str(database)!r} is empty, and its log is not: restore a backup")
    if 0 < _bytes(database) < _PAGE_BYTES_MIN:  # SQLite would take it for empty
        raise _not_a_database(database)
    return database


def schema_of(db: sqlite3.Connection) -> int | None:
    """Return the version of the tables, or None for an empty database.

    Raise `InvalidArgument` for another program's file.
    """
    try:
        application, version = number_of(db, "PRAGMA application_id"), number_of(db, "PRAGMA user_version")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise _NotADatabase from error
        raise
    if application == APPLICATION_ID:
        return version
    if application or version or number_of(db, "SELECT count(*) FROM sqlite_master"):
        raise InvalidArgument("the database is another program's: give a data directory of stepwell's")
    return None


def inspect(database: Path, read: ReadFunction[T]) -> T:
    """Return the result of `read` on a connection to the database.

    `read` is called again if a manager started or stopped meanwhile, so it must have no effects. Raise `Busy` if that
    happens again and again.
    """
    for _ in range(limits.INSPECT_ATTEMPTS_MAX):
        before = _file_state(database)
        try:
            found = _read_once(database, before, read)
        except _NotADatabase:
            raise _not_a_database(database) from None
        except Exception:
            if _file_state(database) == before:
                raise
        else:
            if before.is_shared or _file_state(database) == before:
                return found
    raise Busy(f"managers start and stop at {str(database)!r}: try again when one stays, or none")


def number_of(db: sqlite3.Connection, query: str) -> int:
    """Return the result of a query that gives one number."""
    (number,) = db.execute(query).fetchone()
    assert isinstance(number, int)
    return number


class _NotADatabase(Exception):
    """SQLite does not recognise the file as a database."""


def _not_a_database(database: Path) -> StepwellError:
    """Return the error for a file that is no database. In a directory with a lock file it was one, so it is damaged."""
    if (database.parent / LOCK).exists():  # a manager was here
        return StoreDamaged(f"{str(database)!r} does not begin as a database does: restore a backup")
    return InvalidArgument(f"{str(database)!r} is no database: give a data directory of stepwell's")


class _FileState(NamedTuple):
    """The state of the files, compared before and after a read to see whether a manager started or stopped.

    `is_shared` is True if log and index exist: readers and writers then coordinate through SQLite.
    """

    is_shared: bool
    database: tuple[int, int, int] | None = None
    log_bytes: int = 0


def _file_state(database: Path) -> _FileState:
    """Return the present state of the files."""
    log, index = _log(database), database.with_name(f"{database.name}-shm")
    if log.exists() and index.exists():
        return _FileState(is_shared=True)
    found = database.stat()
    return _FileState(is_shared=False, database=(found.st_ino, found.st_size, found.st_mtime_ns), log_bytes=_bytes(log))


def _log(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_once(database: Path, state: _FileState, read: ReadFunction[T]) -> T:
    """Read the database in the way that its files allow."""
    if not _bytes(database):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            return read(db)
    if state.is_shared:
        return _read_with(database, "mode=ro&readonly_shm=1", read)
    if not state.log_bytes:  # all of it is in the database itself
        return _read_with(database, "mode=ro&immutable=1", read)
    # Without its index the log cannot be read in place: SQLite would have to create one.
    with tempfile.TemporaryDirectory(prefix="stepwell-doctor-") as directory:
        for each in (database, _log(database)):
            shutil.copyfile(each, Path(directory) / each.name)
        return _read_with(Path(directory) / database.name, "mode=ro", read)


def _read_with(database: Path, how: str, read: ReadFunction[T]) -> T:
    """Read a database with the given options of SQLite's URI."""
    uri = f"file://{quote(str(database.absolute()))}?{how}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=limits.SQLITE_BUSY_SECONDS)) as db:
        return read(db)
