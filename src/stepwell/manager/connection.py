"""Guests: connected peers and what the loop knows of them."""

from __future__ import annotations

import select
from typing import Final

from stepwell.manager.sessions import SessionRecord
from stepwell.manager.uploads import Uploads
from stepwell.protocol.messages import AskView, OfferUpload
from stepwell.transport.address import Credentials
from stepwell.transport.peer import Peer

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT


class ClientConnection:
    """A connection, its session once it has said Hello, and what it is waiting for."""

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
        "peer",
        "session",
        "uploads",
    )

    def __init__(self, peer: Peer, who: Credentials, uploads: Uploads, now_s: float) -> None:
        self.peer = peer
        self.credentials = who
        self.uploads = uploads
        self.joined_at_s = now_s
        self.session: SessionRecord | None = None
        self.interest = READ
        self.is_watching = False  # it is told what happens, and asks nothing any more
        self.is_working = False  # it is given tasks
        self.is_following = False  # it is told what becomes of its session's tasks
        self.known: set[int] = set()  # segments whose descriptors this connection has carried
        self.deferred: OfferUpload | AskView | None = None  # cannot be answered yet; what comes behind it waits
        self.deferred_at_s = now_s
