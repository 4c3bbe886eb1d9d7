"""Descriptors: they come with the frame that announces them, in order, and none is left behind."""

import errno
import os
import resource
import select
import socket
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from stepwell import limits
from stepwell.errors import InvalidArgument, OutcomeUnknown, ProtocolError
from stepwell.protocol.messages import AskStatus, Refusal, Rejected
from stepwell.transport.address import dial, listen, private_directory
from stepwell.transport.connection import Connection
from stepwell.transport.peer import Peer
from tests.support.peers import frame, kernel_socket
from tests.support.processes import descriptors
from tests.support.seeds import seeded

PER_FRAME = limits.DESCRIPTORS_PER_FRAME_MAX
SENDING_BYTES_MIN = 1
"""The kernel raises it to its own least, a few KiB."""


class Ends(NamedTuple):
    peer: Peer
    connection: Connection


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of one connection, on which little fits at a time."""
    directory = private_directory()
    with listen(str(directory / "s")) as listener:
        connection = Connection(dial(str(directory / "s")))
        accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING_BYTES_MIN)
    peer = Peer(accepted, now_s=0.0)
    yield Ends(peer, connection)
    peer.close()
    connection.close()
    (directory / "s").unlink()
    directory.rmdir()


def numbered(number: int, size: int = 0) -> Rejected:
    """A message that can be told from others, of about that many bytes."""
    return Rejected(Refusal(number, "Busy", "x" * size))


def send(peer: Peer, message: Rejected, texts: Sequence[str] = ()) -> None:
    """Send a message and, for each text, a file that has it. Our own descriptors are closed at once."""
    descriptors = [os.memfd_create("test") for _ in texts]
    for descriptor, text in zip(descriptors, texts, strict=True):
        os.write(descriptor, text.encode())
    peer.send(message, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def texts_of(descriptors: Sequence[int]) -> list[str]:
    """What is in the files, which are closed."""
    found = [os.pread(descriptor, 100, 0).decode() for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return found


def texts(number: int, count: int) -> list[str]:
    return [f"{number}.{index}" for index in range(count)]


@contextmanager
def flushing(peer: Peer) -> Iterator[None]:
    """Flush as the loop does, whenever the other end has made room."""

    def flush() -> None:
        writable = select.poll()
        writable.register(peer, select.POLLOUT)
        while peer.outbox and peer.is_open:
            writable.poll(10_000)
            peer.flush(now_s=1.0)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def descriptors_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("seed", range(20))
def test_descriptors_come_with_their_frame(ends: Ends, seed: int) -> None:
    """Frames with and without, small and larger than what fits: each one's are there when it is, and are its own."""
    chance = seeded(seed)
    counts = [chance.choice([0, 0, 1, 3, 20]) for _ in range(60)]
    for number, count in enumerate(counts):
        send(ends.peer, numbered(number, chance.choice([0, 100, 10_000])), texts(number, count))
        if chance.random() < 0.3:
            ends.peer.flush(now_s=1.0)
    before = descriptors_open()
    with flushing(ends.peer):
        for number, count in enumerate(counts):
            message = ends.connection.receive()
            assert isinstance(message, Rejected)
            assert message.refusal.revision == number
            assert texts_of(ends.connection.take_descriptors(count)) == texts(number, count)
    assert not ends.connection._descriptors
    assert descriptors_open() <= before


def test_as_many_as_a_frame_may_have(ends: Ends) -> None:
    """Three frames in a row with the most that one may have: all come, in order."""
    for number in range(3):
        send(ends.peer, numbered(number), texts(number, PER_FRAME))
    with flushing(ends.peer):
        for number in range(3):
            assert ends.connection.receive() == numbered(number)
            assert texts_of(ends.connection.take_descriptors(PER_FRAME)) == texts(number, PER_FRAME)


def test_more_than_a_frame_may_have_is_a_mistake_of_ours(ends: Ends) -> None:
    """It is noticed before anything of it is in the outbox."""
    with pytest.raises(AssertionError, match="no more"):
        ends.peer.send(numbered(1), [0] * (PER_FRAME + 1))
    assert not ends.peer.outbox


