"""The files of the durable store: the database, its mark and the directory that holds them.

`SqliteStore` reaches the disk through `StoreFiles` only. The simulator of the tests has another implementation, whose
disk keeps, drops or tears each write that was not flushed when the power fails.
"""

from __future__ import annotations

from stepwell.boot import boot_id
from stepwell.errors import StoreDamaged
from stepwell.storage.database import open_read_only_guard, open_to_write
from stepwell.storage.files.directory import DataDirectory
from stepwell.storage.files.mark import Mark, MarkFile
from stepwell.storage.files.validity import ValidityFile
from stepwell.storage.loss import find_mark
from stepwell.storage.sql import Database


class StoreFiles:
    """The files in a locked data directory. The store owns them, and closes them; the lock is released with them."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._mark: MarkFile | None = None
        self._validity = ValidityFile(directory.path)
        self._inode: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """The path of the directory, for messages."""
        return str(self._directory.path)

    @property
    def database(self) -> str:
        """The path of the database, which clients open to read bodies."""
        return str(self._directory.database)

    def boot_id(self) -> str:
        """Return the id of the machine's present boot."""
        return boot_id()

    def open_guard(self) -> Database | None:
        """Return a read-only connection that protects the database during the start; None without a database."""
        return open_read_only_guard(self._directory.database)

    def open_database(self) -> Database:
        """Return the connection that writes. Raise `StartFailed` if that is not possible."""
        return open_to_write(self._directory.database)

    def find_mark(self) -> Mark | StoreDamaged | None:
        """Return the mark, None if there is none, or the problem if it is damaged. Raise `OSError` if unreadable."""
        return find_mark(self._directory.path)

    def create_mark(self, first: Mark) -> None:
        """Create the mark with its first record, durably, and remember which database it belongs to."""
        self._mark = MarkFile(self._directory.path, first)
        self._directory.sync()
        self._inode = self._find_inode()

    def write_mark(self, mark: Mark) -> None:
        """Write a record over the one before. After the return it survives the death of the process."""
        assert self._mark is not None
        self._mark.write(mark)

    def sync_mark(self) -> None:
        """Flush the latest record to the disk."""
        assert self._mark is not None
        self._mark.sync()

    def read_validity(self) -> int:
        """Return the time up to which clients may read what the manager before has published (see `validity`)."""
        return self._validity.found

    def write_validity(self, until_ns: int) -> None:
        """Write the time up to which clients may read what this manager publishes."""
        self._validity.write(until_ns)

    def are_present(self) -> bool:
        """Return True if database and mark are still the files at their paths."""
        assert self._mark is not None
        return self._find_inode() == self._inode and self._mark.is_at(self._directory.path)

    def close(self) -> None:
        """Close the mark, and release the lock of the directory."""
        if self._mark is not None:
            self._mark.close()
        self._validity.close()
        self._directory.close()

    def _find_inode(self) -> tuple[int, int] | None:
        """Return the device and inode of the database at the path, or None if there is none."""
        try:
            found = self._directory.database.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
