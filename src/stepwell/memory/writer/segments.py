"""Segments: append-only ranges of bytes that one process writes and any number of processes read.

A memory segment is a memfd. It is sealed against shrinking and growing, and against every writer except the mapping
that was made before the seal, so that a client can neither corrupt it nor cause a SIGBUS in another process by
truncating it. A memfd has no name: when its last mapping and its last descriptor are gone, so is the memory, however
the processes ended.

Pages are allocated before they are written. Writing to a page that the system cannot provide is a SIGBUS, which kills
the manager; allocating it first is an error that can be answered.

A file segment is a file without a name, written with `pwrite`. Readers get a descriptor that was opened read-only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
from typing import Final, Protocol

from stepwell import limits

# From linux/fcntl.h and asm/mman.h: the standard library has no names for them.
_F_SEAL_FUTURE_WRITE: Final = 0x10
_MADV_POPULATE_WRITE: Final = 23
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE


class Segment(Protocol):
    """The interface of a segment to its arena.

    `used` bytes were given out, from the start; `live` of them belong to bodies that still count. Writes are allowed up
    to `allocated`. `pins` counts the ranges that are being written: a pinned segment is neither emptied nor closed.
    """

    number: int
    size: int
    used: int  # bytes given out, from the start
    live: int  # of these, bytes that still count
    allocated: int  # bytes that can be written, from the start
    pins: int  # ranges that are being written
    descriptor: int  # for readers

    def allocate(self, end: int, at_most: int | None = None) -> bool:
        """Allocate bytes up to `end`, at most `at_most` of them now.

        Return True if all are allocated; raise `OSError` if not possible.
        """
        ...

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes to a range that was allocated and not written before."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of written bytes."""
        ...

    def close(self) -> None:
        """Close the manager's mapping and descriptors. Readers keep what they have mapped."""
        ...


def _allocate(descriptor: int, start: int, end: int, size: int, at_most: int | None) -> int:
    """Allocate bytes of a file in large steps, so that the kernel is rarely asked. Return the number of bytes."""
    wanted = max(end - start, limits.ALLOCATION_BYTES)
    length = min(size - start, wanted if at_most is None else min(at_most, wanted))
    os.posix_fallocate(descriptor, start, length)
    return length


class MemorySegment:
    """A sealed memfd, and the only writable mapping of it.

    The mapping is made before the seals: F_SEAL_FUTURE_WRITE then denies writing to every later mapping and descriptor,
    in this process too. Clients get `descriptor`, through which they can map the memory for reading only.
    """

    __slots__ = ("_map", "allocated", "descriptor", "live", "number", "pins", "size", "used", "view")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.used = self.live = self.pins = self.allocated = 0
        self.descriptor = os.memfd_create(f"stepwell-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.view = memoryview(self._map)

    def allocate(self, end: int, at_most: int | None = None) -> bool:
        if end > self.allocated:
            start = self.allocated
            self.allocated += _allocate(self.descriptor, start, end, self.size, at_most)
            # Populating maps all pages in one call. An older kernel maps them one by one, as they are written.
            with contextlib.suppress(OSError):
                self._map.madvise(_MADV_POPULATE_WRITE, start, self.allocated - start)
        return end <= self.allocated

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self.view[offset : offset + len(data)] = data

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.view[offset : offset + length])

    def close(self) -> None:
        self.view.release()
        self._map.close()
        os.close(self.descriptor)


def _nameless_file() -> int:
    """Return a descriptor of a file without a name.

    Where the file system has no O_TMPFILE, the file is unlinked right after it was made.
    """
    try:
        return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o400)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    descriptor, path = tempfile.mkstemp(prefix="stepwell-cold-")
    os.unlink(path)  # noqa: PTH108 - a Path would be made for nothing
    return descriptor


class FileSegment:
    """A file without a name in the temporary directory.

    `descriptor` is read-only, for readers; writes use another one.
    """

    __slots__ = ("_writer", "allocated", "descriptor", "live", "number", "pins", "size", "used")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.used = self.live = self.pins = self.allocated = 0
        self._writer = _nameless_file()
        try:
            os.ftruncate(self._writer, size)
            self.descriptor = os.open(f"/proc/self/fd/{self._writer}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._writer)
            raise

    def allocate(self, end: int, at_most: int | None = None) -> bool:
        if end > self.allocated:
            self.allocated += _allocate(self._writer, self.allocated, end, self.size, at_most)
        return end <= self.allocated

    def write(self, offset: int, data: bytes | memoryview) -> None:
        with memoryview(data) as rest:
            done = 0
            while done < len(rest):
                done += os.pwrite(self._writer, rest[done:], offset + done)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._writer, length, offset)

    def close(self) -> None:
        os.close(self._writer)
        os.close(self.descriptor)