def test_descriptors_are_tied_to_the_first_byte_of_their_frame(ends: Ends) -> None:
    """They come neither with the bytes before it nor later, and frames without any follow in the same send."""
    sizes = []
    for number, with_it in ((1, []), (2, ["two"]), (3, []), (4, ["four"])):
        sizes.append(-len(ends.peer.outbox))
        send(ends.peer, numbered(number), with_it)
        sizes[-1] += len(ends.peer.outbox)
    ends.peer.flush(now_s=1.0)
    assert not ends.peer.outbox
    came = [
        (len(data), texts_of(descriptors))
        for data, descriptors, _, _ in (
            socket.recv_fds(ends.connection._socket, size, PER_FRAME) for size in (sizes[0], 1, 1_000)
        )
    ]
    assert came == [(sizes[0], []), (1, ["two"]), (sizes[1] - 1 + sizes[2] + sizes[3], ["four"])]


def test_caller_owns_what_it_takes(ends: Ends) -> None:
    """What was taken outlives the connection, and is not inherited by programs that are started."""
    send(ends.peer, numbered(1), ["one"])
    ends.peer.flush(now_s=1.0)
    ends.connection.receive()
    (taken,) = ends.connection.take_descriptors(1)
    ends.connection.close()
    assert not os.get_inheritable(taken)
    assert texts_of([taken]) == ["one"]


def test_fewer_than_announced_is_a_protocol_error(ends: Ends) -> None:
    """A manager that announces what it does not send is not believed; what came stays to be closed."""
    send(ends.peer, numbered(1), ["one"])
    ends.peer.flush(now_s=1.0)
    ends.connection.receive()
    with pytest.raises(ProtocolError, match="2 descriptors were announced, 1 came"):
        ends.connection.take_descriptors(2)
    assert texts_of(ends.connection.take_descriptors(1)) == ["one"]


def test_closing_lets_go_of_what_has_not_gone_and_of_what_nobody_took(ends: Ends) -> None:
    """Queued at one end, untaken at the other, closed twice: nothing leaks, and nobody else's is closed."""
    before = descriptors_open()
    send(ends.peer, numbered(1), ["taken by nobody"])
    ends.peer.flush(now_s=1.0)
    send(ends.peer, numbered(2), texts(2, 5))
    send(ends.peer, numbered(3), texts(3, 5))
    ends.connection.receive()
    assert descriptors_open() == before + 11
    for _ in range(2):
        ends.peer.close()
        ends.connection.close()
    assert descriptors_open() == before - 2


def test_message_that_cannot_be_encoded_keeps_no_descriptors(ends: Ends) -> None:
    """Refused is refused: neither bytes nor descriptors stay, and the next message goes as usual."""
    before = descriptors_open()
    with pytest.raises(InvalidArgument):
        ends.peer.send(Rejected(Refusal(1, "Busy", "\ud800")), [0])
    assert (descriptors_open(), len(ends.peer.outbox)) == (before, 0)
    send(ends.peer, numbered(2), ["two"])
    ends.peer.flush(now_s=1.0)
    assert ends.connection.receive() == numbered(2)
    assert texts_of(ends.connection.take_descriptors(1)) == ["two"]


def test_manager_without_descriptors_says_so(ends: Ends) -> None:
    """A frame whose descriptors cannot be copied is not sent without them; what was there before it stays."""
    send(ends.peer, numbered(1))
    queued, before = bytes(ends.peer.outbox), descriptors_open()
    with pytest.raises(OutcomeUnknown, match="ulimit"):
        ends.peer.send(numbered(2), [0, 1, 1 << 30])
    assert (descriptors_open(), bytes(ends.peer.outbox)) == (before, queued)
    assert not ends.peer._attached


class Overloaded(socket.socket):
    """Too many descriptors of this user are under way."""

    def sendmsg(self, *_: object) -> NoReturn:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))


def test_kernel_that_takes_no_more_descriptors_ends_the_peer(ends: Ends) -> None:
    """What was before them has gone; the frame is not sent without them; closing lets go of them."""
    before = descriptors_open()
    ends.peer._socket = Overloaded(fileno=kernel_socket(ends.peer).detach())
    send(ends.peer, numbered(1))
    send(ends.peer, numbered(2), ["two"])
    ends.peer.flush(now_s=1.0)
    assert not ends.peer.is_open
    assert ends.connection.receive() == numbered(1)
    assert descriptors_open() == before + 1
    ends.peer.close()
    assert descriptors_open() == before - 1


def test_flushing_descriptors_never_waits(ends: Ends) -> None:
    """Where nothing fits, nothing goes, and they wait with their frame."""
    send(ends.peer, numbered(1, 1 << 20))
    send(ends.peer, numbered(2), ["two"])
    for now in (1.0, 2.0):
        ends.peer.flush(now)
    assert ends.peer.is_open
    assert (ends.peer.progressed_at_s, len(ends.peer._attached)) == (1.0, 1)
    with flushing(ends.peer):
        for number, count in ((1, 0), (2, 1)):
            assert isinstance(ends.connection.receive(), Rejected)
            assert texts_of(ends.connection.take_descriptors(count)) == ["two"][:count], number


