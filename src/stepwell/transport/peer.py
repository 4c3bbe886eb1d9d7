"""The manager's end: a non-blocking peer with bounded buffers, which can be late without making anybody wait."""

from __future__ import annotations

import socket

from stepwell import limits
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import ManagerMessage


class Peer:
    """A connection as the loop sees it: frames that have arrived, replies that have to go."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        connection.setblocking(False)  # noqa: FBT003
        self._socket = connection
        self._framer = Framer(limits.GREETING_BYTES_MAX)
        self._frame_since_s = now_s  # when the frame that is not whole yet began
        self.outbox = bytearray()
        self.is_full = False  # it has so much to read that its further requests wait
        self.progressed_at_s = now_s  # the last time that anything went in or out
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, arrived: memoryview, now_s: float) -> None:
        """Take what has arrived, as much as fits in the loop's buffer. The end of the stream closes the peer."""
        try:
            size = self._socket.recv_into(arrived)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            if not self._framer.pending:
                self._frame_since_s = now_s
            self._framer.feed(arrived[:size])
            self.progressed_at_s = now_s
        else:
            self.is_open = False

    def trust(self) -> None:
        """It has said who it is: from now on it may send large frames."""
        self._framer.frame_bytes_max = limits.FRAME_BYTES_MAX

    def next_frame(self) -> bytearray | None:
        """The next whole frame, unless the peer has to read its replies first."""
        if self.is_full:
            return None
        frame = self._framer.next_frame()
        if frame is not None:
            self._frame_since_s = self.progressed_at_s
        return frame

    def send(self, message: ManagerMessage) -> None:
        """Put a message in the outbox; `flush` sends it."""
        encode_frame(message, self.outbox)
        self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX

    def flush(self, now_s: float) -> None:
        """Send as much as the peer takes."""
        try:
            sent = self._socket.send(self.outbox)
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False
            return
        if sent:
            del self.outbox[:sent]
            if self.is_full:  # what it has half sent, it could not go on with
                self._frame_since_s = now_s
            self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX
            self.progressed_at_s = now_s

    def is_stalled(self, now_s: float) -> bool:
        """Whether it has not read for too long, or takes too long over a frame, however busy it looks."""
        deaf = bool(self.outbox) and now_s - self.progressed_at_s > limits.STALL_SECONDS_MAX
        late = self._framer.pending > 0 and not self.is_full and now_s - self._frame_since_s > limits.FRAME_SECONDS_MAX
        return deaf or late

    def close(self) -> None:
        self._socket.close()
