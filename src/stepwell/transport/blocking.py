"""The client's end: a blocking connection that carries one request at a time."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Final

from stepwell import limits
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.messages import ClientMessage, ManagerMessage, SegmentsAdded, SegmentsRetired
from stepwell.transport.busy_wait import Spin
from stepwell.transport.frame_socket import Aside, Wire

# Plain numbers: the operators of an enumeration's flags take longer than receiving does.
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_PEEK: Final = int(socket.MSG_PEEK | _DONTWAIT)


class Connection(Wire):
    """A socket, its frames and its messages. Not thread-safe: whoever has it checked out uses it alone."""

    def __init__(self, address: str, timeout_s: float | None = None, *, aside: Aside | None = None) -> None:
        super().__init__(address, timeout_s)
        self._aside = aside
        self._out = bytearray()
        self._spin = Spin(limits.SPIN_SECONDS)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def exchange(self, message: ClientMessage) -> ManagerMessage:
        """Send and wait for the answer.

        A message that cannot be encoded raises before a byte is sent; a connection that was already dead raises
        `RuntimeLost`; one that dies between sending and answering raises `OutcomeUnknown`.
        """
        try:
            self.send(message)
        except RuntimeLost as gone:
            return self.last_word(gone)
        return self.receive()

    def last_word(self, gone: RuntimeLost) -> ManagerMessage:
        """Why we were turned away, if it was said before the door was shut."""
        if not isinstance(gone.__cause__, ConnectionError):
            raise gone
        try:
            return self.receive()
        except OutcomeUnknown:
            raise gone from gone.__cause__

    def send(self, message: ClientMessage) -> None:
        """Send, entirely."""
        self._out.clear()
        encode_frame(message, self._out)
        self._send_all(self._out)

    def send_body(self, body: memoryview | bytes) -> None:
        """Send the bytes that a grant allows, entirely and as they are."""
        self._send_all(body)

    def _send_all(self, data: memoryview | bytes | bytearray) -> None:
        """While the manager takes no more, take what it sends: it may be waiting for just that."""
        sent = 0
        try:
            with memoryview(data) as out:
                assert out.itemsize == 1, "what was sent is counted in bytes"
                while sent < len(out):
                    try:
                        sent += self._socket.send(out[sent:], _DONTWAIT)
                    except BlockingIOError:
                        self._make_way()
        except OSError as error:
            # Not every byte went, so that the request cannot have taken effect.
            raise RuntimeLost(f"the connection to the manager is gone: {error.strerror}") from error

    def _make_way(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT)
        if any(events & select.POLLIN for _, events in ready.poll()):
            if not (size := self._receive_some()):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            self._feed(size)

    def receive(self) -> ManagerMessage:
        """The next answer. What the manager says between its answers goes to `aside`."""
        while True:
            message = self._next_message()
            if self._aside is None or not isinstance(message, SegmentsAdded | SegmentsRetired):
                return message
            self._aside(self, message)

    def _next_message(self) -> ManagerMessage:
        while (frame := self._framer.next_frame()) is None:
            self._spin.look(self._readable.poll)  # quicker to say no than receiving is
            self._fetch()
        return decode_from_manager(frame)

    def receive_within(self, timeout_s: float | None, wake: int) -> ManagerMessage | None:
        """The next message that nobody asked for; None if it is not there in time, or once `wake` is readable.

        A part of it that has come is kept for the next call.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.register(wake, select.POLLIN)
        while True:
            while (frame := self._framer.next_frame()) is None:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                found = dict(ready.poll(None if left_s is None else left_s * 1000))
                if not found or wake in found:
                    return None
                self._fetch()
            message = decode_from_manager(frame)
            if self._aside is None or not isinstance(message, SegmentsAdded | SegmentsRetired):
                return message
            self._aside(self, message)

    def _fetch(self) -> None:
        """Wait for bytes, and keep them."""
        try:
            size = self._receive_some()
        except OSError as error:
            raise OutcomeUnknown(f"the connection broke before the answer came: {error.strerror}") from error
        if not size:
            raise OutcomeUnknown("the manager went away before it answered: the request may have taken effect")
        self._feed(size)

    def is_stale(self) -> bool:
        """Whether the manager has closed an idle connection. Peeking leaves descriptors where they are."""
        try:
            return self._socket.recv(1, _PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
