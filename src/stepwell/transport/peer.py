"""`Peer`: the manager's end of a client's socket. It never blocks, and its buffers are bounded.

The loop reads and flushes a peer when the socket is ready. A client that does not read its replies fills its own outbox
and nothing else: past a bound its further requests wait, and after a time it is cut off.

Descriptors travel with their frame. The kernel attaches the descriptors of a `sendmsg` to its first byte and delivers
them with that byte. So such a `sendmsg` begins where the frame begins, and ends before the next frame that has
descriptors of its own. A client that has received a frame therefore has its descriptors, in the order of the frames.

An upload is bytes without frames. They are received directly into the sink (shared memory), and never more of them than
belong there, so that the frame behind the upload stays in the socket.
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
from stepwell.transport.stream_socket import StreamSocket


class Sink(Protocol):
    """The destination of the bytes of an upload."""

    @property
    def room(self) -> memoryview:
        """A fresh view of the place for the next bytes; empty when the upload is complete.

        The caller releases the view before it does anything else with the sink, because memory cannot be unmapped while
        a view of it exists.
        """
        ...

    def advance(self, size: int) -> None:
        """Advance by `size` bytes, which the caller has put at the start of `room`."""
        ...


class _Attached(NamedTuple):
    """Duplicated descriptors that wait to be sent, and the position of the frame that they belong to."""

    begins_at: int  # in bytes, counted like `Peer._outbox_start`
    descriptors: array[int]


class Peer:
    """A client's connection as the loop sees it: frames that have arrived, and replies that wait to be sent.

    The loop owns it and uses it from its own thread only. No method blocks. A broken connection does not raise:
    `is_open` becomes False, and the loop closes the peer.
    """

    def __init__(self, connection: StreamSocket, now_s: float) -> None:
        connection.setblocking(False)  # noqa: FBT003
        self._socket = connection
        self._framer = Framer(limits.GREETING_BYTES_MAX)
        self._frame_since_s = now_s  # when the first byte of the incomplete frame arrived
        self._failure: MemoryError | None = None  # bytes that arrived found no memory
        self.sink: Sink | None = None  # of the incomplete upload; the framer is empty while there is one
        self._upload_since_s = self._uploaded_at_s = now_s  # when the upload began, and when its last bytes arrived
        self.outbox = bytearray()
        self._attached: deque[_Attached] = deque()
        self._outbox_start = 0  # position of the outbox's first byte; advances only while descriptors wait
        self._released = 0  # bytes of the outbox whose turn is committed; what follows must not be sent before that
        self._has_many_descriptors = False
        self.is_full = False  # too many bytes or descriptors wait to be sent: further requests are not read
        self.progressed_at_s = now_s  # when bytes were last received or sent
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, arrived: memoryview, now_s: float) -> None:
        """Receive what has arrived, at most as much as fits into the loop's buffer `arrived`.

        Bytes of an upload go into its sink instead. The end of the stream sets `is_open` to False.
        """
        if self.sink is not None:
            self._read_upload(self.sink, now_s)
        elif size := self._receive(arrived, now_s):
            if not self._framer.buffer:
                self._frame_since_s = now_s
            try:
                self._framer.feed(arrived[:size])
            except MemoryError as error:  # the frame is lost, and with it this connection: `next_frame` says so
                self._failure = error

    def _read_upload(self, sink: Sink, now_s: float) -> None:
        """Receive bytes of the upload directly into its sink, at most a turn's share."""
        with sink.room as room, room[: limits.RECEIVE_BYTES_PER_TURN] as part:
            size = self._receive(part, now_s)
        if size:
            self._uploaded_at_s = now_s
            sink.advance(size)
            self._finish(sink)

    def _receive(self, into: memoryview, now_s: float) -> int:
        """Receive once and return the number of bytes; 0 if there are none, or the connection has ended.

        A client cannot send descriptors: the kernel drops them, because this call asks for none.
        """
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

    def allow_large_frames(self) -> None:
        """Raise the frame limit from that of a greeting to the general one, once the client has said Hello.

        Before that, an unknown process could make the manager buffer a large frame.
        """
        self._framer.frame_bytes_max = limits.FRAME_BYTES_MAX

    def begin_upload(self, sink: Sink, now_s: float) -> None:
        """Receive the following bytes into `sink`, not as frames, until it is complete.

        Bytes that have already arrived behind the last frame are moved from the framer to the sink first.
        """
        assert self.sink is None, "one upload at a time"
        self.sink = sink
        self._upload_since_s = self._uploaded_at_s = self._frame_since_s = now_s
        while self._framer.buffer:
            with sink.room as room:
                size = self._framer.read_into(room)
            if not size:
                break
            sink.advance(size)
        self._finish(sink)

    def _finish(self, sink: Sink) -> None:
        """Return to frames if the sink is complete."""
        with sink.room as room:
            if not room:
                self.sink = None

    @property
    def has_more(self) -> bool:
        """True if bytes have arrived that were not returned as a frame yet."""
        return bool(self._framer.buffer)

    def next_frame(self) -> bytearray | None:
        """Return the next complete frame, or None. A full outbox also gives None, so that the client reads first.

        It raises `MemoryError` if a frame found no memory. The connection cannot be used any further then.
        """
        if self.is_full:
            return None
        if self._failure is not None:
            raise self._failure
        frame = self._framer.next_frame()
        if frame is not None:
            self._frame_since_s = self.progressed_at_s
        return frame

    def send(self, message: ManagerMessage, descriptors: Sequence[int] = ()) -> None:
        """Append a message to the outbox, with duplicates of its descriptors; `flush` sends it."""
        assert not descriptors or len(descriptors) <= limits.DESCRIPTORS_PER_FRAME_MAX, "the kernel takes no more"
        begins_at = len(self.outbox)
        encode_frame(message, self.outbox)
        if descriptors:
            self._attach(begins_at, descriptors)
        self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._has_many_descriptors

    def send_frame(self, frame: bytes) -> None:
        """Append a message that is already encoded to the outbox."""
        self.outbox += frame
        self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._has_many_descriptors

    def _attach(self, begins_at: int, descriptors: Sequence[int]) -> None:
        """Duplicate the descriptors, because their segments may be closed before they are sent.

        It raises `OutcomeUnknown`, without the frame in the outbox, if this process may open no more descriptors.
        """
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
        self._attached.append(_Attached(self._outbox_start + begins_at, copies))
        self._count_descriptors()

    def flush(self, now_s: float) -> None:
        """Send as much of the outbox as the socket accepts. The turn of everything in it is committed."""
        while True:
            try:
                sent = self._send_attached() if self._attached else self._socket.send(self.outbox)
            except BlockingIOError:
                self._released = len(self.outbox)
                return
            except OSError:
                self.is_open = False
                return
            if sent:
                del self.outbox[:sent]
                self._released = len(self.outbox)
                if self.is_full:  # the client could not finish its frame or upload meanwhile
                    self.restart_clocks(now_s)
                    self.is_full = len(self.outbox) > limits.OUTBOX_BYTES_MAX or self._has_many_descriptors
                self.progressed_at_s = now_s
            if not self._attached:
                return

    def send_last(self, message: ManagerMessage) -> None:
        """Send a last message in place of the replies that wait for a commit, as far as the socket accepts it now.

        Those replies are dropped, because their turn is not committed and never will be. A frame of an earlier turn
        that was sent in part is completed first.
        """
        while self._attached and self._attached[-1].begins_at - self._outbox_start >= self._released:
            _close_all(self._attached.pop().descriptors)
        del self.outbox[self._released :]
        encode_frame(message, self.outbox)
        self.flush(self.progressed_at_s)

    def _send_attached(self) -> int:
        """Send once: up to the first frame that has descriptors or, at its start, up to the second."""
        ahead = self._attached[0].begins_at - self._outbox_start
        with memoryview(self.outbox) as outbox:
            if ahead:
                with outbox[:ahead] as part:
                    sent = self._socket.send(part)
            else:
                sent = self._send_first_attached(outbox)
        self._outbox_start += sent
        return sent

    def _send_first_attached(self, outbox: memoryview) -> int:
        """Send the first frame that has descriptors, with them, and close the duplicates."""
        end = self._attached[1].begins_at - self._outbox_start if len(self._attached) > 1 else len(outbox)
        descriptors = self._attached[0].descriptors
        with outbox[:end] as part:
            sent = self._socket.sendmsg([part], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        self._attached.popleft()  # the kernel has taken them with the first byte, even if not all bytes were sent
        self._count_descriptors()
        _close_all(descriptors)
        return sent

    def _count_descriptors(self) -> None:
        """Note whether too many descriptors wait to be sent.

        A client that does not read could otherwise use up the manager's descriptors with a few bytes of requests.
        """
        waiting = sum(len(each.descriptors) for each in self._attached)
        self._has_many_descriptors = waiting > limits.DESCRIPTORS_PER_FRAME_MAX

    def restart_clocks(self, now_s: float) -> None:
        """Count the time of the client anew, because the manager has not read from it meanwhile."""
        self._upload_since_s = self._uploaded_at_s = self._frame_since_s = self.progressed_at_s = now_s

    def is_stalled(self, now_s: float) -> bool:
        """Return True if the client has not read, or not finished what it sends, for too long.

        The time since the first byte of a frame or an upload counts, not that since the last one. So a client that
        sends a byte now and then is cut off too. A client whose requests are held back because its outbox is full is
        judged by reading only.
        """
        if self.outbox and now_s - self.progressed_at_s > limits.STALL_SECONDS_MAX:
            return True
        if self.is_full:
            return False
        if self.sink is not None:
            is_late = now_s - self._upload_since_s > limits.UPLOAD_SECONDS_MAX
            return is_late or now_s - self._uploaded_at_s > limits.STALL_SECONDS_MAX
        return bool(self._framer.buffer) and now_s - self._frame_since_s > limits.FRAME_SECONDS_MAX

    def close(self) -> None:
        """Close the socket and the duplicates of all descriptors that were not sent."""
        self._socket.close()
        for each in self._attached:
            _close_all(each.descriptors)
        self._attached.clear()


def _close_all(descriptors: array[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
