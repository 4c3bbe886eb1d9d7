"""Contents put by, one behind another in a file that has no name: of a tree, before somebody changes it."""

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
    """Where a content is."""

    offset: int
    size: int


class Spool:
    """Past its bound nothing more is taken: that a tree is too large is told before anybody works in it."""

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

    def take(self, place: Place) -> tuple[SpoolRef, EntryStatus] | None:
        """A file's content, whole and as it was at one moment; None if it is too large, or never at rest."""
        descriptor = os.open(place.name, _READ, dir_fd=place.directory)
        try:
            for _ in range(limits.TREE_ATTEMPTS_MAX):
                before = os.fstat(descriptor)
                if before.st_size > limits.BODY_BYTES_MAX:
                    return None
                slip = self._copy(descriptor, before.st_size)
                after = os.fstat(descriptor)
                if EntryStatus.of(before) == EntryStatus.of(after) and slip.size == after.st_size:
                    return slip, EntryStatus.of(after)
                self._end = slip.offset
            return None
        finally:
            os.close(descriptor)

    def body(self, slip: SpoolRef) -> bytes:
        """What was put by."""
        parts: list[bytes] = []
        at, end = slip.offset, slip.offset + slip.size
        while at < end:
            part = os.pread(self._file.fileno(), end - at, at)
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def digest(self, slip: SpoolRef) -> bytes:
        return digest_of(self.body(slip))

    def _copy(self, descriptor: int, expected: int) -> SpoolRef:
        """Up to a little more than is expected, by which it shows that the file has grown."""
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
