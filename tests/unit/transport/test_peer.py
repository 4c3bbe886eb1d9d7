"""The manager's end of a connection: never waits, bounded in both directions."""

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from stepwell import limits
from stepwell.errors import Busy, ProtocolError
from stepwell.protocol.codec import decode_from_manager
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import AskStatus, ManagerEnded, Refusal, Rejected
from stepwell.transport.peer import Peer
from tests.support.peers import frame

LARGE = Rejected(Refusal.of(Busy("x" * 1_000), 0))


class Ends(NamedTuple):
    peer: Peer
    other: socket.socket
    arrived: memoryview


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A peer, the socket at its other end, and a buffer such as the loop has."""
    ours, other = socket.socketpair()
    peer = Peer(ours, now_s=0.0)
    with other:
        yield Ends(peer, other, memoryview(bytearray(limits.RECEIVE_BYTES_PER_TURN)))
        peer.close()


def test_reading_takes_a_bounded_amount(ends: Ends) -> None:
    """One read takes what fits in the loop's buffer, and the rest waits in the kernel."""
    small = ends.arrived[:100]
    ends.other.sendall(frame(AskStatus(1)) * 50)
    ends.peer.read(small, now_s=1.0)
    assert ends.peer._framer.pending == 100
    assert ends.peer.progressed_at_s == 1.0


def test_reading_nothing_is_no_end(ends: Ends) -> None:
    """A connection on which nothing has come stays open, and has not moved."""
    ends.peer.read(ends.arrived, now_s=5.0)
    assert ends.peer.is_open
    assert ends.peer.progressed_at_s == 0.0
    assert ends.peer.fileno() > 0


def test_end_of_the_stream_closes(ends: Ends) -> None:
    """EOF, and an error of the socket, are the end of the peer."""
    ends.other.close()
    ends.peer.read(ends.arrived, now_s=1.0)
    assert not ends.peer.is_open


def test_reset_closes(ends: Ends) -> None:
    """A peer that went away with our bytes unread is gone, whether we read or write."""
    ends.peer.send(LARGE)
    ends.peer.flush(1.0)
    ends.other.close()
    ends.peer.read(ends.arrived, now_s=1.0)
    assert not ends.peer.is_open
    ends.peer.is_open = True
    ends.peer.send(LARGE)
    ends.peer.flush(2.0)
    assert not ends.peer.is_open


def test_flushing_never_waits(ends: Ends) -> None:
    """What the other end does not take stays in the outbox, in order, until it does."""
    for _ in range(2_000):
        ends.peer.send(LARGE)
    total = len(ends.peer.outbox)
    for now in (1.0, 2.0, 3.0):
        ends.peer.flush(now)
    assert ends.peer.outbox
    assert ends.peer.progressed_at_s < 3.0
    received = bytearray()
    while ends.peer.outbox or len(received) < total:
        received += ends.other.recv(1 << 20)
        ends.peer.flush(4.0)
    assert received == frame_of_rejected() * 2_000


def frame_of_rejected() -> bytes:
    left, right = socket.socketpair()
    with right:
        peer = Peer(left, 0.0)
        peer.send(LARGE)
        outbox = bytes(peer.outbox)
        peer.close()
    return outbox


def test_full_outbox_holds_back_the_requests(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound the peer's frames wait until it reads its replies."""
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 500)
    ends.other.sendall(frame(AskStatus(1)))
    ends.peer.read(ends.arrived, 1.0)
    ends.peer.send(LARGE)
    assert (ends.peer.is_full, ends.peer.next_frame()) == (True, None)
    ends.peer.flush(1.0)
    assert ends.peer.next_frame() is not None


def test_stalled_is_who_owes_something_for_too_long(ends: Ends) -> None:
    """Half a frame, or unread replies, for longer than the bound; an idle peer owes nothing."""
    late = limits.STALL_SECONDS_MAX + 1
    assert not ends.peer.is_stalled(late)
    ends.other.sendall(b"\0\0")
    ends.peer.read(ends.arrived, 0.0)
    assert ends.peer.is_stalled(late)
    assert not ends.peer.is_stalled(limits.STALL_SECONDS_MAX)


def test_unread_replies_stall(ends: Ends) -> None:
    """Who does not read owes reading."""
    ends.peer.send(LARGE)
    assert ends.peer.is_stalled(limits.STALL_SECONDS_MAX + 1)
    ends.peer.flush(0.0)
    assert not ends.peer.is_stalled(limits.STALL_SECONDS_MAX + 1)


def test_large_frames_are_for_those_who_said_who_they_are(ends: Ends) -> None:
    """A stranger's announcement of a large frame is refused; a guest's is not."""
    ends.other.sendall(struct.pack("!i", limits.GREETING_BYTES_MAX + 1))
    ends.peer.read(ends.arrived, 1.0)
    with pytest.raises(ProtocolError):
        ends.peer.next_frame()
    ends.peer.allow_large_frames()
    assert ends.peer.next_frame() is None


LAST = ManagerEnded(Refusal.of(Busy("the last"), 0))


def received(other: socket.socket) -> list[object]:
    """All messages up to the end of the stream."""
    framer = Framer()
    while data := other.recv(1 << 16):
        framer.feed(data)
    found: list[object] = []
    while (each := framer.next_frame()) is not None:
        found.append(decode_from_manager(each))
    assert framer.pending == 0
    return found


def test_last_message_replaces_what_is_not_committed(ends: Ends) -> None:
    """A reply whose turn was never flushed does not leave; the last message does."""
    ends.peer.send(LARGE)
    ends.peer.flush(now_s=1.0)
    ends.peer.send(LARGE)
    ends.peer.send_last(LAST)
    ends.peer.close()
    assert received(ends.other) == [LARGE, LAST]


def test_last_message_comes_behind_a_frame_that_was_sent_in_part(ends: Ends) -> None:
    """Bytes of an earlier turn are committed: they go first, so that the last message is no noise."""
    count = 0
    while not ends.peer.outbox:
        ends.peer.send(LARGE)
        ends.peer.flush(now_s=1.0)
        count += 1
    ends.peer.send(LARGE)  # of the turn that fails
    taken = ends.other.recv(1 << 20)
    ends.peer.send_last(LAST)
    ends.peer.close()
    framer = Framer()
    framer.feed(taken)
    while data := ends.other.recv(1 << 16):
        framer.feed(data)
    found: list[object] = []
    while (each := framer.next_frame()) is not None:
        found.append(decode_from_manager(each))
    assert found == [*[LARGE] * count, LAST]


def test_last_message_to_a_peer_that_does_not_read(ends: Ends) -> None:
    """Nothing waits for it, and nothing is raised; nor for one that is gone."""
    while not ends.peer.outbox:
        ends.peer.send(LARGE)
        ends.peer.flush(now_s=1.0)
    ends.peer.send_last(LAST)
    assert ends.peer.outbox
    ends.other.close()
    ends.peer.send_last(LAST)
    assert not ends.peer.is_open


def test_bytes_without_memory_end_the_connection(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that they belong to is lost: that is said when the next frame is asked for."""

    def no_memory(_framer: Framer, _data: memoryview) -> None:
        raise MemoryError

    ends.other.sendall(frame(AskStatus(1)))
    monkeypatch.setattr(Framer, "feed", no_memory)
    ends.peer.read(ends.arrived, now_s=1.0)
    for _ in range(2):
        with pytest.raises(MemoryError):
            ends.peer.next_frame()