def test_descriptors_that_wait_hold_back_the_requests(ends: Ends) -> None:
    """A peer that does not read cannot use up our descriptors, however few bytes they come with."""
    ends.connection.send(AskStatus(1))
    ends.peer.read(memoryview(bytearray(1_000)), now_s=1.0)
    send(ends.peer, numbered(1), texts(1, PER_FRAME))
    assert not ends.peer.is_full
    send(ends.peer, numbered(2), texts(2, 1))
    send(ends.peer, numbered(3))
    assert (ends.peer.is_full, ends.peer.next_frame()) == (True, None)
    ends.peer.flush(now_s=1.0)
    assert not ends.peer.is_full
    assert ends.peer.next_frame() is not None


def test_peeking_leaves_descriptors_where_they_are(ends: Ends) -> None:
    """Looking whether a connection is stale neither drops nor doubles what waits on it."""
    send(ends.peer, numbered(1), ["one", "two"])
    ends.peer.flush(now_s=1.0)
    before = descriptors_open()
    for _ in range(3):
        assert not ends.connection.is_stale()
    assert descriptors_open() == before
    ends.connection.receive()
    assert texts_of(ends.connection.take_descriptors(2)) == ["one", "two"]


def test_descriptors_that_come_while_sending_are_kept(ends: Ends) -> None:
    """Making way takes them as well as the bytes that they come with."""
    send(ends.peer, numbered(1), ["one"])
    ends.peer.flush(now_s=1.0)
    body = bytes(4 << 20)
    received = bytearray()

    def take_all() -> None:
        readable = select.poll()
        readable.register(ends.peer, select.POLLIN)
        while len(received) < len(body):
            readable.poll(10_000)
            received.extend(kernel_socket(ends.peer).recv(1 << 20))

    thread = threading.Thread(target=take_all)
    thread.start()
    ends.connection.send_body(body)
    thread.join()
    assert received == body
    assert ends.connection.receive() == numbered(1)
    assert texts_of(ends.connection.take_descriptors(1)) == ["one"]


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """So few more can be opened."""
    opened = [os.dup(0) for _ in range(count + 1)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("left", [0, 1, 2])
def test_process_without_descriptors_is_told_what_to_do(ends: Ends, left: int) -> None:
    """What the kernel had to drop is noticed, and what did come is closed."""
    send(ends.peer, numbered(1), ["one", "two", "three"])
    ends.peer.flush(now_s=1.0)
    before = descriptors_open()
    with descriptors_left(left), pytest.raises(OutcomeUnknown, match="ulimit -n"):
        ends.connection.receive()
    assert descriptors_open() == before


def test_just_enough_descriptors_are_enough(ends: Ends) -> None:
    """The twin of the test above, to show that it is the lack that is noticed."""
    send(ends.peer, numbered(1), ["one", "two", "three"])
    ends.peer.flush(now_s=1.0)
    with descriptors_left(3):
        ends.connection.receive()
    assert texts_of(ends.connection.take_descriptors(3)) == ["one", "two", "three"]


def test_descriptors_that_a_client_sends_are_dropped(ends: Ends) -> None:
    """Nobody can fill the manager with descriptors: it asks for none."""
    before = descriptors_open()
    ends.connection._socket.sendmsg(
        [frame(AskStatus(1))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0] * PER_FRAME))]
    )
    ends.peer.read(memoryview(bytearray(1_000)), now_s=1.0)
    assert ends.peer.next_frame() is not None
    assert descriptors_open() == before


def test_descriptors_of_a_turn_that_fails_are_closed(ends: Ends) -> None:
    """They are dropped with their reply; those of an earlier turn that still wait are sent before the last message."""
    count = 0
    while not ends.peer.outbox:
        send(ends.peer, numbered(count, SENDING_BYTES_MIN), [str(count)])
        ends.peer.flush(now_s=1.0)
        count += 1
    before = descriptors(os.getpid())
    send(ends.peer, numbered(-1), ["of the turn that fails"])
    assert descriptors(os.getpid()) == before + 1
    ends.peer.send_last(numbered(count))
    found: list[int] = []
    while len(found) <= count:
        message = ends.connection.receive()
        assert isinstance(message, Rejected)
        found.append(message.refusal.revision)
        ends.peer.flush(now_s=1.0)
    assert found == [*range(count + 1)]
    assert texts_of(ends.connection.take_descriptors(count)) == [str(number) for number in range(count)]
