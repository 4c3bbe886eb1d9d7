"""The client's end of a connection: what was sent, what was answered, and what is not known."""

import errno
import mmap
import random
import socket
import threading
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.errors import Busy, OutcomeUnknown, RuntimeLost
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import AskStatus, Refusal, Rejected, Request
from stepwell.transport.address import dial, listen, private_directory
from stepwell.transport.connection import Connection
from tests.support.peers import frame

REJECTED = Rejected(Refusal.of(Busy("full"), 0))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    directory = private_directory()
    with listen(str(directory / "s")) as listening:
        listening.settimeout(60)
        yield listening
    (directory / "s").unlink()
    directory.rmdir()


@pytest.fixture
def connection(listener: socket.socket) -> Iterator[Connection]:
    made = Connection(dial(str(Path(listener.getsockname()))))
    yield made
    made.close()


def framed(message: Rejected) -> bytes:
    out = bytearray()
    encode_frame(message, out)
    return bytes(out)


def test_answer_comes_to_whoever_asked(listener: socket.socket, connection: Connection) -> None:
    """The usual case: a request goes out whole, and what comes back is its answer."""
    accepted, _ = listener.accept()
    with accepted:
        accepted.sendall(framed(REJECTED))
        assert connection.exchange(AskStatus(1)) == REJECTED
        assert accepted.recv(1 << 16) == frame(AskStatus(1))


def test_last_words_are_read(listener: socket.socket, connection: Connection) -> None:
    """The other side said why and hung up before we sent anything: the reason is what we get."""
    accepted, _ = listener.accept()
    accepted.sendall(framed(REJECTED))
    accepted.close()
    assert connection.exchange(AskStatus(1)) == REJECTED


def test_hung_up_without_a_word_is_runtime_lost(listener: socket.socket, connection: Connection) -> None:
    """Nothing of the request can have arrived."""
    listener.accept()[0].close()
    with pytest.raises(RuntimeLost, match="is gone"):
        connection.exchange(AskStatus(1))


def test_hung_up_in_the_middle_of_an_answer_is_unknown(listener: socket.socket, connection: Connection) -> None:
    """Half an answer is none."""
    accepted, _ = listener.accept()
    with accepted:
        connection.send(AskStatus(1))
        accepted.recv(1 << 16)
        accepted.sendall(framed(REJECTED)[:-1])
    with pytest.raises(OutcomeUnknown):
        connection.receive()


def test_reset_instead_of_an_answer_is_unknown(listener: socket.socket, connection: Connection) -> None:
    """The request was received, never read, and its reader is gone."""
    accepted, _ = listener.accept()
    connection.send(AskStatus(1))
    accepted.close()
    with pytest.raises(OutcomeUnknown, match="broke"):
        connection.receive()


def test_gone_while_a_large_request_is_on_its_way(listener: socket.socket, connection: Connection) -> None:
    """A request that did not fit cannot have taken effect."""
    accepted, _ = listener.accept()
    accepted.shutdown(socket.SHUT_WR)
    large = Request(1, (StoreFragment("p", "a", bytes(4 << 20), 1),))
    with accepted, pytest.raises(RuntimeLost):
        connection.exchange(large)


class Exhausted(socket.socket):
    """The kernel has no memory for what is sent."""

    def send(self, *_: object) -> NoReturn:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_kernel_without_memory_is_runtime_lost(connection: Connection) -> None:
    """Nothing was sent, and nothing can be on its way back: there is nothing to wait for."""
    connection._socket = Exhausted(fileno=connection._socket.detach())
    with pytest.raises(RuntimeLost, match="No buffer space"):
        connection.exchange(AskStatus(1))


def test_what_comes_while_sending_is_kept(listener: socket.socket, connection: Connection) -> None:
    """The other side sends before it reads on: its message is taken meanwhile, and given out afterwards."""
    accepted, _ = listener.accept()
    accepted.settimeout(60)
    with accepted:
        accepted.sendall(framed(REJECTED))
        accepted.shutdown(socket.SHUT_WR)
        with pytest.raises(RuntimeLost):
            connection.send(Request(1, (StoreFragment("p", "a", bytes(4 << 20), 1),)))
        assert connection.receive() == REJECTED


def test_stale_is_known_without_sending(listener: socket.socket, connection: Connection) -> None:
    """Closed, or reset, while idle; a quiet connection is neither."""
    accepted, _ = listener.accept()
    assert not connection.is_stale()
    accepted.close()
    assert connection.is_stale()
    connection.close()
    assert connection.is_stale()
    assert connection.fileno() == -1


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 10.0])
def test_answer_is_found_whether_we_look_for_it_or_not(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Not looked for, looked for in vain, and found while looking: it is the same answer."""
    monkeypatch.setattr(limits, "SPIN_SECONDS", seconds)
    connection = Connection(dial(str(Path(listener.getsockname()))))
    accepted, _ = listener.accept()
    with accepted:
        for _ in range(3):
            accepted.sendall(framed(REJECTED))
            assert connection.receive() == REJECTED
    connection.close()


class Reader(threading.Thread):
    """Says a lot first, and reads only then."""

    def __init__(self, accepted: socket.socket, said: bytes, size: int) -> None:
        super().__init__()
        self._socket = accepted
        self._said = said
        self.received = bytearray(size)

    def run(self) -> None:
        self._socket.sendall(self._said)
        with memoryview(self.received) as received:
            at = 0
            while at < len(received):
                at += self._socket.recv_into(received[at:])


@pytest.mark.parametrize("count", [0, 20_000])
def test_body_goes_as_it_is_while_the_other_side_talks(
    listener: socket.socket, connection: Connection, count: int
) -> None:
    """The other side reads nothing until we have taken what it says: neither waits for ever, nothing is lost."""
    accepted, _ = listener.accept()
    accepted.settimeout(60)
    body = random.Random(1).randbytes(8 << 20)
    memory = mmap.mmap(-1, len(body))
    memory[:] = body
    reader = Reader(accepted, framed(REJECTED) * count, len(body))
    reader.start()
    tracemalloc.start()
    with memoryview(memory) as view:
        connection.send_body(view)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reader.join()
    memory.close()
    assert reader.received == body
    assert [connection.receive() for _ in range(count)] == [REJECTED] * count
    assert count or peak < 1 << 20, "the body was copied"
    accepted.close()


def test_body_and_messages_keep_their_order(listener: socket.socket, connection: Connection) -> None:
    """What is sent before a body is before it, and what is sent behind it is behind it; an empty one is nothing."""
    accepted, _ = listener.accept()
    with accepted:
        connection.send(AskStatus(1))
        connection.send_body(b"body")
        connection.send_body(b"")
        connection.send(AskStatus(2))
        assert accepted.recv(1 << 16) == frame(AskStatus(1)) + b"body" + frame(AskStatus(2))


def test_gone_while_a_body_is_on_its_way(listener: socket.socket, connection: Connection) -> None:
    """A body that did not arrive whole was not stored; nobody holds on to its memory; the reason can still be read."""
    accepted, _ = listener.accept()
    memory = mmap.mmap(-1, 4 << 20)
    with accepted:
        accepted.sendall(framed(REJECTED))
        accepted.shutdown(socket.SHUT_WR)
        with memoryview(memory) as view, pytest.raises(RuntimeLost, match="is gone") as caught:
            connection.send_body(view)
        memory.close()
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert connection.receive() == REJECTED


def test_body_is_bytes(connection: Connection) -> None:
    """A view of anything else would be counted wrongly."""
    with pytest.raises(AssertionError, match="in bytes"):
        connection.send_body(memoryview(array("i", [1, 2])))
