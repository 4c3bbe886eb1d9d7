"""Parking: requests that cannot be answered yet, because room is being made or a catalogue listed.

Whoever sent one waits, and what they send behind it; nobody else does.
"""

from __future__ import annotations

from typing import assert_never

from stepwell import limits
from stepwell.manager.connection import ClientConnection
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.protocol.messages import AskView, OfferUpload, Response, UploadGranted, ViewOpened


class DeferredRequests:
    """The connections that wait, by their descriptor."""

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, epoch: str) -> None:
        self._requests = requests
        self._sharing = sharing
        self._epoch = epoch
        self.connections: dict[int, ClientConnection] = {}

    def resume(self, connection: ClientConnection, deferred: OfferUpload | AskView, now_s: float) -> bool:
        """Answer what could not be answered before, if it can be now; whether the connection may go on."""
        fd = connection.peer.fileno()
        self.connections[fd] = connection
        is_overdue = now_s - connection.deferred_at_s > limits.GRANT_SECONDS_MAX
        match deferred:
            case OfferUpload():
                is_done = self._grant(connection, deferred, now_s, is_overdue=is_overdue)
            case AskView():
                is_done = self._open_view(connection, deferred, now_s, is_overdue=is_overdue)
            case _:
                assert_never(deferred)
        if is_done:
            connection.peer.progressed_at_s = now_s  # it waited for us: its time to read the answer begins now
            connection.deferred = None
            del self.connections[fd]
        return is_done

    def remove(self, fd: int) -> None:
        """A connection is gone."""
        self.connections.pop(fd, None)

    def _grant(self, connection: ClientConnection, offer: OfferUpload, now_s: float, *, is_overdue: bool) -> bool:
        assert connection.session is not None
        origin = self._requests.origin(connection.session)
        accepted = connection.uploads.grant(offer, origin, now_s, is_overdue=is_overdue)
        if accepted is None:
            return False
        connection.peer.send(UploadGranted(offer.number, accepted))
        if accepted:
            connection.peer.expect(connection.uploads, now_s)
        return True

    def _open_view(self, connection: ClientConnection, question: AskView, now_s: float, *, is_overdue: bool) -> bool:
        assert connection.session is not None
        opened: ViewOpened | Response | None
        if is_overdue:
            opened = self._requests.too_late(question)
        else:
            opened = self._requests.open_view(question, connection.session, self._epoch, now_s)
        if opened is None:
            return False
        if isinstance(opened, ViewOpened):
            self._sharing.share_view(connection, opened)
        self._sharing.send_retired(connection)
        connection.peer.send(opened)
        return True
