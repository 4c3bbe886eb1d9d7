"""The manager's record of one client connection.

`transport.peer.Peer` has the bytes: framing, outbox, descriptors. `ClientConnection` adds what the loop and its helpers
know about the connection: its session, its uploads, the segments that it has received and the request that it waits
for. The classes that serve a kind of connection (`Watchers`, `TaskDispatcher`, `DeferredRequests`) keep tables of
these.
"""

from __future__ import annotations

import select
from typing import Final

from stepwell import limits
from stepwell.manager.request_handler import LargeRequest
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.uploads import Uploads
from stepwell.protocol.messages import AskView, OfferUpload
from stepwell.transport.address import Credentials
from stepwell.transport.peer import Peer

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
HANGUP: Final = select.EPOLLHUP | select.EPOLLERR


class ClientConnection:
    """One accepted connection, from `accept` to its end.

    The loop creates and removes it; only the loop's thread uses it. `session` is None until the handshake: a connection
    without a session may send nothing but Hello.

    The flags `is_watching`, `is_working` and `is_following` are three flags and not one role, because the protocol lets
    a connection be a worker and a follower at once. A watching connection may send no further request.

    `known` holds the segments whose descriptors this connection has received: the manager sends each descriptor once
    per connection, because a client that reconnects may have lost frames that were in flight.

    `number` is the place of the connection in the order of acceptance: the connection of a session with the greatest
    number is the one that its client uses now.

    `deferred` is a request that cannot be answered yet, or is executed in slices. The requests behind it stay unread
    until it is answered.
    """

    __slots__ = (
        "credentials",
        "deferred",
        "deferred_at_s",
        "interest",
        "is_following",
        "is_watching",
        "is_working",
        "joined_at_s",
        "known",
        "number",
        "peer",
        "session",
        "uploads",
    )

    def __init__(self, number: int, peer: Peer, credentials: Credentials, uploads: Uploads, now_s: float) -> None:
        self.number = number
        self.peer = peer
        self.credentials = credentials
        self.uploads = uploads
        self.joined_at_s = now_s
        self.session: SessionRecord | None = None
        self.interest = READ
        self.is_watching = False  # receives events
        self.is_working = False  # receives tasks
        self.is_following = False  # receives the outcomes of its session's tasks
        self.known: set[int] = set()
        self.deferred: OfferUpload | AskView | LargeRequest | None = None
        self.deferred_at_s = now_s

    def is_overdue(self, now_s: float) -> bool:
        """Return True if the manager evicts this connection: it keeps the manager waiting for too long.

        It has not said Hello in time, has left uploads unused, or stalls: it does not read its replies or does not
        finish what it began to send. A stalled worker is left alone, because its task has a deadline of its own.
        """
        if self.session is None and now_s - self.joined_at_s > limits.HELLO_SECONDS_MAX:
            return True
        return (self.peer.is_stalled(now_s) and not self.is_working) or self.uploads.is_expired(now_s)
