"""The client's end of a connection: what was sent, what was answered, and what is not known."""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.domain.commands.tiers import StoreFragment
from stepwell.errors import Busy, OutcomeUnknown, RuntimeLost
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import AskStatus, Refusal, Rejected, Request
from stepwell.transport.address import listen, private_directory
from stepwell.transport.connection import Connection

REJECTED = Rejected(Refusal.of(Busy("full"), 0))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    directory = private_directory()
    with listen(str(directory / "s")) as listening:
        listening.settimeout(10)
        yield listening
    (directory / "s").unlink()
    directory.rmdir()


@pytest.fixture
def connection(listener: socket.socket) -> Iterator[Connection]:
    made = Connection(str(Path(listener.getsockname())))
    yield made
    made.close()


def framed(message: Rejected) -> bytes:
    out = bytearray()
    encode_frame(message, out)
    return bytes(out)


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


def test_kernel_without_memory_is_runtime_lost(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, and nothing can be on its way back: there is nothing to wait for."""

    def refuse() -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(connection, "_send_all", refuse)
    with pytest.raises(RuntimeLost, match="No buffer space"):
        connection.exchange(AskStatus(1))


def test_what_comes_while_sending_is_kept(listener: socket.socket, connection: Connection) -> None:
    """The other side sends before it reads on: its message is taken meanwhile, and given out afterwards."""
    accepted, _ = listener.accept()
    accepted.settimeout(10)
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
