"""Looking at a database without leaving a trace, whether or not a manager is writing it.

SQLite's own `mode=ro` is not enough: it makes the log and its index where there are none, and writes that index anew
where a manager has died. So one looks at what is there, and reads it in the one way that changes nothing.
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

from stepwell.errors import Busy, InvalidArgument, StepwellError, StoreDamaged
from stepwell.storage.directory import DATABASE, LOCK
from stepwell.storage.schema import APPLICATION_ID

T = TypeVar("T")
Look = Callable[[sqlite3.Connection], T]

_PAGE_BYTES_MIN: Final = 512
_LOOKS_MAX: Final = 3  # at a database that a manager begins to write, or ends writing, meanwhile


def find_database(directory: Path) -> Path:
    """The database of a data directory, or why there is none to look at."""
    database = directory / DATABASE
    if not directory.is_dir():
        raise InvalidArgument(f"there is no directory {str(directory)!r}: give that of `stepwell serve --data-dir`")
    if not database.is_file():
        raise InvalidArgument(f"there is no {DATABASE} in {str(directory)!r}: give a data directory")
    if not os.access(database, os.R_OK):
        raise InvalidArgument(f"{str(database)!r} may not be read: ask whoever it belongs to")
    if not _bytes(database) and _bytes(_log(database)):  # SQLite would throw the log away
        raise StoreDamaged(f"{str(database)!r} is empty, and its log is not: restore a backup")
    if 0 < _bytes(database) < _PAGE_BYTES_MIN:  # SQLite would take it for empty
        raise _misplaced(database)
    return database


def schema_of(db: sqlite3.Connection) -> int | None:
    """The version of the tables; None if there is nothing in the file yet. Another program's file is refused."""
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


def inspect(database: Path, look: Look[T]) -> T:
    """What `look` finds. It is called again if a manager came or went where it could not be shielded from that."""
    for _ in range(_LOOKS_MAX):
        before = _signs(database)
        try:
            found = _look_once(database, before, look)
        except _NotADatabase:
            raise _misplaced(database) from None
        except Exception:
            if _signs(database) == before:
                raise
        else:
            if before.is_shared or _signs(database) == before:
                return found
    raise Busy(f"managers come and go at {str(database)!r}: try again when one stays, or none")


def number_of(db: sqlite3.Connection, query: str) -> int:
    """What a query gives that gives one number."""
    (number,) = db.execute(query).fetchone()
    assert isinstance(number, int)
    return number


class _NotADatabase(Exception):
    """SQLite does not know it for one."""


def _misplaced(database: Path) -> StepwellError:
    if (database.parent / LOCK).exists():  # a manager was here
        return StoreDamaged(f"{str(database)!r} does not begin as a database does: restore a backup")
    return InvalidArgument(f"{str(database)!r} is no database: give a data directory of stepwell's")


class _Signs(NamedTuple):
    """What tells whether somebody has been at a database."""

    is_shared: bool  # it has a log and an index: SQLite's readers and writers know of each other
    database: tuple[int, int, int] | None = None
    log_bytes: int = 0


def _signs(database: Path) -> _Signs:
    log, index = _log(database), database.with_name(f"{database.name}-shm")
    if log.exists() and index.exists():
        return _Signs(is_shared=True)
    found = database.stat()
    return _Signs(is_shared=False, database=(found.st_ino, found.st_size, found.st_mtime_ns), log_bytes=_bytes(log))


def _log(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _look_once(database: Path, signs: _Signs, look: Look[T]) -> T:
    if not _bytes(database):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            return look(db)
    if signs.is_shared:
        return _look(database, "mode=ro&readonly_shm=1", look)
    if not signs.log_bytes:  # all of it is in the database itself
        return _look(database, "mode=ro&immutable=1", look)
    # Copied from where somebody has died, perhaps: without the index it cannot be read where it is.
    with tempfile.TemporaryDirectory(prefix="stepwell-doctor-") as directory:
        for each in (database, _log(database)):
            shutil.copyfile(each, Path(directory) / each.name)
        return _look(Path(directory) / database.name, "mode=ro", look)


def _look(database: Path, how: str, look: Look[T]) -> T:
    uri = f"file://{quote(str(database.absolute()))}?{how}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)) as db:
        return look(db)
