"""Frames: `multiprocess`'s own format, a 4-byte big-endian length and the payload, read incrementally.

A plain `multiprocess.connection.Client` can therefore talk to a manager. Unlike its reader, this one checks the
length before it believes it, and never waits for the rest of a frame.
"""

from __future__ import annotations

import struct
from typing import Final

from stepwell import limits
from stepwell.errors import ProtocolError

HEADER: Final = struct.Struct("!i")


class Framer:
    """Bytes in, payloads out."""

    __slots__ = ("_buffer", "_start", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._start = 0
        self.frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what arrived."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> bytearray | None:
        """The next whole payload, or None until there is one."""
        body = self._start + HEADER.size
        if len(self._buffer) < body:
            return None
        (length,) = HEADER.unpack_from(self._buffer, self._start)
        if not 0 <= length <= self.frame_bytes_max:
            raise ProtocolError(f"a frame of {length} bytes was announced, 0 to {self.frame_bytes_max} are allowed")
        end = body + length
        if len(self._buffer) < end:
            return None
        if not self._start and end == len(self._buffer):  # one frame and nothing else, as mostly: it is not copied
            payload, self._buffer = self._buffer, bytearray()
            del payload[: HEADER.size]
            return payload
        payload = self._buffer[body:end]
        self._skip_to(end)
        return payload

    def read_into(self, target: memoryview) -> int:
        """Move bytes that are of no frame to where they belong, as many as have arrived and as the target holds."""
        size = min(self.pending, len(target))
        end = self._start + size
        with memoryview(self._buffer) as buffer, buffer[self._start : end] as taken:
            target[:size] = taken
        self._skip_to(end)
        return size

    def _skip_to(self, end: int) -> None:
        self._start = end
        if end == len(self._buffer):  # an idle peer does not keep the room that its largest frame took
            self._buffer.clear()
            self._start = 0

    @property
    def pending(self) -> int:
        """Bytes that arrived and were not given out yet."""
        return len(self._buffer) - self._start
