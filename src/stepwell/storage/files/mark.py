"""The mark: the last commit, in a file beside the database, so that a lost commit is noticed.

SQLite ends its log at the first frame that is not whole, because a torn frame is the normal end of a log after a crash.
It cannot tell a torn end from damage in the middle: behind a flipped bit, acknowledged commits are gone without an
error. The mark can. After each commit, and before the replies, the manager writes the epoch, the number of the commit
and its revision here, by one `pwrite` of one small record. A database that is behind the mark of its epoch has lost
commits.

The order is: database, mark, replies. So the mark is never ahead of what was committed. After a kill it is exact, or
one commit behind. It is flushed about once a second, so that after a loss of power it is at most that far behind.

The record is one line of text with a checksum. It lies in one sector, which a disk writes entirely or not at all.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct

from stepwell import limits
from stepwell.errors import StoreDamaged
from stepwell.storage.files.private_files import open_private, sync_directory

MARK: Final = "stepwell.mark"
_NEW: Final = f"{MARK}.new"
_PATTERN: Final = re.compile(
    rb"stepwell mark: epoch (\S{1,64}) commit (\d{20}) revision (\d{20}) crc32 ([0-9a-f]{8})\n"
)


class Mark(Struct, frozen=True):
    """The last commit of an epoch, as the mark has it."""

    epoch: str
    commits: int
    revision: int

    def encode(self) -> bytes:
        """Return the record."""
        text = b"stepwell mark: epoch %b commit %020d revision %020d" % (
            self.epoch.encode(),
            self.commits,
            self.revision,
        )
        return b"%b crc32 %08x\n" % (text, crc32(text))


def read_mark(directory: Path) -> Mark | None:
    """Return the mark of a data directory, or None if there is none. Raise `StoreDamaged` for a damaged one.

    A manager may be writing it at this moment, and a read may see half of a record. So a wrong record is read again.
    """
    try:
        descriptor = open_private(directory / MARK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        for _ in range(limits.MARK_READ_ATTEMPTS):
            if (found := parse_mark(os.pread(descriptor, limits.MARK_BYTES_MAX, 0))) is not None:
                return found
    finally:
        os.close(descriptor)
    raise StoreDamaged(f"the mark {str(directory / MARK)!r} is damaged, so that a loss of commits cannot be excluded")


def parse_mark(record: bytes) -> Mark | None:
    """Return the mark that a record encodes, or None if the record is damaged."""
    found = _PATTERN.fullmatch(record)
    if not found or crc32(record[: found.end(3)]) != int(found[4], 16):
        return None
    return Mark(found[1].decode("ascii", "replace"), int(found[2]), int(found[3]))


def remove_mark(directory: Path) -> None:
    """Remove the mark of a directory, durably."""
    (directory / MARK).unlink(missing_ok=True)
    sync_directory(directory)


class MarkFile:
    """The mark of a directory as its manager writes it. Only the thread of the manager uses it.

    The file is created with its first record, synced and renamed, so that it never exists without one. The caller syncs
    the directory afterwards, so that the entry of the file is durable too. All errors are `OSError`s: the manager
    stops, as after a commit that failed.
    """

    def __init__(self, directory: Path, first: Mark) -> None:
        descriptor = open_private(directory / _NEW, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(descriptor, 0)
            self._descriptor = descriptor
            self._is_synced = False
            self.write(first)
            self.sync()
            (directory / _NEW).rename(directory / MARK)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, mark: Mark) -> None:
        """Write a record over the one before. After the return it survives the death of the process."""
        record = mark.encode()
        if os.pwrite(self._descriptor, record, 0) != len(record):
            raise OSError("the mark could be written in part only")
        self._is_synced = False

    def sync(self) -> None:
        """Flush the latest record to the disk, unless it is there."""
        if not self._is_synced:
            os.fdatasync(self._descriptor)
            self._is_synced = True

    def is_at(self, directory: Path) -> bool:
        """Return True if the file is still the one at its path."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), (directory / MARK).lstat())
        except OSError:
            return False

    def close(self) -> None:
        """Flush, as far as that is possible, and close the file."""
        with suppress(OSError):
            self.sync()
        os.close(self._descriptor)
