"""The manager's end: a non-blocking peer with bounded buffers, which can be late without making anybody wait.

Descriptors go with their frame. The kernel ties those of a `sendmsg` to its first byte and hands them out with it, so
that such a `sendmsg` begins where their frame begins and ends before the next frame that has some of its own: whoever
has received a frame has its descriptors, in the order of the frames.

An upload is bytes without frames. They are received where they belong, and not a byte more than belongs there.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stepwell import limits
from stepwell.errors import OutcomeUnknown
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import ManagerMessage


class Sink(Protocol):
    """Where the bytes of an upload belong."""

    @property
    def room(self) -> memoryview:
        """A fresh view of the bytes where the next ones belong; empty when the upload is complete.

        Whoever asks for it releases it, before anything else happens to the sink: memory that is viewed cannot be
        unmapped.
        """
        ...

    def took(self, size: int) -> None:
        """That many bytes were put at the start of `room`."""
        ...


class _Attached(NamedTuple):
    """Descriptors of our own, and the frame that they go with."""

    begins_at: int  # in bytes, counted like `Peer._attached_from`
    descriptors: array[int]


class Peer:
    """A connection as the loop sees it: frames that have arrived, replies that have to go."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        connection.setblocking(False)  # noqa: FBT003
        self._socket = connection
        self._framer = Framer(limits.GREETING_BYTES_MAX)
        self._frame_since_s = now_s  # when the frame that is not whole yet began
        self.sink: Sink | None = None  # of the upload that is not complete yet; no byte waits in the framer meanwhile
        self._upload_since_s = self._uploaded_at_s = now_s  # when it began, and when it last got on
        self.outbox = bytearray()
        self._attached: deque[_Attached] = deque()
        self._attached_from = 0  # where the outbox begins, in bytes that went while it had descriptors
        self._is_laden = False  # so many descriptors wait that its further requests do
        self.is_full = False  # it has so much to read that its further requests wait
        self.progressed_at_s = now_s  # the last time that anything went in or out
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, arrived: memoryview, now_s: float) -> None:
        """Take what has arrived, as much as fits in the loop's buffer. The end of the stream closes the peer."""
        if self.sink is not None:
            self._read_upload(self.sink, now_s)
        elif size := self._receive(arrived, now_s):
            if not self._framer.pending:
                self._frame_since_s = now_s
            self._framer.feed(arrived[:size])

    def _read_upload(self, sink: Sink, now_s: float) -> None:
        with sink.room as room, room[: limits.RECEIVE_BYTES_PER_TURN] as part:
            size = self._receive(part, now_s)
        if size:
            self._uploaded_at_s = now_s
            sink.took(size)
            self._finish(sink)

    def _receive(self, into: memoryview, now_s: float) -> int:
        """How many bytes came. Descriptors that a peer sends us are dropped by the kernel, since we ask for none."""
        try:
            size = self._socket.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError:
            size = 0
        if size:
            self.progressed_at_s = now_s
        else:
            self.is_open = False
        return size

    def trust(self) -> None:
        """It has said who it is: from now on it may send large frames."""
        self._framer.frame_bytes_max = limits.FRAME_BYTES_MAX

    def expect(self, sink: Sink, now_s: float) -> None:
        """What comes next is no frame: it belongs in the sink, until that is complete."""
        assert self.sink is None, "one upload at a time"
        self.sink = sink
        self._upload_since_s = self._uploaded_at_s = self._frame_since_s = now_s
        while self._framer.pending:
            with sink.room as room:
                size = self._framer.read_into(room)
            if not size:
                break
            sink.took(size)
        self._finish(sink)

    def _finish(self, sink: Sink) -> None:
        with sink.room as room:
            if not room:
                self.sink = None

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that nobody has looked at."""
        return self._framer.pending > 0

    def next_frame(self) -> bytearray | None:
        """The next whole frame, unless the peer has to read its replies first. In an upload there is none."""
        if self.is_full:
            return None
        frame = self._framer.next_frame()
        if frame is not None:
            self._frame_since_s = self.progressed_at_s
        return frame

    def send(self, message: ManagerMessage, descriptors: Sequence[int] = ()) -> None:
        """Put a message in the outbox, with copies of its descriptors; `flush` sends it."""
        assert not descriptors or len(descriptors) <= limits.DESCRIPTORS_PER_FRAME_MAX, "the kernel takes no more"
        begins_at = len(self.outbox)
        encode_frame(message, self.outbox)
        if descriptors:
            self._attach(begins_at, descriptors)
        self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._is_laden

    def send_frame(self, frame: bytes) -> None:
        """Put a message in the outbox that is encoded already."""
        self.outbox += frame
        self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._is_laden

    def _attach(self, begins_at: int, descriptors: Sequence[int]) -> None:
        copies = array("i")
        try:
            for descriptor in descriptors:
                copies.append(os.dup(descriptor))
        except OSError as error:
            _close_all(copies)
            del self.outbox[begins_at:]
            raise OutcomeUnknown(
                f"the manager cannot hand out its shared memory ({error.strerror}): raise its `ulimit -n`"
            ) from error
        self._attached.append(_Attached(self._attached_from + begins_at, copies))
        self._weigh()

    def flush(self, now_s: float) -> None:
        """Send as much as the peer takes."""
        while True:
            try:
                sent = self._send_attached() if self._attached else self._socket.send(self.outbox)
            except BlockingIOError:
                return
            except OSError:
                self.is_open = False
                return
            if sent:
                del self.outbox[:sent]
                if self.is_full:  # what it has half sent, it could not go on with
                    self._upload_since_s = self._uploaded_at_s = self._frame_since_s = now_s
                self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._is_laden
                self.progressed_at_s = now_s
            if not self._attached:
                return

    def _send_attached(self) -> int:
        """Send once: what is before the first frame with descriptors, or else from there to the second."""
        ahead = self._attached[0].begins_at - self._attached_from
        with memoryview(self.outbox) as outbox:
            if ahead:
                with outbox[:ahead] as part:
                    sent = self._socket.send(part)
            else:
                sent = self._send_first_attached(outbox)
        self._attached_from += sent
        return sent

    def _send_first_attached(self, outbox: memoryview) -> int:
        end = self._attached[1].begins_at - self._attached_from if len(self._attached) > 1 else len(outbox)
        descriptors = self._attached[0].descriptors
        with outbox[:end] as part:
            sent = self._socket.sendmsg([part], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        self._attached.popleft()  # they went with the first byte, even if not every byte did
        self._weigh()
        _close_all(descriptors)
        return sent

    def _weigh(self) -> None:
        """A peer that does not read could otherwise use up our descriptors with a few bytes each."""
        waiting = sum(len(each.descriptors) for each in self._attached)
        self._is_laden = waiting > limits.DESCRIPTORS_PER_FRAME_MAX

    def is_stalled(self, now_s: float) -> bool:
        """Whether it has not read for too long, or takes too long over what it sends, however busy it looks."""
        if self.outbox and now_s - self.progressed_at_s > limits.STALL_SECONDS_MAX:
            return True
        if self.is_full:
            return False
        if self.sink is not None:
            is_late = now_s - self._upload_since_s > limits.UPLOAD_SECONDS_MAX
            return is_late or now_s - self._uploaded_at_s > limits.STALL_SECONDS_MAX
        return self._framer.pending > 0 and now_s - self._frame_since_s > limits.FRAME_SECONDS_MAX

    def close(self) -> None:
        """Let go of the socket and of every descriptor that has not gone."""
        self._socket.close()
        for each in self._attached:
            _close_all(each.descriptors)
        self._attached.clear()


def _close_all(descriptors: array[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
