"""Frames: a 4-byte big-endian length and the payload, read incrementally.

It is the format of `multiprocess.connection`, so that a plain `multiprocess.connection.Client` can talk to a manager.
Unlike its reader, `Framer` checks a length against a bound before it allocates anything, and never blocks for the rest
of a frame: a peer that sends half a frame costs memory for that half only.
"""

from __future__ import annotations

import struct
from typing import Final

from stepwell import limits
from stepwell.errors import ProtocolError

HEADER: Final = struct.Struct("!i")
"""The header of a frame: the length of its payload."""

# Names of the module are found faster than attributes, and every message goes through here on both sides.
_HEADER_BYTES: Final = HEADER.size
_UNPACK: Final = HEADER.unpack_from


class Framer:
    """Cuts a stream of bytes into the payloads of frames.

    One connection owns one framer; it is not thread-safe. Raw bytes of uploads can come between frames: `read_into`
    takes them out of the stream. `frame_bytes_max` is small until the peer has said `Hello`.

    `buffer` is for others to see whether it is empty: only then everything that arrived was returned.
    """

    __slots__ = ("_start", "buffer", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self.buffer = bytearray()
        self._start = 0
        self.frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes that arrived."""
        if self._start:
            del self.buffer[: self._start]
            self._start = 0
        self.buffer += data

    def take_frame(self, arrived: memoryview) -> memoryview | bytearray | None:
        """Add bytes that arrived, and return the next payload, or None: `feed` and `next_frame` in one step.

        A frame that arrives alone and complete, which is the usual case, is not copied: its payload is a part of
        `arrived`.
        """
        if not self.buffer:
            size = len(arrived) - _HEADER_BYTES
            if 0 <= size <= self.frame_bytes_max and _UNPACK(arrived)[0] == size:
                return arrived[_HEADER_BYTES:]
        self.feed(arrived)
        return self.next_frame()

    def next_frame(self) -> bytearray | None:
        """Return the next payload, or None if it has not arrived completely.

        Raises `ProtocolError` if a frame announces a length out of bounds; the connection is unusable then.
        """
        buffer, start = self.buffer, self._start
        arrived = len(buffer) - start - _HEADER_BYTES
        if arrived < 0:
            return None
        (length,) = _UNPACK(buffer, start)
        if not 0 <= length <= self.frame_bytes_max:
            raise ProtocolError(f"a frame of {length} bytes was announced, 0 to {self.frame_bytes_max} are allowed")
        if arrived < length:
            return None
        if not start and arrived == length:  # the usual case, one frame and nothing else: it is not copied
            self.buffer = bytearray()
            del buffer[:_HEADER_BYTES]
            return buffer
        body = start + _HEADER_BYTES
        payload = buffer[body : body + length]
        self._skip_to(body + length)
        return payload

    def read_into(self, target: memoryview) -> int:
        """Move bytes that belong to no frame into `target`, and return how many: as many as arrived and as fit."""
        size = min(self.pending, len(target))
        end = self._start + size
        with memoryview(self.buffer) as buffer, buffer[self._start : end] as taken:
            target[:size] = taken
        self._skip_to(end)
        return size

    def _skip_to(self, end: int) -> None:
        """Drop the bytes before `end`."""
        self._start = end
        if end == len(self.buffer):  # so that an idle peer does not hold the memory of its largest frame
            self.buffer.clear()
            self._start = 0

    @property
    def pending(self) -> int:
        """The number of bytes that arrived and were not returned yet."""
        return len(self.buffer) - self._start
