"""Peers of a loop on a data directory, which is turned by hand."""

from __future__ import annotations

from stepwell.domain.commands import AnyCommand
from stepwell.protocol.messages import VERSION, CommandResult, Hello, Request, Response, Welcome
from tests.support.manager.peers import answered
from tests.support.managers import Stage
from tests.support.peers import RawPeer, request_ids

HEADER_BYTES = 4


def greeted(stage: Stage, session_id: str) -> RawPeer:
    """A peer that was welcomed."""
    peer = RawPeer(stage.address)
    peer.send(Hello(VERSION, session_id, None))
    assert isinstance(answered(stage, peer), Welcome)
    return peer


def ask(stage: Stage, peer: RawPeer, *commands: AnyCommand, number: int | None = None, done: int = 0) -> Response:
    """Return the results of a request; all requests with a number below `done` are acknowledged."""
    peer.send(Request(next(request_ids) if number is None else number, commands, done))
    response = answered(stage, peer)
    assert isinstance(response, Response)
    return response


def reply_of(response: Response) -> CommandResult:
    """The one answer of a request that was not refused."""
    (answer,) = response.results
    assert isinstance(answer, CommandResult), answer
    return answer


def answer_bytes(stage: Stage, peer: RawPeer, message: Request) -> bytes:
    """What came back for a request, byte by byte; for one whose answer comes without a word before it."""
    peer.send(message)
    peer.socket.settimeout(0)
    found = b""
    for _ in range(1_000):
        try:
            found += peer.socket.recv(1 << 16)
        except BlockingIOError:
            stage.turn()
        if len(found) >= HEADER_BYTES and len(found) == HEADER_BYTES + int.from_bytes(found[:HEADER_BYTES]):
            return found
    raise AssertionError("no answer")
