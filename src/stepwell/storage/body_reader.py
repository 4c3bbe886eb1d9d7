"""Reading bodies from a database while a manager writes it. In WAL mode readers and the writer do not block each other.

This is the clients' way to cold bodies: the manager sends the path of the database once, and the number of a body in
each handle.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

from stepwell.errors import BodyGone, StoreDamaged, StoreFailed
from stepwell.storage.database import open_to_read, translated_errors
from stepwell.storage.files.private_files import require_private_database
from stepwell.storage.sql import Database

# One lock for the process. SQLite has process-wide locks of its own, and a child that is forked while a thread holds
# them would wait for them forever. Therefore no thread reads while another one forks.
_read_lock = threading.Lock()
os.register_at_fork(before=_read_lock.acquire, after_in_parent=_read_lock.release, after_in_child=_read_lock.release)


class BodyFile:
    """The bodies of one database. Any thread may use it, one at a time.

    A read transaction is as short as its body, because the manager cannot checkpoint its log past an open read.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._db: sqlite3.Connection | None = None

    def read(self, digest: bytes, number: int) -> tuple[bool, bytes]:
        """Return a flag for packed bytes, and the stored bytes of a body.

        Raise `BodyGone` if the body is not stored any more, `StoreDamaged` if it cannot be read, and `StoreFailed` if
        reading was prevented. The digest is compared as well, because a number may be reused after its body was
        deleted.
        """
        with _read_lock, translated_errors(f"the database {self._database!r}"):
            if self._db is None:
                self._db = self._open()
            self._db.execute("BEGIN")
            try:
                found = self._find(self._db, digest, number)
            finally:
                with suppress(sqlite3.Error):  # the first error is the one to report
                    self._db.execute("ROLLBACK")
        if found is None:
            raise BodyGone(f"the body {digest.hex()} is not in the store any more")
        return found

    def _open(self) -> sqlite3.Connection:
        """Open the database, unless another user can have exchanged it."""
        try:
            require_private_database(Path(self._database))
        except OSError as error:
            raise StoreFailed(f"the database {self._database!r} is not read: {error.strerror}") from error
        return open_to_read(self._database)

    @staticmethod
    def _find(db: Database, digest: bytes, number: int) -> tuple[bool, bytes] | None:
        """Return the body in one piece or from its parts, or None if there is no such body."""
        query = "SELECT packed, data, upload FROM bodies WHERE number = ? AND digest = ?"
        row = db.execute(query, (number, digest)).fetchone()
        if row is None:
            return None
        packed, data, upload = row
        if data is None:
            parts = db.execute("SELECT data FROM body_parts WHERE upload = ? ORDER BY part", (upload,)).fetchall()
            data = b"".join(part for (part,) in parts) if all(type(part) is bytes for (part,) in parts) else None
        if not isinstance(data, bytes):
            raise StoreDamaged(f"table bodies, digest {digest.hex()}: its data are no bytes")
        return bool(packed), data

    def close(self) -> None:
        """Close the connection. A later read opens another one."""
        with _read_lock:
            db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()
