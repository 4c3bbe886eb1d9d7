"""Peers of a loop that is turned by hand."""

import os
import random
import socket
import time
from collections.abc import Callable, Sequence

from stepwell.domain.commands import AnyCommand
from stepwell.domain.tiers.commands import GetFragment
from stepwell.domain.verdict import Origin
from stepwell.manager.connection import ClientConnection
from stepwell.memory.reader.mappings import content
from stepwell.protocol.messages import (
    VERSION,
    CommandResult,
    Hello,
    ManagerMessage,
    OfferUpload,
    Refusal,
    Request,
    Response,
    TransactionRequest,
    UploadGranted,
    Welcome,
)
from tests.support.managers import ENCODING, Stage
from tests.support.peers import RawPeer, request_ids

ORIGIN = Origin("test", time.time_ns() // 1_000_000)
"""Now: what is stored with it is not idle yet."""


class Clock:
    """A monotonic clock that stands still until it is put forward, however long a busy machine takes."""

    def __init__(self) -> None:
        self._now_s = time.monotonic()

    def monotonic(self) -> float:
        return self._now_s

    def forward(self, seconds: float) -> None:
        self._now_s += seconds


def answered(stage: Stage, peer: RawPeer) -> ManagerMessage | None:
    """The peer's next message, the loop turning meanwhile."""
    return _next(stage, peer.socket, peer.receive)


def told(stage: Stage, peer: RawPeer) -> ManagerMessage | None:
    """The same, whatever it is: also what the manager says between its answers."""
    return _next(stage, peer.socket, peer.receive_any)


def _next(
    stage: Stage, connection: socket.socket, receive: Callable[[], ManagerMessage | None]
) -> ManagerMessage | None:
    connection.settimeout(0)
    for _ in range(1_000):
        try:
            return receive()
        except BlockingIOError:
            stage.turn()
    raise AssertionError("no answer")


def joined(stage: Stage, session_id: str, projects: tuple[str, ...] | None = None) -> RawPeer:
    """A peer that was welcomed."""
    peer = RawPeer(stage.address)
    peer.send(Hello(VERSION, session_id, projects))
    welcome = answered(stage, peer)
    segments = (*stage.owner.bodies.arena.segments, *stage.owner.bodies.files.segments)
    revision, database = stage.requests.revision, stage.store.database
    generation = stage.loop._sessions._by_id[session_id].generation
    assert welcome == Welcome(
        VERSION, stage.store.epoch, revision, os.getpid(), ENCODING, segments, generation, database
    )
    return peer


def ask(stage: Stage, peer: RawPeer, *commands: AnyCommand) -> list[CommandResult | Refusal]:
    """The results of one request."""
    return results(stage, peer, Request(next(request_ids), commands))


def results(stage: Stage, peer: RawPeer, message: Request | TransactionRequest) -> list[CommandResult | Refusal]:
    """Return the results of a message."""
    peer.send(message)
    response = answered(stage, peer)
    assert isinstance(response, Response)
    return [*response.results]


def gone(peer: RawPeer) -> bool:
    """Return True if the manager has closed the connection without a message."""
    peer.socket.settimeout(0)
    try:
        return peer.receive() is None
    except BlockingIOError:
        return False


def pour(stage: Stage, peer: RawPeer, data: bytes) -> int:
    """Send bytes, the loop turning while the socket takes no more; how many turns that took."""
    peer.socket.settimeout(0)
    turns = sent = 0
    with memoryview(data) as rest:
        while sent < len(data):
            try:
                sent += peer.socket.send(rest[sent:])
            except BlockingIOError:
                stage.turn()
                turns += 1
    return turns


def granted(stage: Stage, peer: RawPeer, number: int, size: int) -> bool:
    """Offer a body; whether it may be sent."""
    peer.send(OfferUpload(number, size))
    answer = answered(stage, peer)
    assert isinstance(answer, UploadGranted)
    assert answer.number == number
    return answer.accepted


def upload(stage: Stage, peer: RawPeer, number: int, body: bytes) -> None:
    """Offer a body and send it. The manager may not have received all of it yet."""
    assert granted(stage, peer, number, len(body))
    pour(stage, peer, body)


def connection_of(stage: Stage, session_id: str) -> ClientConnection:
    """The manager's end of the newest connection of a session."""
    return [
        each for each in stage.loop._connections.values() if each.session and each.session.session_id == session_id
    ][-1]


def read(stage: Stage, fragment_id: str) -> bytes:
    """A body as it is in shared memory, or on disk."""
    answer = stage.owner.execute(GetFragment("p", fragment_id), ORIGIN)
    (handle,) = answer.handles.values()
    stored = stage.owner.bodies.segment(handle.segment).read(handle.offset, handle.stored)
    return bytes(content(memoryview(stored), handle))


def noise(size: int, seed: int = 0) -> bytes:
    """A body that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


def refusals(results: Sequence[CommandResult | Refusal]) -> list[str]:
    """Return for each result the kind of its refusal, or nothing."""
    return [each.kind if isinstance(each, Refusal) else "" for each in results]


def pins(stage: Stage) -> int:
    """Return the number of ranges of the arena that are being written."""
    return sum(segment.pins for segment in stage.owner.bodies.arena.segments.values())
