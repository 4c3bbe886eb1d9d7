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
    """The guests that wait, by their descriptor."""

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, epoch: str) -> None:
        self._requests = requests
        self._sharing = sharing
        self._epoch = epoch
        self.guests: dict[int, ClientConnection] = {}

    def resume(self, guest: ClientConnection, parked: OfferUpload | AskView, now_s: float) -> bool:
        """Answer what could not be answered before, if it can be now; whether the guest may go on."""
        fd = guest.peer.fileno()
        self.guests[fd] = guest
        is_overdue = now_s - guest.parked_at_s > limits.GRANT_SECONDS_MAX
        match parked:
            case OfferUpload():
                is_done = self._grant(guest, parked, now_s, is_overdue=is_overdue)
            case AskView():
                is_done = self._open_view(guest, parked, now_s, is_overdue=is_overdue)
            case _:
                assert_never(parked)
        if is_done:
            guest.peer.progressed_at_s = now_s  # it waited for us: its time to read the answer begins now
            guest.parked = None
            del self.guests[fd]
        return is_done

    def leave(self, fd: int) -> None:
        """A guest is gone."""
        self.guests.pop(fd, None)

    def _grant(self, guest: ClientConnection, offer: OfferUpload, now_s: float, *, is_overdue: bool) -> bool:
        assert guest.session is not None
        origin = self._requests.origin(guest.session)
        accepted = guest.uploads.grant(offer, origin, now_s, is_overdue=is_overdue)
        if accepted is None:
            return False
        guest.peer.send(UploadGranted(offer.number, accepted))
        if accepted:
            guest.peer.begin_upload(guest.uploads, now_s)
        return True

    def _open_view(self, guest: ClientConnection, question: AskView, now_s: float, *, is_overdue: bool) -> bool:
        assert guest.session is not None
        opened: ViewOpened | Response | None
        if is_overdue:
            opened = self._requests.too_late(question)
        else:
            opened = self._requests.open_view(question, guest.session, self._epoch, now_s)
        if opened is None:
            return False
        if isinstance(opened, ViewOpened):
            self._sharing.share_view(guest, opened)
        self._sharing.notify(guest)
        guest.peer.send(opened)
        return True
