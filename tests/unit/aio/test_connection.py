"""A connection that an event loop drives, and a peer that reads, answers and hangs up when a test tells it to."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.aio.connection import AsyncConnection, answer_or_raise
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import (
    AskStatus,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
    SegmentInfo,
    SegmentsAdded,
    WatchLagged,
)
from stepwell.transport.address import dial, listen, private_directory
from stepwell.transport.frame_socket import FrameSocket
from tests.support.event_loops import run, ticks, until

FULL = bytes(8 * limits.MIB)
"""More than any socket takes."""


class Peer:
    """The other end, of which nothing goes by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def say(self, *messages: ManagerMessage) -> None:
        out = bytearray()
        for message in messages:
            encode_frame(message, out)
        self.socket.sendall(out)

    def read_all(self) -> int:
        """Read what is there, up to the end if that has come, and return the number of bytes."""
        received = 0
        self.socket.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while part := self.socket.recv(1 << 20):
                received += len(part)
        return received

    def read(self, at_least: int) -> None:
        """So many bytes, or whatever is there."""
        self.socket.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while at_least > 0:
                at_least -= len(self.socket.recv(1 << 20))


@contextmanager
def linked() -> Iterator[tuple[AsyncConnection, Peer]]:
    """A link of the running loop, and its peer."""
    directory = private_directory()
    address = directory / "s"
    try:
        with listen(str(address)) as listener:
            link = AsyncConnection(dial(str(address), 0.0), ignore, asyncio.get_running_loop())
            connection, _ = listener.accept()
        with connection:
            yield link, Peer(connection)
        link.terminate()
    finally:
        address.unlink()
        directory.rmdir()


def ignore(_: FrameSocket, __: object) -> None: ...


def test_answers_go_to_those_who_asked() -> None:
    """In their order, and past those who do not wait any more."""

    async def main() -> None:
        with linked() as (link, peer):
            coming = [link.send_request(AskStatus(number)) for number in range(3)]
            coming[1].cancel()
            peer.say(*(Response(number, ()) for number in range(3)))
            assert answer_or_raise(await coming[0]) == Response(0, ())
            assert answer_or_raise(await coming[2]) == Response(2, ())

    run(main())


def test_what_was_sent_may_have_happened() -> None:
    """What was not sent entirely cannot have."""

    async def main() -> None:
        with linked() as (link, peer):
            sent = link.send_request(AskStatus(1))
            link._unsent += FULL
            half_sent = link.send_request(AskStatus(2))
            await until(lambda: link._sent > 100)
            peer.socket.close()
            with pytest.raises(sw.OutcomeUnknown):
                answer_or_raise(await sent)
            with pytest.raises(sw.RuntimeLost, match="not all of the request went"):
                answer_or_raise(await half_sent)
            with pytest.raises(sw.RuntimeLost):
                await link.send_request(AskStatus(3))

    run(main())


def test_connection_that_has_ended_sends_nothing_more() -> None:
    """Not even if its socket accepts more bytes in the moment in which it ends: a `RuntimeLost` would be wrong."""

    async def main() -> None:
        with linked() as (link, peer):
            link._unsent += FULL
            half_sent = link.send_request(AskStatus(1))
            assert peer.read_all() == link._sent > 0
            peer.socket.shutdown(socket.SHUT_WR)
            with pytest.raises(sw.RuntimeLost, match="not all of the request went"):
                answer_or_raise(await half_sent)
            await ticks(5)
            assert peer.read_all() == 0

    run(main())


def test_last_word() -> None:
    """Why we were turned away is heard, even if it is writing that fails."""

    async def main() -> None:
        for is_said in (True, False):
            with linked() as (link, peer):
                loop = asyncio.get_running_loop()
                loop.remove_reader(link._socket)
                asked = link.send_request(AskStatus(1))
                if is_said:
                    peer.say(Rejected(Refusal(0, "Busy", "later")))
                peer.socket.shutdown(socket.SHUT_RD)
                other = link.send_request(AskStatus(2))
                first = await asked
                assert isinstance(first, Rejected) if is_said else isinstance(first, sw.OutcomeUnknown)
                assert isinstance(await other, sw.RuntimeLost)

    run(main())


