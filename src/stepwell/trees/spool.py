"""A temporary file that holds copies of file contents, one behind another, while a tree is captured.

The file has no name, so it disappears with its process. It is on disk, not in memory, because a captured tree may have
gigabytes.
"""

from __future__ import annotations

import os
import tempfile
from types import TracebackType
from typing import Self

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import InvalidArgument
from stepwell.trees.syscalls import Place
from stepwell.trees.walk import EntryStatus

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SpoolRef(Struct, frozen=True, gc=False):
    """The position of one content in the spool file."""

    offset: int
    size: int


class Spool:
    """The spool file, as a context manager that closes it; for one thread.

    It refuses contents beyond `bytes_max` with `InvalidArgument`. The capture adds all contents when it begins, so a
    tree that is too large is refused before work in it begins.
    """

    def __init__(self, bytes_max: int = limits.TREE_SPOOL_BYTES_MAX) -> None:
        self._file = tempfile.TemporaryFile(prefix="stepwell-spool-", buffering=0)  # noqa: SIM115
        self._bytes_max = bytes_max
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, place: Place) -> tuple[SpoolRef, EntryStatus] | None:
        """Copy a file's content as it was at one moment, and return its position and the file's status at that moment.

        Returns None if the file is too large for a body, or changed during every attempt to read it.
        """
        descriptor = os.open(place.name, _READ, dir_fd=place.directory)
        try:
            for _ in range(limits.TREE_ATTEMPTS_MAX):
                before = os.fstat(descriptor)
                if before.st_size > limits.BODY_BYTES_MAX:
                    return None
                ref = self._copy(descriptor, before.st_size)
                after = os.fstat(descriptor)
                if EntryStatus.of(before) == EntryStatus.of(after) and ref.size == after.st_size:
                    return ref, EntryStatus.of(after)
                self._end = ref.offset
            return None
        finally:
            os.close(descriptor)

    def body(self, ref: SpoolRef) -> bytes:
        """Return a content."""
        parts: list[bytes] = []
        at, end = ref.offset, ref.offset + ref.size
        while at < end:
            part = os.pread(self._file.fileno(), end - at, at)
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def digest(self, ref: SpoolRef) -> bytes:
        """Return a content's digest, which is computed at each call."""
        return digest_of(self.body(ref))

    def _copy(self, descriptor: int, expected: int) -> SpoolRef:
        """Copy up to one byte more than expected: if that byte exists, the file has grown since its size was read."""
        if self._end + expected > self._bytes_max:
            raise InvalidArgument(
                f"the files have more than {self._bytes_max:,} bytes together: have git ignore what is not yours, or "
                "take a part of the tree"
            )
        start = at = self._end
        os.lseek(descriptor, 0, os.SEEK_SET)
        while (rest := expected + 1 - (at - start)) > 0:
            part = memoryview(os.read(descriptor, min(rest, limits.TREE_PART_BYTES)))
            if not part:
                break
            while part:
                written = os.pwrite(self._file.fileno(), part, at)
                at += written
                part = part[written:]
        self._end = at
        return SpoolRef(start, at - start)
