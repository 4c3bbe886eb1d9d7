"""Deferred requests: those that are not answered in the turn in which they arrive.

An upload may have to wait until room is made in shared memory, a view until the catalogue of a project is listed. The
connection is then suspended: the loop tries the request again in each turn, and requests behind it wait. Other
connections are not affected. A request that waits for longer than `limits.GRANT_SECONDS_MAX` is refused with `Busy`.
A large request suspends its connection in the same way while it is executed in slices; when, is decided by
`large_requests`.
"""

from __future__ import annotations

from typing import assert_never

from stepwell import limits
from stepwell.manager.connection import ClientConnection
from stepwell.manager.large_requests import LargeRequests
from stepwell.manager.request_handler import LargeRequest, RequestHandler
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.protocol.messages import AskView, OfferUpload, Response, UploadGranted, ViewOpened


class DeferredRequests:
    """The connections with a deferred request, by descriptor. The loop owns it and resumes each of them once a turn."""

    def __init__(self, requests: RequestHandler, large: LargeRequests, sharing: SegmentSharing, epoch: str) -> None:
        self._large = large
        self._requests = requests
        self._sharing = sharing
        self._epoch = epoch
        self.connections: dict[int, ClientConnection] = {}

    def resume(
        self, connection: ClientConnection, deferred: OfferUpload | AskView | LargeRequest, now_s: float
    ) -> bool:
        """Try to answer the deferred request of a connection. Return True if the connection may continue.

        A connection is in the table from its first attempt to its answer. While the table is not empty, the loop does
        background work before every turn, because room has to be made for the connections in it.
        """
        fd = connection.peer.fileno()
        is_overdue = now_s - connection.deferred_at_s > limits.GRANT_SECONDS_MAX
        match deferred:
            case LargeRequest():  # it needs no room, and so is not in the table
                is_done = self._large.advance(connection, deferred)
            case OfferUpload():
                self.connections[fd] = connection
                is_done = self._grant(connection, deferred, now_s, is_overdue=is_overdue)
            case AskView():
                self.connections[fd] = connection
                is_done = self._open_view(connection, deferred, now_s, is_overdue=is_overdue)
            case _:
                assert_never(deferred)
        if is_done:
            # The peer waited for the manager, so its time to read the answer and to go on sending begins now.
            connection.peer.restart_clocks(now_s)
            connection.deferred = None
            self.connections.pop(fd, None)
        return is_done

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(connection.peer.fileno(), None)
        self._large.remove(connection)

    def _grant(self, connection: ClientConnection, offer: OfferUpload, now_s: float, *, is_overdue: bool) -> bool:
        """Answer an offered upload. A granted one makes the peer receive the plain bytes next."""
        assert connection.session is not None
        origin = self._requests.origin(connection.session)
        accepted = connection.uploads.grant(offer, origin, now_s, is_overdue=is_overdue)
        if accepted is None:
            return False
        connection.peer.send(UploadGranted(offer.number, accepted))
        if accepted:
            connection.peer.begin_upload(connection.uploads, now_s)
        return True

    def _open_view(self, connection: ClientConnection, question: AskView, now_s: float, *, is_overdue: bool) -> bool:
        """Answer a request for a view. The descriptors of its segments go first."""
        assert connection.session is not None
        opened: ViewOpened | Response | None
        if is_overdue:
            opened = self._requests.view_timeout(question)
        else:
            opened = self._requests.open_view(question, connection.session, self._epoch, now_s)
        if opened is None:
            return False
        if isinstance(opened, ViewOpened):
            self._sharing.share_view(connection, opened)
        self._sharing.send_retired(connection)
        connection.peer.send(opened)
        return True