def test_peer_that_does_not_read() -> None:
    """Whoever wants to send more waits until it does, or is gone."""

    async def main() -> None:
        with linked() as (link, peer):
            link._unsent += FULL
            link.send(AskStatus(0))
            waiting = asyncio.create_task(link.wait_for_room())
            drained = asyncio.create_task(link.wait_until_sent())
            await ticks(5)
            assert not waiting.done()
            while not waiting.done():
                peer.read(len(FULL))
                await ticks(1)
            while not drained.done():
                peer.read(len(FULL))
                await ticks(1)
            assert not link._unsent
            assert not link._is_writing
            link._unsent += FULL
            waiting = asyncio.create_task(link.wait_for_room())
            await ticks(3)
            peer.socket.close()
            with pytest.raises(sw.RuntimeLost):
                await waiting

    run(main())


def test_body() -> None:
    """Goes as it is, behind what was said before; whoever is cancelled in the middle has no use for the rest."""

    async def main() -> None:
        with linked() as (link, peer):
            sending = asyncio.create_task(link.send_body(FULL))
            while not sending.done():
                peer.read(len(FULL))
                await ticks(1)
            sending = asyncio.create_task(link.send_body(FULL))
            await ticks(20)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()

    run(main())


def test_body_that_is_not_wanted_any_more() -> None:
    """What the peer said before it hung up is raised; if it said nothing, it is gone."""

    async def main() -> None:
        for word, kind in ((Rejected(Refusal(0, "ProtocolError", "enough")), sw.ProtocolError), (None, sw.RuntimeLost)):
            with linked() as (link, peer):
                sending = asyncio.create_task(link.send_body(FULL))
                await ticks(20)
                if word is not None:
                    peer.say(word)
                peer.socket.close()
                with pytest.raises(kind):
                    await sending
        with linked() as (link, peer):
            asyncio.get_running_loop().remove_reader(link._socket)
            peer.socket.shutdown(socket.SHUT_RD)
            with pytest.raises(sw.RuntimeLost):
                await link.send_body(FULL)

    run(main())


def test_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, to everybody who waits."""

    def short(_: FrameSocket) -> int:
        raise sw.OutcomeUnknown("no descriptors left", shortage="descriptors")

    async def main() -> None:
        with linked() as (link, peer):
            coming = [link.send_request(AskStatus(number)) for number in range(2)]
            monkeypatch.setattr(FrameSocket, "_receive_some", short)
            peer.say(SegmentsAdded((SegmentInfo(1, 1),)))
            errors = [await each for each in coming]
            assert all(isinstance(error, sw.OutcomeUnknown) and "shortage" in error.details for error in errors)
            assert errors[0] is not errors[1]

    run(main())


def test_told_unasked() -> None:
    """Where that is wanted, it waits for whoever takes it; where the end comes first, that is told last."""

    async def main() -> None:
        with linked() as (link, peer):
            link.accept_pushed()
            peer.say(WatchLagged(1), WatchLagged(2))
            assert await link.receive_pushed() == WatchLagged(1)
            peer.socket.close()
            await until(lambda: link.error)
            assert await link.receive_pushed() == WatchLagged(2)
            with pytest.raises(sw.OutcomeUnknown):
                await link.receive_pushed()
            link.terminate()

    run(main())


def test_connection_that_was_reset() -> None:
    """A socket that raises is one that is over."""

    async def main() -> None:
        with linked() as (link, peer):
            asked = link.send_request(AskStatus(1))
            peer.socket.shutdown(socket.SHUT_WR)  # and what is unread makes it a reset
            peer.socket.close()
            assert isinstance(await asked, sw.OutcomeUnknown)

    run(main())


def test_path_is_given_back(tmp_path: Path) -> None:
    """A dial that fails leaves no descriptor: the next test would see it."""

    async def main() -> None:
        with pytest.raises(sw.RuntimeLost):
            AsyncConnection(dial(str(tmp_path / "nobody"), 0.0), ignore, asyncio.get_running_loop())

    run(main())
