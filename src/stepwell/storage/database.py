"""Opening a database: to write it, and only once it is known to be ours and sound."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.storage.directory import boot_id
from stepwell.storage.load import check_length, damage, is_half_made, open_to_read
from stepwell.storage.schema import version_of
from stepwell.storage.store import Durability

_SYNCHRONOUS: Final = {Durability.DISK: "FULL", Durability.PROCESS: "NORMAL"}


def open_to_write(path: Path, durability: Durability) -> sqlite3.Connection:
    """The file is made by us, so that nobody else can read it; SQLite gives its log the same rights."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StartFailed(f"{str(path)!r} cannot be opened: {error}") from error
    try:
        db.execute("PRAGMA busy_timeout = 5000")  # somebody else may be looking at it with another tool
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        db.execute(f"PRAGMA wal_autocheckpoint = {limits.WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {limits.WAL_BYTES_KEPT}")
    except sqlite3.Error as error:
        db.close()
        raise StartFailed(f"{str(path)!r} cannot be opened: {error}") from error
    if mode != "wal":
        db.close()
        raise StartFailed(f"{str(path)!r} is on a file system that cannot share memory: give another directory")
    return db


def may_have_lost_some(db: sqlite3.Connection) -> bool:
    """Whether what the kernel had, and no disk, went with the machine: revisions would then be given out twice."""
    boot, durability = db.execute("SELECT boot, durability FROM store").fetchone() or ("", "")  # `loading` says so
    return bool(durability == Durability.PROCESS and boot != boot_id())


def guard(database: Path) -> sqlite3.Connection | None:
    """Whoever closes a database last writes its log back into it: while it is not known to be sound, one who cannot.

    A file that is not ours is found out here, before anything is done to it.
    """
    is_ours = database.is_file() and os.access(database, os.R_OK | os.W_OK)  # if not, opening it will say why
    if not is_ours or is_half_made(database):
        return None
    check_length(database)
    connection = open_to_read(database)
    try:
        with damage("the database"):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            version_of(connection)
    except BaseException:
        connection.close()
        raise
    return connection
