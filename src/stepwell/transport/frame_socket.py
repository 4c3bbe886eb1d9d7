"""`FrameSocket`: the receiving half of a client's socket, for blocking and for asynchronous connections.

Any bytes that arrive may carry file descriptors (of shared memory), and a plain `recv` would drop them. So every
receive asks for descriptors too. They are queued in order of arrival until the reader comes to the frame that announces
them (`SegmentsAdded`); the manager sends descriptors and frames in the same order.
"""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from stepwell import limits
from stepwell.errors import OutcomeUnknown, ProtocolError
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import OutOfBand
from stepwell.text import plural

# Room for the descriptors of one `sendmsg`: the kernel never delivers those of two in one receive call.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(limits.DESCRIPTORS_PER_FRAME_MAX * array("i").itemsize)

# Plain integers, because combining flags of an enumeration takes longer than a receive call does.
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED: Final = int(socket.MSG_CTRUNC)

OnOutOfBand = Callable[["FrameSocket", OutOfBand], None]
"""Handles a message that the manager sends between its answers; takes the descriptors of `SegmentsAdded`.

It raises `OutcomeUnknown` for `ManagerEnded`, because no further answer comes.
"""


class FrameSocket:
    """A connected socket with a framer and a queue of descriptors that no frame has claimed yet.

    A subclass decides how to wait and how to send. One thread uses it at a time, except for `interrupt`, which any
    thread may call. The socket and the queued descriptors belong to this object; `take_descriptors` gives descriptors
    away, and `close` closes the remaining ones.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._framer = Framer()
        # Allocated once, because allocating a new one for each receive costs more than the receive itself.
        self._receive_buffer = bytearray(limits.RECEIVE_BYTES_CLIENT)
        self._arrived = memoryview(self._receive_buffer)
        self._buffers = [self._receive_buffer]
        self._descriptors: deque[int] = deque()  # in order of arrival, owned by this object

    def fileno(self) -> int:
        return self._socket.fileno()

    def take_descriptors(self, count: int) -> list[int]:
        """Return the next `count` descriptors in order of arrival; the caller owns them from then on.

        It raises `ProtocolError` if a frame announced more than have arrived.
        """
        if count > len(self._descriptors):
            raise ProtocolError(
                f"{plural(count, 'descriptor was', 'descriptors were')} announced, {len(self._descriptors)} came"
            )
        return [self._descriptors.popleft() for _ in range(count)]

    def _feed(self, size: int) -> None:
        """Give the first `size` bytes of the receive buffer to the framer."""
        self._framer.feed(self._arrived[:size])

    def _receive_some(self) -> int:
        """Receive once into the buffer, blocking or not as the socket does, and return the number of bytes."""
        size, ancillary, flags, _ = self._socket.recvmsg_into(self._buffers, _ANCILLARY_BYTES, _CLOEXEC)
        if ancillary or flags & _TRUNCATED:
            self._queue_descriptors(ancillary, flags)
        return size

    def _queue_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        """Queue the descriptors of one receive call.

        The kernel truncates them if this process may open no more. Shared memory that the answer refers to is then
        missing, so the answer is useless although its command took effect: that is `OutcomeUnknown`.
        """
        received = array("i", b"".join(data for _, _, data in ancillary))
        self._descriptors.extend(received)
        if flags & _TRUNCATED:
            self._close_descriptors()
            raise OutcomeUnknown(
                "the answer came, but this process has no descriptors left for the shared memory: raise `ulimit -n`",
                shortage="descriptors",
            )

    def interrupt(self) -> None:
        """Shut the socket down, from any thread. A thread that waits for the manager then gets `OutcomeUnknown`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and all descriptors that were not taken."""
        self._socket.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
