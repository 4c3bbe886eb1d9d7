"""The client's end: a blocking connection that carries one request at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time

from stepwell import limits
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import ClientMessage, ManagerMessage
from stepwell.transport.address import dial
from stepwell.transport.spin import Spin


class Connection:
    """A socket, its frames and its messages. Not thread-safe: whoever has it checked out uses it alone."""

    def __init__(self, address: str, timeout_s: float | None = None) -> None:
        self._socket = dial(address, timeout_s)
        self._framer = Framer()
        self._out = bytearray()
        self._spin = Spin(limits.SPIN_SECONDS)
        self._arrived = bytearray(limits.RECEIVE_BYTES_CLIENT)  # kept: allocating it anew costs more than receiving

    def fileno(self) -> int:
        return self._socket.fileno()

    def exchange(self, message: ClientMessage) -> ManagerMessage:
        """Send and wait for the answer.

        A message that cannot be encoded raises before a byte is sent; a connection that was already dead raises
        `RuntimeLost`; one that dies between sending and answering raises `OutcomeUnknown`.
        """
        try:
            self.send(message)
        except RuntimeLost as gone:
            if not isinstance(gone.__cause__, ConnectionError):
                raise
            try:
                return self.receive()  # why we were turned away, if it was said before the door was shut
            except OutcomeUnknown:
                raise gone from gone.__cause__
        return self.receive()

    def send(self, message: ClientMessage) -> None:
        """Send, entirely."""
        self._out.clear()
        encode_frame(message, self._out)
        try:
            self._send_all()
        except OSError as error:
            # Not every byte went, so that the request cannot have taken effect.
            raise RuntimeLost(f"the connection to the manager is gone: {error.strerror}") from error

    def _send_all(self) -> None:
        """While the manager takes no more, take what it sends: it may be waiting for just that."""
        sent = 0
        with memoryview(self._out) as out:
            while sent < len(out):
                try:
                    sent += self._socket.send(out[sent:], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._make_way()

    def _make_way(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT)
        if any(events & select.POLLIN for _, events in ready.poll()):
            if not (size := self._socket.recv_into(self._arrived)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            self._feed(size)

    def _feed(self, size: int) -> None:
        with memoryview(self._arrived) as arrived:
            self._framer.feed(arrived[:size])

    def receive(self) -> ManagerMessage:
        """The next message."""
        while (frame := self._framer.next_frame()) is None:
            try:
                size = self._receive_some()
            except OSError as error:
                raise OutcomeUnknown(f"the connection broke before the answer came: {error.strerror}") from error
            if not size:
                raise OutcomeUnknown("the manager went away before it answered: the request may have taken effect")
            self._feed(size)
        return decode_from_manager(frame)

    def _receive_some(self) -> int:
        """Wait for bytes, at first without going to sleep."""
        if seconds := self._spin.seconds():
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                with contextlib.suppress(BlockingIOError):
                    size = self._socket.recv_into(self._arrived, 0, socket.MSG_DONTWAIT)
                    self._spin.hit()
                    return size
            self._spin.missed()
        return self._socket.recv_into(self._arrived)

    def is_stale(self) -> bool:
        """Whether the manager has closed an idle connection."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()
