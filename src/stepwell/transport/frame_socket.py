"""A socket as far as it is the same for whoever waits on it and whoever does not: bytes in, with their descriptors.

Whatever is received may carry descriptors, and a plain `recv` would drop them. They wait here, in the order in which
they came, for whoever reads the frame that announces them.
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
from stepwell.protocol.messages import SegmentsAdded, SegmentsRetired
from stepwell.transport.address import dial

# The kernel hands out the descriptors of one `sendmsg` at a time.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(limits.DESCRIPTORS_PER_FRAME_MAX * array("i").itemsize)

# Plain numbers: the operators of an enumeration's flags take longer than receiving does.
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED: Final = int(socket.MSG_CTRUNC)

Aside = Callable[["Wire", SegmentsAdded | SegmentsRetired], None]
"""Takes what the manager says between its answers."""


class Wire:
    """A connected socket, what has arrived on it, and the descriptors that came along."""

    def __init__(self, address: str, timeout_s: float | None) -> None:
        self._socket = dial(address, timeout_s)
        self._framer = Framer()
        self._arrived = bytearray(limits.RECEIVE_BYTES_CLIENT)  # kept: allocating it anew costs more than receiving
        self._buffers = [self._arrived]
        self._descriptors: deque[int] = deque()  # that came and were not taken: ours to close

    def fileno(self) -> int:
        return self._socket.fileno()

    def take_descriptors(self, count: int) -> list[int]:
        """The next descriptors that came, in order, for a frame that announced so many: from now on the caller's."""
        if count > len(self._descriptors):
            raise ProtocolError(f"{count} descriptors were announced, {len(self._descriptors)} came")
        return [self._descriptors.popleft() for _ in range(count)]

    def _feed(self, size: int) -> None:
        with memoryview(self._arrived) as arrived:
            self._framer.feed(arrived[:size])

    def _receive_some(self) -> int:
        """Receive bytes, as the socket does, blocking or not; how many came."""
        size, ancillary, flags, _ = self._socket.recvmsg_into(self._buffers, _ANCILLARY_BYTES, _CLOEXEC)
        if ancillary or flags & _TRUNCATED:
            self._keep_descriptors(ancillary, flags)
        return size

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        came = array("i", b"".join(data for _, _, data in ancillary))
        self._descriptors.extend(came)
        if flags & _TRUNCATED:
            self._close_descriptors()
            raise OutcomeUnknown(
                "the answer came, but this process has no descriptors left for the shared memory: raise `ulimit -n`",
                shortage="descriptors",
            )

    def interrupt(self) -> None:
        """From another thread: whoever waits here for the manager waits in vain, and is told so."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket and of every descriptor that nobody took."""
        self._socket.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
