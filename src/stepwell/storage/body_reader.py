"""Reading bodies out of a database that a manager is writing: nobody waits for anybody."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress

from stepwell.errors import BodyGone, StoreDamaged
from stepwell.storage.load import damage, open_to_read

# One for all: SQLite has locks of its own for the whole process, and a child that is forked while a thread holds them
# would wait for them for ever. So nobody reads while somebody forks.
_reading = threading.Lock()
os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)


class BodyFile:
    """The bodies in a database, for whoever has its path. Safe from any number of threads, one at a time.

    A read is as short as its body: while it lasts, the manager's log cannot be written back behind it.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._db: sqlite3.Connection | None = None

    def read(self, digest: bytes, number: int) -> tuple[bool, bytes]:
        """The body that has this number, compressed or not; or `BodyGone`."""
        with _reading, damage(f"the database {self._database!r}"):
            if self._db is None:
                self._db = open_to_read(self._database)
            self._db.execute("BEGIN")
            try:
                found = self._find(self._db, digest, number)
            finally:
                with suppress(sqlite3.Error):  # what went wrong first is what is said
                    self._db.execute("ROLLBACK")
        if found is None:
            raise BodyGone(f"the body {digest.hex()} is not in the store any more")
        return found

    @staticmethod
    def _find(db: sqlite3.Connection, digest: bytes, number: int) -> tuple[bool, bytes] | None:
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
        with _reading:
            db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()
