"""Opening a database, for reading and for writing, and the distinction between damage and other failures.

A manager must not change a database that it cannot serve. So before the file is opened for writing, its header, length
and version are checked through a read-only connection, which stays open until the loaded state has passed its checks.

Errors of SQLite while reading are of two kinds. Some say that reading was prevented: no permission, no memory, an I/O
error. They become `StoreFailed`, and may pass. All others mean that the bytes are not what SQLite wrote:
`StoreDamaged`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stepwell import limits
from stepwell.errors import StartFailed, StoreDamaged, StoreFailed
from stepwell.storage.files.private_files import open_private
from stepwell.storage.rows import StoreRow
from stepwell.storage.schema import APPLICATION_ID, version_of
from stepwell.storage.sql import Database
from stepwell.storage.store import Durability
from stepwell.storage.table import add_checksum_function
from stepwell.text import plural

UNREADABLE: Final = (sqlite3.Error, UnicodeError)
"""The errors of a query on damaged pages. Messages of SQLite quote damaged text, hence the decoding errors."""

_SYNCHRONOUS: Final = {Durability.DISK: "FULL", Durability.PROCESS: "NORMAL"}
_HEADER_BYTES: Final = 100
_ONE_PAGE: Final = 4_096
# SQLite could not read, but nothing says that the bytes are wrong.
_NOT_DAMAGE: Final = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
_MAGIC: Final = b"SQLite format 3\0"


def open_to_read(database: str | Path) -> sqlite3.Connection:
    """Return a connection that changes neither the database nor, when it is closed, its log.

    SQLite may create the index of the log, which is no part of the data. Any thread may use the connection, one at a
    time.
    """
    uri = f"file://{quote(str(Path(database).absolute()))}?mode=ro"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=limits.SQLITE_BUSY_SECONDS
    )


def check_length(database: Path) -> None:
    """Raise `StoreDamaged` if the file is shorter than its header says.

    SQLite would read a truncated file without an error until it reaches the missing end. A database with a log is not
    checked, because a process that was killed during a checkpoint leaves a file that is legitimately shorter.
    """
    with database.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    log = database.with_name(f"{database.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    name = f"the database {str(database)!r}"
    if not header and has_log:
        raise StoreDamaged(f"{name} is empty, and its log is not: restore a backup")
    if header.startswith(_MAGIC) and len(header) == _HEADER_BYTES and not has_log:
        # A page size of 65,536 does not fit in the two bytes and is written as 1.
        page_bytes = {1: 65_536}.get(size := int.from_bytes(header[16:18]), size)
        pages = int.from_bytes(header[28:32])
        if database.stat().st_size < page_bytes * pages:
            raise StoreDamaged(f"{name} has lost its end: it had {plural(pages, 'page')} of {page_bytes} bytes")
    elif 0 < len(header) < _HEADER_BYTES and _MAGIC.startswith(header[: len(_MAGIC)]):
        raise StoreDamaged(f"{name} has lost all but {plural(len(header), 'byte')}")


def is_half_created(database: Path) -> bool:
    """Return True if a process was killed while it created this database.

    The rollback journal of the creation is then still there. Only a writing connection can apply it, so a read-only
    check would fail. A file that is larger than one page, or has another application's id, is not half created by
    stepwell.
    """
    if not database.with_name(f"{database.name}-journal").exists():
        return False
    with database.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return header[68:72] in {b"", bytes(4), APPLICATION_ID.to_bytes(4)} and database.stat().st_size <= _ONE_PAGE


@contextmanager
def translated_errors(where: str) -> Generator[None]:
    """Translate errors of SQLite in the block to `StoreDamaged` or `StoreFailed`.

    `where` is the subject of the message.
    """
    try:
        yield
    except UNREADABLE as error:
        raise read_error(where, error) from error


def read_error(where: str, error: Exception) -> StoreDamaged | StoreFailed:
    """Return the error to raise in place of an error of SQLite.

    It is `StoreFailed` if reading was prevented, and `StoreDamaged` otherwise.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:
        return StoreFailed(f"{where} cannot be read now: {error}")
    return StoreDamaged(f"{where} cannot be read: {error}; restore a backup, or see `stepwell doctor`")


def open_to_write(path: Path) -> sqlite3.Connection:
    """Return a connection that writes, in WAL mode. Raise `StartFailed` if that is not possible.

    Its commits are flushed to the disk until `set_durability` says otherwise. The file is created here and not by
    SQLite, so that only its user can read it. SQLite gives its log the same permissions.
    """
    try:
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        db = sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StartFailed(f"{str(path)!r} cannot be opened: {error}") from error
    configure_to_write(db, str(path))
    return db


def configure_to_write(db: Database, name: str) -> None:
    """Set a new connection to WAL mode, with its bounds. Raise `StartFailed`, and close it, if that is not possible."""
    try:
        # Another tool may have the database open.
        db.execute(f"PRAGMA busy_timeout = {int(limits.SQLITE_BUSY_SECONDS * 1000)}")
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA temp_store = MEMORY")  # a commit opens no file, because there may be no descriptor left
        db.execute(f"PRAGMA wal_autocheckpoint = {limits.WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {limits.WAL_BYTES_KEPT}")
        add_checksum_function(db)
    except sqlite3.Error as error:
        db.close()
        raise StartFailed(f"{name!r} cannot be opened: {error}") from error
    if mode != "wal":
        db.close()
        raise StartFailed(f"{name!r} is on a file system that cannot share memory: give another directory")


def set_durability(db: Database, durability: Durability) -> None:
    """Set whether commits from now on are flushed to the disk. Call it outside of a transaction."""
    db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")


def may_have_lost_commits(store: StoreRow, boot: str) -> bool:
    """Return True if the machine has restarted since the last manager, and that one did not sync its commits.

    Commits that only the kernel had are then lost, and the same revisions would be given out twice.
    """
    return store.durability == Durability.PROCESS and store.boot != boot


def open_read_only_guard(database: Path) -> sqlite3.Connection | None:
    """Hold a read-only connection open during recovery, and return it, or None if there is no database yet.

    SQLite checkpoints the WAL when the last connection closes; a read-only one cannot, so a database that fails its
    checks is left byte-for-byte unchanged. A file of another program, or of a later version, is refused here, before it
    is opened for writing.
    """
    # If the file cannot be read or written, opening it for writing reports the reason.
    is_ours = database.is_file() and os.access(database, os.R_OK | os.W_OK)
    if not is_ours or is_half_created(database):
        return None
    check_length(database)
    connection = open_to_read(database)
    require_known_version(connection)
    return connection


def require_known_version(connection: Database) -> None:
    """Raise an error, and close the connection, if a database is damaged, another program's or of a later version."""
    try:
        with translated_errors("the database"):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            version_of(connection)
    except BaseException:
        connection.close()
        raise
