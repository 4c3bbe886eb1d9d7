"""Bugs of the manager's loop and its connections: lost wake-ups, lost bytes, and wrong clocks."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from stepwell.clock import StateClock
from stepwell.manager.connection import ClientConnection
from stepwell.manager.large_requests import LargeRequests
from stepwell.manager.loop import Loop
from stepwell.manager.request_handler import LargeRequest
from stepwell.protocol.framing import HEADER, Framer
from stepwell.transport.peer import Peer
from tests.simulator.bugs.registry import bug, patched


@bug("A connection with unserved frames does not stay in the backlog.")
def backlog_entry_lost() -> AbstractContextManager[None]:
    serve = Loop._serve

    def serve_and_forget(self: Loop, connection: ClientConnection) -> None:
        serve(self, connection)
        self._backlog.pop(connection.peer.fileno(), None)

    return patched((Loop, "_serve", serve_and_forget))


@bug("A large request with commands left is not queued for its next slice.")
def large_request_not_resumed() -> AbstractContextManager[None]:
    advance = LargeRequests.advance

    def advance_once(self: LargeRequests, connection: ClientConnection, request: LargeRequest) -> bool:
        is_current = connection is self._current
        is_done = advance(self, connection, request)
        if is_current and not is_done:
            self._waiting.pop(connection.peer.fileno(), None)
        return is_done

    return patched((LargeRequests, "advance", advance_once))


@bug("The frames of a peer that did not read are not served when it has read.")
def full_peer_not_resumed() -> AbstractContextManager[None]:
    flush = Loop._flush

    def flush_only(self: Loop, connection: ClientConnection) -> None:
        fd, was_waiting = connection.peer.fileno(), connection.peer.fileno() in self._backlog
        flush(self, connection)
        if not was_waiting:
            self._backlog.pop(fd, None)

    return patched((Loop, "_flush", flush_only))


@bug("A partial send of the manager drops the rest of the outbox.")
def partial_send_drops_rest() -> AbstractContextManager[None]:
    flush = Peer.flush

    def flush_and_clear(self: Peer, now_s: float) -> None:
        before = len(self.outbox)
        flush(self, now_s)
        if not self._attached and len(self.outbox) < before:
            self.outbox.clear()

    return patched((Peer, "flush", flush_and_clear))


@bug("The framer loses the bytes of an incomplete header when more bytes arrive.")
def framer_loses_header() -> AbstractContextManager[None]:
    feed = Framer.feed

    def feed_anew(self: Framer, data: bytes | bytearray | memoryview) -> None:
        if 0 < self.pending < HEADER.size:
            self._skip_to(len(self.buffer))
        feed(self, data)

    return patched((Framer, "feed", feed_anew))


@bug("The clock of the state is that of the machine, and goes back with it.")
def clock_goes_back() -> AbstractContextManager[None]:
    return patched((StateClock, "now_ms", lambda _self: time.time_ns() // 1_000_000))


@bug("The clock of the state stands still while that of the machine is behind.")
def clock_stands_still() -> AbstractContextManager[None]:
    def now_ms(self: StateClock) -> int:
        self._anchor_ms = max(self._anchor_ms, time.time_ns() // 1_000_000)
        return self._anchor_ms

    return patched((StateClock, "now_ms", now_ms))


@bug("A restarted manager does not continue from the latest stored time.")
def clock_not_restored() -> AbstractContextManager[None]:
    start = StateClock.__init__

    def start_anew(self: StateClock, _latest_ms: int = 0) -> None:
        start(self, 0)

    return patched((StateClock, "__init__", start_anew))
