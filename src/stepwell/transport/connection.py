"""`Connection`: the client's end of a socket, for a thread that sends one request and waits for its answer.

Two errors say what is known after a failure, because the caller decides by them whether to send the request again.
`RuntimeLost`: not every byte of the message was sent, so it had no effect. `OutcomeUnknown`: the message was sent and
the connection broke before the answer, so it may have taken effect.

A deadlock is possible if both ends only write: the manager stops reading requests while its replies are not read. So a
thread that cannot send receives meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import Final

from stepwell import limits
from stepwell.errors import OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.messages import ClientMessage, ManagerMessage, OutOfBand, Response
from stepwell.transport.busy_wait import Spin
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand

# Plain integers, because combining flags of an enumeration takes longer than a receive call does.
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_PEEK: Final = int(socket.MSG_PEEK | _DONTWAIT)


class Connection(FrameSocket):
    """A connected socket with its frames and messages. One thread uses it at a time; it has no lock.

    The messages that the manager sends between its answers (`OutOfBand`) go to `on_out_of_band`, on the thread that
    receives. Without that callback they are returned like other messages.
    """

    def __init__(self, connected: socket.socket, *, on_out_of_band: OnOutOfBand | None = None) -> None:
        super().__init__(connected)
        self._on_out_of_band = on_out_of_band
        self._out = bytearray()
        self.send_ms_max: int | None = None  # without progress; None: as long as the manager takes
        self._spin = Spin(limits.SPIN_SECONDS)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def exchange(self, message: ClientMessage) -> ManagerMessage:
        """Send a message and return its answer.

        A message that cannot be encoded raises before a byte is sent. A connection that was already dead raises
        `RuntimeLost`, and one that dies between the message and its answer raises `OutcomeUnknown`.
        """
        try:
            self.send(message)
        except RuntimeLost as gone:
            return self.receive_rejection(gone)
        return self.receive()

    def receive_rejection(self, gone: RuntimeLost) -> ManagerMessage:
        """Return the `Rejected` that the manager sent before it closed the connection; otherwise raise `gone`.

        A manager that rejects a client sends the reason and closes. The client may notice the closing first, while it
        sends, although the reason is waiting in its receive buffer.
        """
        if not isinstance(gone.__cause__, ConnectionError):
            raise gone
        try:
            return self.receive()
        except OutcomeUnknown:
            raise gone from gone.__cause__

    def drain(self, gone: RuntimeLost) -> None:
        """Receive what had arrived before a send failed with `gone`, for the sake of the manager's last message.

        Answers among it are dropped: their requests are sent again on another connection.
        """
        with contextlib.suppress(StepwellError):
            while isinstance(gone.__cause__, ConnectionError):
                self.receive()

    def send(self, message: ClientMessage) -> None:
        """Send what goes with it, and all of a message, or raise `RuntimeLost`."""
        encode_frame(message, self._out)
        try:
            self._send_all(self._out)
        finally:
            self._out.clear()

    def send_with_next(self, message: ClientMessage) -> None:
        """Put a message that has no answer ahead of the next one that is sent. It costs no system call."""
        encode_frame(message, self._out)

    def send_body(self, body: memoryview | bytes) -> None:
        """Send all bytes of a body that the manager has granted, without a frame around them."""
        assert not isinstance(body, memoryview) or body.itemsize == 1, "what was sent is counted in bytes"
        self._send_all(body)

    def _send_all(self, data: memoryview | bytes | bytearray) -> None:
        """Send all bytes. While the socket is full, receive what the manager sends: it may be waiting for that."""
        try:
            sent = self._send_some(data)
            if sent == len(data):  # the usual case: everything at once
                return
            with memoryview(data) as out:
                while sent < len(out):
                    self._wait_until_writable()
                    sent += self._send_some(out[sent:])
        except OSError as error:
            # Not every byte went, so that the request cannot have taken effect.
            raise RuntimeLost(f"the connection to the manager is gone: {error.strerror}") from error

    def _send_some(self, data: memoryview | bytes | bytearray) -> int:
        """Send what the socket accepts, and return the number of bytes; 0 if it is full."""
        try:
            return self._socket.send(data, _DONTWAIT)
        except BlockingIOError:
            return 0

    def _wait_until_writable(self) -> None:
        """Wait until the socket can be written or read, and buffer what has arrived."""
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT)
        found = ready.poll(self.send_ms_max)
        if not found:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if any(events & select.POLLIN for _, events in found):
            if not (size := self._receive_some()):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            self._feed(size)

    def receive(self) -> ManagerMessage:
        """Return the next message that is not out of band."""
        while True:
            message = self._next_message()
            # Most messages are responses: a look at the type costs less than at all types that are out of band.
            if type(message) is Response or self._on_out_of_band is None or not isinstance(message, OutOfBand):
                return message
            self._on_out_of_band(self, message)

    def _next_message(self) -> ManagerMessage:
        framer = self._framer
        frame: bytearray | memoryview | None = framer.next_frame() if framer.buffer else None
        while frame is None:
            self._spin.poll_briefly(self._readable.poll)  # a poll that finds nothing costs less than a receive
            frame = framer.take_frame(self._arrived[: self._wait_for_bytes()])
        return decode_from_manager(frame)

    def receive_within(self, timeout_s: float | None, wake: int) -> ManagerMessage | None:
        """Return the next message, or None after `timeout_s` or once the descriptor `wake` is readable.

        A frame that has arrived in part stays buffered for the next call. Another thread wakes the receiver through
        `wake`.
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
                self._feed(self._wait_for_bytes())
            message = decode_from_manager(frame)
            if self._on_out_of_band is None or not isinstance(message, OutOfBand):
                return message
            self._on_out_of_band(self, message)

    def _wait_for_bytes(self) -> int:
        """Wait until bytes are in the receive buffer and return their number; `OutcomeUnknown` at the stream's end."""
        try:
            size = self._receive_some()
        except OSError as error:
            raise OutcomeUnknown(f"the connection broke before the answer came: {error.strerror}") from error
        if not size:
            raise OutcomeUnknown("the manager went away before it answered: the request may have taken effect")
        return size

    def is_stale(self) -> bool:
        """Return True if the manager has closed this connection while it was idle.

        It peeks at the socket: a real read would take bytes, and drop descriptors, of a message that is out of band.
        """
        try:
            return self._socket.recv(1, _PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
